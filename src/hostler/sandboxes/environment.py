"""The environment of what runs in a sandbox: an allow-list of the host's, never a copy of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

# What a program needs of the host's environment. No name here ever holds a key.
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PASSED = frozenset({"LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "SHELL", *CERTIFICATES})
_OURS = frozenset({"HOME", "TMPDIR"})
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy"})
_LOOPBACK = ("127.0.0.1", "localhost")


def base(env: Mapping[str, str], inherit: frozenset[str], *, home: str, tmp: str) -> dict[str, str]:
    """The allow-list, the host's variables named in ``inherit``, and on top ``env``."""
    host = os.environ
    out = {name: host[name] for name in host if name in _PASSED or name.startswith("LC_") or name in inherit}
    return direct({**out, "TERM": "dumb", "PATH": path(), **env, "HOME": home, "TMPDIR": tmp})


def direct(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` in which no proxy is asked for what is on the loopback: the model's address is."""
    out = dict(env)
    if any(name.lower() in _PROXIES for name in out):
        direct = [*out.get("NO_PROXY", "").split(","), *out.get("no_proxy", "").split(","), *_LOOPBACK]
        out["NO_PROXY"] = out["no_proxy"] = ",".join(dict.fromkeys(filter(None, direct)))
    return out


def path() -> str:
    """The host's PATH without entries that depend on the current directory."""
    entries = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if os.path.isabs(entry)) or _DEFAULT_PATH


def which(name: str, env: Mapping[str, str]) -> str | None:
    """The path of a program on the PATH of ``env``, else of the host. A path is taken only when it is absolute."""
    if os.path.dirname(name) and not os.path.isabs(name):
        return None
    return shutil.which(name, path=env.get("PATH") or path())


def checked(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` if an environment can hold it. Raises TypeError or ValueError naming what it cannot."""
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"sandbox env must map strings to strings; {name!r} does not.")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"sandbox env holds {name!r}, which no environment can hold.")
        if name in _OURS:
            raise ValueError(f"sandbox env may not set {name}: it is private to the session.")
    return dict(env)


def names(inherit: Sequence[str]) -> frozenset[str]:
    """The names of variables to pass on. Raises TypeError for a mere string."""
    if isinstance(inherit, str):
        raise TypeError(f"inherit takes a list of variable names, not a string: inherit=[{inherit!r}].")
    return frozenset(inherit)

"""The test images, made of what is installed on this machine: no registry is asked for anything.

`BARE` has a shell and no agent program. `PLAIN` has the real programs and no Python. `AGENTS` has Python too, and the fake
program at `FAKE_PROGRAM`; `USER` is the same and runs as user 1000. The others run as root, as images do.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hostler import Harness
from hostler.runtimes import runtime_for
from hostler.testing import fake_program

REPOSITORY = "localhost/hostler-test"  # with a host name, or Podman would look for it in the registries that it knows
BARE, PLAIN, AGENTS, USER = (f"{REPOSITORY}:{tag}" for tag in ("bare", "plain", "agents", "user"))
FAKE_PROGRAM = "/usr/local/lib/hostler/fake_program.py"
UID = 1000  # of the user "agent" in all of them

_INSTALLED = Path(__file__).resolve().parents[2] / ".programs" / "node_modules" / ".bin"
_LABEL = "hostler.test.recipe"
_SYSTEM = (
    "bash",
    "dash",
    "coreutils",
    "findutils",
    "grep",
    "sed",
    "mawk",
    "tar",
    "gzip",
    "procps",
    "base-files",
    "libc-bin",
)
_PYTHON = ("python3-minimal", "libpython3-stdlib")
_PROGRAMS = {"claude": Harness.CLAUDE_CODE, "codex": Harness.CODEX, "opencode": Harness.OPENCODE}
_UNUSED = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/", "/usr/share/lintian/")
_FOLDERS = {"tmp": 0o1777, "proc": 0o755, "sys": 0o755, "dev": 0o755, "run": 0o755, "root": 0o700, "var/tmp": 0o1777}
_FILES = {
    "etc/passwd": f"root:x:0:0:root:/root:/bin/bash\nagent:x:{UID}:{UID}::/home/agent:/bin/bash\n",
    "etc/group": f"root:x:0:\nagent:x:{UID}:\n",
    "etc/hostname": "image\n",
}
_BASE = [f"ENV PATH={':'.join(('/usr/local/bin', '/usr/bin', '/bin'))}", 'CMD ["sleep", "infinity"]']


def build(client: Any) -> None:
    """Make the images in this engine that are missing or were made of other files. ``client`` is a docker.DockerClient."""
    if all(is_current(client, image) for image in (BARE, PLAIN, AGENTS, USER)):
        return
    programs = {f"usr/local/bin/{name}": path for name, path in _programs().items()}
    _import(client, BARE, {})
    _import(client, PLAIN, programs)
    _commit(client, PLAIN, AGENTS, [], _python())
    _commit(client, AGENTS, USER, [f"USER {UID}:{UID}"])
    client.images.prune()  # what had these names before


def is_current(client: Any, image: str) -> bool:
    """Whether this engine has the image as it would be made now."""
    return any((known.labels or {}).get(_LABEL) == recipe() for known in client.images.list(name=image))


def recipe() -> str:
    """What the images are made of, as one word."""
    parts = [Path(__file__).read_bytes(), Path(fake_program.__file__).read_bytes()]
    parts += [f"{name} {os.stat(path).st_size}".encode() for name, path in _programs().items()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _programs() -> dict[str, str]:
    path = f"{_INSTALLED}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {
        name: runtime_for(harness).find({}, lambda name: shutil.which(name, path=path))[0]
        for name, harness in _PROGRAMS.items()
    }


# ---- engines ----------------------------------------------------------------------------------------------------------


def _import(client: Any, image: str, programs: dict[str, str]) -> None:
    changes = [*_BASE, f"LABEL {_LABEL}={recipe()}"]
    with _streamed(lambda tar: (_system(tar), _add(tar, programs))) as stream:
        # Podman does not take the tag as an argument of its own.
        said = client.api.import_image_from_stream(stream, repository=image, changes=changes)
    if '"error"' in said:
        raise RuntimeError(f"{image} cannot be imported: {said}")


def _commit(client: Any, base: str, image: str, changes: list[str], content: bytes = b"") -> None:
    container = client.containers.create(base)
    try:
        if content:
            container.put_archive("/", content)
        repository, _, tag = image.rpartition(":")
        container.commit(repository=repository, tag=tag, changes=[*_BASE, *changes, f"LABEL {_LABEL}={recipe()}"])
    finally:
        container.remove(force=True)


class _streamed:
    """A tar that is read while it is written: the programs are large."""

    def __init__(self, fill: Callable[[tarfile.TarFile], Any]) -> None:
        reader, writer = os.pipe()
        self._reader: BinaryIO = os.fdopen(reader, "rb")
        self._thread = threading.Thread(target=self._write, args=(fill, os.fdopen(writer, "wb", buffering=1 << 20)))

    def __enter__(self) -> Iterator[bytes]:
        self._thread.start()
        return iter(lambda: self._reader.read(1 << 20), b"")

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._thread.join()

    def _write(self, fill: Callable[[tarfile.TarFile], Any], out: BinaryIO) -> None:
        try:
            with out, tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                fill(tar)
        except BrokenPipeError:
            pass  # the engine has said why it reads no more


# ---- contents ---------------------------------------------------------------------------------------------------------


def _system(tar: tarfile.TarFile) -> None:
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            _link(tar, name, os.readlink(f"/{name}"))
    for name, mode in _FOLDERS.items():
        _folder(tar, name, mode)
    _folder(tar, "home/agent", 0o755, UID)
    for name, text in _FILES.items():
        _file(tar, name, text.encode())
    _add(tar, _packaged(_SYSTEM))
    _link(tar, "usr/bin/awk", "mawk")


def _python() -> bytes:
    out, there = io.BytesIO(), _packaged(_SYSTEM)
    with tarfile.open(fileobj=out, mode="w") as tar:
        _add(tar, {name: path for name, path in _packaged(_PYTHON).items() if name not in there})
        _file(tar, FAKE_PROGRAM.lstrip("/"), Path(fake_program.__file__).read_bytes())
    return out.getvalue()


def _packaged(packages: tuple[str, ...]) -> dict[str, str]:
    """What the packages and those that they need have installed, by name in the image."""
    found: dict[str, str] = {}
    listed = _dpkg("--listfiles", *sorted(_needed(packages)))
    for path in listed.splitlines():
        if not path.startswith("/") or path.startswith(_UNUSED) or not os.path.lexists(path):
            continue
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if os.path.islink(real) or os.path.isfile(real):
            found[real.lstrip("/")] = real
    return found


def _needed(packages: tuple[str, ...]) -> set[str]:
    needed: set[str] = set()
    wanted = list(packages)
    while wanted:
        package = wanted.pop()
        if package in needed:
            continue
        said = _dpkg_query(package)
        if said is None:
            continue  # an alternative that is not installed, or a name that others provide
        needed.add(package)
        wanted += [re.split(r"[ :(]", part.strip())[0] for part in re.split(r"[,|]", said) if part.strip()]
    return needed


def _dpkg_query(package: str) -> str | None:
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}\t${Depends},${Pre-Depends}\n", package],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    status, _, needs = (done.stdout.splitlines() or [""])[0].partition("\t")
    return needs if done.returncode == 0 and status.startswith("ii") else None


def _dpkg(*arguments: str) -> str:
    return subprocess.run(["dpkg", *arguments], capture_output=True, text=True, timeout=60, check=True).stdout


def _add(tar: tarfile.TarFile, files: dict[str, str]) -> None:
    there = set(tar.getnames())
    for name, path in files.items():
        if name in there:
            continue
        info = tar.gettarinfo(os.path.realpath(path) if name.startswith("usr/local/") else path, arcname=name)
        if info.islnk():
            info.type, info.size = tarfile.REGTYPE, os.stat(path).st_size
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if info.isreg():
            with open(path, "rb") as content:
                tar.addfile(info, content)
        else:
            tar.addfile(info)


def _folder(tar: tarfile.TarFile, name: str, mode: int, uid: int = 0) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, mode, uid, uid
    tar.addfile(info)


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    tar.addfile(info)


def _file(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    tar.addfile(info, io.BytesIO(content))

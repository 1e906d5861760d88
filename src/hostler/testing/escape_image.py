"""An image without anything in it, and what of this machine makes an agent run in a container of it: no registry is asked."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tarfile
from collections.abc import Iterator
from typing import Any

from ..sandboxes.docker.daemon import address, connected
from ..types.errors import SandboxError
from . import fake_program

_IMAGE = "localhost/hostler-selftest:latest"  # with a host name, or Podman would look for it in registries
_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SHOWN = ("/usr", "/etc/alternatives", "/etc/ld.so.cache")

Made = tuple[str, str, dict[str, tuple[str, str]]]


@contextlib.contextmanager
def made() -> Iterator[Made | None]:
    """Name of the engine, image, and mounts; None where no engine answers. The image is removed in the end."""
    try:
        socket = address()
        with connected(socket) as daemon:
            said = daemon.client.api.import_image_from_data(_tar(), repository=_IMAGE)
            if "error" in said:
                raise SandboxError(f"{_IMAGE} cannot be imported: {said}")
            name = "podman" if daemon.podman else "docker"
    except SandboxError:
        yield None
        return
    try:
        yield name, _IMAGE, _mounts()
    finally:
        with connected(socket) as daemon:
            daemon.client.api.remove_image(_IMAGE, force=True)


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("etc", "proc", "sys", "dev", "run", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for path in filter(os.path.islink, _FOLDERS):
            link = tarfile.TarInfo(path.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, os.readlink(path)
            tar.addfile(link)
    return out.getvalue()


def _mounts() -> dict[str, Any]:
    """The system's folders, and the interpreter that the fake agent takes, by their own names."""
    own = (sys.base_prefix, sys.prefix, os.path.dirname(os.path.realpath(sys.executable)), fake_program.__file__)
    paths = [path for path in (*_SHOWN, *_FOLDERS) if os.path.exists(path) and not os.path.islink(path)]
    paths += [path for path in dict.fromkeys(own) if not path.startswith(("/usr/", "/bin/"))]
    return {path: (path, "ro") for path in paths}

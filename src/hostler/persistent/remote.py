"""Persistent dirs on object stores and whatever else fsspec reaches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from ..types.errors import CapabilityUnsupported, PersistenceConflict, PersistenceError
from .dirs import Commit, Files, Merge, PersistContext, PersistentDir, virtual_path

_PARALLEL = 8
_ONE_PUT = 100 * 2**20  # bytes; larger objects go up in parts, which takes no condition
_UNMET = ("PreconditionFailed", "ConditionalRequestConflict", "412")
_STAMPS = ("ETag", "etag", "md5Hash", "generation", "mtime", "created", "LastModified", "last_modified", "updated")


def fsspec_dir(
    url: str,
    *,
    at: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    commit: Commit = "after-turn",
    merge: Merge = "fail",
    timeout: float = 60.0,
) -> PersistentDir:
    """A persistent dir at a URL that fsspec knows: ``s3://bucket/notes``, ``gs://...``, ``memory://notes``, ... Needs the
    ``fsspec`` extra, and the package of that file system.

    ``storage_options`` go to the file system; they may hold keys, so they are not stored, and the dir has to be given
    again when a session is resumed. On S3 each file is stored on the condition that nobody else has; elsewhere that is
    looked at just before. Stores do not keep whether a file is executable. The other options are those of `local_dir`.
    """
    try:
        import fsspec  # noqa: F401
    except ImportError:
        raise CapabilityUnsupported("fsspec_dir needs fsspec: pip install 'hostler[fsspec]'.") from None
    options = dict(storage_options or {})
    path = virtual_path(at if at is not None else url.rstrip("/").rsplit("/", 1)[-1])
    open_ = lru_cache(1)(lambda: _open(url, options))  # when it is first used: it may look for credentials
    secret = bool(options) or "@" in urlsplit(url).netloc
    spec = None if secret else {"kind": "fsspec", "url": url}
    return PersistentDir(path, _files(open_, _lock(url)), commit, merge, timeout, spec)


def _open(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    import fsspec

    fs, root = fsspec.core.url_to_fs(url, **options)
    return fs, str(root).rstrip("/")


def _files(open_: Callable[[], tuple[Any, str]], mutex: threading.Lock) -> Files:
    def list(ctx: PersistContext) -> dict[str, str | None]:
        fs, root = open_()
        fs.invalidate_cache()
        try:
            found = fs.find(root, detail=True)
        except FileNotFoundError:
            return {}
        return {
            name[len(root) + 1 :]: _version(info)
            for name, info in found.items()
            if info.get("type") == "file" and name.startswith(root + "/") and not name.endswith("/")
        }

    def versions(ctx: PersistContext, paths: Iterable[str]) -> dict[str, str | None]:
        fs, root = open_()
        found = ((path, _info(fs, f"{root}/{path}")) for path in paths)
        return {path: _version(info) for path, info in found if info is not None}

    def read(ctx: PersistContext, path: str) -> bytes:
        fs, root = open_()
        return bytes(fs.cat_file(f"{root}/{path}"))

    def write(ctx: PersistContext, path: str, content: bytes, version: str | None) -> str | None:
        fs, root = open_()
        name = f"{root}/{path}"
        info = _info(fs, name)
        if (None if info is None else _version(info)) != version:
            raise PersistenceConflict(f"{path!r} was changed by somebody else.")
        if "s3" not in _protocols(fs) or len(content) >= _ONE_PUT:
            fs.makedirs(name.rsplit("/", 1)[0], exist_ok=True)
            fs.pipe_file(name, bytes(content))
            return None  # whose version is there now cannot be told: it is read again when it is listed next
        condition = {"mode": "create"} if info is None else {"IfMatch": info["ETag"]}
        try:
            put = fs.pipe_file(name, bytes(content), **condition)
        except OSError as error:
            gone = info is not None and isinstance(error, FileNotFoundError)
            if gone or isinstance(error, FileExistsError) or _code(error) in _UNMET:
                raise PersistenceConflict(f"{path!r} was changed by somebody else.") from error
            if _code(error) != "NotImplemented":
                raise
            fs.pipe_file(name, bytes(content))  # a store that knows no conditions
            return None
        return _version({"ETag": put["ETag"], "size": len(content)}) if isinstance(put, dict) else None

    def delete(ctx: PersistContext, path: str, version: str | None) -> None:
        fs, root = open_()
        info = _info(fs, f"{root}/{path}")
        if info is None:
            return
        if _version(info) != version:
            raise PersistenceConflict(f"{path!r} was changed by somebody else.")
        fs.rm_file(f"{root}/{path}")

    def lock(ctx: PersistContext) -> Callable[[], None]:
        """Of this process: other processes are seen by the versions."""
        while not ctx.cancel.is_set():
            if mutex.acquire(timeout=0.1):
                return mutex.release
        raise PersistenceError(f"{ctx.path}: another session writes it all the time.")

    return Files(list, read, write, delete, versions, lock, _PARALLEL)


def _info(fs: Any, name: str) -> dict[str, Any] | None:
    fs.invalidate_cache()
    try:
        info = fs.info(name)
    except FileNotFoundError:
        return None
    return info if info.get("type") == "file" else None


def _version(info: Mapping[str, Any]) -> str | None:
    """The store's own name for a state of a file: a tag of its content, else its size and times; None when it has none."""
    stamps = [f"{name} {info[name]}" for name in _STAMPS if info.get(name) is not None]
    return f"{info.get('size')} {stamps[0]}" if stamps else None


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _code(error: BaseException) -> str:
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


@lru_cache(None)
def _lock(url: str) -> threading.Lock:
    return threading.Lock()

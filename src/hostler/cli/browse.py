"""hostler files, artifacts, cat, diff"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from rich.table import Table
from rich.text import Text
from sqlalchemy import Row

from ..store import Store, inbox
from ..store import files as file_queries
from ..types.result import FileEntry, FileRef
from ..workspace import SessionDirs
from ..workspace.artifacts import Vault
from ..workspace.roots import NAMES, Roots
from . import stored
from .terminal import FAILED, console
from .view import printable

_CHUNK = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{8,64}")


def files_command(key: str, path: str | None, data_dir: str | None) -> int:
    """Prints what is in a directory of a session; without a path, in each of its folders."""
    home = stored.data_dir_of(data_dir)
    row = stored.read(home, lambda store: stored.find(store, key))
    roots = stored.roots_of(home, row)
    found = list(_entries(roots, path)) if path is not None else [e for name in NAMES for e in _there(roots, name)]
    out = console()
    if not found:
        out.print(f"nothing in {printable(path or f'the folders of session {row.key}')}", soft_wrap=True)
        return 0
    table = _table("size", "path")
    for entry in found:
        name = Text(_one_line(entry.path), "bold blue" if entry.kind == "directory" else "")
        mark = {"directory": "/", "symlink": " (a link)", "other": " (no file)"}.get(entry.kind, "")
        table.add_row("" if entry.kind == "directory" else size(entry.bytes), name + Text(mark, "dim"))
    out.print(table, soft_wrap=True)
    return 0


def artifacts_command(key: str, data_dir: str | None) -> int:
    """Prints the artifacts of a session, the newest version of each last."""
    home = stored.data_dir_of(data_dir)
    row, found = stored.read(home, lambda store: _artifacts(store, key))
    out = console()
    if not found:
        out.print(f"session {printable(row.key)} has no artifacts", soft_wrap=True)
        return 0
    table = _table("size", "path", "type", "sha256")
    for file in found:
        table.add_row(size(file.bytes), _one_line(file.path), printable(file.media_type or ""), file.sha256[:12])
    out.print(table, soft_wrap=True)
    return 0


def cat_command(key: str, path: str, data_dir: str | None) -> int:
    """Writes a file of a session to standard output, byte by byte; an artifact also by its SHA-256, or after the agent
    has removed it."""
    home = stored.data_dir_of(data_dir)
    row, found = stored.read(home, lambda store: _artifacts(store, key))
    roots = stored.roots_of(home, row)
    vault = Vault(roots, os.path.join(SessionDirs.of(home, row.key).private, "artifacts"))
    if _SHA256.fullmatch(path) and (sha256 := next((f.sha256 for f in found if f.sha256.startswith(path)), None)):
        file = vault.blobs.open(sha256)
    else:
        root, name = roots.resolve(path)
        try:
            file = root.open_read(name)
        except FileNotFoundError:
            kept = [f.sha256 for f in found if f.path == roots.virtual(path)]
            if not kept:
                raise
            file = vault.blobs.open(kept[-1])
    with file:
        while chunk := file.read(_CHUNK):
            sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()
    return 0


def diff_command(key: str, data_dir: str | None) -> int:
    """Prints what the last finished turn changed in the workspace, in the form that ``git apply`` takes."""
    home = stored.data_dir_of(data_dir)

    async def work(store: Store) -> list[dict[str, Any]] | None:
        row = await stored.find(store, key)
        turns = await store.read(lambda conn: inbox.all_turns(conn, row.id))
        done = [turn.result for turn in turns if turn.result is not None]
        return done[-1]["files"] if done else None

    files = stored.read(home, work)
    if files is None:
        console(stderr=True).print("no turn has finished yet")
        return FAILED
    print_diffs([(file["kind"], file["path"], file["diff"]) for file in files])
    return 0


def print_diffs(files: Iterable[tuple[str, str, str | None]]) -> None:
    """Prints changes (kind, path, diff) in the form that ``git apply`` takes."""
    colors = sys.stdout.isatty()
    out = console()
    for kind, path, diff in files:
        if diff is None:
            # git and patch skip what stands before the first header
            out.print(Text(f"# {kind}: {_one_line(path)} (no text, or not kept)", "dim"), soft_wrap=True)
        elif not colors:
            sys.stdout.write(diff)
        else:
            for line in diff.split("\n"):
                out.print(Text(printable(line), _style(line)), soft_wrap=True)


def size(count: int) -> str:
    """Bytes as people read them."""
    amount, units = float(count), iter(("B", "KB", "MB", "GB"))
    unit = next(units)
    while amount >= 1000 and (larger := next(units, None)):
        amount, unit = amount / 1000, larger
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


async def _artifacts(store: Store, key: str) -> tuple[Row[Any], list[FileRef]]:
    row = await stored.find(store, key)
    return row, await store.read(lambda conn: file_queries.list_artifacts(conn, row.id))


def _there(roots: Roots, name: str) -> list[FileEntry]:
    try:
        return list(_entries(roots, name))
    except FileNotFoundError:
        return []


def _entries(roots: Roots, path: str) -> Iterator[FileEntry]:
    root, inner = roots.resolve(path)
    entry = root.stat(inner)
    for found in root.listdir(inner) if entry.kind == "directory" else [entry]:
        yield FileEntry(f"{root.virtual}/{found.path}", found.kind, found.bytes)


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    table.columns[0].justify = "right"
    return table


def _one_line(path: str) -> str:
    return printable(path).replace("\n", "·").replace("\t", "·")


def _style(line: str) -> str:
    if line.startswith(("+++", "---")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")

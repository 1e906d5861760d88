"""hostler trace: the journal of a session, for people and for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text as Line
from sqlalchemy import Row

from ..host.journal import Journal
from ..host.shelf import fetcher
from ..store import Store
from ..types.events import (
    Accepted,
    Answered,
    Approval,
    CallbackFailed,
    CancelRequested,
    CheckedOut,
    Committed,
    Compaction,
    Done,
    FileChange,
    FileMoved,
    FileRemoved,
    FileStaged,
    Forked,
    ModelCall,
    Notice,
    PersistenceFailed,
    Reasoning,
    Record,
    Retract,
    SnapshotRestored,
    SnapshotTaken,
    Started,
    Text,
    ToolCall,
    ToolResult,
    event_to_dict,
)
from ..workspace import SessionDirs
from . import stored
from .terminal import console
from .view import brief, dollars, printable

_LINES = 12  # of an output; the rest is counted
_WIDE = 2000
_MARGIN = 25
_HOW = {
    None: "a new program",
    "attached": "the program was still there",
    "native": "a new program, its history put back",
}
_MARKS = {"created": "+", "modified": "~", "deleted": "-"}


def trace_command(key: str, data_dir: str | None, *, follow: bool, pretty: bool, after: int) -> int:
    """Prints the records above ``after``; with ``follow`` goes on until it is interrupted."""
    path = stored.data_dir_of(data_dir)

    async def work(store: Store) -> None:
        row = await stored.find(store, key)
        printer = Pretty(console(), folders_of(path, row)) if pretty else Lines()
        if not after:
            printer.begin(row, stored.workdir_of(path, row))
        if not 0 <= after <= row.seq:
            raise ValueError(f"Session {printable(row.key)} has records 1 to {row.seq}; there is none after {after}.")
        journal = Journal(store, lambda session: False, fetcher(path))
        async for records in _batches(journal, row.id, after, row.seq, follow):
            for record in records:
                printer.show(record)
            printer.pause()

    stored.read(path, work)
    return 0


async def _batches(journal: Journal, session: int, after: int, last: int, follow: bool) -> AsyncIterator[list[Record]]:
    if follow:
        follower = journal.follow(session, after)
        while records := await follower.batch():
            yield records
        return
    while after < last and (records := await journal.read(session, after)):
        yield records
        after = records[-1].seq


def folders_of(data_dir: str, row: Row[Any]) -> dict[str, str]:
    """The folders that hostler keeps for the session, and the names by which they are known."""
    dirs = SessionDirs.of(data_dir, row.key)
    names = {f"/{name}": getattr(dirs, name) for name in ("session", "artifacts", "persistent", "skills")}
    return {folder: name for name, folder in names.items()}


class Lines:
    """One record a line, in ASCII JSON."""

    def begin(self, session: Row[Any], workdir: str) -> None:
        """Each line names its session."""

    def show(self, record: Record) -> None:
        line = {"seq": record.seq, "at": record.at, "session": record.session, "turn": record.turn}
        line |= {"parent": record.parent, "event": event_to_dict(record.event)}
        sys.stdout.write(json.dumps(line, ensure_ascii=True, default=repr) + "\n")

    def pause(self) -> None:
        sys.stdout.flush()


class Pretty:
    """Number, seconds since the turn began, who does it, and what: words that belong together in one piece, long
    outputs cut, what a sub-agent does behind a bar. Of ``folders`` their names are shown."""

    def __init__(self, out: Console, folders: Mapping[str, str]) -> None:
        self._out = out
        self._folders = folders
        self._turns: dict[str, tuple[int, float]] = {}  # number and beginning
        self._shown: str | None = None  # the turn whose heading was printed last
        self._open: tuple[str, str | None, str] | None = None  # the text that the cursor stands in
        self._breaks = ""  # line breaks at its end, which are worth showing only when more comes

    def begin(self, session: Row[Any], workdir: str) -> None:
        """Whose trace it is."""
        turns = f"{session.finished} turn{'' if session.finished == 1 else 's'}"
        cost = f"cost {dollars(None if session.unpriced else session.cost)}"
        facts = [session.key, session.harness, session.rules.get("model") or "no model", turns, cost]
        self._out.print(Line(" · ".join(printable(fact) for fact in facts), "bold"), soft_wrap=True)
        self._out.print(Line(f"{printable(workdir)}\n", "dim"), soft_wrap=True)

    def show(self, record: Record) -> None:
        event: Any = record.event
        if isinstance(event, (Text, Reasoning)):
            self._says(record, event)
            return
        self.pause()
        self._heading(record)
        match event:
            case Accepted(extra_body=extra, preview=preview):
                self._line(record, "you", preview or "(not kept)", "bold")
                if extra is not None:
                    self._more("with", json.dumps(extra, ensure_ascii=False), "dim")
            case Started(resumed=resumed, recovered=recovered):
                words = "taken over from an app that died; " if recovered else ""
                how = (
                    "the program goes on"
                    if resumed is None and self._turns.get(record.turn or "", (1,))[0] > 1
                    else None
                )
                self._line(record, "start", words + (how or _HOW.get(resumed, str(resumed))), "dim")
            case ModelCall():
                self._line(record, "model", _model(event), "dim" if event.status == "ok" else "red")
            case ToolCall():
                name = event.native_name if event.builtin else event.name
                self._line(record, "calls", f"{name}  {brief(event.input)}", "cyan")
            case ToolResult(output=output, is_error=bad):
                self._line(record, "fails" if bad else "gives", _cut(output) or "(nothing)", "red" if bad else "")
            case FileChange(path=path, kind=kind, diff=diff):
                self._line(record, "file", f"{_MARKS[kind]} {path}{_counted(diff)}", "yellow")
            case FileStaged(file=file, source=source):
                words = f"{file.path}, {file.bytes:,} bytes" + (f", from {source}" if source else "")
                self._line(record, "staged", words, "blue")
            case FileRemoved(path=path):
                self._line(record, "removed", path, "blue")
            case FileMoved(path=path, target=target):
                self._line(record, "moved", f"{path} to {target}", "blue")
            case SnapshotTaken(id=id, entries=entries, bytes=size, skipped=skipped):
                words = f"{id}: {entries:,} entries, {size:,} bytes" + (f", without {len(skipped)}" if skipped else "")
                self._line(record, "snapshot", words, "blue")
            case SnapshotRestored(id=id):
                self._line(record, "restored", id, "blue")
            case Forked(key=key):
                self._line(record, "forked", key, "blue")
            case CheckedOut(path=path, written=written, removed=removed):
                self._line(record, "loaded", f"{path}: {written} files written, {removed} removed", "blue")
            case Committed():
                kinds = {"created": event.created, "updated": event.updated, "deleted": event.deleted}
                words = ", ".join(f"{len(paths)} {kind}" for kind, paths in kinds.items() if paths)
                self._line(record, "commits", f"{event.path}: {words}", "blue")
            case PersistenceFailed(message=message):
                self._line(record, event.step, message, "red")
            case Approval(id=id, tool=tool, input=given):
                self._line(record, "asks", f"{tool}  {brief(given)}  ({id})", "magenta")
            case Answered(allow=allow, reason=reason):
                self._line(record, "answer", ("yes" if allow else "no") + (f": {reason}" if reason else ""), "magenta")
            case CancelRequested(reason=reason):
                self._line(record, "stop", f"{reason}: asked for", "yellow")
            case CallbackFailed(callback=callback, message=message):
                self._line(record, "app", f"{callback} failed: {message}", "red")
            case Retract():
                self._line(record, "void", "the model call was repeated; what it said before does not count", "dim")
            case Compaction(tokens_before=before, tokens_after=after):
                sizes = f" from {before} to {after} tokens" if before and after else ""
                self._line(record, "shrinks", f"the program shortened its history{sizes}", "dim")
            case Notice(code=code, message=message):
                self._line(record, "note", f"{code}: {_cut(message)}", "yellow")
            case Done():
                self._done(record, event)

    def pause(self) -> None:
        """End the line that the cursor stands in."""
        if self._open is not None:
            self._out.print()
            self._open, self._breaks = None, ""

    def _heading(self, record: Record) -> None:
        turn = record.turn
        if turn is not None and turn not in self._turns:
            self._turns[turn] = (len(self._turns) + 1, record.at)
        if turn != self._shown and turn is not None:
            number, began = self._turns[turn]
            if self._shown is not None:
                self._out.print()
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began))
            self._out.print(Line(f"── turn {number} · {when} · {printable(turn)}", "bold dim"), soft_wrap=True)
            self._shown = turn

    def _says(self, record: Record, event: Text | Reasoning) -> None:
        thinks = isinstance(event, Reasoning)
        piece = (type(event).__name__, record.parent, event.item)
        style = "italic dim" if thinks else ""
        if self._open != piece:
            self.pause()
            self._heading(record)
            self._prefix(record, "thinks" if thinks else "says")
            self._open = piece
        text = self._breaks + event.delta
        shown = text.rstrip("\n")
        self._breaks = text[len(shown) :]
        self._out.print(Line(_hanging(printable(shown)), style), end="", soft_wrap=True)

    def _done(self, record: Record, event: Done) -> None:
        result = event.result
        for file in result.artifacts:
            self._more("result", f"{file.path}, {file.bytes:,} bytes", "green")
        if result.error is not None:
            self._more("error", f"{result.error.code}: {_cut(result.error.message)}", "bold red")
        usage = result.usage
        words = [
            result.stop_reason,
            f"{usage.calls} model call{'' if usage.calls == 1 else 's'}",
            f"{usage.input_tokens} in ({usage.cached_tokens} cached), {usage.output_tokens} out",
            f"cost {dollars(result.cost)}",
        ]
        self._line(record, "done", " · ".join(words), "green" if result.stop_reason == "done" else "yellow")

    def _line(self, record: Record, who: str, text: str, style: str) -> None:
        self._prefix(record, who)
        self._out.print(Line(_hanging(printable(self._named(text.strip("\n")))), style), soft_wrap=True)

    def _more(self, who: str, text: str, style: str) -> None:
        self._out.print(Line(f"{'':16}{who:<9}", "dim"), end="")
        self._out.print(Line(_hanging(printable(self._named(text))), style), soft_wrap=True)

    def _named(self, text: str) -> str:
        for folder, name in self._folders.items():
            text = text.replace(folder, name)
        return text

    def _prefix(self, record: Record, who: str) -> None:
        began = self._turns[record.turn][1] if record.turn in self._turns else None
        since = f"{record.at - began:7.1f}s" if began is not None else ""
        bar = "│ " if record.parent is not None else ""
        self._out.print(Line(f"{record.seq:6} {since:>8} {who:<9}{bar}", "dim"), end="")


def _hanging(text: str) -> str:
    """Lines after the first begin where the first one does."""
    return text.replace("\n", "\n" + " " * _MARGIN)


def _counted(diff: str | None) -> str:
    """How many lines came and went."""
    if diff is None:
        return ""
    lines = diff.split("\n")[2:]  # behind the names of the file
    added, gone = (sum(line.startswith(mark) for line in lines) for mark in "+-")
    return f"  +{added} -{gone}"


def _cut(text: str) -> str:
    text = text.rstrip()
    lines = text[:_WIDE].split("\n")
    if len(lines) > _LINES or len(text) > _WIDE:
        left = text.count("\n") + 1 - len(lines[:_LINES])
        rest = f"{left} more lines" if left else f"{len(text):,} characters in all"
        return "\n".join([*lines[:_LINES], f"… ({rest})"])
    return text


def _model(call: ModelCall) -> str:
    usage = call.usage
    words = [call.model]
    if call.status == "ok" or usage.input_tokens or usage.output_tokens or call.cost:
        words += [f"{usage.input_tokens} in ({usage.cached_tokens} cached)", f"{usage.output_tokens} out"]
        words.append(f"cost {dollars(call.cost)}")
    if call.status != "ok":
        words.insert(1, call.status + (f" ({call.http_status})" if call.http_status else ""))
    if call.error is not None:
        words.append(call.error.message)
    return " · ".join(words)

"""The parts of the tool loop: its model calls, its transcript, its tools."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import wait_until

from hostler.workers.acp import Refused
from hostler.workers.servers import Servers
from hostler.workers.settings import Settings
from hostler.workers.shell import Shell
from hostler.workers.tool_loop import files, transcript
from hostler.workers.tool_loop.files import Wrong
from hostler.workers.tool_loop.model import Model, ModelFailed, Reply
from hostler.workers.tool_loop.tools import BUILTIN, Tools

TEXT = "one\u2028two\x85three"


def chunk(stop: str | None = None, /, **delta: Any) -> bytes:
    event = {"choices": [{"index": 0, "delta": delta, "finish_reason": stop}]}
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


class Stream(httpx.AsyncByteStream):
    """A body in pieces, which may break."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece


def ask(*answers: httpx.Response | Exception) -> tuple[Reply, list[tuple[str, str]], list[dict[str, Any]]]:
    """The reply of a model that answers so, call by call; what was told; what was sent."""
    left, told, sent = list(answers), list[tuple[str, str]](), list[dict[str, Any]]()

    def handle(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer k"
        sent.append(json.loads(request.content))
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def main() -> Reply:
        model = Model("http://m", "k", body={"model": "m"}, transport=httpx.MockTransport(handle))
        return await model.ask([{"role": "user", "content": "hi"}], [], lambda kind, delta: told.append((kind, delta)))

    return asyncio.run(main()), told, sent


def ok(*pieces: bytes | Exception) -> httpx.Response:
    return httpx.Response(200, stream=Stream(*pieces))


def test_a_reply_is_put_together_from_its_pieces() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "bash", "arguments": '{"comm'}}
    rest = {"index": 0, "function": {"arguments": 'and": "ls"}'}}
    other = {"index": 1, "function": {"name": "ls", "arguments": ""}}
    body = b"".join(
        [
            chunk(role="assistant"),
            chunk(reasoning_content="hm"),
            chunk(content=TEXT),
            chunk(tool_calls=[call]),
            b": a comment\n\ndata: no json\n\ndata: []\n\n",
            chunk(tool_calls=[rest, other]),
            chunk("tool_calls"),
            b'data: {"choices": [], "usage": {}}\n\ndata: [DONE]\n\n',
        ]
    )
    for size in (1, 7, len(body)):
        reply, told, sent = ask(ok(*(body[i : i + size] for i in range(0, len(body), size))))
        assert reply.text == TEXT
        assert told == [("thought", "hm"), ("text", TEXT)]
        assert [(c.name, c.arguments) for c in reply.calls] == [("bash", '{"command": "ls"}'), ("ls", "")]
        assert reply.calls[0].id == "c1"
        assert reply.calls[1].id.startswith("call_")
        assert sent[0]["stream"] is True
        assert "tools" not in sent[0]


@pytest.mark.parametrize(
    "cut",
    [
        ok(chunk(content="ha")),
        ok(chunk(content="ha"), httpx.ReadError("reset")),
        httpx.ConnectError("refused"),
    ],
    ids=["short", "reset", "refused"],
)
def test_an_answer_that_breaks_off_is_asked_for_again(cut: Any) -> None:
    reply, told, sent = ask(cut, ok(chunk("stop", content="half")))
    assert reply.text == "half"
    assert told[-1] == ("text", "half")
    assert len(sent) == 2


def test_it_gives_up_after_three_times() -> None:
    with pytest.raises(ModelFailed, match="broke off 3 times"):
        ask(*(ok(chunk(content="ha")) for _ in range(3)))


def test_what_is_refused_is_not_asked_again_but_what_is_too_soon_is() -> None:
    with pytest.raises(ModelFailed, match="no such model"):
        ask(httpx.Response(400, json={"error": {"message": "no such model"}}))
    with pytest.raises(ModelFailed, match="bad gateway"):
        ask(httpx.Response(502, text="bad gateway"))
    with pytest.raises(ModelFailed, match="overloaded"):
        ask(ok(chunk(content="x"), b'data: {"error": {"message": "overloaded"}}\n\n'))
    soon = httpx.Response(429, headers={"retry-after": "0.1"}, json={})
    assert ask(soon, ok(chunk("stop", content="now")))[0].text == "now"


# ---- the transcript -------------------------------------------------------------------------------------------------


def call(*ids: str) -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": "ls", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def test_a_session_is_what_was_said(tmp_path: Path) -> None:
    begun = transcript.begin(str(tmp_path))
    begun.add({"role": "user", "content": "hi \ud800"}, {"role": "assistant", "content": "ho"})
    again = transcript.resume(str(tmp_path), begun.session, None)
    assert again.messages == begun.messages
    assert (again.place, again.session) == ("2", begun.session)
    assert os.stat(tmp_path / f"{begun.session}.jsonl").st_mode & 0o777 == 0o600
    for wrong in ("0b0e1a5e-0000-4000-8000-000000000000", "../x", ""):
        with pytest.raises(Refused):
            transcript.resume(str(tmp_path), wrong, None)


def test_calls_that_nobody_answers_are_closed(tmp_path: Path) -> None:
    begun = transcript.begin(str(tmp_path))
    begun.add({"role": "user", "content": "x"}, call("a", "b"), {"role": "tool", "tool_call_id": "b", "content": "1"})
    with open(tmp_path / f"{begun.session}.jsonl", "ab") as file:
        file.write(b'{"role": "sys"}\nnot json\n[]\n')
    again = transcript.resume(str(tmp_path), begun.session, None)
    assert again.messages[3:] == [{"role": "tool", "tool_call_id": "a", "content": "interrupted"}]
    assert transcript.unanswered(transcript.resume(str(tmp_path), begun.session, None).messages) == []


def test_a_fork_begins_as_another_was(tmp_path: Path) -> None:
    old = transcript.begin(str(tmp_path))
    old.add(*({"role": "user", "content": str(n)} for n in range(4)))
    new = "0b0e1a5e-0000-4000-8000-000000000001"
    fork = {"from": old.session, "at": "2"}
    made = transcript.resume(str(tmp_path), new, fork)
    assert [m["content"] for m in made.messages] == ["0", "1"]
    made.add({"role": "user", "content": "other"})
    assert transcript.resume(str(tmp_path), new, fork).place == "3"
    assert transcript.resume(str(tmp_path), old.session, None).place == "4"
    for at in ("9", "-1", "0f0f-no-number"):
        with pytest.raises(Refused):
            transcript.resume(str(tmp_path), "0b0e1a5e-0000-4000-8000-000000000002", {**fork, "at": at})


# ---- the tools ------------------------------------------------------------------------------------------------------


def tools(folder: Path, *calls: tuple[str, dict[str, Any]]) -> list[tuple[str, bool]]:
    async def main() -> list[tuple[str, bool]]:
        settings = Settings("m", "u", str(folder), str(folder))
        made = Tools(settings, Servers({}), Shell(str(folder), os.environ))
        assert [t["function"]["name"] for t in made.shown()] == list(BUILTIN)
        return [await made.run(name, given, "c") for name, given in calls]

    return asyncio.run(main())


def test_files_are_written_read_and_changed(tmp_path: Path) -> None:
    done = tools(
        tmp_path,
        ("write", {"path": "a/b.txt", "content": "one\ntwo\n"}),
        ("read", {"path": "a/b.txt"}),
        ("read", {"path": "a/b.txt", "offset": 2, "limit": 1}),
        ("edit", {"path": "a/b.txt", "old": "one", "new": "1"}),
        ("edit", {"path": "a/b.txt", "old": "gone", "new": ""}),
        ("read", {"path": "a"}),
        ("read", {"path": "none"}),
        ("write", {"path": "a/b.txt"}),
        ("ls", {}),
    )
    assert [bad for _, bad in done] == [False, False, False, False, True, True, True, True, False]
    assert done[1][0] == "     1\tone\n     2\ttwo"
    assert done[2][0] == "     2\ttwo"
    assert (tmp_path / "a" / "b.txt").read_text() == "1\ntwo\n"
    assert done[8][0] == "a/"


def test_an_edit_keeps_the_ends_of_lines_and_is_about_one_place(tmp_path: Path) -> None:
    file = tmp_path / "dos.txt"
    file.write_bytes(b"a\r\nb\r\na\r\n")
    files.edit(str(file), "a\nb", "x\ny")
    assert file.read_bytes() == b"x\r\ny\r\na\r\n"
    file.write_text("aa")
    with pytest.raises(Wrong, match="2 times"):
        files.edit(str(file), "a", "b")
    files.edit(str(file), "a", "b", every=True)
    assert file.read_text() == "bb"
    with pytest.raises(Wrong):
        files.edit(str(file), "", "x")


def test_what_is_no_text_or_has_no_end_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "zero").write_bytes(b"\0\1")
    (tmp_path / "latin").write_bytes(b"\xe9")
    for path in (tmp_path / "zero", tmp_path / "latin", Path("/dev/zero")):
        with pytest.raises(Wrong):
            files.read(str(path))
    (tmp_path / "long").write_text("x" * 5000)
    assert len(files.read(str(tmp_path / "long"))) < 2100


def test_files_are_found(tmp_path: Path) -> None:
    for name in ("a.py", "sub/b.py", "sub/deep/c.txt", ".git/d.py", "sub/e.{x}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"word in {name}\nWORD\n")
    (tmp_path / "binary").write_bytes(b"word\0")

    def found(name: str, **given: Any) -> list[str]:
        ((text, bad),) = tools(tmp_path, (name, given))
        assert not bad, text
        return sorted(line.replace(f"{tmp_path}/", "") for line in text.split("\n"))

    assert found("glob", pattern="*.py") == ["a.py", "sub/b.py"]
    assert found("glob", pattern="**/*.py") == ["a.py", "sub/b.py"]
    assert found("glob", pattern="sub/*.{py,txt}") == ["sub/b.py"]
    assert found("glob", pattern="sub/**") == ["sub/b.py", "sub/deep/c.txt", "sub/e.{x}"]
    assert found("glob", pattern="nothing*") == ["(nothing found)"]
    assert found("grep", pattern=r"^w\w+d", path="sub", glob="*.py") == ["sub/b.py:1:word in sub/b.py"]
    assert len(found("grep", pattern="word", ignore_case=True)) == 8
    assert found("grep", pattern="word", path="a.py") == ["a.py:1:word in a.py"]
    ((text, bad),) = tools(tmp_path, ("grep", {"pattern": "("}))
    assert bad
    assert "no regular expression" in text


def test_commands_run_and_end(tmp_path: Path) -> None:
    start = time.monotonic()
    done = tools(
        tmp_path,
        ("bash", {"command": "echo out; echo err >&2; pwd"}),
        ("bash", {"command": "exit 3"}),
        ("bash", {"command": "echo begun; sleep 300", "timeout": 0.5}),
        ("bash", {"command": "sleep 300 & echo $!"}),
        ("bash", {"command": "head -c 100000 /dev/zero | tr '\\0' x; echo end"}),
        ("bash", {"command": "cat"}),
    )
    assert time.monotonic() - start < 60
    assert done[0] == (f"out\nerr\n{tmp_path}\n", False)
    assert done[1] == ("(exit code 3)", True)
    assert done[2][0].startswith("begun")
    assert "ended after 0.5 s" in done[2][0]
    background = int(done[3][0])
    os.kill(background, 9)  # it was left running
    assert done[4][0].endswith("xend\n")
    assert "left out" in done[4][0]
    assert len(done[4][0]) < 41_000
    assert done[5] == ("(no output)", False)


def test_a_command_that_is_cancelled_is_ended_with_its_group(tmp_path: Path) -> None:
    async def main() -> int:
        running = asyncio.create_task(Shell(str(tmp_path), os.environ).bash("sleep 300 & echo $! > pid; wait", 60))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        return int((tmp_path / "pid").read_text())

    pid = asyncio.run(main())
    assert wait_until(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())

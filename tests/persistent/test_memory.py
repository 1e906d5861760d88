"""memory(...): what one session remembers, a later one is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.persistent.support import Session, Storage
from tests.sessions.programs import CLAUDE, CODEX, FAKE_PROGRAM, OPENCODE, Program, ids

import hostler
from hostler.harness import ToolResult
from hostler.persistent.memory import index_of
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer


def remembering(program: Program, note: str) -> str:
    if program.fake:
        return json.dumps([{"mcp": "remember", "arguments": {"note": note}}, {"text": "done"}])
    step: dict[str, Any] = {"tool": "remember", "namespace": "mcp__host", "args": {"note": note}}
    if program in (CLAUDE, OPENCODE):
        step = {"tool": "mcp__host__remember" if program is CLAUDE else "host_remember", "args": {"note": note}}
    return f"@@{json.dumps([step])}@@"


@pytest.mark.parametrize(
    "program",
    [
        FAKE_PROGRAM,
        pytest.param(CODEX, marks=pytest.mark.real),
        *(pytest.param(p, marks=[pytest.mark.real, pytest.mark.soak]) for p in (CLAUDE, OPENCODE)),
    ],
    ids=ids,
)
def test_what_is_remembered_is_told_later(program: Program, models: ModelServer, nothing_left: None) -> None:
    store = Storage()
    dirs = [hostler.memory(store.dir("/persistent/memory"))]
    options = program.options(models)
    with hostler.agent_session(program.harness, persistent_dirs=dirs, **options) as session:
        result = session.run(remembering(program, "Ada likes CODEWORD-hay.\nEvery morning."))
        assert result.persistence.status == "committed"
        (output,) = [e.output for e in result.events if isinstance(e, ToolResult)]
        assert output.startswith("Remembered in /persistent/memory/ada-likes-codeword-hay-")
    ((name, content),) = store.files.items()
    assert output == f"Remembered in /persistent/memory/{name}."
    assert content == b"Ada likes CODEWORD-hay.\nEvery morning.\n"
    with hostler.agent_session(program.harness, persistent_dirs=dirs, **options) as session:
        if program.fake:
            session.run("Hello.")
            assert "Ada likes CODEWORD-hay." in session.run(json.dumps([{"say": "memory"}])).text
        else:
            assert "CODEWORD-hay" in session.run("What do you know?").text
            asked = json.dumps(models.calls[-1].body)
            assert name in asked
            assert "Every morning" not in asked  # the index has first lines


def test_it_is_told_again_only_when_it_has_changed(models: ModelServer, nothing_left: None) -> None:
    store = Storage({"a.md": b"# About tea\n"})
    dirs = [hostler.memory(store.dir("/persistent/memory"))]
    with hostler.agent_session(FAKE, persistent_dirs=dirs, **FAKE_PROGRAM.options(models)) as session:
        recall = json.dumps([{"say": "memory"}])
        session.run("Hello.")
        session.run("Hello again.")
        assert session.run(recall).text.count("a.md: About tea") == 1
        store.put(b_md=b"About hay")
        session.run("And now?")
        told = session.run(recall).text
        assert told.count("b.md: About hay") == 1
        assert told.count("a.md: About tea") == 2


def test_the_index_is_bounded(tmp_path: Path) -> None:
    store = Storage({f"{n:03}.md": f"# Note {n} {'x' * 300}\nmore".encode() for n in range(100)})
    session = Session(tmp_path, hostler.memory(store.dir(), index_bytes=1000))
    session.refresh()
    session.write("line\nbreak", b"\xff\xfe binary \x1b[31m")
    lines = index_of(session.dirs.persistent, session.dir)
    assert lines[0].startswith("- line·break: ")
    assert "\x1b" not in lines[0]
    assert len("\n".join(lines).encode()) < 1000 + 20
    assert lines[-1] == f"- and {101 - len(lines) + 1} more"
    assert all(len(line) < 200 for line in lines)


def test_two_sessions_remember_at_the_same_time(models: ModelServer, nothing_left: None) -> None:
    store = Storage()
    dirs = [hostler.memory(store.dir("/persistent/memory"))]
    options = FAKE_PROGRAM.options(models)
    with (
        hostler.agent_session(FAKE, persistent_dirs=dirs, **options) as one,
        hostler.agent_session(FAKE, persistent_dirs=dirs, **options) as two,
    ):
        for session in (one, two):
            session.run("Hello.")
        for number, session in enumerate((one, two)):
            assert session.run(remembering(FAKE_PROGRAM, f"Note {number}")).persistence.status == "committed"
    assert len(store.files) == 2


def test_what_is_no_memory() -> None:
    with pytest.raises(TypeError, match="persistent dir"):
        hostler.memory("notes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="index_bytes"):
        hostler.memory(Storage().dir(), index_bytes=0)
    with pytest.raises(ValueError, match="one memory"):
        hostler.create_harness(
            host=hostler.local_host("unused"),
            runtime=FAKE,
            persistent_dirs=[hostler.memory(Storage().dir("a")), hostler.memory(Storage().dir("b"))],
        )

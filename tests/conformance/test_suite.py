"""The suite itself: it fails where a sheet is wrong, leaves nothing behind, and the table is what the sheets say."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import processes_of

from hostler.runtimes.codex import Codex
from hostler.testing import FAKE, ModelServer, conformance, runtime_conformance
from hostler.testing.conformance import PROGRAMS, ROWS, Case, Row, Subject, bench, table
from hostler.testing.conformance.__main__ import main
from hostler.testing.conformance.bench import Bench, Tails, Unmet, expect, prompt, until
from hostler.testing.conformance.offered import Offered, of_app, offered, shell, write
from hostler.types.runtime import Capabilities, Harness, acp_agent

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the suite makes its folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


# ---- the sheet ------------------------------------------------------------------------------------------------------


def test_every_capability_is_a_row_and_every_row_is_one_or_a_promise() -> None:
    fields = {field.name for field in dataclasses.fields(Capabilities)}
    asked = {(row.field or "").partition(".")[0] for row in ROWS} - {""}
    assert asked == fields - {
        "fresh",
        "sub_agent_header",
        "wants_objects",
        "reasons",
    }  # those are for hostler and the suite
    modes = {row.field.partition(".")[2] for row in ROWS if row.field and row.field.startswith("permissions.")}
    assert modes == {"full", "edit", "read-only", "ask"}
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:  # what can be denied has a check that shows the no; the others are never denied
        never = row.field is None or row.field in ("output", "skills")
        assert (row.denied is None) == never, row.name


@pytest.mark.parametrize("subject", PROGRAMS, ids=lambda s: s.name)
def test_every_no_is_explained(subject: Subject) -> None:
    can = subject.capabilities
    explained = {row.name: row.reason(can) for row in ROWS if row.cell(can) in ("no", "in bubblewrap")}
    assert all(explained.values()), explained
    asked = {(row.field or "").rpartition(".")[2] for row in ROWS if row.name in explained}
    assert set(can.reasons) == asked, "a reason for what it can"


def test_every_program_that_hostler_runs_has_a_column() -> None:
    from hostler.runtimes import available

    assert {s.harness.value for s in PROGRAMS if isinstance(s.harness, Harness)} == set(available()) - {"fake"}


def test_the_table_in_the_readme_is_what_the_sheets_say() -> None:
    """`make conformance` writes it, from what it has seen."""
    page = (ROOT / "README.md").read_text()
    assert table.put_into(page, table.markdown(PROGRAMS, table.of_sheets(PROGRAMS))) == page


# ---- liars ----------------------------------------------------------------------------------------------------------


class Liar(Codex):
    """Says what it likes; what it likes is set by each test."""

    name = "liar"

    def __init__(self, **says: Any) -> None:
        self.native_files = says.pop("native_files", Codex.native_files)
        self.capabilities = dataclasses.replace(Codex.capabilities, **says)


class Own(Codex):
    """Somebody's own runtime."""

    name = "own"


@pytest.mark.real
@pytest.mark.parametrize(
    ("row", "says", "saw"),
    [
        ("allow-deny", {"allow_deny": True}, "what deny= names ran"),
        ("deltas", {"deltas": False, "reasons": {"deltas": "so I say"}}, "say so in the sheet"),
        ("lost-home", {"native_files": ()}, "StateIncompatible"),
        ("steer", {"steer": False}, "and not why"),
    ],
)
def test_a_sheet_that_is_wrong_fails(row: str, says: dict[str, Any], saw: str, tmp: Path) -> None:
    (case,) = runtime_conformance(Liar(**says), rows=[row])
    outcome = case()
    assert outcome.status == "failed"
    assert saw in (outcome.reason or ""), outcome
    assert not list(tmp.glob("hostler-conformance-*"))
    assert not processes_of(tmp)


@pytest.mark.real
def test_a_runtime_of_ones_own_is_tried_as_any_other(tmp: Path) -> None:
    """In another process, and resumed by its name, too; a wrong answer shows as what was seen."""
    for case in runtime_conformance(Own(), rows=["new-process"]):
        outcome = case()
        assert (str(case), outcome.status, outcome.cell) == ("own-new-process", "yes", "yes"), outcome
    (case,) = runtime_conformance(FAKE, rows=["turn"])  # takes no script from a model
    assert case().status == "failed"


def test_what_a_check_leaves_is_found_and_ended(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "LEAVING", 0.2)
    seen: list[tuple[Tails, subprocess.Popen[bytes]]] = []

    def leaves(place: Bench) -> None:
        tails = Tails(place.workspace)
        left = subprocess.Popen(["sh", "-c", tails.command], cwd=place.workspace, env={"MARK": str(place.root)})
        seen.append((tails, left))
        expect(until(tails.run), "not begun")

    subject = Subject("fake", "Fake", FAKE)
    outcome = Case(subject, Row("leaves", "leaves", leaves))()
    assert outcome.status == "failed"
    assert "processes were left" in (outcome.reason or "")
    ((tails, process),) = seen
    assert until(lambda: not tails.alive())
    process.wait(10)


def test_a_check_that_breaks_is_a_failure_with_its_place(tmp: Path) -> None:
    def breaks(place: Bench) -> None:
        raise KeyError("hay")

    outcome = Case(Subject("fake", "Fake", FAKE), Row("breaks", "breaks", breaks))()
    assert outcome.status == "failed"
    assert "KeyError: 'hay'" in (outcome.reason or "")
    assert "raise KeyError" in (outcome.reason or "")
    assert str(outcome).startswith("fake: breaks: FAILED (KeyError")


# ---- its parts ------------------------------------------------------------------------------------------------------

PROPERTIES = {"properties": {"filePath": {}, "content": {}}}
BODIES = {
    "anthropic": {
        "tools": [{"name": "write", "input_schema": PROPERTIES}, {"name": "mcp__host__hay", "input_schema": {}}]
    },
    "responses": {
        "tools": [
            {"type": "function", "name": "write", "parameters": PROPERTIES},
            {
                "type": "namespace",
                "name": "mcp__host",
                "tools": [{"type": "function", "name": "hay", "parameters": {}}],
            },
            {"type": "web_search"},
        ]
    },
    "chat": {
        "tools": [
            {"type": "function", "function": {"name": "write", "parameters": PROPERTIES}},
            {"type": "function", "function": {"name": "host_hay"}},
        ]
    },
    "gemini": {
        "tools": [
            {"functionDeclarations": [{"name": "write", "parametersJsonSchema": PROPERTIES}, {"name": "mcp_host_hay"}]}
        ]
    },
}


@pytest.mark.parametrize("wire", BODIES)
def test_offered_tools_are_read_on_every_wire(wire: str) -> None:
    found = offered(BODIES[wire])
    assert write(found, "/a", "x") == {"tool": "write", "args": {"filePath": "/a", "content": "x"}}
    hay = of_app(found, "hay")
    assert hay is not None
    assert hay.name.endswith("hay")
    assert hay.step(n=1).get("namespace") == ("mcp__host" if wire == "responses" else None)
    assert of_app(found, "ay") is None
    assert offered({"tools": None}) == offered(None) == {}


def test_steps_for_a_shell_and_for_patches() -> None:
    assert shell({"Bash": Offered("Bash", ("command", "description"))}, "ls") == {
        "tool": "Bash",
        "args": {"command": "ls", "description": "scripted"},
    }
    assert shell({"look": Offered("look", ())}, "ls") is None
    patch = write({"exec_command": Offered("exec_command", ("cmd",))}, "/a", "x")
    assert patch is not None
    assert "*** Add File: /a\n+x" in patch["args"]["cmd"]
    assert write({"Bash": Offered("Bash", ("command",))}, "/a", "x") is None


def test_the_lists_of_cases_and_what_is_no_row() -> None:
    assert [str(case) for case in runtime_conformance(Harness.CODEX, rows=["turn", "fork"])] == [
        "codex-turn",
        "codex-fork",
    ]
    assert len(runtime_conformance(acp_agent(["agent"]), name="mine")) == len(ROWS)
    with pytest.raises(ValueError, match="no row 'nonsense'; the rows are turn"):
        runtime_conformance(Harness.CODEX, rows=["nonsense"])
    with pytest.raises(TypeError, match=r"Harness\.CODEX"):
        runtime_conformance("codex")  # type: ignore[arg-type]


def test_the_table_has_numbers_for_reasons() -> None:
    sheet = {"fork": False, "history": False, "reasons": {"fork": "so I say", "history": "none", "allow_deny": "none"}}
    subject = Subject("liar", "Liar", Liar(**sheet))
    lines = table.markdown([subject], table.of_sheets([subject])).splitlines()
    assert lines[0] == "| | Liar |"
    assert "| `history()` | no (1) |" in lines
    assert lines[-2:] == ["1. Liar: none", "2. Liar: so I say"]
    shown = table.text([subject], [o for o in table.of_sheets([subject]) if o.row in ("turn", "fork")])
    assert shown.splitlines()[1].split() == ["turn", "yes"]
    assert "liar: fork: no (so I say)" in shown
    with pytest.raises(ValueError, match="no place for the table"):
        table.put_into("# a page", "x")


def test_the_command(tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, said in (([], "--all"), (["--program", "codex", "--write", "x"], "--write"), (["--row", "x"], "'x'")):
        with pytest.raises(SystemExit):
            main(wrong)
        assert said in capsys.readouterr().err
    assert main(["--program", "codex", "--row", "allow-deny", "--json"]) == 0
    (outcome,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (outcome["program"], outcome["row"], outcome["status"]) == ("codex", "allow-deny", "no")
    silent = tmp / "silent"
    silent.write_text("#!/bin/sh\nexit 3\n")
    silent.chmod(0o755)
    assert main(["--acp", str(silent), "--row", "turn"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split() == ["turn", "FAILED"]
    assert said.err.startswith("acp-turn")


def test_a_wait_ends_and_a_prompt_is_a_script() -> None:
    assert not until(lambda: False, 0.05)
    assert prompt({"text": "a"}, say="Go.") == 'Go. @@[{"text": "a"}]@@'
    with pytest.raises(Unmet, match="saw"):
        expect([], "saw")
    assert conformance.runtime_conformance is runtime_conformance
    assert ModelServer.__name__ == "ModelServer"

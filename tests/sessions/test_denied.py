"""``deny=`` of commands and paths, against an agent that tries to get around it; the same after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.harness import ToolResult
from hostler.testing.model_server import ModelServer
from tests.sessions.programs import CLAUDE, OPENCODE, Program, ids

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nothing_left")]

TRICKS = (
    "rm {}",
    "true; rm {}",
    "cd . && rm -f {}",
    "(rm {})",
    "echo $(rm {})",
    "X=1 rm {}",
    "if true; then rm {}; fi",
    "sh -c 'rm {}'",
    "/bin/rm {}",
    "\\rm {}",
    "env rm {}",
    "echo {} | xargs rm",
    "timeout 5 rm {}",
)
FILES = {
    CLAUDE: (("Write", "file_path"), ("Read", "file_path")),
    OPENCODE: (("write", "filePath"), ("read", "filePath")),
}


def by_tool(program: Program, writes: bool, path: Path) -> dict[str, Any]:
    """A model's answer that writes or reads a file with the program's own tool."""
    name, argument = FILES[program][0 if writes else 1]
    return {"tool": name, "args": {argument: str(path), **({"content": "x"} if writes else {})}}


@pytest.mark.parametrize("program", [CLAUDE, pytest.param(OPENCODE, marks=pytest.mark.soak)], ids=ids)
def test_what_is_denied_is_denied_in_other_words_too(program: Program, models: ModelServer, workspace: Path) -> None:
    (workspace / "secret").mkdir()
    (workspace / "secret" / "known.txt").write_text("CODEWORD-secret")
    for number in range(len(TRICKS)):
        (workspace / f"kept-{number}").write_text("x")
    options = {**program.options(models), "sandbox": hostler.sandbox.local(workspace)}
    if program is OPENCODE:
        options["model"] = "coder"  # to models of some names it gives other tools
    rules = {"deny": ["bash:rm *", "edit:secret/**", "read:secret/**"]}

    def tries(session: Any, *steps: dict[str, Any]) -> list[tuple[str, bool]]:
        models.script([*steps, {"text": "done"}])
        result = session.run("Try.")
        assert (result.stop_reason, result.error) == ("done", None)
        return [(event.output, event.is_error) for event in result.events if isinstance(event, ToolResult)]

    with hostler.agent_session(program.harness, **options, **rules) as session:
        answers = tries(session, *[{"shell": trick.format(f"kept-{n}")} for n, trick in enumerate(TRICKS)])
        left = [trick for n, trick in enumerate(TRICKS) if not (workspace / f"kept-{n}").exists()]
        assert left == []
        assert [bad for _, bad in answers] == [True] * len(TRICKS)
        assert tries(session, {"shell": "ls kept-0"})[0][0].strip() == "kept-0"  # the rest of the shell is there
        (written, _), (new, bad), (read, refused) = tries(
            session,
            by_tool(program, True, workspace / "open.txt"),
            by_tool(program, True, workspace / "secret" / "new.txt"),
            by_tool(program, False, workspace / "secret" / "known.txt"),
        )
        assert (workspace / "open.txt").exists(), written
        assert bad, new
        assert refused
        assert "CODEWORD-secret" not in read
        assert not (workspace / "secret" / "new.txt").exists()
        state = session.stop()
    with hostler.agent_resume(state, **options) as session:
        assert [bad for _, bad in tries(session, {"shell": "true && rm kept-0"})] == [True]
        assert [bad for _, bad in tries(session, by_tool(program, True, workspace / "secret" / "n.txt"))] == [True]
    assert (workspace / "kept-0").exists()
    assert not (workspace / "secret" / "n.txt").exists()

"""The examples in README and docs run as they are written, with real programs and the scripted model."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.conftest import processes_of, wait_until

from hostler.testing.model_server import ModelServer

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
KEY = "planted-gateway-key-7f3a"
PRICES = {"coder": {"input_cost_per_token": 1e-6, "output_cost_per_token": 5e-6}}
BLOCK = re.compile(r"^```python(?P<kind>[^\n]*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nothing_left")]

AFTER_README = """
import asyncio
assert "CODEWORD-hay" not in asyncio.run(chat("1", "Who are you?"))
asyncio.run(chat("2", "Remember CODEWORD-hay."))
assert "CODEWORD-hay" in asyncio.run(chat("2", "What was it?"))
assert KEY not in str(chats)
with hostler.agent_session(Harness.CODEX, model="litellm_proxy/coder", tools=[bales]) as s:
    r = s.run('@@{"tool": "bales", "namespace": "mcp__host", "args": {"feed": "straw"}}@@')
    assert [e.output for e in r.events if isinstance(e, hostler.harness.ToolResult)] == ["12"]
import httpx


async def post(*messages):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        answer = await client.post("/chats/9", json={"id": "9", "messages": messages, "trigger": "submit-message"})
        return answer.status_code, answer.text


def ui(id, role, text):
    parts = [{"type": "step-start"}] if role == "assistant" else []
    return {"id": id, "role": role, "parts": [*parts, {"type": "text", "text": text, "state": "done"}]}


asked = ui("u1", "user", "Remember CODEWORD-oats.")
status, said = asyncio.run(post(asked))
assert (status, "CODEWORD-oats" in said) == (200, True), said
status, said = asyncio.run(post(asked, ui("a1", "assistant", said), ui("u2", "user", "What was it?")))
assert "users=2 memo=CODEWORD-oats" in said, said
status, said = asyncio.run(post(ui("u1", "user", "Remember CODEWORD-rye.")))  # edited, under the same id
assert "users=1 memo=CODEWORD-rye" in said, said
assert asyncio.run(post())[0] == 422
shell = '@@[{"shell": "%s"}]@@'
days = [("monday", "echo on Friday > /persistent/notes/hay.md"), ("tuesday", "cat /persistent/notes/hay.md")]
for key, command in days:
    r = hostler.generate_harness(harness=assistant, session=key, extra_body=ada, prompt=shell % command)
    print("turn", r.stop_reason, r.error and r.error.code, r.cost)
assert [e.output.strip() for e in r.events if isinstance(e, hostler.harness.ToolResult)] == ["on Friday"]
assert notes == {"ada": (1, {"hay.md": b"on Friday\\n"})}, notes
for key, _ in days:
    assistant.sessions.delete(key)
for raw in chats.values():
    hostler.agent_resume(State.loads(raw)).close()
"""


def blocks(page: Path, kind: str = "") -> list[tuple[int, str]]:
    text = page.read_text()
    return [
        (text.count("\n", 0, found.start("code")), found["code"])
        for found in BLOCK.finditer(text)
        if found["kind"].strip() == kind
    ]


def script(page: Path) -> str:
    """All blocks of a page one after another; every Result under ``r`` must be a turn that ended well."""
    lines = [f"KEY = {KEY!r}"]
    for line, code in blocks(page):
        # Blank lines before it give the traceback the page's own line numbers.
        lines.append(f"exec(compile({chr(10) * line + code!r}, {str(page)!r}, 'exec'))")
        lines.append("if 'r' in globals(): print('turn', r.stop_reason, r.error and r.error.code, r.cost); del r")
    if page.name == "README.md":
        lines.append(AFTER_README)
    return "\n".join(lines)


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda p: p.name)
def test_the_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ModelServer(key=KEY if page.name == "README.md" else None, prices=PRICES) as models:
        monkeypatch.setenv("LITELLM_PROXY_API_BASE", models.url)
        monkeypatch.setenv("LITELLM_PROXY_API_KEY", KEY)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script(page)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert wait_until(lambda: not processes_of(tmp_path), 5)
    assert KEY not in done.stdout
    turns = [line.split() for line in done.stdout.splitlines() if line.startswith("turn ")]
    if page.name == "README.md":
        assert len(turns) >= 6
        assert all(turn[1:3] == ["done", "None"] and float(turn[3]) > 0 for turn in turns), turns


SECTION = "## Tools and approvals\n"
AFTER_SECTION = """
from hostler.harness import ToolResult
NATIVE = {"CLAUDE_CODE": "mcp__host__%s", "CODEX": "%s", "OPENCODE": "host_%s"}["PROGRAM"]
def call(name, **given):
    more = {"namespace": "mcp__host"} if "PROGRAM" == "CODEX" else {}
    return "@@" + json.dumps([{"tool": NATIVE % name, "args": given, **more}]) + "@@"
asked = []
QUESTION = {"CLAUDE_CODE": "AskUserQuestion", "CODEX": "request_user_input", "OPENCODE": "host_question"}["PROGRAM"]
def ask(text):
    options = [{"label": "The barn.", "description": "dry"}, {"label": "The yard.", "description": "near"}]
    question = {"question": text, "header": "Hay", "options": options}
    more = {"id": "place"} if "PROGRAM" == "CODEX" else {"multiSelect": False} if "PROGRAM" == "CLAUDE_CODE" else {}
    return "@@" + json.dumps([{"tool": QUESTION, "args": {"questions": [{**question, **more}]}}]) + "@@"
def answer(approval):
    if approval.questions:
        return ask_ada(approval)
    asked.append(approval.input["count"])
    return small_sales(approval)
with hostler.agent_session(
    Harness.PROGRAM, model="litellm_proxy/coder", tools=[bales, sell], permissions="ask", allow=["bales"], on_approval=answer
) as s:
    told, warned = [], []
    for prompt in (call("bales", feed="hay"), call("sell", feed="hay", count=3), call("sell", feed="hay", count=20)):
        result = s.run(prompt)
        told += [(e.output, e.is_error) for e in result.events if isinstance(e, ToolResult)]
        warned += result.warnings
    assert told == [("40", False), ("37 are left", False), ("Not allowed: The application said no.", True)], (told, warned)
    assert asked == [3, 20] and barn["hay"] == 37
    assert s.files.read("sales.txt").startswith(b"3 bales of hay, call ")
    (said,) = [e.output for e in s.run(ask("Where does the hay go?")).events if isinstance(e, ToolResult)]
    assert "The barn." in said, said
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", ["CLAUDE_CODE", "CODEX", "OPENCODE"])
def test_tools_and_approvals_are_the_same_on_every_program(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README's section as it is written, with each program in it, and then what it says."""
    page = (ROOT / "README.md").read_text()
    section = page[page.index(SECTION) :].partition("\n## ")[0]
    code = "".join(found["code"] for found in BLOCK.finditer(section)) + AFTER_SECTION
    code = code.replace("Harness.CLAUDE_CODE", f"Harness.{program}").replace("PROGRAM", program)
    with ModelServer(key=KEY, prices=PRICES) as models:
        monkeypatch.setenv("LITELLM_PROXY_API_BASE", models.url)
        monkeypatch.setenv("LITELLM_PROXY_API_KEY", KEY)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", f"import json, hostler\nfrom hostler import Harness\n{code}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "Where does the hay go? ['The barn.', 'The yard.']" in done.stdout
    assert len(models.calls) >= 8


@pytest.mark.timeout(300)
def test_the_pytest_example_passes(tmp_path: Path) -> None:
    ((_, code),) = blocks(ROOT / "docs" / "testing-your-app.md", "test")
    (tmp_path / "test_example.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_blocks_are_found() -> None:
    """The pattern above sees what a reader sees."""
    for page in PAGES:
        assert len(BLOCK.findall(page.read_text())) == page.read_text().count("```python"), page
        for _, code in blocks(page):
            assert code == textwrap.dedent(code)

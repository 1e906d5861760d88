"""Sessions in bubblewrap: what the agent sees, what reaches it, what is left when something is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import keepers_of, processes_of, wait_until
from tests.sessions.programs import ALL, CODEX, FAKE_PROGRAM, Program, ids
from tests.sessions.test_kill import App, slow_turn

import hostler
from hostler import CapabilityUnsupported, OptionsMismatch, SandboxError, StateIncompatible, sandbox
from hostler.harness import State, ToolResult
from hostler.sandboxes import choice, limits, probe
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.bubblewrap]


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


def shell(session: Any, command: str, **more: Any) -> str:
    result = session.run(json.dumps([{"shell": command}]), **more)
    assert result.error is None, result.error
    return str(result.text)


# ---- what the agent sees --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_every_program_runs_in_it(program: Program, models: ModelServer, workspace: Path, state_dir: Path) -> None:
    """A turn, a parked program taken up again, a new process with the old history; in a folder of the caller's own."""
    (workspace / "AGENTS.md").write_text("Say CODEWORD-house.")
    box = sandbox.bubblewrap(workspace)
    with hostler.agent_session(program.harness, sandbox=box, **program.options(models)) as session:
        result = session.run(
            program.shell("pwd > out; id -u >> out; echo $HOME >> out; echo x > /artifacts/r", "CODEWORD-one")
        )
        assert result.error is None
        assert (workspace / "out").read_text().split() == ["/session", "1000", "/home/agent"]
        assert os.stat(workspace / "out").st_uid == os.geteuid()
        assert [change.path for change in result.files] == ["out"]
        assert [file.path for file in result.artifacts] == ["/artifacts/r"]
        assert session.workdir == str(workspace)
        state = session.detach()
    for end in ("stop", "close"):
        with hostler.agent_resume(State.loads(state.dumps()), **program.options(models)) as session:
            assert session.resumed == {"stop": "attached", "close": "native"}[end]
            before = len(models.calls)
            session.run("What do you remember?" if not program.fake else program.recall())
            if not program.fake:
                asked = json.dumps([call.body for call in models.calls[before:]])
                assert "CODEWORD-one" in asked
                assert program.name == "opencode" or "CODEWORD-house" in asked
            getattr(session, end)()


def test_files_by_their_names(options: dict[str, Any], workspace: Path) -> None:
    with hostler.agent_session(FAKE, sandbox=sandbox.bubblewrap, **options) as session:
        session.files.write("/session/in.txt", b"1", notice=True)
        session.files.write("/artifacts/a.txt", b"2")
        session.files.write("/persistent/p.txt", b"3")
        session.files.write("/skills/s.txt", b"4")
        said = session.run("[]\nRead /session/in.txt.")
        assert "- /session/in.txt" in said.text or said.text == ""
        assert shell(session, "cat /session/in.txt /artifacts/a.txt /persistent/p.txt /skills/s.txt") == "1234"
        assert "Read-only" in shell(session, "echo x > /skills/s.txt")
        shell(session, "echo 5 > /persistent/p.txt; ln -s /etc/passwd link; ln -s in.txt inside")
        assert session.files.read("/persistent/p.txt") == b"5\n"
        with pytest.raises(hostler.PathError):
            session.files.read("link")
        assert shell(session, "cat inside") == "1"


def test_only_what_is_named_is_shown(options: dict[str, Any], tmp_path: Path, workspace: Path) -> None:
    for name in ("shown", "hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    box = sandbox.bubblewrap(workspace, ro=[tmp_path / "shown"], env={"OWN": "1"}, inherit=["PASSED", "NONE"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PASSED", "2")
        patch.setenv("OTHER", "3")
        with hostler.agent_session(FAKE, sandbox=box, **options) as session:
            shown = (
                f"/run/hostler/host{tmp_path}/shown/f" if str(tmp_path).startswith("/tmp") else f"{tmp_path}/shown/f"
            )
            assert shell(session, f"cat {shown}") == "shown"
            assert "Read-only" in shell(session, f"echo x > {shown}")
            assert "No such file" in shell(session, f"cat {shown.replace('/shown/', '/hidden/')}")
            assert shell(session, "echo $OWN$PASSED$OTHER$NONE") == "12\n"
            names = set(shell(session, "env | cut -d= -f1").split())
    assert "OTHER" not in names
    assert not {name for name in names if name.startswith(("PYTEST", "VIRTUAL_ENV"))}


@pytest.mark.parametrize("path", ["/run", "/dev", "/proc/sys", "/home", "/dev/shm"])
def test_nothing_that_would_hide_what_the_sandbox_has_itself(workspace: Path, path: str) -> None:
    with pytest.raises(SandboxError, match="would hide"):
        sandbox.bubblewrap(workspace, ro=[path])


def test_a_program_that_is_not_there(options: dict[str, Any], workspace: Path) -> None:
    for program in (["/no/such/program"], [str(workspace)]):
        given = {**options, "options": {"program": program}}
        session = hostler.agent_session(FAKE, sandbox=sandbox.bubblewrap, **given)
        with session, pytest.raises(hostler.HarnessInstallFailed, match=program[0]):
            session.run("x")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_a_workspace_of_somebody_else(options: dict[str, Any], workspace: Path, models: ModelServer) -> None:
    """Case E10: said before the first model call. Root's agent has none of root's rights."""
    os.chown(workspace, 1234, 1234)
    for mode, permissions, works in (
        (0o700, "full", False),
        (0o755, "full", False),
        (0o755, "read-only", True),
        (0o777, "full", True),
    ):
        workspace.chmod(mode)
        box = sandbox.bubblewrap(workspace)
        with hostler.agent_session(FAKE, sandbox=box, permissions=permissions, **options) as session:
            if works:
                assert shell(session, "pwd") == "/session\n"
                continue
            with pytest.raises(SandboxError, match="belongs to user 1234"):
                session.run(json.dumps([{"model": "x"}]))
    assert models.calls == []


# ---- networks -------------------------------------------------------------------------------------------------------

CONNECT = """python3 - <<'X'
import socket
try: print(socket.create_connection(("127.0.0.1", PORT), timeout=3).recv(5))
except OSError as e: print(e.strerror)
X"""


def test_the_network_is_off_or_on(options: dict[str, Any], workspace: Path) -> None:
    """Off: the model and the app's tools, nothing else. On: what the host reaches; rules that forbid it win."""

    def who() -> str:
        """Says who."""
        return "the app"

    with socket.create_server(("127.0.0.1", 0)) as server:
        command = CONNECT.replace("PORT", str(server.getsockname()[1])).replace("python3", '"$FAKE_PYTHON"')
        for network, permissions, reached in (
            ("off", "full", False),
            ("on", "full", True),
            ("on", "edit", False),
            ("on", "read-only", False),
        ):
            box = sandbox.bubblewrap(workspace, network=network)
            with hostler.agent_session(FAKE, sandbox=box, tools=[who], permissions=permissions, **options) as session:
                result = session.run(json.dumps([{"model": "hello"}, {"mcp": "who", "arguments": {}}]))
                assert [e.output for e in result.events if isinstance(e, ToolResult)] == ["the app"]
                assert result.usage.calls == 1
                server.settimeout(0.1)
                said = shell(session, command)
                try:
                    server.accept()[0].close()
                    assert reached
                except TimeoutError:
                    assert not reached
                    assert said == "Connection refused\n"


def test_mcp_servers(options: dict[str, Any], tmp_path: Path) -> None:
    """A command is shown inside; an address that cannot be reached there is refused."""
    server = tmp_path / "server.py"
    server.write_text("print('x')")
    given = {"one": {"command": sys.executable, "args": ["-I", str(server), "--flag"]}}
    with hostler.agent_session(FAKE, sandbox=sandbox.bubblewrap, mcp_servers=given, **options) as session:
        inside = f"/run/hostler/host{server}" if str(server).startswith("/tmp") else str(server)
        assert shell(session, f'"$FAKE_PYTHON" -I {inside}') == "x\n"
    for servers, words in (
        ({"far": {"url": "http://example.com"}}, "no network"),
        ({"gone": {"command": "/no/x"}}, "/no/x"),
    ):
        session = hostler.agent_session(FAKE, sandbox=sandbox.bubblewrap, mcp_servers=servers, **options)
        with session, pytest.raises(CapabilityUnsupported, match=words):
            session.run("x")


# ---- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_permissions_are_held_by_the_mounts(program: Program, models: ModelServer, workspace: Path) -> None:
    """Also for a program that can confine nothing by itself, and it may use its shell."""
    box = sandbox.bubblewrap(workspace)
    command = "echo x > made; echo y > /artifacts/made; echo z > /home/agent/z && cat kept > /tmp/seen; cat /tmp/seen"
    for permissions in ("read-only", "edit"):
        (workspace / "kept").write_text("CODEWORD-kept")
        with hostler.agent_session(
            program.harness, sandbox=box, permissions=permissions, **program.options(models)
        ) as session:
            result = session.run(program.shell(command))
            outputs = "".join(e.output for e in result.events if isinstance(e, ToolResult))
            assert result.error is None
            assert "CODEWORD-kept" in outputs
            made = (workspace / "made").exists(), bool(result.artifacts)
            assert made == (permissions == "edit", permissions == "edit")


def test_what_a_program_cannot_hold_the_sandbox_does(models: ModelServer, workspace: Path) -> None:
    """An agent of which only its command is known."""
    agent = hostler.acp_agent(command=["opencode", "acp"])
    more = {**CODEX.options(models), "permissions": "read-only"}
    hostler.agent_session(agent, sandbox=sandbox.bubblewrap(workspace), **more).close()
    with pytest.raises(CapabilityUnsupported, match="read-only"):
        hostler.agent_session(agent, sandbox=sandbox.local(workspace), **more)
    with pytest.raises(CapabilityUnsupported, match="ask"):
        hostler.agent_session(agent, sandbox=sandbox.bubblewrap(workspace), **{**more, "permissions": "ask"})


@pytest.mark.parametrize("given", [{"memory": 0}, {"processes": -1}, {"memory": 1.5}, {"processes": True}])
def test_limits_are_numbers(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="limits"):
        sandbox.Limits(**given)


def test_limits_are_removed_with_the_program(options: dict[str, Any]) -> None:
    bounds = sandbox.Limits(memory=256 << 20, processes=100)
    try:
        groups = limits.hold(bounds, root=os.geteuid() == 0).groups
    except CapabilityUnsupported:  # said when the sandbox is made, and not in the middle of a turn
        with pytest.raises(CapabilityUnsupported, match="memory"):
            hostler.agent_session(FAKE, sandbox=sandbox.bubblewrap(limits=bounds), **options)
        return
    parents = [Path(group["dir"]).parent for group in groups]

    def made() -> int:
        return sum(len(list(parent.glob("hostler-*"))) for parent in parents)

    before = made()
    with hostler.agent_session(FAKE, sandbox=sandbox.bubblewrap(limits=bounds), **options) as session:
        shell(session, "true")
        assert made() == before + len(parents)
    assert wait_until(lambda: made() == before, 5)


CGROUPS = {
    "unified": ("0::/app\n", "30 1 0:1 / {root} rw - cgroup2 none rw\n"),
    "legacy": ("5:memory:/app\n4:pids:/app\n0::/\n", "30 1 0:1 / {root} rw - cgroup none rw,memory,pids\n"),
    "none": ("0::/\n", "30 1 0:1 / /none rw - proc none rw\n"),
}


@pytest.mark.parametrize("kind", CGROUPS)
def test_where_limits_are_held(kind: str, tmp_path: Path) -> None:
    own, mounts = CGROUPS[kind]
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    (root / "app").mkdir(parents=True)
    proc.mkdir()
    (proc / "cgroup").write_text(own)
    (proc / "mountinfo").write_text(mounts.format(root=root))
    if kind == "unified":  # the group around ours hands its controllers on; ours holds processes and cannot
        (root / "cgroup.subtree_control").write_text("cpu memory pids\n")
        (root / "app" / "cgroup.subtree_control").write_text("\n")
        (root / "cgroup.procs").touch()
    both = sandbox.Limits(memory=1000, processes=10)
    if kind == "none":
        assert limits.hold(sandbox.Limits(processes=10), root=False, proc=proc).wrap[1] == "--nproc=10"
        for bounds, as_root in ((both, False), (sandbox.Limits(processes=10), True)):
            with pytest.raises(CapabilityUnsupported, match="Delegate"):
                limits.hold(bounds, root=as_root, proc=proc)
        assert limits.hold(sandbox.Limits(), root=True, proc=proc) == limits.Held()
        return
    groups = limits.hold(both, root=True, proc=proc).groups
    settings = {name: text for group in groups for name, text in group["settings"].items()}
    if kind == "unified":
        assert settings == {"memory.max": "1000", "pids.max": "10"}
        assert Path(groups[0]["dir"]).parent == root
    else:
        assert settings == {"memory.limit_in_bytes": "1000", "pids.max": "10"}
        assert {Path(group["dir"]).parent for group in groups} == {root / "app"}


# ---- which sandbox ---------------------------------------------------------------------------------------------------


def test_it_is_the_default_where_it_works(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        assert shell(session, "pwd") == "/session\n"
    harness = hostler.create_harness(host=hostler.local_host(tmp_path / "host"), runtime=FAKE, **options)
    result = hostler.generate_harness(harness=harness, prompt='[{"say": "cwd"}]', session="k")
    assert result.text == "/session"
    assert choice.chosen() == ("bubblewrap", "it works here")
    monkeypatch.setenv("HOSTLER_SANDBOX", "local")
    assert isinstance(sandbox.auto(tmp_path), sandbox.Local)
    monkeypatch.setenv("HOSTLER_SANDBOX", "docker")
    with pytest.raises(SandboxError, match="bubblewrap, local"):
        sandbox.auto(tmp_path)


def test_without_bubblewrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`auto` then says why not, and `bubblewrap` raises."""
    probe.missing.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setenv("PATH", str(tmp_path))
            assert isinstance(sandbox.auto(tmp_path), sandbox.Local)
            assert "install" in choice.chosen()[1]
            with pytest.raises(SandboxError, match="install the package bubblewrap"):
                sandbox.bubblewrap(tmp_path)
        for script, words in (
            ("echo 'setting up uid map: Permission denied' >&2; exit 1", "uid map"),
            ("exit 3", "exit code 3"),
        ):
            (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / "bwrap").chmod(0o755)
            probe.missing.cache_clear()
            with monkeypatch.context() as patch:
                patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
                assert words in choice.chosen()[1]
    finally:
        probe.missing.cache_clear()


def test_mistakes_are_said_at_once(tmp_path: Path) -> None:
    for given, error in (
        ({"network": "maybe"}, ValueError),
        ({"ro": "/opt"}, TypeError),
        ({"ro": ["/no/such/path"]}, SandboxError),
        ({"ro": ["/"]}, SandboxError),
        ({"limits": {"memory": 1}}, TypeError),
        ({"env": {"HOME": "/x"}}, ValueError),
        ({"inherit": "PATH"}, TypeError),
    ):
        with pytest.raises(error):
            sandbox.bubblewrap(tmp_path, **given)
    with pytest.raises(SandboxError, match="not an existing directory"):
        sandbox.bubblewrap(tmp_path / "none")


def test_another_sandbox_of_the_same_kind_from_the_next_call_on(models: ModelServer, tmp_path: Path) -> None:
    """Of one process that has the session in hand, too."""
    host = hostler.local_host(tmp_path / "host")
    for network, lines in (("off", 3), ("on", None), ("off", 3)):
        harness = hostler.create_harness(
            host=host, runtime=FAKE, sandbox=sandbox.bubblewrap(network=network), **FAKE_PROGRAM.options(models)
        )
        prompt = json.dumps([{"shell": "cat /proc/net/dev | wc -l"}])
        found = int(hostler.generate_harness(harness=harness, prompt=prompt, session="k").text)
        assert (found == 3) is (lines == 3) or len(os.listdir("/sys/class/net")) == 1
    harness.sessions.delete("k")


def test_a_session_keeps_its_sandbox(options: dict[str, Any], workspace: Path, tmp_path: Path) -> None:
    """Invariant 7, case A05: what was given once holds on every turn; what cannot be stored is asked for."""
    shown = tmp_path / "shown"
    shown.mkdir()
    box = sandbox.bubblewrap(workspace, network="on", ro=[shown], limits=sandbox.Limits(processes=500))
    with hostler.agent_session(FAKE, sandbox=box, **options) as session:
        shell(session, "echo 1 > f")
        state = session.stop()
    with hostler.agent_resume(state, **options) as session:
        assert session._core._live.sandbox.recipe == box.recipe
        assert shell(session, "cat /session/f") == "1\n"
        session.stop()
    with hostler.agent_resume(state, sandbox=sandbox.bubblewrap(workspace), **options) as session:
        assert shell(session, "cat /proc/net/dev | wc -l") == "3\n"  # the heading, and lo
        session.stop()
    with pytest.raises(StateIncompatible, match="local"):
        hostler.agent_resume(state, sandbox=sandbox.local(workspace), **options)
    with hostler.agent_session(FAKE, sandbox=sandbox.local(workspace), **options) as session:
        shell(session, "true")
        state = session.stop()
    with pytest.raises(StateIncompatible, match="bubblewrap"):
        hostler.agent_resume(state, sandbox=sandbox.bubblewrap(workspace), **options)
    with hostler.agent_resume(state, **options) as session:
        assert shell(session, "pwd") == f"{workspace}\n"
        state = session.stop()
    secret = sandbox.bubblewrap(env={"TOKEN": "t"})
    with hostler.agent_session(FAKE, sandbox=secret, **options) as session:
        state = session.stop()
    with pytest.raises(OptionsMismatch, match="TOKEN"):
        hostler.agent_resume(state, **options)
    with hostler.agent_resume(state, sandbox=secret, **options) as session:
        assert shell(session, "echo $TOKEN") == "t\n"


# ---- ends -----------------------------------------------------------------------------------------------------------

BUSY = "setsid sleep 1000 & setsid sh -c 'trap : TERM INT HUP; while :; do sleep 1; done' & sleep 1000"


def sleepers(state_dir: Path) -> list[psutil.Process]:
    return [process for process in processes_of(state_dir) if process.name() == "sleep"]


def test_the_keeper_is_killed(options: dict[str, Any], state_dir: Path) -> None:
    with hostler.agent_session(FAKE, sandbox=sandbox.bubblewrap, **options) as session:
        stream = session.stream(json.dumps([{"shell": BUSY}]))
        assert wait_until(lambda: len(sleepers(state_dir)) >= 3, 10)
        (keeper,) = keepers_of(state_dir)
        start = time.monotonic()
        keeper.send_signal(signal.SIGKILL)
        assert wait_until(lambda: not processes_of(state_dir), 5)
        assert time.monotonic() - start < 5
        assert stream.wait().error.code == "program_lost"
        assert shell(session, "echo on") == "on\n"


def test_the_app_is_killed(models: ModelServer, state_dir: Path, workspace: Path) -> None:
    """The turn goes on, and is taken up; with nobody who comes back everything is gone 5 s after its time."""
    job = {
        "harness": "fake",
        "options": FAKE_PROGRAM.options(models),
        "prompts": [slow_turn(FAKE_PROGRAM)],
        "workspace": str(workspace),
        "sandbox": "bubblewrap",
    }
    for ttl in ("60", "0.5"):
        app = App(job, HOSTLER_ORPHAN_TTL=ttl, HOSTLER_PARK_TTL=ttl)
        state = State.loads(app.until("state"))
        app.until("event")
        app.kill()
        if ttl == "60":
            with hostler.agent_resume(state, **FAKE_PROGRAM.options(models)) as session:
                assert session.resumed == "attached"
                assert shell(session, "cat /session/kept.txt") == "kept\n"
        else:
            assert wait_until(lambda: not processes_of(state_dir) and not keepers_of(state_dir), 5.5)


def test_a_polite_end_reaches_the_program(options: dict[str, Any], state_dir: Path, workspace: Path) -> None:
    """SIGTERM is for the program inside, not for what encloses it: that would end it at once."""
    agent = workspace / "agent.py"
    agent.write_text(
        "import json, signal, sys, time\n"
        "def end(*_): open('/session/ended', 'w').write('politely'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "while line := sys.stdin.readline():\n"
        "  m = json.loads(line)\n"
        "  if m['op'] == 'hello': print(json.dumps({'ev': 'ready', 'session': sys.argv[sys.argv.index('--session') + 1]}))\n"
        "  if m['op'] == 'prompt':\n"
        "    print(json.dumps({'ev': 'end', 'turn': m['turn'], 'stop': 'done', 'text': 'ok', 'output': None, 'error': None, 'at': '1'}))\n"
        "  sys.stdout.flush()\n"
        "time.sleep(100)\n"
    )
    program = {"program": [sys.executable, "-I", "-S", str(agent)]}
    with hostler.agent_session(FAKE, sandbox=sandbox.bubblewrap(workspace), options=program, **options) as session:
        assert session.run("x").text == "ok"
    assert (workspace / "ended").read_text() == "politely"

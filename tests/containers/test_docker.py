"""Sessions in containers of Docker and Podman: found by their names, ended with all that they started, resumed in new ones."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import docker
import psutil
import pytest
from tests.conftest import keepers_of, wait_until
from tests.containers.daemons import Engine
from tests.containers.images import AGENTS, BARE, FAKE_PROGRAM, PLAIN, USER
from tests.sandboxes.test_escapes import USER as ORDINARY
from tests.sandboxes.test_escapes import as_ordinary
from tests.sandboxes.test_escapes import home as home
from tests.sessions.programs import CLAUDE, CODEX, KEY, OPENCODE, Program, ids
from tests.sessions.programs import FAKE_PROGRAM as FAKE_AGENT

import hostler
from hostler import CapabilityUnsupported, HarnessInstallFailed, SandboxError, StateIncompatible, sandbox
from hostler.harness import Notice, State
from hostler.host import gc
from hostler.sandboxes.docker import network, unused
from hostler.testing import fake_program
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer

pytestmark = pytest.mark.usefixtures("nothing_left")
PROGRAMS = [
    FAKE_AGENT,
    *(pytest.param(program, marks=pytest.mark.real) for program in (CLAUDE, CODEX)),
    pytest.param(OPENCODE, marks=[pytest.mark.real, pytest.mark.soak]),
]
IN_IMAGE = ["python3", "-I", "-S", "-E", FAKE_PROGRAM]


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return {**FAKE_AGENT.options(models), "options": {"program": IN_IMAGE}}


def given(program: Program, models: ModelServer) -> dict[str, Any]:
    return {**program.options(models), **({"options": {"program": IN_IMAGE}} if program.fake else {})}


def shell(session: Any, command: str, **more: Any) -> str:
    result = session.run(json.dumps([{"shell": command}]), **more)
    assert result.error is None, result.error
    return str(result.text)


def attrs(engine: Engine, name: str) -> dict[str, Any]:
    with engine.client() as client:
        found: dict[str, Any] = client.api.inspect_container(name)
    return found


def commands(engine: Engine, name: str) -> list[str]:
    """What runs in the container."""
    with engine.client() as client:
        top = client.api.top(name)
    return [row[-1] for row in top["Processes"]]


def idle(engine: Engine, name: str) -> bool:
    """Nothing runs in it but what keeps it."""
    return all("sleep 3600" in line or "init" in line for line in commands(engine, name))


# ---- sessions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_every_program_runs_in_it(
    program: Program, docker_engine: Engine, container_name: str, models: ModelServer, state_dir: Path
) -> None:
    """A turn, a parked program taken up again in another sandbox object, a new process with the old history."""
    image = AGENTS if program.fake else PLAIN
    box = sandbox.docker(image, name=container_name)
    with hostler.agent_session(program.harness, sandbox=box, **given(program, models)) as session:
        command = "pwd > out; id -u >> out; echo x > $HOSTLER_ARTIFACTS/r; ls /sys/class/net >> out"
        result = session.run(program.shell(command, "CODEWORD-one"))
        assert result.error is None
        assert Path(box.root, "out").read_text().split() == ["/workspace", str(os.geteuid()), "lo"]
        assert os.stat(f"{box.root}/out").st_uid == os.geteuid()
        assert [change.path for change in result.files] == ["out"]
        assert [file.path for file in result.artifacts] == ["/artifacts/r"]
        assert session.files.read("/workspace/out") == session.files.read("out")
        assert result.warnings == () or program is CODEX
        state = session.detach()
    id = attrs(docker_engine, container_name)["Id"]
    for end in ("stop", "close"):
        box = sandbox.docker(image, name=container_name)
        with hostler.agent_resume(State.loads(state.dumps()), sandbox=box, **given(program, models)) as session:
            assert session.resumed == {"stop": "attached", "close": "native"}[end]
            before = len(models.calls)
            result = session.run("What do you remember?" if not program.fake else program.recall())
            if program.fake:
                assert "CODEWORD-one" in result.text
            else:
                assert "CODEWORD-one" in json.dumps([call.body for call in models.calls[before:]])
            getattr(session, end)()
    assert attrs(docker_engine, container_name)["Id"] == id
    assert wait_until(lambda: idle(docker_engine, container_name), 5), commands(docker_engine, container_name)


@pytest.mark.parametrize(
    "program", [FAKE_AGENT, pytest.param(CLAUDE, marks=pytest.mark.real), pytest.param(CODEX, marks=[pytest.mark.real, pytest.mark.soak])], ids=ids
)  # fmt: skip
def test_podman(program: Program, podman_engine: Engine, container_name: str, models: ModelServer) -> None:
    box = sandbox.docker(AGENTS if program.fake else PLAIN, name=container_name)
    with hostler.agent_session(program.harness, sandbox=box, **given(program, models)) as session:
        assert session.run(program.shell("id -u > out; (sleep 1000 >&- 2>&- <&- &)", "CODEWORD-one")).error is None
        assert Path(box.root, "out").read_text() == f"{os.geteuid()}\n"
        state = session.stop()
    assert wait_until(lambda: idle(podman_engine, container_name), 5), commands(podman_engine, container_name)
    with podman_engine.client() as client:
        client.api.remove_container(container_name, force=True)
    with hostler.agent_resume(state, sandbox=box, **given(program, models)) as session:
        before = len(models.calls)
        result = session.run(program.recall())
        assert session.resumed == "native"
        assert [event.code for event in result.events if isinstance(event, Notice)][:1] == ["container_replaced"]
        assert "CODEWORD-one" in (result.text if program.fake else json.dumps([c.body for c in models.calls[before:]]))


def test_a_session_of_a_host_in_a_container_of_its_own(
    docker_engine: Engine, options: dict[str, Any], state_dir: Path
) -> None:
    """The folders of a keyed session under their own names; the container is the session's and goes with it."""
    harness = hostler.create_harness(
        host=hostler.local_host(state_dir),
        runtime=FAKE,
        sandbox=lambda ws: sandbox.docker(AGENTS, mounts=ws.mounts),
        persistent_dirs=[
            hostler.persistent_dir("/persistent/notes", load=lambda ctx: {"a": b"1"}, store=lambda ctx, changes, cursor: "2"),
            hostler.persistent_dir("/persistent/fixed", load=lambda ctx: {"b": b"2"}, commit="read-only"),
        ],
        **options,
    )  # fmt: skip
    session = harness.sessions.get_or_create(id="k")
    session.files.write("/session/in.txt", b"1", notice=True)
    said = shell(
        session,
        "pwd; cat in.txt /persistent/notes/a /persistent/fixed/b; touch /skills/x /persistent/fixed/x; echo r > /artifacts/r; echo $HOME",
    )
    assert said.startswith("/session\n112")
    assert said.count("Read-only file system") == 2
    assert said.endswith("/home/agent\n")
    assert session.artifacts.read("/artifacts/r") == b"r\n"
    name = session._core._live.sandbox.name
    labels = attrs(docker_engine, name)["Config"]["Labels"]
    assert labels["hostler.image"] == AGENTS
    session.detach()
    session = harness.sessions.get("k")
    assert session.resumed == "attached"
    assert shell(session, "cat in.txt") == "1"
    session.stop()
    with pytest.raises(docker.errors.NotFound):
        attrs(docker_engine, name)
    session = harness.sessions.get("k")
    assert session.resumed == "native"
    assert shell(session, "cat in.txt") == "1"
    harness.sessions.delete("k")
    with pytest.raises(docker.errors.NotFound):
        attrs(docker_engine, name)
    assert not os.listdir(state_dir / "sessions")


def test_a_resume_without_a_sandbox_finds_the_container(
    docker_engine: Engine, container_name: str, options: dict[str, Any]
) -> None:
    box = sandbox.docker(AGENTS, name=container_name, limits=sandbox.Limits(processes=200), labels={"mine": "1"})
    with hostler.agent_session(FAKE, sandbox=box, **options) as session:
        shell(
            session,
            "touch /installed; cat /sys/fs/cgroup/pids/pids.max > here 2> /dev/null || cat /sys/fs/cgroup/pids.max > here",
        )
        assert session.files.read("here") == b"200\n"
        state = session.stop()
    assert attrs(docker_engine, container_name)["Config"]["Labels"]["mine"] == "1"
    with docker_engine.client() as client:
        client.api.stop(container_name, timeout=1)
    with hostler.agent_resume(state, **options) as session:
        assert shell(session, "ls /installed") == "/installed\n"
    other = sandbox.docker(AGENTS, name=f"{container_name}-2")
    with pytest.raises(StateIncompatible, match="works in"), hostler.agent_resume(state, sandbox=other, **options):
        pass


def test_two_sessions_in_one_container(docker_engine: Engine, container_name: str, options: dict[str, Any]) -> None:
    """One after the other, the first one closed by an exception before its state was kept; and both at once."""
    box = sandbox.docker(AGENTS, name=container_name)
    with contextlib.suppress(ZeroDivisionError), hostler.agent_session(FAKE, sandbox=box, **options) as session:
        shell(session, "echo 1 > shared")
        raise ZeroDivisionError
    with (
        hostler.agent_session(FAKE, sandbox=box, **options) as one,
        hostler.agent_session(FAKE, sandbox=sandbox.docker(AGENTS, name=container_name), **options) as two,
    ):
        assert shell(one, "cat shared; sleep 1000 >/dev/null 2>&1 & echo $HOME > one") == "1\n"
        assert shell(two, "cat shared; echo $HOME > two") == "1\n"
        assert one.files.read("one") != two.files.read("two")
        two.close()
        assert any("sleep 1000" in line for line in commands(docker_engine, container_name))
        assert shell(one, "cat shared") == "1\n"


def test_what_the_image_has_is_the_workspace(
    docker_engine: Engine, container_name: str, options: dict[str, Any]
) -> None:
    tag = f"localhost/{container_name}"
    with docker_engine.client() as client:
        made = client.api.create_container(AGENTS, name=f"{container_name}-image")
        client.api.put_archive(made, "/", packed({"workspace/src/a.py": b"1", "workspace/b": b"2"}))
        client.api.commit(made, tag)
        client.api.remove_container(made)
    try:
        box = sandbox.docker(tag, name=container_name)
        with hostler.agent_session(FAKE, sandbox=box, **options) as session:
            assert session.files.read("src/a.py") == b"1"
            result = session.run(json.dumps([{"shell": "echo 3 > b"}]))
            assert [change.path for change in result.files] == ["b"]
        box.close()
        with pytest.raises(docker.errors.NotFound):
            attrs(docker_engine, container_name)
        with hostler.agent_session(FAKE, sandbox=sandbox.docker(tag, name=container_name), **options) as session:
            assert shell(session, "cat b") == "3\n"
    finally:
        with docker_engine.client() as client:
            client.api.remove_container(container_name, force=True)
            client.api.remove_image(tag, force=True)


def packed(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_a_folder_of_the_callers(
    docker_engine: Engine, container_name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("repo", "data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    mounts = {"/workspace": tmp_path / "repo", "/data": (tmp_path / "data", "ro")}
    box = sandbox.docker(AGENTS, name=container_name, mounts=mounts, env={"OWN": "1"})
    with hostler.agent_session(FAKE, sandbox=box, **options) as session:
        assert session.workdir == str(tmp_path / "repo")
        said = shell(session, "cat f /data/f; echo x > /data/f; echo $OWN; echo y > f")
        assert said.startswith("repodata")
        assert "Read-only" in said
        assert said.endswith("1\n")
    assert (tmp_path / "repo" / "f").read_text() == "y\n"
    found = json.dumps(attrs(docker_engine, container_name))
    assert KEY not in found
    assert '"OWN' not in found


# ---- who may not ----------------------------------------------------------------------------------------------------


def test_a_strangers_container_is_left_alone(
    docker_engine: Engine, container_name: str, options: dict[str, Any]
) -> None:
    with docker_engine.client() as client:
        client.api.create_container(AGENTS, name=container_name)
    with (
        pytest.raises(SandboxError, match=f"{container_name}' that hostler has not made"),
        hostler.agent_session(FAKE, sandbox=sandbox.docker(AGENTS, name=container_name), **options),
    ):
        pass
    sandbox.docker(AGENTS, name=container_name).close()
    assert attrs(docker_engine, container_name)["State"]["Status"] == "created"


def test_a_container_of_other_rules_is_not_taken_for_these(
    docker_engine: Engine, container_name: str, options: dict[str, Any]
) -> None:
    with hostler.agent_session(FAKE, sandbox=sandbox.docker(AGENTS, name=container_name), **options) as session:
        with pytest.raises(SandboxError, match="its readonly is False, not True"):
            session.run("x", permissions="edit")
        assert session.run("x").error is None
    with (
        pytest.raises(SandboxError, match="its network is 'none', not 'bridge'"),
        hostler.agent_session(FAKE, sandbox=sandbox.docker(AGENTS, name=container_name, network="on"), **options),
    ):
        pass


def test_two_who_make_it_at_once(docker_engine: Engine, container_name: str) -> None:
    failed: list[BaseException] = []

    def make() -> None:
        try:
            sandbox.docker(AGENTS, name=container_name).prepare("full")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert failed == []
    with docker_engine.client() as client:
        assert len(client.api.containers(all=True, filters={"name": container_name})) == 1


@pytest.mark.parametrize("program", [CLAUDE, CODEX, OPENCODE], ids=ids)
def test_an_image_without_the_program(
    program: Program, docker_engine: Engine, container_name: str, models: ModelServer
) -> None:
    box = sandbox.docker(BARE, name=container_name)
    with (
        hostler.agent_session(program.harness, sandbox=box, **given(program, models)) as session,
        pytest.raises(HarnessInstallFailed, match=r"RUN npm install -g .+") as caught,
    ):
        session.run("x")
    assert BARE in str(caught.value)
    assert models.calls == []


def test_a_file_that_only_this_machine_has(
    docker_engine: Engine, container_name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """A program is looked for by its name in the image; what else its command names must be there."""
    file = Path(fake_program.__file__)
    options["options"] = {"program": ["/no/such/bin/python3", "-I", "-S", "-E", str(file)]}
    box = sandbox.docker(AGENTS, name=container_name)
    with (
        hostler.agent_session(FAKE, sandbox=box, **options) as session,
        pytest.raises(HarnessInstallFailed, match="'ro'"),
    ):
        session.run("x")
    box = sandbox.docker(AGENTS, name=f"{container_name}-2", mounts={str(file.parent): (file.parent, "ro")})
    with hostler.agent_session(FAKE, sandbox=box, **options) as session:
        assert session.run("x").error is None


def test_engines_and_images_that_are_not_there(
    docker_engine: Engine, container_name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(match: str, image: str = AGENTS) -> None:
        with (
            pytest.raises(SandboxError, match=match),
            hostler.agent_session(FAKE, sandbox=sandbox.docker(image, name=container_name), **options),
        ):
            pass

    fails("no image 'no-such:1'.*docker build -t no-such:1", "no-such:1")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    fails("not running: there is no socket")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/dead.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/dead.sock")
    fails("nobody listens")
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    fails("must be one of this machine")
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    if not os.path.exists("/var/run/docker.sock") and not os.path.exists("/run/podman/podman.sock"):
        fails("no container engine here.*DOCKER_HOST")


def test_an_image_without_a_shell(docker_engine: Engine, container_name: str, options: dict[str, Any]) -> None:
    tag = f"localhost/{container_name}:latest"
    with docker_engine.client() as client:
        client.api.import_image_from_data(packed({"nothing": b""}), repository=tag)
    try:
        box = sandbox.docker(tag, name=container_name)
        with (
            pytest.raises(SandboxError, match="has no /bin/sh"),
            hostler.agent_session(FAKE, sandbox=box, **options) as s,
        ):
            s.run("x")
    finally:
        box.close()
        with docker_engine.client() as client:
            client.api.remove_image(tag, force=True)


def test_a_user_who_may_not_enter_the_workspace(
    docker_engine: Engine, container_name: str, options: dict[str, Any], models: ModelServer
) -> None:
    """Case E10: said before the first model call."""
    box = sandbox.docker(USER, name=container_name, user=1000)
    with (
        hostler.agent_session(FAKE, sandbox=box, **options) as session,
        pytest.raises(SandboxError, match="the user 1000 cannot read /workspace"),
    ):
        session.run(json.dumps([{"model": "x"}]))
    assert models.calls == []


def test_names_and_folders_that_cannot_be(docker_engine: Engine, tmp_path: Path) -> None:
    for wrong in (
        {"name": "a/b"},
        {"workdir": "here"},
        {"life": 0},
        {"mounts": {"/run/hostler/x": tmp_path}},
        {"workdir": "/a/../b"},
    ):
        with pytest.raises(ValueError):
            sandbox.docker(AGENTS, **wrong)  # type: ignore[arg-type]
    for wrong in ({"image": 1}, {"limits": 1}, {"mounts": {"/x": 1}}):
        with pytest.raises(TypeError):
            sandbox.docker(**{"image": AGENTS, **wrong})  # type: ignore[arg-type]
    with pytest.raises(SandboxError, match="not an existing directory"):
        sandbox.docker(AGENTS, mounts={"/x": tmp_path / "none"})


# ---- what it may ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [FAKE_AGENT, pytest.param(CLAUDE, marks=pytest.mark.real)], ids=ids)
def test_permissions_are_held_by_the_container(program: Program, docker_engine: Engine, models: ModelServer) -> None:
    def box(ws: Any) -> Any:
        return sandbox.docker(AGENTS if program.fake else PLAIN, mounts=ws.mounts)

    with hostler.agent_session(program.harness, sandbox=box, permissions="edit", **given(program, models)) as session:
        command = "for f in a /usr/a; do echo x > $f; done"
        assert session.run(program.shell(command)).error is None
        assert session.files.read("a") == b"x\n"
        result = session.run(program.shell("echo y > a; echo y > b; echo z > /artifacts/z"), permissions="read-only")
        assert result.error is None
        assert session.files.read("a") == b"x\n"
        assert [entry.path for entry in session.files.list()] == ["/session/a"]
        assert "container_replaced" in [event.code for event in result.events if isinstance(event, Notice)]
    network = lambda ws: sandbox.docker(AGENTS, mounts=ws.mounts, network="on")  # noqa: E731
    with (
        hostler.agent_session(program.harness, sandbox=network, **given(program, models)) as session,
        pytest.raises(CapabilityUnsupported, match="allows no network"),
    ):
        session.run("x", permissions="edit")


def test_a_network_with_this_machine_in_it(engine: Engine, container_name: str, options: dict[str, Any]) -> None:
    """It has one name inside, with every engine."""
    box = sandbox.docker(AGENTS, name=container_name, network="on")
    look = "import socket, sys; print(socket.create_connection(('host.docker.internal', int(sys.argv[1])), 10).recv(9))"
    with socket.create_server(("0.0.0.0", 0)) as here, hostler.agent_session(FAKE, sandbox=box, **options) as session:

        def greet() -> None:
            with here.accept()[0] as connection:
                connection.sendall(b"hay")

        threading.Thread(target=greet, daemon=True).start()
        said = session.run(json.dumps([{"model": "x"}, {"shell": f'python3 -c "{look}" {here.getsockname()[1]}'}]))
        assert said.error is None
        assert "b'hay'" in said.text


def test_a_server_of_the_apps_that_cannot_be_reached(
    docker_engine: Engine, container_name: str, models: ModelServer
) -> None:
    box = sandbox.docker(PLAIN, name=container_name)
    servers = {"far": {"url": "http://127.0.0.1:1/"}}
    with (
        hostler.agent_session(CLAUDE.harness, sandbox=box, mcp_servers=servers, **given(CLAUDE, models)) as session,
        pytest.raises(CapabilityUnsupported, match="'far' is at a URL, and the container has no network"),
    ):
        session.run("x")


# ---- ends -----------------------------------------------------------------------------------------------------------

# Grandchildren of every kind: whose parents have ended, without the environment, both.
STRAYS = "sleep 1001 & (sleep 1002 >&- 2>&- <&- &) ; (env -i sleep 1003 &) ; env -i sh -c 'sleep 1004 & sleep 1004' & sleep 1005"


@pytest.mark.parametrize(
    ("program", "how"),
    [
        (FAKE_AGENT, "cancel"),
        (FAKE_AGENT, "timeout"),
        pytest.param(CODEX, "cancel", marks=pytest.mark.real),
        pytest.param(CODEX, "timeout", marks=[pytest.mark.real, pytest.mark.soak]),
    ],
    ids=ids,
)
def test_a_cancelled_turn_leaves_nothing_in_the_container(
    program: Program, how: str, docker_engine: Engine, container_name: str, models: ModelServer
) -> None:
    """Cases C07 and C08. The idle program of before goes on, and so does what ran in the container without it."""
    box = sandbox.docker(AGENTS if program.fake else PLAIN, name=container_name)
    box.prepare("full")
    with docker_engine.client() as client:
        own = client.api.exec_create(container_name, ["sleep", "1000"])
        client.api.exec_start(own, detach=True)
    with hostler.agent_session(program.harness, sandbox=box, **given(program, models)) as session:
        assert session.run("Hello.").error is None
        stream = session.stream(program.shell(STRAYS), timeout=3 if how == "timeout" else None)
        assert wait_until(
            lambda: sum(line.startswith("sleep 100") for line in commands(docker_engine, container_name)) == 7, 40
        )
        begun = time.monotonic()
        if how == "cancel":
            session.cancel()
        for _ in stream:
            pass
        assert stream.result.stop_reason == ("cancelled" if how == "cancel" else "timeout")
        assert time.monotonic() - begun < 20
        count = len(models.calls)
        left = [line for line in commands(docker_engine, container_name) if "sleep 1" in line]
        assert left == ["sleep 1000"]
        assert session.run("Hello again.").error is None
        assert len(models.calls) <= count + 2
    assert wait_until(
        lambda: len([line for line in commands(docker_engine, container_name) if "sleep 1" in line]) == 1, 5
    )


@pytest.mark.parametrize("victim", ["bridge", "keeper", "guard"])
def test_what_is_left_when_one_of_ours_is_killed(
    victim: str, docker_engine: Engine, container_name: str, options: dict[str, Any], state_dir: Path
) -> None:
    box = sandbox.docker(AGENTS, name=container_name)
    with hostler.agent_session(FAKE, sandbox=box, **options) as session:
        stream = session.stream(json.dumps([{"shell": STRAYS}]))
        assert wait_until(lambda: any("sleep 1005" in line for line in commands(docker_engine, container_name)), 40)
        (keeper,) = keepers_of(state_dir)
        if victim == "keeper":
            keeper.kill()
        elif victim == "bridge":
            (bridge,) = [p for p in keeper.children(recursive=True) if any("/docker/bridge" in w for w in p.cmdline())]
            bridge.kill()
        else:
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if process.cmdline()[:1] == ["/bin/sh"] and "# Ends what an agent" in process.cmdline()[2]:
                        process.kill()
            session.cancel()
        for _ in stream:
            pass
        assert stream.result.stop_reason in (("error",) if victim != "guard" else ("cancelled",))
        assert victim == "guard" or wait_until(lambda: idle(docker_engine, container_name), 20)
    assert wait_until(lambda: idle(docker_engine, container_name), 20), commands(docker_engine, container_name)


@pytest.mark.parametrize(
    ("program", "end"),
    [
        (FAKE_AGENT, "stopped"),
        (FAKE_AGENT, "removed"),
        pytest.param(CLAUDE, "removed", marks=pytest.mark.real),
        pytest.param(CLAUDE, "stopped", marks=[pytest.mark.real, pytest.mark.soak]),
    ],
    ids=ids,
)
def test_a_container_that_ends_in_mid_turn(
    program: Program, end: str, docker_engine: Engine, container_name: str, models: ModelServer
) -> None:
    box = sandbox.docker(AGENTS if program.fake else PLAIN, name=container_name)
    with hostler.agent_session(program.harness, sandbox=box, **given(program, models)) as session:
        assert session.run(program.say("CODEWORD-one")).error is None
        stream = session.stream(program.shell("echo 1 > kept; sleep 1000"))
        assert wait_until(lambda: any("sleep 1000" in line for line in commands(docker_engine, container_name)), 40)
        with docker_engine.client() as client:
            if end == "stopped":
                client.api.kill(container_name)
            else:
                client.api.remove_container(container_name, force=True)
        begun = time.monotonic()
        for _ in stream:
            pass
        assert time.monotonic() - begun < 20
        error = stream.result.error
        assert error is not None
        assert f"The container '{container_name}' was {end}" in error.message
        before = len(models.calls)
        result = session.run(program.recall())
        assert result.error is None
        codes = [event.code for event in result.events if isinstance(event, Notice)]
        assert ("container_replaced" in codes) == (end == "removed")
        assert "CODEWORD-one" in (result.text if program.fake else json.dumps([c.body for c in models.calls[before:]]))
        assert session.files.read("kept") == b"1\n"


def test_an_app_that_is_killed(
    docker_engine: Engine, container_name: str, options: dict[str, Any], models: ModelServer, tmp_path: Path
) -> None:
    """Its turn goes on in the container; the next app takes it up, and finds the same container."""
    code = (
        "import json, sys, hostler; from hostler.testing.fake_runtime import FAKE; o = json.loads(sys.argv[1])\n"
        f"s = hostler.agent_session(FAKE, sandbox=hostler.sandbox.docker({AGENTS!r}, name={container_name!r}), **o)\n"
        "print(s.state().dumps().decode(), flush=True)\n"
        "for e in s.stream(json.dumps([{'shell': 'sleep 2; echo 1 >> once'}, {'model': 'x'}, {'text': 'end'}])): print(type(e).__name__, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, json.dumps(options)], stdout=subprocess.PIPE, text=True) as app:
        assert app.stdout is not None
        state = State.loads(app.stdout.readline())
        assert app.stdout.readline() == "ToolCall\n"
        app.kill()
    box = sandbox.docker(AGENTS, name=container_name)
    with hostler.agent_resume(state, sandbox=box, **options) as session:
        assert session.resumed == "attached"
        assert shell(session, "cat once") == "1\n"


# ---- other kernels, other users -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program", [FAKE_AGENT, pytest.param(CLAUDE, marks=[pytest.mark.real, pytest.mark.soak])], ids=ids
)
def test_gvisor(program: Program, docker_engine: Engine, gvisor: str, container_name: str, models: ModelServer) -> None:
    """Nobody enters its network from outside: Python in the image forwards the model's address."""
    box = sandbox.docker(AGENTS, name=container_name, runtime=gvisor)
    with hostler.agent_session(program.harness, sandbox=box, **given(program, models)) as session:
        result = session.run(program.shell("uname -r > kernel; (sleep 1000 >&- 2>&- <&- &)", "CODEWORD-one"))
        assert result.error is None
        assert session.files.read("kernel").decode().strip() != os.uname().release
        assert result.usage.calls >= 1
        stream = session.stream(program.shell("echo x > begun; " + STRAYS))
        assert wait_until(lambda: os.path.exists(f"{box.root}/begun"), 60)
        session.cancel()
        for _ in stream:
            pass
        said = session.run(program.shell("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done > left"))
        assert said.error is None
        assert b"sleep 1005" not in session.files.read("left")
        assert b"sleep 1002" not in session.files.read("left")


def test_gvisor_without_python(docker_engine: Engine, gvisor: str, container_name: str, models: ModelServer) -> None:
    box = sandbox.docker(PLAIN, name=container_name, runtime=gvisor)
    with (
        hostler.agent_session(CLAUDE.harness, sandbox=box, **given(CLAUDE, models)) as session,
        pytest.raises(SandboxError, match="has no Python that could forward it"),
    ):
        session.run("x")


def test_a_model_through_the_forwarder(
    docker_engine: Engine,
    container_name: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    models: ModelServer,
) -> None:
    """Streams come piece by piece, breaks come as breaks, large bodies whole; several at once."""
    monkeypatch.setattr(network, "listen_in", lambda pid: None)
    box = sandbox.docker(AGENTS, name=container_name)
    with hostler.agent_session(FAKE, sandbox=box, **options) as session:
        result = session.run(json.dumps([{"model": "x" * 3_000_000}, {"model": "hay"}, {"text": "end"}]))
        assert result.error is None
        assert result.usage.calls == 2
        assert max(len(json.dumps(call.body)) for call in models.calls) > 3_000_000


# ---- gc -------------------------------------------------------------------------------------------------------------


def test_what_nobody_uses_is_removed(
    docker_engine: Engine, container_name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    def found(at: float) -> list[Any]:
        return [each for each in unused.unused(at) if container_name in each.what]

    box = sandbox.docker(AGENTS, name=container_name, life=3600)
    with hostler.agent_session(FAKE, sandbox=box, **options) as session:
        shell(session, "echo 1 > kept")
        now = time.time()
        assert found(now + 7200) == []  # its program is parked in it
        state = session.stop()
    assert wait_until(lambda: bool(found(now + 7200)), 20)
    assert found(now + 1800) == []
    (left,) = found(now + 7200)
    assert "may live for 1.0" in left.what
    left.remove()
    with pytest.raises(docker.errors.NotFound):
        attrs(docker_engine, container_name)
    assert found(now + 30 * 86400) == []  # a session can still be resumed in its folder
    with hostler.agent_resume(state, sandbox=box, **options) as session:
        assert shell(session, "cat kept") == "1\n"


def test_gc_finds_them(
    docker_engine: Engine,
    container_name: str,
    options: dict[str, Any],
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container that is over, and one whose session is gone."""
    monkeypatch.setattr(unused, "_YOUNG", 0.0)
    over, gone = (
        sandbox.docker(AGENTS, name=container_name, life=0.01),
        sandbox.docker(AGENTS, name=f"{container_name}-2"),
    )
    for box in (over, gone):
        box.prepare("full")
    os.unlink(gone.place.filled)
    time.sleep(1.1)
    found = [left for left in asyncio.run(gc.unowned(str(state_dir), None)) if container_name in left.what]
    assert sorted(left.what.partition(":")[0] for left in found) == sorted(
        f"container {box.name}" for box in (over, gone)
    )
    for left in found:
        asyncio.run(left.remove())
    for box in (over, gone):
        with pytest.raises(docker.errors.NotFound):
            attrs(docker_engine, box.name)


def test_a_fork_has_a_container_of_its_own(docker_engine: Engine, container_name: str, options: dict[str, Any]) -> None:
    box = sandbox.docker(AGENTS, name=container_name)
    with hostler.agent_session(FAKE, sandbox=box, **options) as session:
        assert session.run(FAKE_AGENT.say("CODEWORD-one")).error is None
        shell(session, "echo 1 > a")
        with session.fork("fork") as fork:
            assert "CODEWORD-one" in fork.run(FAKE_AGENT.recall()).text
            assert shell(fork, "pwd; cat a; echo 2 > a") == "/workspace\n1\n"
            own = fork._core._live.sandbox.name
            assert attrs(docker_engine, own)["State"]["Running"]
        with pytest.raises(docker.errors.NotFound):
            attrs(docker_engine, own)
        assert session.files.read("a") == b"1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_an_ordinary_user(docker_engine: Engine, container_name: str, home: Path) -> None:
    """Who may use the engine's socket, and nothing else: the agent is that user, its files are its own, and its model is
    reached through the forwarder."""
    code = f"""
import json, os, hostler
from hostler.testing import fake_program
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer
box = hostler.sandbox.docker({AGENTS!r}, name={container_name!r})
with ModelServer(key="k") as models:
    options = dict(model="claude-sonnet-4-5", api_base=models.url, api_key="k", options={{"program": {IN_IMAGE!r}}})
    with hostler.agent_session(FAKE, sandbox=box, **options) as session:
        result = session.run(json.dumps([{{"shell": "id -u; id -un; echo x > out; {STRAYS}"}}]), timeout=4)
        result = session.run(json.dumps([{{"shell": "id -u; id -un; grep -l 'sleep.10[0-5]' /proc/[0-9]*/cmdline"}}, {{"model": "x"}}]))
        print(json.dumps([result.text, str(result.error), result.usage.calls, os.stat(box.root + "/out").st_uid]))
"""
    said = as_ordinary(code, home, DOCKER_HOST=docker_engine.url)
    text, error, calls, owner = json.loads(said.splitlines()[-1])
    assert error == "None"
    assert text.split()[:2] == [str(ORDINARY), "agent"]
    assert "/proc/" not in text.replace("/proc/self", "")
    assert (calls, owner) == (1, ORDINARY)

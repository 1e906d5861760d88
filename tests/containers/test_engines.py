"""What the tests with containers stand on: both engines run, and the images hold what their names say."""

from __future__ import annotations

import json
import os
from typing import Any

import docker
import pytest
from tests.containers import daemons, images
from tests.containers.daemons import Engine
from tests.containers.images import AGENTS, BARE, FAKE_PROGRAM, PLAIN, USER

PROGRAMS = ("claude", "codex", "opencode")


def said(engine: Engine, image: str, command: list[str], **options: Any) -> str:
    """What a command in a new container says; without any network unless one is named."""
    with engine.client() as client:
        container = client.containers.create(image, command, **{"network_mode": "none", **options})
        try:
            container.start()
            container.wait(timeout=100)
            words: bytes = container.logs(stderr=False)
        finally:
            container.remove(force=True, v=True)
    return words.decode().strip()


def test_the_images_hold_what_their_names_say(engine: Engine) -> None:
    look = f"id -u; for name in python3 {' '.join(PROGRAMS)}; do command -v $name; done; test -e {FAKE_PROGRAM} && echo fake; true"
    found = {image: said(engine, image, ["sh", "-c", look]).split() for image in (BARE, PLAIN, AGENTS, USER)}
    programs = [f"/usr/local/bin/{name}" for name in PROGRAMS]
    assert found[BARE] == ["0"]
    assert found[PLAIN] == ["0", *programs]
    assert found[AGENTS] == ["0", "/usr/bin/python3", *programs, "fake"]
    assert found[USER] == [str(images.UID), *found[AGENTS][1:]]


@pytest.mark.real
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs_start_in_the_image(docker_engine: Engine, program: str) -> None:
    assert said(docker_engine, USER, [program, "--version"], environment={"HOME": "/tmp"})


def test_gvisor_has_a_kernel_of_its_own(docker_engine: Engine, gvisor: str) -> None:
    assert said(docker_engine, AGENTS, ["uname", "-r"], runtime=gvisor) != os.uname().release
    assert said(docker_engine, AGENTS, ["python3", "-c", "print('hay')"], runtime=gvisor) == "hay"


def test_a_container_with_a_network_reaches_this_machine_and_nothing_else(docker_engine: Engine) -> None:
    with docker_engine.client() as client:
        (config,) = client.networks.get("bridge").attrs["IPAM"]["Config"]
    look = "import json, socket, sys; s = socket.socket(); s.settimeout(2); print(json.dumps([s.connect_ex((sys.argv[1], 9)), s.getsockname()[0]]))"
    outcome, own = json.loads(
        said(docker_engine, AGENTS, ["python3", "-c", look, config["Gateway"]], network_mode="bridge")
    )
    assert outcome == 111  # refused by somebody who is there
    assert own.rpartition(".")[0] == config["Gateway"].rpartition(".")[0]


def test_who_comes_second_finds_the_engine_that_runs_and_leaves_it_running(engine: Engine) -> None:
    with daemons.running(engine.name) as again:
        assert again == engine
    with engine.client() as client:
        assert client.ping()


def test_redis_answers(redis_url: str) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.set("a", b"1")
        assert client.get("a") == b"1"


def test_an_image_is_made_again_when_it_was_made_of_other_files(
    docker_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with docker_engine.client() as client:
        assert images.is_current(client, AGENTS)
        monkeypatch.setattr(images, "recipe", lambda: "another")
        assert not images.is_current(client, AGENTS)
        with pytest.raises(docker.errors.ImageNotFound):
            client.images.get(f"{images.REPOSITORY}:none")

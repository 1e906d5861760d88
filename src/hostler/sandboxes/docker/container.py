"""A container by its name: found, started, made; a stranger's is left alone."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...types.errors import SandboxError
from .. import seccomp
from ..limits import Limits
from .daemon import Daemon
from .place import Place

# Labels. USED is a file of this machine that is touched whenever a program is started in the container.
CONFIG, IMAGE, LIFE, USED, USER, OWNER = (
    f"hostler.{name}" for name in ("config", "image", "life", "used", "user", "owner")
)
_COMMAND = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"]
# As root, what a package manager needs; no capability at all for anybody else.
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
_LEAVING = 30.0
OFFLINE = "none"
SHELL = "An agent needs a shell, with tr, sed and grep: use an image that has them, such as debian:stable-slim."


@dataclass(frozen=True, slots=True)
class Bind:
    """A folder of this machine and its name inside."""

    host: str
    inside: str
    readonly: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What a container is to be. ``binds`` before others lie above them; ``life`` is in seconds."""

    name: str
    image: str
    workdir: str
    binds: tuple[Bind, ...]
    network: str
    limits: Limits
    user: str | None
    runtime: str | None
    life: float
    used: str
    readonly: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """What a container that exists must be like to be used for this."""
        return {
            "binds": sorted([bind.inside, bind.host, bind.readonly] for bind in self.binds),
            "limits": {"memory": self.limits.memory, "processes": self.limits.processes},
            "network": self.network,
            "readonly": self.readonly,
            "runtime": self.runtime,
            "user": self.user,
            "workdir": self.workdir,
        }


@dataclass(frozen=True, slots=True)
class Found:
    """A running container. ``user`` is whom programs run as; ``pid`` that of its first process, on this machine if the engine
    is; ``made`` says that it is new."""

    id: str
    user: str
    pid: int
    made: bool


def running(daemon: Daemon, plan: Plan, *, replace: bool) -> Found:
    """The plan's container, started if it was stopped and made if there is none. With ``replace`` one that was made for
    other folders or rules is made anew, else that is refused.

    Raises SandboxError for one that is not hostler's, or is of another plan, and for an image that is not there."""
    import docker.errors

    end = time.monotonic() + _LEAVING
    while True:
        attrs = inspect(daemon, plan.name)
        if attrs is None:
            try:
                return _made(daemon, plan)
            except docker.errors.APIError as error:
                # Of two that make it at once, one is the first; engines differ in how they say it.
                if "already in use" not in str(error).lower() or time.monotonic() > end:
                    raise SandboxError(f"The container {plan.name!r} cannot be made: {_said(error)}.") from None
                continue
        _check_owner(attrs, plan.name)
        if attrs["State"]["Status"] in ("removing", "dead") and time.monotonic() < end:
            time.sleep(0.1)
            continue
        if (other := _differs(attrs, plan)) is not None:
            if not replace:
                raise SandboxError(other)
            remove(daemon, plan.name)
            continue
        return _started(daemon, attrs, plan)


def inspect(daemon: Daemon, name: str) -> dict[str, Any] | None:
    import docker.errors

    try:
        found: dict[str, Any] = daemon.client.api.inspect_container(name)
    except docker.errors.NotFound:
        return None
    except docker.errors.APIError as error:
        raise SandboxError(f"The container {name!r} cannot be looked at: {_said(error)}.") from None
    return found


def remove(daemon: Daemon, name: str) -> bool:
    """Remove a container with all that runs in it, if it is hostler's and there. Raises SandboxError."""
    import docker.errors

    attrs = inspect(daemon, name)
    if attrs is None:
        return False
    _check_owner(attrs, name)
    try:
        daemon.client.api.remove_container(attrs["Id"], force=True, v=True)
    except docker.errors.NotFound:
        return False
    except docker.errors.APIError as error:
        if "already in progress" not in str(error):
            raise SandboxError(f"The container {name!r} cannot be removed: {_said(error)}.") from None
    return True


def _check_owner(attrs: Mapping[str, Any], name: str) -> None:
    labels = attrs["Config"].get("Labels") or {}
    if CONFIG not in labels:
        raise SandboxError(
            f"There is a container {name!r} that hostler has not made; it is left alone. Choose another name=, or remove it "
            f"(docker rm {name})."
        )
    if labels.get(OWNER) != str(os.geteuid()):
        raise SandboxError(
            f"The container {name!r} belongs to an app of user {labels.get(OWNER)}, this one runs as {os.geteuid()}. Choose "
            "another name=."
        )


def _differs(attrs: Mapping[str, Any], plan: Plan) -> str | None:
    have, want = json.loads(attrs["Config"]["Labels"][CONFIG]), plan.config()
    names = [name for name in want if have.get(name) != want[name]]
    if not names:
        return None
    about = "; ".join(f"its {name} is {have.get(name)!r}, not {want[name]!r}" for name in names)
    return (
        f"The container {plan.name!r} was made otherwise: {about}. A container cannot be changed: choose another name=, or "
        f"remove it (docker rm -f {plan.name}; the files of its workspace stay)."
    )


# ---- making -----------------------------------------------------------------------------------------------------------


def _made(daemon: Daemon, plan: Plan) -> Found:
    import docker.errors

    check_image(daemon, plan.image)
    user, userns = _user(daemon, plan)
    for init in (True, False):
        id = daemon.client.api.create_container(
            plan.image,
            name=plan.name,
            entrypoint=_COMMAND[:1],
            command=_COMMAND[1:],
            working_dir=plan.workdir,
            user=user,
            labels={
                **plan.labels,
                CONFIG: json.dumps(plan.config()),
                IMAGE: plan.image,
                LIFE: f"{plan.life:g}",
                USED: plan.used,
                USER: user,
                OWNER: str(os.geteuid()),
            },
            host_config=_host_config(daemon, plan, user, userns, init),
        )["Id"]
        try:
            _name_user(daemon, plan, id, user)
            daemon.client.api.start(id)
        except docker.errors.APIError as error:
            with contextlib.suppress(docker.errors.APIError):
                daemon.client.api.remove_container(id, force=True, v=True)
            if init and "init" in str(error):  # docker-init, or what Podman has in its place, is not installed
                continue
            if _COMMAND[0] in str(error):
                raise SandboxError(f"The image {plan.image!r} has no {_COMMAND[0]}. {SHELL}") from None
            raise SandboxError(f"The container {plan.name!r} does not start: {_said(error)}.") from None
        break
    attrs = daemon.client.api.inspect_container(id)
    return Found(id, user, int(attrs["State"]["Pid"]), True)


def check_image(daemon: Daemon, image: str) -> dict[str, Any]:
    """What the engine knows of the image. Raises SandboxError when it has none of that name: nothing is pulled unasked."""
    import docker.errors

    try:
        found: dict[str, Any] = daemon.client.api.inspect_image(image)
    except docker.errors.APIError as error:
        if not isinstance(error, docker.errors.NotFound):
            raise SandboxError(f"The image {image!r} cannot be looked at: {_said(error)}.") from None
        tool = "podman" if daemon.podman else "docker"
        raise SandboxError(
            f"There is no image {image!r} at {daemon.socket}. Build it ({tool} build -t {image} .) or fetch it "
            f"({tool} pull {image})."
        ) from None
    return found


def _user(daemon: Daemon, plan: Plan) -> tuple[str, str | None]:
    """Whom programs run as, so that what they write belongs to the caller; and the user namespace that this needs."""
    if plan.user is not None:
        return plan.user, None
    own = f"{os.geteuid()}:{os.getegid()}"
    if not daemon.own():
        return own, None
    return (own, "keep-id") if daemon.podman else ("0:0", None)


def _host_config(daemon: Daemon, plan: Plan, user: str, userns: str | None, init: bool) -> Any:
    import docker.types

    memory = plan.limits.memory
    root = user.partition(":")[0] in ("0", "root")
    config = daemon.client.api.create_host_config(
        mounts=[
            docker.types.Mount(bind.inside, bind.host, type="bind", read_only=bind.readonly) for bind in plan.binds
        ],
        network_mode=plan.network,
        mem_limit=memory,
        memswap_limit=memory,
        pids_limit=plan.limits.processes,
        runtime=plan.runtime,
        read_only=plan.readonly,
        tmpfs={"/tmp": "mode=1777"} if plan.readonly and all(b.inside != "/tmp" for b in plan.binds) else None,
        init=init,
        cap_drop=["ALL"],
        cap_add=list(_CAPABILITIES) if root and not plan.readonly else None,
        security_opt=["no-new-privileges", *_filter(daemon)],
        extra_hosts=_hosts(daemon, plan.network),
    )
    if userns is not None:
        config["UsernsMode"] = userns  # the SDK lets only Docker's own words through
    return config


def _filter(daemon: Daemon) -> list[str]:
    """The system calls that are refused; the engine's own filter where there is none for this kind of processor."""
    if not seccomp.supported():
        return []
    profile = json.dumps(seccomp.profile())
    if not daemon.podman:
        return [f"seccomp={profile}"]
    return [f"seccomp={Place.common('seccomp.json', profile)}"]  # it takes the path of a file


def _hosts(daemon: Daemon, network: str) -> dict[str, str] | None:
    """This machine's name inside, the same with every engine."""
    if network in (OFFLINE, "host") or network.startswith("container:"):
        return None
    if not daemon.podman:
        return {"host.docker.internal": "host-gateway"}
    configs = daemon.client.api.inspect_network("podman" if network == "bridge" else network)["IPAM"]["Config"]
    gateways = [config["Gateway"] for config in configs or () if config.get("Gateway")]
    return {"host.docker.internal": gateways[0]} if gateways else None


def _name_user(daemon: Daemon, plan: Plan, id: str, user: str) -> None:
    """An entry in the image's /etc/passwd: many programs fail for a user that has none."""
    import docker.errors

    number, _, group = user.partition(":")
    if not number.isdigit() or number == "0" or plan.readonly:
        return
    try:
        pieces, _ = daemon.client.api.get_archive(id, "/etc/passwd")
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
            member = tar.next()
            known = tar.extractfile(member) if member is not None and member.isfile() else None
            text = known.read().decode(errors="surrogateescape") if known is not None else ""
        if any(line.split(":")[2:3] == [number] for line in text.splitlines()):
            return
        entry = f"agent:x:{number}:{group or number}::/home/agent:/bin/sh\n"
        data = (text + ("" if not text or text.endswith("\n") else "\n") + entry).encode(errors="surrogateescape")
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            info = tarfile.TarInfo("passwd")
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
        daemon.client.api.put_archive(id, "/etc", out.getvalue())
    except docker.errors.NotFound:
        return  # an image without users: nothing in it asks


def content(daemon: Daemon, plan: Plan, put: Callable[[Iterable[bytes]], None]) -> None:
    """Give ``put`` what the image has in the working directory, as a tar; nothing when it has none."""
    import docker.errors

    check_image(daemon, plan.image)
    id = daemon.client.api.create_container(
        plan.image, command=["true"], labels={CONFIG: "{}", OWNER: str(os.geteuid())}
    )["Id"]
    try:
        pieces, _ = daemon.client.api.get_archive(id, plan.workdir)
        put(pieces)
    except docker.errors.NotFound:
        pass
    finally:
        with contextlib.suppress(docker.errors.APIError):
            daemon.client.api.remove_container(id, force=True, v=True)


def _started(daemon: Daemon, attrs: Mapping[str, Any], plan: Plan) -> Found:
    import docker.errors

    id, state = attrs["Id"], attrs["State"]
    try:
        if state["Status"] == "paused":
            daemon.client.api.unpause(id)
        elif not state["Running"]:
            daemon.client.api.start(id)
            state = daemon.client.api.inspect_container(id)["State"]
    except docker.errors.APIError as error:
        raise SandboxError(
            f"The container {plan.name!r} does not start: {_said(error)}. If it cannot be mended, remove it "
            f"(docker rm -f {plan.name})."
        ) from None
    return Found(id, attrs["Config"]["Labels"][USER], int(state["Pid"]), False)


def _said(error: Any) -> str:
    return str(error.explanation or error).strip().rstrip(".")

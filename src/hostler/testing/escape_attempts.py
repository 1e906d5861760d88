"""Attempts to get out of a sandbox, as an agent in it would make them. Runs alone, with the standard library only.

``python escape_attempts.py BAIT.json OUT.json``: BAIT says what there is to be found outside; OUT gets ``{attempt:
[escaped, words]}``. Each attempt runs in a process of its own and has some seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import hashlib
import json
import mmap
import os
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Bait = dict[str, Any]
Found = str | None  # what was reached; None: nothing

_SECONDS = 30.0  # memory is taken slowly on a busy machine
_FILES = 1000  # of one folder that are read
_NEWUSER, _NEWNS, _CLONE3 = 0x10000000, 0x00020000, 435
_CAPBSET_READ, _GET_NO_NEW_PRIVS = 23, 39
_UNREACHED = (OSError, ValueError)


def _read(path: str, limit: int = 1 << 16) -> bytes:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            return file.read(limit)
    except _UNREACHED:
        return b""


def seen(path: str) -> str:
    """What is seen of a file or folder, as a digest; nothing of one that is empty or cannot be read."""
    try:
        content = "\n".join(sorted(os.listdir(path))).encode() if os.path.isdir(path) else _read(path)
    except OSError:
        return ""
    return hashlib.sha256(content).hexdigest() if content else ""


def _processes() -> Iterator[str]:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            yield name


def _libc(name: str, *arguments: Any) -> bool:
    return bool(getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) == 0)


# ---- what is there to be seen -----------------------------------------------------------------------------------------


def host_files(bait: Bait) -> Found:
    if _read(bait["secret_file"]):
        return f"{bait['secret_file']} can be read"
    for path, theirs in bait["host_files"].items():
        # A container has some of its own by these names.
        if (found := seen(path)) and (found == theirs or not bait["own_root"]):
            return f"{path} can be read"
    return None


def host_environment(bait: Bait) -> Found:
    secret = bait["secret"][::-1].encode()
    for pid in _processes():
        if secret in _read(f"/proc/{pid}/environ", 1 << 20):
            return f"a variable of the app is in /proc/{pid}/environ"
    return None


def other_sessions(bait: Bait) -> Found:
    for path in bait["other_sessions"]:
        if _read(path):
            return f"{path} can be read"
    return None


def other_processes(bait: Bait) -> Found:
    for pid in _processes():
        if bait["process"][::-1].encode() in _read(f"/proc/{pid}/cmdline"):
            os.kill(int(pid), 0)
            return f"process {pid} of the app is seen and can be signalled"
    return None


def memory_of_the_app(bait: Bait) -> Found:
    for pid in _processes():
        if bait["process"][::-1].encode() in _read(f"/proc/{pid}/cmdline"):
            with open(f"/proc/{pid}/mem", "rb"):
                return f"/proc/{pid}/mem can be opened"
    return None


def the_keeper(bait: Bait) -> Found:
    for path in (*bait["keeper_sockets"], *glob.glob("/tmp/hostler-*/*"), *glob.glob("/run/user/*/hostler/*")):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as door:
            door.connect(path)
            return f"{path} takes connections"
    for pid in _processes():
        if b"keeper/holder" in _read(f"/proc/{pid}/cmdline"):
            return f"its process {pid} is seen"
    return None


def planted_key_in_files(bait: Bait) -> Found:
    """In what the session's own folders, /run and the processes hold."""
    key = bait["key"][::-1].encode()
    own = (os.getcwd(), os.environ["HOME"], os.environ["TMPDIR"])
    for top in (*own, "/artifacts", "/persistent", "/skills", "/run", "/dev/shm", "/etc"):
        for folder, _, names in os.walk(top):
            for name in names[:_FILES]:
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    if stat.S_ISREG(os.lstat(path).st_mode) and key in _read(path, 1 << 22):
                        return f"it is in {path}"
    for pid in os.listdir("/proc"):
        for name in ("environ", "cmdline") if pid.isdigit() else ():
            if key in _read(f"/proc/{pid}/{name}", 1 << 20):
                return f"it is in /proc/{pid}/{name}"
    return None


def links_to_outside(bait: Bait) -> Found:
    for index, target in enumerate((bait["secret_file"], f"/proc/1/root{bait['secret_file']}", "/proc/1/cwd/../../..")):
        link = f"{os.getcwd()}/.link{index}"
        with contextlib.suppress(FileExistsError):
            os.symlink(target, link)
        found = bool(_read(link)) or (os.path.isdir(link) and os.path.exists(f"{link}{bait['secret_file']}"))
        os.unlink(link)
        if found:
            return f"a link to {target} leads there"
    return None


# ---- networks ---------------------------------------------------------------------------------------------------------


def host_ports(bait: Bait) -> Found:
    for port in bait["ports"]:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
            return f"port {port} of the host's loopback takes connections"
    return None


def host_sockets(bait: Bait) -> Found:
    for name in (bait["socket"], "\0" + bait["abstract"]):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as door:
            door.connect(name)
            return f"the socket {name!r} takes connections"
    return None


def other_machines(bait: Bait) -> Found:
    """The internet, and the address at which clouds tell a machine its credentials. Nothing is sent."""
    for family, address in (
        (socket.AF_INET, "169.254.169.254"),
        (socket.AF_INET, "192.0.2.1"),
        (socket.AF_INET6, "fd00:ec2::254"),
    ):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as out:
            out.connect((address, 80))
            return f"there is a way to {address}"
    return None


def host_of_the_machine(bait: Bait) -> Found:
    """The hypervisor's side of a virtual machine, which no network namespace hides."""
    try:
        with socket.socket(getattr(socket, "AF_VSOCK", 40), socket.SOCK_STREAM):
            return "a vsock can be made"
    except OSError:
        return None


# ---- rights -----------------------------------------------------------------------------------------------------------


def writes_outside(bait: Bait) -> Found:
    with contextlib.suppress(OSError), open(os.path.join(bait["outside"], "was-here"), "w") as file:
        file.write("x")
        return f"{bait['outside']} was written to"
    if bait["own_root"]:  # what is written there is the container's
        return None
    for path in ("/", "/etc", "/usr", "/usr/bin", "/bin", "/lib", "/root", "/home", "/var", "/run", "/opt", "/dev"):
        if os.access(path, os.W_OK):
            return f"{path} may be written to"
    return None


def own_configuration(bait: Bait) -> Found:
    for folder in bait["launch"]:
        if os.path.isdir(folder) and os.access(folder, os.W_OK):
            return f"{folder}, with which the program is started, may be written to"
    return None


def kernel_settings(bait: Bait) -> Found:
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/sys/kernel"):
        if os.access(path, os.W_OK):
            return f"{path} may be written to"
    return None


def setuid_programs(bait: Bait) -> Found:
    """Asked of the kernel: not every /proc says it."""
    prctl = ctypes.CDLL(None).prctl
    bounds = sum(1 << number for number in range(64) if prctl(_CAPBSET_READ, number, 0, 0, 0) == 1)
    has = [int(line.split()[1], 16) for line in _read("/proc/self/status").splitlines() if line.startswith(b"CapEff:")]
    if (bounds | sum(has)) & ~bait["capabilities"]:
        return "capabilities are left"
    return None if prctl(_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 else "programs may raise their rights"


def ptrace(bait: Bait) -> Found:
    return "processes can be traced" if _libc("ptrace", 0, 0, 0, 0) else None


def user_namespaces(bait: Bait) -> Found:
    if _libc("unshare", _NEWUSER):
        return "unshare() makes one"
    call = ctypes.CDLL(None, use_errno=True).syscall
    arguments = (ctypes.c_uint64 * 8)(_NEWUSER, 0, 0, 0, signal.SIGCHLD)
    child = call(_CLONE3, arguments, ctypes.sizeof(arguments))
    if child == 0:
        os._exit(0)
    return "clone3() makes one" if child > 0 else None


def mounts(bait: Bait) -> Found:
    place = f"{os.getcwd()}/.mount"
    os.makedirs(place, exist_ok=True)
    try:
        if _libc("mount", b"none", place.encode(), b"tmpfs", 0, None):
            _libc("umount2", place.encode(), 2)
            return "a file system can be mounted"
        return "the root can be changed" if _libc("chroot", place.encode()) else None
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(place)


def devices(bait: Bait) -> Found:
    for path in ("/dev/kvm", "/dev/mem", "/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/fuse", "/dev/net/tun"):
        if os.access(path, os.R_OK | os.W_OK):
            return f"{path} can be opened"
    return None


# ---- using it all up --------------------------------------------------------------------------------------------------


def fork_bomb(bait: Bait) -> Found:
    children: list[int] = []
    try:
        while len(children) < bait["processes"]:
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            children.append(child)
    except OSError:
        return None
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return f"{len(children)} processes were started"


def memory_bomb(bait: Bait) -> Found:
    child = os.fork()
    if child == 0:
        try:
            with mmap.mmap(-1, bait["memory"]) as memory:
                for offset in range(0, bait["memory"], mmap.PAGESIZE):
                    memory[offset] = 1
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return f"{bait['memory'] >> 20} MB were taken" if status == 0 else None


def disk_fill(bait: Bait) -> Found:
    """Beside the session's own folders, which are as large as their disk."""
    for folder in ("/", "/dev", "/dev/shm", "/run", "/var", "/var/lib", "/home", "/mnt", "/opt"):
        path = os.path.join(folder, ".escape-attempt")
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError:
            continue
        try:
            os.posix_fallocate(file, 0, bait["disk"])
            return f"{bait['disk'] >> 20} MB were written to {folder}"
        except OSError:
            continue
        finally:
            os.close(file)
            os.unlink(path)
    return None


ATTEMPTS: dict[str, Callable[[Bait], Found]] = {
    "host files": host_files,
    "host environment": host_environment,
    "other sessions": other_sessions,
    "other processes": other_processes,
    "memory of the app": memory_of_the_app,
    "the keeper": the_keeper,
    "planted key": planted_key_in_files,
    "links to outside": links_to_outside,
    "host ports": host_ports,
    "host sockets": host_sockets,
    "other machines": other_machines,
    "host of the machine": host_of_the_machine,
    "writes outside": writes_outside,
    "its own configuration": own_configuration,
    "kernel settings": kernel_settings,
    "setuid programs": setuid_programs,
    "ptrace": ptrace,
    "user namespaces": user_namespaces,
    "mounts": mounts,
    "devices": devices,
    "fork bomb": fork_bomb,
    "memory bomb": memory_bomb,
    "disk fill": disk_fill,
}


def attempt(name: str, bait: Bait) -> tuple[bool, str]:
    """Whether the attempt got out, and what it says; in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            try:
                found = ATTEMPTS[name](bait)
            except _UNREACHED:
                found = None
            os.write(writer, json.dumps([found is not None, found or ""]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + _SECONDS
    said = b""
    talk = select.poll()
    talk.register(reader, select.POLLIN)
    while talk.poll(1000 * max(0.0, deadline - time.monotonic())):
        if not (more := os.read(reader, 4096)):
            break
        said += more
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    if not said:
        return True, f"it did not end in {_SECONDS:g} s"  # who knows what it would have found
    escaped, words = json.loads(said)
    return bool(escaped), str(words)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        bait = json.load(file)
    outcomes = {name: attempt(name, bait) for name in ATTEMPTS}
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(outcomes, file)


if __name__ == "__main__":
    main()

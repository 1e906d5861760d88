"""What the filter says to a call, on each kind of processor."""

from __future__ import annotations

import errno
import json
import struct

import pytest

from hostler.sandboxes import seccomp

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED, KILLED = "allowed", "killed"
NEWUSER, VSOCK, TIOCSTI = 0x10000000, 40, 0x5412
CALLS = {
    "x86_64": {"read": 0, "ptrace": 101, "mount": 165, "clone": 56, "socket": 41, "ioctl": 16, "unshare": 272, "execve": 59},
    "aarch64": {"read": 63, "ptrace": 117, "mount": 40, "clone": 220, "socket": 198, "ioctl": 29, "unshare": 97, "execve": 221},
}  # fmt: skip


def decide(code: bytes, arch: int, number: int, *arguments: int) -> object:
    """The kernel's side: runs the program over a struct seccomp_data."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, arch, 0, *padded)
    instructions = list(struct.iter_unpack("=HBBI", code))
    at, value = 0, 0
    while True:
        operation, true, false, k = instructions[at]
        at += 1
        if operation == 0x20:
            (value,) = struct.unpack_from("=I", data, k)
        elif operation == 0x06:
            return {0x7FFF0000: ALLOWED, 0x80000000: KILLED}.get(k) or k & 0xFFFF
        else:
            holds = {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[operation]
            at += true if holds else false


@pytest.mark.parametrize("machine", ARCH)
def test_what_is_refused(machine: str) -> None:
    code, arch, calls = seccomp.program(machine), ARCH[machine], CALLS[machine]
    assert len(code) % 8 == 0

    def says(name: str, *arguments: int) -> object:
        return decide(code, arch, calls[name], *arguments)

    for name in ("ptrace", "mount", "unshare"):
        assert says(name) == errno.EPERM
    for name in ("read", "execve"):
        assert says(name) == ALLOWED
    assert says("clone", NEWUSER | 17) == errno.EPERM
    assert says("clone", 0x003D0F00) == ALLOWED  # a thread
    assert says("socket", VSOCK) == errno.EAFNOSUPPORT
    assert says("socket", 2) == ALLOWED
    assert says("ioctl", 0, TIOCSTI) == errno.EPERM
    assert says("ioctl", 0, TIOCSTI | 1 << 32) == errno.EPERM  # the kernel takes the low half, too
    assert says("ioctl", TIOCSTI, 0x5413) == ALLOWED
    assert decide(code, arch, 435) == errno.ENOSYS
    assert decide(code, arch, 425) == errno.EPERM
    other = next(value for value in ARCH.values() if value != arch)
    assert decide(code, other, calls["read"]) == KILLED
    assert decide(code, 0x40000003, calls["read"]) == KILLED  # 32-bit calls
    if machine == "x86_64":
        assert decide(code, arch, 0x40000000 | calls["read"]) == errno.ENOSYS


def test_an_unknown_machine() -> None:
    with pytest.raises(KeyError):
        seccomp.program("riscv64")


@pytest.mark.parametrize("machine", ARCH)
def test_containers_get_the_same_filter(machine: str) -> None:
    """The profile refuses what the program refuses, with the same errors."""
    code, arch, calls = seccomp.program(machine), ARCH[machine], CALLS[machine]
    profile = json.loads(json.dumps(seccomp.profile(machine)))
    assert profile["architectures"] == [f"SCMP_ARCH_{machine.upper()}"]

    def says(name: str, *arguments: int) -> object:
        padded = [*arguments, *[0] * (6 - len(arguments))]
        for rule in profile["syscalls"]:
            tests = [padded[test["index"]] & test["value"] == test["valueTwo"] for test in rule.get("args", ())]
            assert all(test["op"] == "SCMP_CMP_MASKED_EQ" for test in rule.get("args", ()))
            if name in rule["names"] and all(tests):
                return rule["errnoRet"]
        return ALLOWED

    cases = [(name, ()) for name in calls] + [("clone", (0x003D0F00,)), ("socket", (VSOCK,)), ("socket", (2,))]
    cases += [("clone", (1 << bit | 17,)) for bit in range(8, 32)]
    cases += [
        ("ioctl", (0, TIOCSTI)),
        ("ioctl", (0, TIOCSTI | 1 << 32)),
        ("ioctl", (TIOCSTI, 0x5413)),
        ("ioctl", (0, 0x541C)),
    ]
    for name, arguments in cases:
        assert says(name, *arguments) == decide(code, arch, calls[name], *arguments), (name, arguments)
    assert says("clone3") == decide(code, arch, 435)
    assert says("io_uring_setup") == decide(code, arch, 425)

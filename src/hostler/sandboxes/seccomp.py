"""The system calls that an agent has no use for, as a filter that the kernel holds."""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence
from typing import Any

# What reaches into other processes, makes namespaces or mounts, changes the kernel, or is a common way out of it.
_DENIED = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise"),
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsmount"),
    *("fsconfig", "fspick", "mount_setattr", "open_by_handle_at", "name_to_handle_at"),
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("add_key", "request_key", "keyctl", "init_module", "finit_module", "delete_module", "kexec_load"),
    *("kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "syslog", "vhangup"),
    *("settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "sethostname", "setdomainname", "iopl", "ioperm"),
    *("lookup_dcookie", "nfsservctl", "modify_ldt"),
)

_X86_64 = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "unshare": 272, "setns": 308,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "open_by_handle_at": 304,
    "name_to_handle_at": 303, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "add_key": 248,
    "request_key": 249, "keyctl": 250, "init_module": 175, "finit_module": 313, "delete_module": 176,
    "kexec_load": 246, "kexec_file_load": 320, "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163,
    "quotactl": 179, "syslog": 103, "vhangup": 153, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159,
    "clock_adjtime": 305, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
    "lookup_dcookie": 212, "nfsservctl": 180, "modify_ldt": 154,
    "clone": 56, "ioctl": 16, "socket": 41,
}  # fmt: skip
_AARCH64 = {
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "unshare": 97, "setns": 268,
    "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "open_by_handle_at": 265,
    "name_to_handle_at": 264, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "add_key": 217,
    "request_key": 218, "keyctl": 219, "init_module": 105, "finit_module": 273, "delete_module": 106,
    "kexec_load": 104, "kexec_file_load": 294, "reboot": 142, "swapon": 224, "swapoff": 225, "acct": 89,
    "quotactl": 60, "syslog": 116, "vhangup": 58, "settimeofday": 170, "clock_settime": 112, "adjtimex": 171,
    "clock_adjtime": 266, "sethostname": 161, "setdomainname": 162, "lookup_dcookie": 18, "nfsservctl": 42,
    "clone": 220, "ioctl": 29, "socket": 198,
}  # fmt: skip
# These have one number everywhere.
_COMMON = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443,
}  # fmt: skip
_OCI_NAMES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_MACHINES = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}

_NR, _ARCH, _ARGUMENT = (
    0,
    4,
    16,
)  # offsets in struct seccomp_data; the low half of an argument, on little-endian machines
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
_NAMESPACES = 0x7E020000  # every CLONE_NEW* that clone() takes
_VSOCK = 40
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into the terminal of whoever started us

_Instruction = tuple[int, int, int, int]


def supported() -> bool:
    """Whether there is a filter for this machine."""
    return platform.machine() in _MACHINES


def program(machine: str | None = None) -> bytes:
    """The filter as the kernel takes it (an array of struct sock_filter). Raises KeyError for an unknown machine."""
    arch, own = _MACHINES[machine or platform.machine()]
    numbers = {**own, **_COMMON}
    code: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, arch),
        _return(_KILL),  # calls of another architecture have other numbers
        (_LOAD, 0, 0, _NR),
    ]
    if arch == _MACHINES["x86_64"][0]:
        code += [(_AT_LEAST, 0, 1, _X32), _return(_FAIL | errno.ENOSYS)]
    for name in _DENIED:
        if name in numbers:
            code += _on(numbers[name], [_return(_FAIL | errno.EPERM)])
    # Its flags lie in memory, where no filter sees them; the C library then takes clone().
    code += _on(numbers["clone3"], [_return(_FAIL | errno.ENOSYS)])
    code += _on(numbers["clone"], _argument(0, _ANY_BIT, _NAMESPACES, errno.EPERM))
    code += _on(numbers["socket"], _argument(0, _EQUAL, _VSOCK, errno.EAFNOSUPPORT))  # leads to a machine's host
    for request in _TERMINAL_INPUT:
        code += _on(numbers["ioctl"], _argument(1, _EQUAL, request, errno.EPERM))
    code.append(_return(_ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def profile(machine: str | None = None) -> dict[str, Any]:
    """The same filter as container engines take it (JSON, in the words of the OCI). Raises KeyError for an unknown machine."""
    name = machine or platform.machine()
    known = {**_MACHINES[name][1], **_COMMON}
    low = 0xFFFFFFFF  # the kernel takes no more of these arguments
    spaces = [1 << bit for bit in range(32) if _NAMESPACES >> bit & 1]
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [_OCI_NAMES[name]],  # calls of another one are the end of whoever makes them
        "syscalls": [
            _refused([denied for denied in _DENIED if denied in known], errno.EPERM),
            _refused(["clone3"], errno.ENOSYS),
            *(_refused(["clone"], errno.EPERM, 0, space, space) for space in spaces),
            _refused(["socket"], errno.EAFNOSUPPORT, 0, low, _VSOCK),
            *(_refused(["ioctl"], errno.EPERM, 1, low, request) for request in _TERMINAL_INPUT),
        ],
    }


def _refused(names: list[str], error: int, *test: int) -> dict[str, Any]:
    """``test`` is the index of an argument, a mask, and what the argument must be behind the mask."""
    found: dict[str, Any] = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error}
    if test:
        index, mask, value = test
        found["args"] = [{"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}]
    return found


def _on(number: int, then: Sequence[_Instruction]) -> list[_Instruction]:
    return [(_EQUAL, 0, len(then), number), *then]


def _argument(index: int, test: int, value: int, error: int) -> list[_Instruction]:
    """Fail when the argument passes the test; else go on, with the call's number loaded again."""
    load = (_LOAD, 0, 0, _ARGUMENT + 8 * index)
    return [load, (test, 0, 1, value), _return(_FAIL | error), (_LOAD, 0, 0, _NR)]


def _return(value: int) -> _Instruction:
    return (_RETURN, 0, 0, value)

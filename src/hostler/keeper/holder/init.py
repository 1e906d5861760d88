"""Parent of the agent program: first process of its pid namespace, or guardian of its tree where there is none.

It is forked before the keeper reads its configuration, so that it never holds the keeper's token.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import json
import os
import selectors
import signal
import socket

from . import network, tree

TYPE_CHECKING = False  # the module typing takes long to import
if TYPE_CHECKING:
    from typing import NoReturn

_NEWNS, _NEWUSER, _NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 2, 4, 8, 0x4000, 0x80000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36

# Steps of starting the program, as they are named to the host.
NETWORK, LIMITS, CHDIR, EXEC = "network", "limits", "cwd", "program"


def _call(name: str, *arguments: int | bytes | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def become_subreaper() -> None:
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def become_unreadable() -> None:
    """Nobody of the same user reads this process's memory, and with it the token, by ptrace or /proc."""
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)


def unshare() -> None:
    """The next child is the first process of a new pid namespace. A user namespace is needed only without privilege;
    it keeps the user's own id and no other."""
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEWPID | _NEWNS | (_NEWUSER if user else 0))
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def _enter_namespace(control: socket.socket) -> None:
    # Not before the keeper is our parent: the signal would come when the process in between ends.
    if control.recv(16) != b"go":
        os._exit(1)
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _call("mount", None, b"/", None, _MS_REC | _MS_SLAVE, None)
    if os.geteuid() == 0:
        # Else the outer process list would still lie under the new one.
        try:
            _call("umount2", b"/proc", _MNT_DETACH)
        except OSError:
            pass
    _call("mount", b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)


def serve(control: socket.socket, *, namespace: bool, mark: str) -> NoReturn:
    """Life of the init process. What it says to the keeper: ``ready`` or ``failed``, ``started`` or ``error``, ``exit``."""
    try:
        # In a pid namespace only signals with a handler would reach us from inside.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        fd = control.detach()
        if fd != 3:
            os.dup2(fd, 3, inheritable=False)
        os.closerange(4, _max_fd())
        control = socket.socket(fileno=3)
        if namespace:
            _enter_namespace(control)
        else:
            become_subreaper()
        _tell(control, {"ready": 1})
        _Init(control).run()
    except OSError as error:
        _tell(control, {"failed": str(error)})
    if not namespace:
        # The keeper is gone, however it went. Its orphans have come to us.
        tree.kill_all(lambda: tree.below(os.getpid()).keys() | tree.marked(mark), 4.0, reaping=True)
    os._exit(0)


class _Init:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._program = 0

    def run(self) -> None:
        """Until the keeper's end of the control socket closes."""
        wake, waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            selector.register(self._control, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == wake:
                        os.read(wake, 4096)
                    elif not self._on_control():
                        return
                for pid, code in tree.reap():
                    if pid == self._program:
                        _tell(self._control, {"exit": code})

    def _on_control(self) -> bool:
        try:
            message, fds, _, _ = socket.recv_fds(self._control, 16, 8)
        except OSError:
            return False
        if message == b"spawn":
            source, *stdio = fds
            with open(source, "rb") as file:
                spec = json.load(file)
            self._spawn(spec, stdio)
        return bool(message)

    def _spawn(self, spec: dict[str, object], stdio: list[int]) -> None:
        status, failed = os.pipe()
        self._program = os.fork()
        if self._program == 0:
            _become(spec, stdio, self._control, failed)
        for fd in (*stdio, failed):
            os.close(fd)
        with open(status, "rb") as file:
            error = file.read()  # ends when the program has taken over
        _tell(self._control, json.loads(error) if error else {"started": True})


def _become(spec: dict[str, object], stdio: list[int], control: socket.socket, failed: int) -> NoReturn:
    """In the child: turn into the program, or say why not."""
    step, code = EXEC, errno.EIO
    argv, env, feeds, groups = spec["argv"], spec["env"], spec["feeds"], spec["groups"]
    assert isinstance(argv, list)
    assert isinstance(env, dict)
    assert isinstance(feeds, list)
    assert isinstance(groups, list)
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for caught in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            try:
                signal.signal(caught, signal.SIG_DFL)
            except (OSError, ValueError):
                pass
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        control.send(b"{}")  # the kernel adds our pid as the keeper sees it
        if spec["model_port"]:
            step = NETWORK
            network.enter_own()
            with network.listen(spec["model_port"]) as listener:
                socket.send_fds(control, [b'{"listener": 1}'], [listener.fileno()])
        step = LIMITS
        for group in groups:
            with open(os.path.join(str(group), "cgroup.procs"), "w") as file:
                file.write("0")
        for fd, number in zip(stdio, (0, 1, 2, 4), strict=False):
            os.dup2(fd, number)
        os.dup2(failed, 3, inheritable=False)
        failed = 3
        os.closerange(len(stdio) + 1, _max_fd())
        if spec["enclosed"]:
            _hand_through()
            for feed in feeds:  # they become the descriptors 6, 7, ...
                memory = os.memfd_create("feed", 0)
                os.write(memory, base64.b64decode(feed))
                os.lseek(memory, 0, os.SEEK_SET)
        step = CHDIR
        os.chdir(str(spec["cwd"]))
        step = EXEC
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        code = error.errno or code
    except ValueError:  # a NUL byte in an argument
        code = errno.EINVAL
    finally:
        os.write(failed, json.dumps({"error": code, "step": step}).encode())
        os._exit(127)


def _hand_through() -> None:
    """Stdin and stdout become the descriptors 4 and 5: what stands between would hold them open when the program has
    closed them, if they were its own."""
    os.dup2(0, 4)
    os.dup2(1, 5)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def _tell(control: socket.socket, message: dict[str, object]) -> None:
    try:
        control.send(json.dumps(message).encode())
    except OSError:
        pass


def _max_fd() -> int:
    return os.sysconf("SC_OPEN_MAX")

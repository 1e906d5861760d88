from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import threading
from pathlib import Path

import pytest

from hostler.types.errors import PathError
from hostler.workspace.confined import Root, clear_folder, split


@pytest.fixture
def root(tmp_path: Path) -> Root:
    (tmp_path / "ws").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("top secret")
    return Root(tmp_path / "ws")


def paths(root: Root, folder: str = ".") -> list[str]:
    """Every file below a folder."""
    found: list[str] = []
    for entry in root.listdir(folder):
        found += paths(root, entry.path) if entry.kind == "directory" else [entry.path]
    return found


REFUSED = ["", "/a", "//a", "/etc/x", "C:\\a", "C:/a", "\\\\host\\a", "~/a", "~", "../a", "a/../../b", "a/..", "a\0b"]
REFUSED += ["/session/../x", "/sessionx/a", "x" * 256, "é" * 128, "a/" * 2049, "\ud800"]


@pytest.mark.parametrize("path", REFUSED)
def test_refused_paths_are_refused_by_every_operation_and_change_nothing(root: Root, path: str) -> None:
    operations = [
        lambda: root.read(path),
        lambda: root.write(path, b"x"),
        lambda: root.listdir(path),
        lambda: root.stat(path),
        lambda: root.remove(path),
        lambda: root.move(path, "b"),
        lambda: root.move("b", path),
    ]
    root.write("b", b"")
    for operation in operations:
        with pytest.raises(PathError):
            operation()
    assert paths(root) == ["b"]
    assert not os.path.lexists("/etc/x")


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("a", ("a",)),
        ("/session/a/b", ("a", "b")),
        ("/session", ()),
        ("./a//b/.", ("a", "b")),
        (".", ()),
        ("a/~", ("a", "~")),
        ("x" * 255, ("x" * 255,)),
        ("\udcff", ("\udcff",)),
    ],
)
def test_accepted_paths(path: str, parts: tuple[str, ...]) -> None:
    assert split(path) == parts


def test_the_root_itself_can_be_listed_but_not_written_or_removed(root: Root) -> None:
    assert root.stat("/session").kind == "directory"
    assert root.listdir(".") == []
    for operation in (root.remove, lambda p: root.write(p, b""), lambda p: root.move(p, "x"), root.read):
        with pytest.raises(PathError, match="root itself"):
            operation("/session")


CONTENTS = [
    b"",
    bytes(range(256)),
    b"\x89PNG\r\n\x1a\n\0",
    b"a\r\nb\r\n",
    "\u2028".encode(),
    b"aGVsbG8=",
    os.urandom(3 << 20),
]


@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
def test_bytes_come_back_as_they_were(root: Root, content: bytes) -> None:
    chunks = [content[at : at + 70_000] for at in range(0, len(content), 70_000)]
    assert root.write("d/e/f.bin", chunks) == (len(content), hashlib.sha256(content).hexdigest())
    assert root.read("/session/d/e/f.bin") == content
    assert root.stat("d/e/f.bin").bytes == len(content)
    assert paths(root) == ["d/e/f.bin"]


@pytest.mark.parametrize(
    "name", ["ä/公共.txt", "a b\n.txt", 'quo"te', "-rf", "a -> b", "\u2028", "\udcff\udcfe", "e\u0301"]
)
def test_odd_names_round_trip(root: Root, name: str) -> None:
    root.write(name, b"1")
    found = paths(root)
    assert found == [name]
    assert root.read(found[0]) == b"1"
    root.move(name, "plain")
    root.remove("plain")
    assert paths(root) == []


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary(root: Root) -> None:
    def broken() -> object:
        yield b"half"
        raise ConnectionError("upload died")

    root.write("f", b"old")
    with pytest.raises(ConnectionError):
        root.write("f", broken())  # type: ignore[arg-type]
    assert root.read("f") == b"old"
    assert [e.path for e in root.listdir()] == ["f"]


def test_modes(root: Root) -> None:
    root.write("f", b"")
    assert root.lstat("f").st_mode & 0o7777 == 0o644
    os.chmod(os.path.join(root.path, "f"), 0o4755)
    root.write("f", b"2")
    assert root.lstat("f").st_mode & 0o7777 == 0o755, "kept, but for setuid"
    root.write("f", b"3", mode=0o600)
    assert root.lstat("f").st_mode & 0o7777 == 0o600


LINKS = {
    "file": "../outside/secret",
    "absolute": "/etc/passwd",
    "directory": "../outside",
    "dangling": "../outside/new",
    "loop": "loop",
    "inside": "real",
}


@pytest.mark.parametrize("name", LINKS)
def test_links_are_never_followed(root: Root, tmp_path: Path, name: str) -> None:
    root.write("real/secret", b"inside")
    os.symlink(LINKS[name], os.path.join(root.path, name))
    before = sorted(os.listdir(tmp_path / "outside"))
    assert root.stat(name).kind == "symlink"
    for operation in (
        lambda: root.read(name),
        lambda: root.write(name, b"x"),
        lambda: root.listdir(name),
        lambda: root.read(f"{name}/secret"),
        lambda: root.write(f"{name}/new", b"x"),
        lambda: root.remove(f"{name}/secret"),
        lambda: root.move(f"{name}/secret", "stolen"),
        lambda: root.move("real/secret", f"{name}/stolen"),
        lambda: root.stat(f"{name}/secret"),
    ):
        with pytest.raises(PathError, match="link"):
            operation()
    root.move(name, "moved")
    assert root.stat("moved").kind == "symlink"
    root.remove("moved")
    assert sorted(os.listdir(tmp_path / "outside")) == before
    assert (tmp_path / "outside" / "secret").read_text() == "top secret"
    assert root.read("real/secret") == b"inside"


def test_removing_a_tree_does_not_follow_links_in_it(root: Root, tmp_path: Path) -> None:
    root.write("tree/a/b", b"")
    os.symlink(tmp_path / "outside", os.path.join(root.path, "tree/a/link"))
    root.remove("tree")
    assert root.listdir() == []
    assert (tmp_path / "outside" / "secret").exists()


@pytest.mark.timeout(10)
def test_fifos_sockets_and_devices_are_refused_without_waiting(root: Root) -> None:
    os.mkfifo(os.path.join(root.path, "fifo"))
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(root.path)  # a socket's path is short
        try:
            server.bind("sock")
        finally:
            os.chdir(here)
        for name in ("fifo", "sock"):
            assert root.stat(name).kind == "other"
            with pytest.raises(PathError, match="not a regular file"):
                root.read(name)
            with pytest.raises(PathError, match="not a regular file"):
                root.write(name, b"x")
            root.remove(name)
    with pytest.raises(PathError, match="not a regular file"):
        Root("/dev").read("zero", 10)


def test_ordinary_faults_keep_their_names(root: Root) -> None:
    root.write("file", b"")
    root.write("dir/sub/kept", b"")
    for error, operation in [
        (FileNotFoundError, lambda: root.read("none")),
        (FileNotFoundError, lambda: root.remove("no/ne")),
        (FileNotFoundError, lambda: root.move("none", "x/y")),
        (NotADirectoryError, lambda: root.read("file/x")),
        (NotADirectoryError, lambda: root.listdir("file")),
        (IsADirectoryError, lambda: root.read("dir")),
        (IsADirectoryError, lambda: root.write("dir", b"")),
    ]:
        with pytest.raises(error) as caught:
            operation()
        assert root.path not in str(caught.value)
    assert not os.path.exists(os.path.join(root.path, "x"))
    root.move("file", "dir/new/file")
    assert paths(root) == ["dir/new/file", "dir/sub/kept"]


@pytest.mark.timeout(60)
def test_a_folder_swapped_for_a_link_while_we_work_leads_nowhere(root: Root, tmp_path: Path) -> None:
    """The agent's thread flips ``d`` between a folder and a link to the outside, and ``d/f`` between file, link and FIFO."""
    outside = tmp_path / "outside"
    (outside / "f").write_bytes(b"outside")
    base = Path(root.path)
    (base / "good").mkdir()
    (base / "good" / "f").write_bytes(b"inside")
    stop = threading.Event()

    def flip() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            shutil.rmtree(base / "d", ignore_errors=True)  # a write may have made it
            with contextlib.suppress(OSError):
                os.rename(base / "good", base / "d")
                os.rename(base / "d", base / "good")
            with contextlib.suppress(OSError):
                os.symlink(outside, base / "d")
                os.unlink(base / "d")
            odd = base / "good" / "odd"
            with contextlib.suppress(OSError):
                [lambda p: os.symlink(outside / "f", p), os.mkfifo, lambda p: p.write_bytes(b"inside")][turn % 3](odd)
                os.replace(odd, base / "good" / "g")

    thread = threading.Thread(target=flip)
    thread.start()
    seen = {"inside": 0, "refused": 0, "missing": 0}
    try:
        for _ in range(1500):
            for operation in (
                lambda: root.read("d/f"),
                lambda: root.read("good/g"),
                lambda: root.write("d/f", b"inside"),
                lambda: root.write("d/new", b"inside"),
                lambda: root.remove("d/new"),
                lambda: root.listdir("d"),
            ):
                try:
                    value = operation()
                    assert value != b"outside"
                    if isinstance(value, list):
                        assert "d/secret" not in [e.path for e in value]
                    seen["inside"] += 1
                except PathError:
                    seen["refused"] += 1
                except OSError:
                    seen["missing"] += 1
    finally:
        stop.set()
        thread.join()
    assert sorted(os.listdir(outside)) == ["f", "secret"]
    assert (outside / "f").read_bytes() == b"outside"
    assert all(seen.values()), seen


def test_no_descriptor_is_left_open(root: Root) -> None:
    root.write("a/b", b"x")
    os.symlink("/etc", os.path.join(root.path, "l"))
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(20):
        root.read("a/b")
        root.write("a/b", b"y")
        root.listdir("a")
        for path in ("l/x", "none", "a", "a/b/c"):
            with pytest.raises((PathError, OSError)):
                root.read(path)
            with pytest.raises((PathError, OSError)):
                root.write(path + "/x/y", b"") if path != "none" and path != "a" else root.remove("q")
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before


def test_a_root_whose_folder_was_made_anew_still_works(root: Root) -> None:
    root.write("a", b"1")
    shutil.rmtree(root.path)
    with pytest.raises(FileNotFoundError):
        root.read("a")
    os.mkdir(root.path)
    root.write("a", b"2")
    assert root.read("a") == b"2"


def test_a_folder_is_emptied_and_stays_the_same(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    clear_folder(str(folder))
    outside.mkdir()
    (outside / "kept").touch()
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "file").touch()
    (folder / "link").symlink_to(outside)
    before = folder.stat().st_ino
    clear_folder(str(folder))
    assert (folder.stat().st_ino, os.listdir(folder)) == (before, [])
    folder.rmdir()
    folder.symlink_to(outside)  # an agent's doing
    clear_folder(str(folder))
    assert not folder.is_symlink()
    assert os.listdir(folder) == []
    assert os.listdir(outside) == ["kept"]

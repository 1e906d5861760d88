"""What an agent has made is removed, however deep it is and whatever it permits; nothing outside is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.conftest import deep

from hostler.removal import remove_path
from hostler.workspace import Root, SessionDirs, layout, snapshots
from hostler.workspace.confined import clear_folder

DEPTH = 3000  # more than Python's stack and than the longest path (with these names) have room for


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A deep tree with a link to what is outside at its end, and files and folders beside its folders."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("x")
    deep(tmp_path / "tree" / "deep", DEPTH, link=tmp_path / "outside")
    (tmp_path / "tree" / "wide" / "a").mkdir(parents=True)
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "outside")
    return tmp_path / "tree"


def test_a_deep_tree_goes_and_no_link_is_followed(tree: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    remove_path(str(tree))
    assert not tree.exists()
    assert (tree.parent / "outside" / "kept").read_text() == "x"
    assert len(os.listdir("/proc/self/fd")) == before
    remove_path(str(tree))  # there is nothing


def test_the_app_can_remove_it_from_a_workspace(tree: Path) -> None:
    Root(tree).remove("deep")
    assert sorted(os.listdir(tree)) == ["link", "wide"]
    deep(tree / "deep", DEPTH)
    clear_folder(str(tree))
    assert os.listdir(tree) == []


def test_a_snapshot_is_put_back_over_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_text("1")
    first = snapshots.take(str(root), str(tmp_path / "snapshots"), 1 << 20).id
    deep(root / "deep", DEPTH)
    (root / "a").unlink()
    deep(root / "a", DEPTH)
    assert len(snapshots.take(str(root), str(tmp_path / "snapshots"), 1 << 20).skipped) == 2
    snapshots.restore(str(root), str(tmp_path / "snapshots"), first)
    assert os.listdir(root) == ["a"]
    assert (root / "a").read_text() == "1"


def refuse(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have files of this name stay."""
    unlink = os.unlink

    def refusing(given: str, *, dir_fd: int | None = None) -> None:
        if given == name:
            raise PermissionError(1, "not permitted", given)
        unlink(given, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refusing)


def test_what_cannot_be_removed_does_not_keep_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "tree" / name / "inner").mkdir(parents=True)
        (tmp_path / "tree" / name / "inner" / name).write_text("")
    refuse(monkeypatch, "b")
    with pytest.raises(PermissionError):
        remove_path(str(tmp_path / "tree"))
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "tree",
        "tree/b",
        "tree/b/inner",
        "tree/b/inner/b",
    ]


def test_folders_elsewhere_that_cannot_be_removed_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = SessionDirs.of(tmp_path, "chat").move({"home": str(tmp_path / "shared")})
    dirs.make()
    (Path(dirs.home) / "file").write_text("")
    refuse(monkeypatch, "file")
    with pytest.raises(PermissionError):
        layout.erase(dirs.root)
    assert os.listdir(dirs.root) == ["elsewhere"]
    monkeypatch.undo()
    layout.erase(dirs.root)
    assert not os.path.exists(dirs.root)
    assert os.listdir(tmp_path / "shared") == []


_CLOSED = """
import os, sys
from hostler.removal import remove_path
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
os.makedirs("tree/closed/inner")
open("tree/closed/inner/file", "w").close()
for path, mode in (("tree/closed/inner", 0o500), ("tree/closed", 0), ("tree", 0o100)):
    os.chmod(path, mode)
remove_path(os.path.join(sys.argv[1], "tree"))
print(os.listdir("."))
"""


def test_an_ordinary_user_removes_folders_without_permissions() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # which any user may reach
        os.chmod(folder, 0o777)
        done = subprocess.run([sys.executable, "-c", _CLOSED, folder], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")

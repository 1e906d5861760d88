from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.types.errors import SandboxError
from hostler.workspace import SessionDirs, check_apart, prepare

ALIKE = [
    "a_b",
    "a-b",
    "a.b",
    "a/b",
    "A-B",
    "公共",
    "共公",
    "é",
    "e\u0301",
    "../../x",
    "..",
    ".",
    "/",
    "a\0",
    " ",
    "x" * 512,
]
ALIKE += ["x" * 511, "\ud800", "session", "-", "a b"]


def test_keys_that_look_alike_have_different_folders(tmp_path: Path) -> None:
    roots = [SessionDirs.of(tmp_path, key).root for key in ALIKE]
    assert len({root.lower() for root in roots}) == len(ALIKE)
    for root in roots:
        assert os.path.dirname(root) == str(tmp_path / "sessions")
        assert os.path.basename(root).isascii()
        assert len(os.path.basename(root)) <= 57


@given(st.text(max_size=512))
def test_any_key_has_a_safe_folder(key: str) -> None:
    name = os.path.basename(SessionDirs.of("/data", key).root)
    assert SessionDirs.of("/data", key).root == f"/data/sessions/{name}"
    assert name[0] not in ".-"
    assert name.isprintable()


def test_folders_are_made_for_this_user_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert prepare(data) == str(data)
    dirs = SessionDirs.of(data, "chat 1")
    dirs.make()
    Path(dirs.session, "kept").write_text("")
    dirs.make()
    assert Path(dirs.session, "kept").exists()
    assert os.path.basename(dirs.root).startswith("chat-1-")
    for folder in (str(data), *dataclasses.astuple(dirs)):
        assert os.stat(folder).st_mode & 0o777 == 0o700
    assert (data / ".gitignore").read_text() == "*\n"
    assert prepare(data) == str(data)


def test_a_folder_with_the_users_own_files_is_not_hidden_from_git(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    prepare(tmp_path)
    assert not (tmp_path / ".gitignore").exists()


def test_a_data_dir_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError, match="data dir"):
        prepare(tmp_path / "file" / "data")


def test_the_data_dir_may_not_be_in_the_workspace(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    os.symlink(work, tmp_path / "alias")
    for data in (work, work / "data", work / "sub" / "not" / "yet", tmp_path / "alias" / "data"):
        for workdir in (work, tmp_path / "alias", f"{work}/"):
            with pytest.raises(SandboxError, match="inside the workspace"):
                check_apart(data, workdir)
    check_apart(tmp_path / "data", work)
    check_apart(tmp_path / "work2", work)
    dirs = SessionDirs.of(tmp_path / "data", "k")
    dirs.make()
    check_apart(tmp_path / "data", dirs.session)


def test_the_workspace_of_a_session(tmp_path: Path) -> None:
    dirs = SessionDirs.of(tmp_path, "k")
    assert dirs.workspace().root == dirs.session
    assert dirs.workspace("/own").mounts == {
        "/session": "/own",
        "/artifacts": dirs.artifacts,
        "/persistent": dirs.persistent,
        "/skills": dirs.skills,
    }

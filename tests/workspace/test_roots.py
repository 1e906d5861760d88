"""Folders by the names that agent and app use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hostler.workspace import SessionDirs
from hostler.workspace.roots import Roots


@pytest.fixture
def dirs(tmp_path: Path) -> SessionDirs:
    dirs = SessionDirs.of(tmp_path, "k")
    dirs.make()
    return dirs


@pytest.fixture
def roots(dirs: SessionDirs) -> Roots:
    return Roots(dirs.workspace().mounts)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Write to /artifacts.", "Write to {a}."),
        ("Write to /artifacts, please", "Write to {a}, please"),
        ('echo x > "/artifacts/r.md"', 'echo x > "{a}/r.md"'),
        ("(/artifacts/x)\n/session/y", "({a}/x)\n{s}/y"),
        ("see /skills/pdf and /persistent/docs", "see {k}/pdf and {p}/docs"),
        *(
            (same, same)
            for same in ("GET /session of the API", "the /session/ route", "http://h/artifacts/x", "a/artifacts/x")
        ),
        *(
            (same, same)
            for same in ("/artifacts-old", "/sessions/x", "~/artifacts/x", "./artifacts/x", "$X/artifacts/y", "")
        ),
    ],
)
def test_names_in_a_text(text: str, shown: str, roots: Roots, dirs: SessionDirs) -> None:
    real = {"a": dirs.artifacts, "s": dirs.session, "k": dirs.skills, "p": dirs.persistent}
    assert roots.translated(text) == shown.format(**real)


def test_one_name_for_each_place(roots: Roots, dirs: SessionDirs) -> None:
    for path in ("/artifacts//a/./b", f"{dirs.artifacts}/a/b", "/artifacts/a/b/"):
        assert roots.virtual(path) == "/artifacts/a/b"
        assert roots.real(path) == f"{dirs.artifacts}/a/b"
    assert roots.virtual("x") == roots.virtual(f"{dirs.session}/x") == "/session/x"


def test_a_look_makes_no_folders(dirs: SessionDirs) -> None:
    os.rmdir(dirs.artifacts)
    looking = Roots(dirs.workspace().mounts, make=False)
    root, path = looking.resolve("/artifacts")
    with pytest.raises(FileNotFoundError):
        root.listdir(path)
    assert not os.path.exists(dirs.artifacts)
    Roots(dirs.workspace().mounts).resolve("/artifacts")
    assert os.path.isdir(dirs.artifacts)

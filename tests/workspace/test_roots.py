"""Folders by the names that agent and app use."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hostler.workspace import SessionDirs
from hostler.workspace.layout import erase
from hostler.workspace.roots import Names, Roots


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
def test_names_in_a_text(text: str, shown: str, dirs: SessionDirs) -> None:
    real = {"a": dirs.artifacts, "s": dirs.session, "k": dirs.skills, "p": dirs.persistent}
    names = Names(dirs.workspace().mounts)
    assert names.translated(text) == shown.format(**real)


def test_one_name_for_each_place(roots: Roots, dirs: SessionDirs) -> None:
    for path in ("/artifacts//a/./b", f"{dirs.artifacts}/a/b", "/artifacts/a/b/"):
        assert roots.virtual(path) == "/artifacts/a/b"
    assert roots.virtual("x") == roots.virtual(f"{dirs.session}/x") == "/session/x"


def test_the_names_of_a_program_in_a_container(dirs: SessionDirs) -> None:
    folders = dirs.folders("/workspace")
    assert Names.of(folders) is not None
    assert (
        Names.of(
            replace(folders, workdir="/session", artifacts="/artifacts", persistent="/persistent", skills="/skills")
        )
        is None
    )
    names = Names.of(folders)
    assert names is not None
    assert names.real("/session/a") == "/workspace/a"
    assert names.real("/artifacts") == dirs.artifacts
    assert names.real("/sessions/a") == "/sessions/a"
    roots = Roots(dirs.workspace().mounts, names=names)
    assert roots.virtual("/workspace/a/./b") == "/session/a/b"


def test_folders_that_lie_elsewhere(tmp_path: Path) -> None:
    """Those that a shared sandbox shows: of each session apart, kept over processes, erased with it."""
    one, two = (SessionDirs.of(tmp_path / "data", key) for key in "12")
    places = {"home": str(tmp_path / "place/own"), "launch": str(tmp_path / "place/given")}
    moved, other = one.move(places), two.move(places)
    for dirs in (moved, other):
        dirs.make()
    assert moved.home.startswith(f"{places['home']}/")
    assert moved.home != other.home
    assert moved.session == one.session
    assert SessionDirs.of(tmp_path / "data", "1") == moved == one.move(places)
    assert moved.move({}) == one
    moved = one.move(places)
    moved.make()
    aside = moved.set_aside()
    assert aside is not None
    erase(aside)
    assert not os.path.exists(aside)
    assert not os.path.exists(moved.home)
    assert os.path.isdir(other.home)


def test_a_look_makes_no_folders(dirs: SessionDirs) -> None:
    os.rmdir(dirs.artifacts)
    looking = Roots(dirs.workspace().mounts, make=False)
    root, path = looking.resolve("/artifacts")
    with pytest.raises(FileNotFoundError):
        root.listdir(path)
    assert not os.path.exists(dirs.artifacts)
    Roots(dirs.workspace().mounts).resolve("/artifacts")
    assert os.path.isdir(dirs.artifacts)

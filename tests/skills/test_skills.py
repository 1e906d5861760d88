"""Skills as they are read, kept and laid out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hostler import skills
from hostler.harness import PathError, SandboxError
from hostler.workspace.blobs import Blobs

TEXT = (
    "---\nname: shoeing\ndescription: Shoes a horse\nallowed-tools: Bash\nmodel: other\n---\n# How\nSee `nails.md`.\n"
)


def folder(root: Path, name: str = "shoeing", text: str = TEXT) -> Path:
    path = root / name
    (path / "scripts").mkdir(parents=True)
    (path / "SKILL.md").write_text(text)
    (path / "nails.md").write_text("seven")
    (path / "scripts" / "run.sh").write_text("#!/bin/sh\necho hi\n")
    (path / "scripts" / "run.sh").chmod(0o755)
    (path / "icon.png").write_bytes(b"\x89PNG\xff\x00")
    return path


def manual(skill: skills.Skill) -> str:
    return skill.files[0].data.decode()


def test_a_folder_is_read_whole(tmp_path: Path) -> None:
    (skill,) = skills.read([folder(tmp_path)])
    assert (skill.name, skill.description) == ("shoeing", "Shoes a horse")
    files = {file.path: (file.data, file.executable) for file in skill.files}
    assert set(files) == {"SKILL.md", "nails.md", "scripts/run.sh", "icon.png"}
    assert files["scripts/run.sh"] == (b"#!/bin/sh\necho hi\n", True)
    assert files["icon.png"] == (b"\x89PNG\xff\x00", False)
    # Rights that a skill takes for itself, and settings of one program, are left behind.
    assert manual(skill) == "---\nname: shoeing\ndescription: Shoes a horse\n---\n# How\nSee `nails.md`.\n"
    assert skills.read([str(tmp_path / "shoeing")]) == (skill,)


@pytest.mark.parametrize(
    ("front", "name", "description"),
    [
        ("name: a-1\ndescription: 'It: has \"quotes\" # all'\n", "a-1", 'It: has "quotes" # all'),
        ("description: >\n  Over\n  two lines\n", "shoeing", "Over two lines"),
        ("name: a\ndescription: Ünï 日本\n", "a", "Ünï 日本"),
        ('name: "2"\ndescription: "- no list"\nmetadata: {a: [1]}\n', "2", "- no list"),
        (f"name: {'a' * 64}\ndescription: {'d' * 1024}\n", "a" * 64, "d" * 1024),
    ],
)
def test_what_stands_before_the_text(front: str, name: str, description: str, tmp_path: Path) -> None:
    path = folder(tmp_path, text=f"\ufeff---\r\n{front}---\r\nbody")
    (skill,) = skills.read([path])
    assert (skill.name, skill.description) == (name, description)
    (again,) = skills.read([{name: manual(skill)}])
    assert (again.name, again.description, manual(again)) == (name, description, manual(skill))
    assert manual(skill).endswith("---\nbody")


def test_text_alone_is_a_skill() -> None:
    (skill,) = skills.read([{"feeding": "# Feeds a horse\n\nTwice a day.\n"}])
    assert (skill.name, skill.description) == ("feeding", "Feeds a horse")
    assert manual(skill) == "---\nname: feeding\ndescription: Feeds a horse\n---\n# Feeds a horse\n\nTwice a day.\n"


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        (["/nowhere/at/all"], ValueError, "no folder"),
        ([3], TypeError, "takes folders"),
        ([{"a": 3}], TypeError, "with strings"),
        ([{"a": "text a"}, {"a": "text b"}], ValueError, "Two skills"),
        ([{f"s{n}": "x"} for n in range(65)], ValueError, "64 skills"),
        ([{"a": ""}], ValueError, "no description"),
        ([{"a": "---\nname: [\n---\n"}], ValueError, "no YAML"),
        ([{"a": "---\n- x\n---\n"}], ValueError, "no YAML mapping"),
        ([{"a": "---\nname: a\n---\nx"}], ValueError, "no description"),
        ([{"a": f"---\ndescription: {'d' * 1025}\n---\nx"}], ValueError, "1025"),
        ([{"a": "---\nname: a\ndescription: !!python/object/apply:os.system ['x']\n---\nx"}], ValueError, "no YAML"),
        *[
            ([{name: "text"}], ValueError, "no name of a skill")
            for name in ("../up", "/etc", ".", "..", "A", "a_b", "a--b", "-a", "a/b", "a" * 65, "a\n", "é", "a\0")
        ],
        ([{"a": "---\nname: ../../etc\ndescription: d\n---\n"}], ValueError, "no name of a skill"),
        ([{"a": "---\nname: 3\ndescription: d\n---\n"}], ValueError, "no name of a skill"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_no_skill_is_refused(given: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        skills.read(given)


def test_folders_that_hold_what_they_should_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = folder(tmp_path / "a")
    (bad / "link").symlink_to("/etc/passwd")
    with pytest.raises(PathError, match="'link', a symlink"):
        skills.read([bad])
    bad = folder(tmp_path / "b")
    (bad / "scripts" / "out").symlink_to("/etc")
    with pytest.raises(PathError, match="a symlink"):
        skills.read([bad])
    bad = folder(tmp_path / "c")
    (bad / "SKILL.md").unlink()
    (bad / "SKILL.md").symlink_to("nails.md")
    with pytest.raises(PathError, match=r"SKILL\.md"):
        skills.read([bad])
    bad = folder(tmp_path / "d")
    os.mkfifo(bad / "pipe")
    with pytest.raises(PathError, match="'pipe'"):
        skills.read([bad])
    bad = folder(tmp_path / "e")
    (bad / "a\nb").write_text("x")
    with pytest.raises(PathError, match="plain one"):
        skills.read([bad])
    bad = folder(tmp_path / "f")
    (bad / "SKILL.md").unlink()
    with pytest.raises(ValueError, match=r"no SKILL\.md"):
        skills.read([bad])
    bad = folder(tmp_path / "g")
    (bad / "SKILL.md").write_bytes(b"---\ndescription: \xff\n---\n")
    with pytest.raises(ValueError, match="UTF-8"):
        skills.read([bad])
    with (bad / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="too large"):
        skills.read([bad])
    many = folder(tmp_path / "h")
    for n in range(500):
        (many / f"f{n}").touch()
    with pytest.raises(ValueError, match="too large"):
        skills.read([many])


def test_kept_and_laid_out_anew(tmp_path: Path) -> None:
    (skill,) = skills.read([folder(tmp_path / "app")])
    blobs, place = Blobs(str(tmp_path / "blobs")), tmp_path / "session" / "skills"
    place.parent.mkdir()
    manifests = json.loads(json.dumps([skill.manifest()]))
    skills.keep([skill], blobs)
    for _ in range(2):
        skills.lay_out(manifests, blobs, str(place))
        assert (place / "shoeing" / "SKILL.md").read_text() == manual(skill)
        assert (place / "shoeing" / "scripts" / "run.sh").stat().st_mode & 0o777 == 0o555
        assert (place / "shoeing" / "nails.md").stat().st_mode & 0o777 == 0o444
        assert {p.name for p in place.iterdir()} == {"shoeing"}
        # What an agent does to it does not outlive its program.
        (place / "shoeing" / "nails.md").unlink()
        (place / "shoeing" / "nails.md").symlink_to(tmp_path / "app")
        (place / "evil").mkdir()
        (place / "evil" / "SKILL.md").write_text(TEXT)
    os.rename(place, tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "app")
    skills.lay_out(manifests, blobs, str(place))
    assert not place.is_symlink()
    assert (tmp_path / "app" / "shoeing" / "icon.png").exists()


def test_what_is_lost_or_damaged_is_said(tmp_path: Path) -> None:
    (skill,) = skills.read([folder(tmp_path / "app")])
    blobs = Blobs(str(tmp_path / "blobs"))
    skills.keep([skill], blobs)
    sha256 = skill.manifest()["files"][0][1]
    (tmp_path / "blobs" / sha256).chmod(0o600)
    (tmp_path / "blobs" / sha256).write_text("changed")
    with pytest.raises(SandboxError, match="'shoeing' is missing"):
        skills.lay_out([skill.manifest()], blobs, str(tmp_path / "skills"))
    skills.keep([skill], blobs)  # given again: mended
    skills.lay_out([skill.manifest()], blobs, str(tmp_path / "skills"))
    evil = {"name": "a", "description": "d", "files": [["../../up", sha256, False]]}
    with pytest.raises(PathError):
        skills.lay_out([evil], blobs, str(tmp_path / "skills"))


def test_the_listing_names_what_there_is() -> None:
    listed = skills.listing([skill.manifest() for skill in skills.read([{"a": "Feeds"}, {"b": "Shoes"}])], "/skills")
    assert listed.endswith("- a: Feeds (/skills/a/SKILL.md)\n- b: Shoes (/skills/b/SKILL.md)")

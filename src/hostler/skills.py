"""Skills: folders of instructions that the app gives its agents, read once, kept with the session, laid out in /skills."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .types.errors import PathError, SandboxError
from .types.result import FileEntry
from .workspace.blobs import Blobs
from .workspace.confined import Root, clear_folder, split

MANUAL = "SKILL.md"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NAME_LENGTH = 64
_DESCRIPTION_LENGTH = 1024
_SKILLS = 64
_FILES = 500  # of one skill
_BYTES = 16 << 20  # of one skill
_FRONT = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SkillFile:
    """One file of a skill; ``path`` is relative to its folder."""

    path: str
    data: bytes = field(repr=False)
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill as it was read: its name (also that of its folder), what it is for, its files."""

    name: str
    description: str
    files: tuple[SkillFile, ...]

    def manifest(self) -> dict[str, Any]:
        """JSON: what is stored of it as a rule of the session. The contents are among the session's blobs."""
        files = [[file.path, hashlib.sha256(file.data).hexdigest(), file.executable] for file in self.files]
        return {"name": self.name, "description": self.description, "files": files}


# ---- read -----------------------------------------------------------------------------------------------------------


def read(given: Iterable[Any]) -> tuple[Skill, ...]:
    """The skills that ``skills=`` stands for: folders, or ``{name: text}``. Raises TypeError, ValueError or PathError."""
    out: dict[str, Skill] = {}
    for item in given:
        for skill in _read(item):
            if skill.name in out:
                raise ValueError(f"Two skills are called {skill.name!r}.")
            out[skill.name] = skill
    if len(out) > _SKILLS:
        raise ValueError(f"A session can have {_SKILLS} skills; these are {len(out)}.")
    return tuple(out.values())


def _read(item: Any) -> list[Skill]:
    if isinstance(item, Mapping):
        return [_from_text(name, text) for name, text in item.items()]
    if isinstance(item, (str, os.PathLike)):
        return [_from_folder(os.path.expanduser(os.fspath(item)))]
    raise TypeError(f"skills takes folders, or {{name: text}}, not {item!r}.")


def _from_text(name: object, text: object) -> Skill:
    if not isinstance(name, str) or not isinstance(text, str):
        raise TypeError(f"skills takes {{name: text}} with strings, not {name!r}: {type(text).__name__}.")
    if _FRONT.match(text) is None:
        first = next((line.strip("# \t") for line in text.splitlines() if line.strip("# \t")), "")
        text = _front(name, first[:_DESCRIPTION_LENGTH]) + text
    return _skill(name, text.encode(errors="surrogatepass"), ())


def _from_folder(folder: str) -> Skill:
    if not os.path.isdir(folder):
        raise ValueError(f"There is no folder {folder!r} that could be a skill.")
    root = Root(folder)
    files: list[SkillFile] = []
    size = 0
    for entry in _walk(root):
        if entry.kind not in ("file", "directory"):
            raise PathError(
                f"The skill {folder!r} holds {entry.path!r}, a {entry.kind}; a skill has files and folders."
            )
        if entry.kind == "directory":
            continue
        if not entry.path.isprintable():
            raise PathError(f"The skill {folder!r} holds a file with the name {entry.path!r}; use a plain one.")
        data = root.read(entry.path, _BYTES - size + 1)
        size += len(data)
        if size > _BYTES or len(files) >= _FILES:
            raise ValueError(f"The skill {folder!r} is too large: at most {_FILES} files and {_BYTES >> 20} MiB.")
        mode = root.lstat(entry.path).st_mode
        files.append(SkillFile(entry.path, data, bool(mode & stat.S_IXUSR)))
    manual = next((file for file in files if file.path == MANUAL), None)
    if manual is None:
        raise ValueError(f"The folder {folder!r} is no skill: it has no {MANUAL}.")
    rest = sorted((file for file in files if file is not manual), key=lambda file: file.path)
    return _skill(os.path.basename(root.path), manual.data, rest)


def _walk(root: Root) -> Iterator[FileEntry]:
    pending = ["."]
    while pending:
        for entry in root.listdir(pending.pop()):
            yield entry
            if entry.kind == "directory":
                pending.append(entry.path)


def _skill(default: str, manual: bytes, rest: Sequence[SkillFile]) -> Skill:
    try:
        text = manual.decode()
    except UnicodeDecodeError:
        raise ValueError(f"The {MANUAL} of the skill {default!r} is not UTF-8 text.") from None
    found = _FRONT.match(text)
    if found is None:
        raise ValueError(f"The {MANUAL} of the skill {default!r} does not begin with '---', its name and description.")
    about = _yaml(default, found[1])
    name = about.get("name") or default
    if not isinstance(name, str) or len(name) > _NAME_LENGTH or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name of a skill: 1 to {_NAME_LENGTH} lower-case letters (a-z), digits and single hyphens."
        )
    description = about.get("description")
    if not isinstance(description, str) or not description.strip():
        raise ValueError(f"The skill {name!r} has no description: agents choose skills by it.")
    description = " ".join(description.split())
    if len(description) > _DESCRIPTION_LENGTH:
        raise ValueError(f"The description of the skill {name!r} has {len(description)} characters of at most 1024.")
    # Of what stands before the text, programs get the name and the description: some would take rights from the rest.
    text = _front(name, description) + text[found.end() :]
    return Skill(name, description, (SkillFile(MANUAL, text.encode()), *rest))


def _yaml(name: str, text: str) -> Mapping[str, Any]:
    import yaml

    try:
        about = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"What {MANUAL} of the skill {name!r} begins with is no YAML: {error}") from None
    if not isinstance(about, Mapping):
        raise ValueError(f"What {MANUAL} of the skill {name!r} begins with is no YAML mapping.")
    return about


def _front(name: str, description: str) -> str:
    import yaml

    front = yaml.safe_dump({"name": name, "description": description}, sort_keys=False, allow_unicode=True, width=2000)
    return f"---\n{front}---\n"


# ---- kept, and laid out ---------------------------------------------------------------------------------------------


def keep(skills: Iterable[Skill], blobs: Blobs) -> None:
    """Keep the contents with the session, so that it has the same skills wherever it is resumed. Blocks."""
    for skill in skills:
        for file in skill.files:
            if blobs.read(hashlib.sha256(file.data).hexdigest()) is None:
                blobs.put(file.data)


def lay_out(manifests: Sequence[Mapping[str, Any]], blobs: Blobs, folder: str) -> None:
    """Write the folder of the skills anew: what an agent did to it is gone. Blocks. Raises SandboxError when a content is
    missing."""
    clear_folder(folder)
    root = Root(folder)
    for manifest in manifests:
        for path, sha256, executable in manifest["files"]:
            data = blobs.read(sha256)
            if data is None:
                raise SandboxError(
                    f"The file {path!r} of the skill {manifest['name']!r} is missing in the session's folder. Give skills= "
                    "again when you resume the session."
                )
            root.write("/".join((manifest["name"], *split(path))), data, mode=0o555 if executable else 0o444)


def listing(manifests: Sequence[Mapping[str, Any]], folder: str) -> str:
    """What is said to a program that has no way of its own to offer skills."""
    lines = [f"- {m['name']}: {m['description']} ({folder}/{m['name']}/{MANUAL})" for m in manifests]
    return (
        "You have these skills: instructions for special tasks, with files that belong to them. When a task matches a "
        f"description, read the skill's {MANUAL} first and follow it.\n\n" + "\n".join(lines)
    )

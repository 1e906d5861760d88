"""What of the machine is shown for a program to run."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path

import pytest

from hostler.sandboxes.visible import PLACE, Visible

SH = b"#!/bin/sh\n"


def visible(**own: str) -> Visible:
    return Visible(("/usr", "/bin"), {"/no/such/home": "/home/agent", **own}, shutil.which)


def executable(path: Path, content: bytes = SH) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return str(path)


def test_one_file_and_no_more(tmp_path: Path) -> None:
    program = executable(tmp_path / "bin" / "agent")
    executable(tmp_path / "bin" / "other")
    seen = visible()
    assert seen.command((program, "--flag", "word", "relative/path")) == (program, "--flag", "word", "relative/path")
    assert seen.mounts == {program: program}
    assert visible().command(("/bin/sh", "-c", "true")) == ("/bin/sh", "-c", "true")


def test_files_that_the_command_names(tmp_path: Path) -> None:
    program, script = executable(tmp_path / "agent"), executable(tmp_path / "data" / "script.py", b"x")
    folder = tmp_path / "folder"
    folder.mkdir()
    seen = visible()
    assert seen.command((program, script, str(folder), "/no/such/file")) == (
        program,
        script,
        str(folder),
        "/no/such/file",
    )
    assert set(seen.mounts) == {program, script}  # a folder is no program's file: it may be anything


def test_packages_are_shown_as_a_whole(tmp_path: Path) -> None:
    npm = executable(tmp_path / "a" / "node_modules" / "agent" / "bin" / "cli.js", b"#!/usr/bin/env sh\n")
    link = tmp_path / "a" / "node_modules" / ".bin" / "agent"
    link.parent.mkdir()
    link.symlink_to("../agent/bin/cli.js")
    pip = executable(tmp_path / "b" / "site-packages" / "agent" / "bin" / "agent")
    executable(tmp_path / "b" / "site-packages" / "secrets" / "x")
    seen = visible()
    assert seen.command((str(link),)) == (str(link),)
    assert seen.command((pip,)) == (pip,)
    assert set(seen.mounts) == {str(tmp_path / "a" / "node_modules"), str(tmp_path / "b" / "site-packages" / "agent")}
    assert npm.startswith(next(iter(seen.mounts)))


def test_links_are_shown_hop_by_hop(tmp_path: Path) -> None:
    real = executable(tmp_path / "versions" / "2.1" / "agent")
    (tmp_path / "current").symlink_to("versions/2.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "agent").symlink_to("../current/agent")
    seen = visible()
    given = str(tmp_path / "bin" / "agent")
    assert seen.command((given,)) == (given,)
    assert seen.mounts == {real: real}
    assert seen.links == {given: str(tmp_path / "current" / "agent"), str(tmp_path / "current" / "agent"): real}


def test_interpreters(tmp_path: Path) -> None:
    inner = executable(tmp_path / "inner", b"\x7fELF\x02" + bytes(60))
    outer = executable(tmp_path / "outer", f"#!{inner} -x\n".encode())
    script = executable(tmp_path / "script", f"#!{outer}\n".encode())
    loop = executable(tmp_path / "loop", f"#!{tmp_path}/loop\n".encode())
    seen = visible()
    assert seen.command((script,)) == (script,)
    assert set(seen.mounts) == {inner, outer, script}
    assert visible().command((loop,)) == (loop,)


def test_pythons(tmp_path: Path) -> None:
    environment = tmp_path / "env"
    for folder in ("bin", "lib"):
        (environment / folder).mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text("")
    (environment / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    seen = Visible((), {}, shutil.which)
    seen.command((str(environment / "bin" / "python"),))
    real = os.path.realpath(sys.executable)
    assert set(seen.mounts) == {real, os.path.join(os.path.dirname(os.path.dirname(real)), "lib"), str(environment)}


def test_a_python_file_brings_its_package_and_an_environment_those_that_it_has_joined(tmp_path: Path) -> None:
    project, packages = tmp_path / "project", tmp_path / "other" / "site-packages"
    script = project / "src" / "house" / "rooms" / "__main__.py"
    for file in (script, script.with_name("__init__.py"), project / "src" / "house" / "__init__.py", project / ".env"):
        executable(file, b"")
    executable(packages / "library.py", b"")
    venv = tmp_path / "venv"
    python = executable(venv / "bin" / "python3", b"#!/bin/sh\n")
    (venv / "pyvenv.cfg").write_text("")
    (venv / "lib" / "python3" / "site-packages").mkdir(parents=True)
    (venv / "lib" / "python3" / "site-packages" / "x.pth").write_text(f"{packages}\n{project}\nimport os\n")
    seen = visible()
    assert seen.command((python, "-I", str(script))) == (python, "-I", str(script))
    shown = set(seen.mounts)
    assert str(project / "src" / "house") in shown
    assert str(packages) in shown
    # A path file may name a whole project, with all that lies in it.
    assert not shown & {str(project), str(project / "src"), str(tmp_path)}


def test_what_lies_below_the_agents_folders_is_shown_elsewhere(tmp_path: Path) -> None:
    program = executable(tmp_path / "agent")
    seen = visible(elsewhere=str(tmp_path))
    assert seen.command((program, program)) == (PLACE + program, PLACE + program)
    assert seen.mounts == {program: PLACE + program}
    assert visible(elsewhere=str(tmp_path)[:-1]).command((program,)) == (program,)  # a name that only begins like it


def test_nothing_that_the_agent_may_have_made_is_followed(tmp_path: Path) -> None:
    """A link, or the first line of a script, could name any file of the machine."""
    secret = executable(tmp_path / "secret")
    work = tmp_path / "work"
    script = executable(work / "bin" / "script", f"#!{secret}\n".encode())
    (work / "link").symlink_to(secret)
    (work / "folder").symlink_to(tmp_path)
    (tmp_path / "alias").symlink_to("work")
    (tmp_path / "start").symlink_to("alias/folder/secret")
    for spelled in (work, tmp_path / "alias"):
        for name in ("bin/script", "link", "folder/secret"):
            seen = Visible(("/usr", "/bin"), {str(work): "/session"}, shutil.which)
            inside = seen.command(("/bin/sh", f"{spelled}/{name}"))[1]
            assert inside == (f"/session/{name}" if spelled == work else f"{spelled}/{name}")
            assert seen.mounts == {}
            assert set(seen.links.values()) <= {f"/session/{name}"}
            assert seen.show(f"{work}/{name}") == f"/session/{name}"
    seen = Visible(("/usr", "/bin"), {str(work): "/session"}, shutil.which)
    seen.show(str(tmp_path / "start"))
    assert seen.mounts == {}
    assert "/session/folder/secret" in seen.links.values()
    assert script


def test_links_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError) as raised:
        visible().show(str(tmp_path / "loop"))
    assert raised.value.errno == errno.ELOOP


@pytest.mark.parametrize(
    ("content", "mode", "code"),
    [(SH, 0o644, errno.EACCES), (b"\x7fELF\0garbage", 0o755, errno.ENOEXEC), (b"text", 0o755, errno.ENOEXEC)],
)
def test_what_cannot_be_run(content: bytes, mode: int, code: int, tmp_path: Path) -> None:
    path = executable(tmp_path / "x", content)
    os.chmod(path, mode)
    for command in ((path,), ("/no/such/program",), (str(tmp_path),), ("no-such-program-anywhere",)):
        with pytest.raises(OSError) as raised:
            visible().command(command)
        expected = {path: code, str(tmp_path): errno.EACCES}.get(command[0], errno.ENOENT)
        assert raised.value.errno == expected

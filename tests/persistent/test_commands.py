"""hostler diff and commit at the terminal; sessions with uncommitted changes are kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.persistent.support import Storage
from tests.sessions.programs import FAKE_PROGRAM

import hostler
from hostler import portal
from hostler.cli import app
from hostler.host import retention
from hostler.host.settings import Settings
from hostler.store import Store
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """The commands in this process: a new one takes seconds."""
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app(list(arguments))
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out + err

    return run


def test_diff_and_commit(cli: Any, models: ModelServer, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.md").write_text("one\ntwo\n")
    (source / "gone").write_text("x\n")
    store = Storage()
    harness = hostler.create_harness(
        host=hostler.local_host(tmp_path / "data"),
        runtime=FAKE,
        persistent_dirs=[
            hostler.local_dir(source, at="kept", commit="manual"),
            store.dir(commit="manual"),
            store.dir("untouched"),
        ],
        **FAKE_PROGRAM.options(models),
    )
    where = ("--data-dir", str(tmp_path / "data"))
    command = (
        "cd /persistent/kept; printf 'one\\n2\\n' > a.md; rm gone; printf 'n\\n' > new; printf '\\000' > bin; "
        "echo x > /persistent/notes/b"
    )
    result = hostler.generate_harness(harness=harness, session="chat", prompt=shell(command))
    assert result.persistence.status == "uncommitted"
    harness.sessions.get("chat").detach()
    code, out = cli("diff", "chat", "/persistent/kept", *where)
    assert code == 0
    assert "--- a/a.md\n+++ b/a.md\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n" in out
    assert "--- a/gone\n+++ /dev/null\n" in out
    assert "+++ b/new\n@@ -0,0 +1 @@\n+n\n" in out
    assert "# created: bin (no text" in out
    assert "/persistent/kept: 2 files written, 0 removed" in cli("trace", "chat", *where)[1]
    assert "uncommitted" in cli("show", "chat", *where)[1]
    code, out = cli("diff", "chat", "/persistent/nope", *where)
    assert (code, "has no persistent dir" in out) == (2, True)
    (source / "a.md").write_text("by hand\n")
    code, out = cli("commit", "chat", *where)
    assert code == 1
    assert "'a.md' changed in the session and in the storage" in out
    assert (
        "/persistent/notes is kept by functions of the app; commit it there: session.commit('/persistent/notes')" in out
    )
    assert "untouched" not in out
    code, out = cli("commit", "chat", "kept", "--merge", "ours", *where)
    assert (code, out) == (0, "/persistent/kept: committed, 2 created, 1 updated, 1 deleted\n")
    assert sorted(file.name for file in source.iterdir()) == ["a.md", "bin", "new"]
    assert cli("commit", "chat", "kept", *where) == (0, "/persistent/kept: nothing to commit\n")
    assert cli("diff", "chat", "/persistent/kept", *where) == (0, "")
    assert store.files == {}
    assert harness.sessions.get("chat").commit().status == "committed"
    assert store.files == {"b": b"x\n"}
    harness.sessions.delete("chat")


def shell(command: str) -> str:
    return json.dumps([{"shell": command}, {"text": "done"}])


def test_a_session_with_uncommitted_changes_is_not_retired(models: ModelServer, state_dir: Path) -> None:
    store = Storage()
    store.fault = lambda ctx: (_ for _ in ()).throw(OSError("down"))
    options: dict[str, Any] = {"persistent_dirs": [store.dir()], **FAKE_PROGRAM.options(models)}
    kept = hostler.agent(FAKE, shell("echo x > /persistent/notes/a"), **options)
    gone = hostler.agent(FAKE, "Hello.", **options)
    assert [r.persistence.status for r in (kept, gone)] == ["failed", "clean"]

    async def retired() -> list[str]:
        opened = Store.open(str(state_dir / "store.db"))
        try:
            settings = Settings(ephemeral_ttl=0.01)
            return [r.session.key for r in await retention.retired(str(state_dir), opened, settings)]
        finally:
            opened.close()

    time.sleep(0.02)
    assert portal.run(retired()) == [gone.session_id]

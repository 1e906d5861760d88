"""Files of messages in the workspace, and typed input."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from tests.messages.support import FAKE, Chat, Message, user
from tests.sessions.programs import seen_as

import hostler
from hostler.testing.model_server import ModelServer

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def chat(models: ModelServer, tmp_path: Path) -> Iterator[Chat]:
    chat = Chat(FAKE, models, tmp_path / "data")
    yield chat
    if chat.harness.sessions.list():
        chat.close()


def having(id: str | None, *files: dict[str, Any], text: str = "see", **more: Any) -> Message:
    script = json.dumps([{"say": "images"}])
    message: Message = {"role": "user", "parts": [{"type": "text", "text": f"{text}\n{script}"}, *files], **more}
    return {**message, "id": id} if id is not None else message


def file(name: str | None, data: bytes | str, media: str = "text/plain") -> dict[str, Any]:
    return {"type": "file", "filename": name, "mediaType": media, "data": data}


def folder(chat: Chat) -> Path:
    return Path(chat.harness.sessions.get(chat.key).workdir) / "user-input"


def test_a_file_is_put_there_once(chat: Chat) -> None:
    t = [having("m1", file("a.txt", b"one"))]
    result = chat.send(t)
    assert result.files == ()  # the agent did not change it
    assert (folder(chat) / "m1" / "a.txt").read_bytes() == b"one"
    t += [{"role": "assistant", "content": result.text}, having("m2", file("b.txt", b"two"))]
    (folder(chat) / "m1" / "a.txt").write_text("the agent's own")
    result = chat.send(t)
    assert result.context == "appended"
    assert (folder(chat) / "m1" / "a.txt").read_text() == "the agent's own"
    assert (folder(chat) / "m2" / "b.txt").read_bytes() == b"two"
    t += [{"role": "assistant", "content": result.text}, user("more")]
    result = chat.send(t, restage=True)
    assert result.context == "appended"
    assert (folder(chat) / "m1" / "a.txt").read_bytes() == b"one"
    # Another content under the same name in the same message: an edit.
    t = [having("m1", file("a.txt", b"three"))]
    assert chat.send(t).context == "seeded"
    assert (folder(chat) / "m1" / "a.txt").read_bytes() == b"three"


@pytest.mark.parametrize(
    ("id", "name", "where"),
    [
        ("m 1", "../../etc/passwd", r"m_1-[0-9a-f]{8}/passwd\.txt"),
        ("../..", "a b\nc.txt", r"_-[0-9a-f]{8}/a_b_c\.txt"),
        (None, "/tmp/x/.bashrc", r"m-[0-9a-f]{12}/bashrc\.txt"),
        ("ok", None, r"ok/file\.txt"),
        ("ok", "..", r"ok/file\.txt"),
        ("ok", "C:\\dir\\été 日本.txt", r"ok/été_日本\.txt"),
        ("x" * 300, "y" * 300 + ".txt", r"x{40}-[0-9a-f]{8}/y{100}\.txt"),
    ],
)
def test_names_are_safe(id: str | None, name: str | None, where: str, chat: Chat) -> None:
    import re

    chat.send([having(id, file(name, b"x"))])
    (found,) = [p.relative_to(folder(chat)).as_posix() for p in folder(chat).rglob("*") if p.is_file()]
    assert re.fullmatch(where, found), found


def test_files_with_the_same_name_go_apart(chat: Chat) -> None:
    chat.send([having("m1", file("a.txt", b"one"), file("a.txt", b"two"), file("a.txt", b"one"))])
    assert {p.name: p.read_bytes() for p in (folder(chat) / "m1").iterdir()} == {"a.txt": b"one", "a-2.txt": b"two"}


def test_a_file_goes_beside_a_folder_that_the_agent_has_made_of_its_name(chat: Chat) -> None:
    result = chat.send([user("begin")])
    (folder(chat) / "m1" / "a.txt").mkdir(parents=True)
    t = [user("begin"), {"role": "assistant", "content": result.text}, having("m1", file("a.txt", b"one"))]
    chat.send(t)
    assert (folder(chat) / "m1" / "a-2.txt").read_bytes() == b"one"


def test_pictures_go_natively_and_bytes_never_into_the_prompt(chat: Chat) -> None:
    url = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    picture = {"type": "image_url", "image_url": {"url": url}}
    result = chat.send([having("m1", picture, file("b.bin", b"\0" * 100, "image/x-odd"))])
    assert result.text == "1"
    told = chat.harness.sessions.get(chat.key).history()[0]["content"]
    assert f"[attached file: {seen_as(folder(chat))}/m1/file.png (image/png, {len(PIXEL)} bytes, shown here)]" in told
    assert "iVBOR" not in told
    (folder(chat) / "m1" / "file.png").write_bytes(b"changed by the agent")
    again = chat.send([having("m1", picture, text="another")])
    assert again.text == "0"
    assert any("was changed since it was given" in warning for warning in again.warnings)


def test_a_url_is_fetched_by_the_apps_function_once(models: ModelServer, tmp_path: Path) -> None:
    asked: list[str] = []

    async def fetch(url: str) -> tuple[bytes, str]:
        asked.append(url)
        if "gone" in url:
            raise FileNotFoundError(url)
        return b"a,b", "text/csv"

    linked = {"type": "file", "url": "https://files.example/t?sig=1", "filename": "t"}
    chat = Chat(FAKE, models, tmp_path / "data")
    with pytest.raises(hostler.CapabilityUnsupported, match="fetch"):
        chat.send([having("m1", linked)])
    assert not (tmp_path / "data").exists()
    chat = Chat(FAKE, models, tmp_path / "data", fetch=fetch)
    t = [having("m1", linked)]
    result = chat.send(t)
    assert (folder(chat) / "m1" / "t").read_bytes() == b"a,b"
    assert "m1/t (text/csv, 3 bytes)" in chat.harness.sessions.get(chat.key).history()[0]["content"]
    chat.send([*t, {"role": "assistant", "content": result.text}, user("and?")])
    assert len(asked) == 1
    with pytest.raises(hostler.HarnessError, match="fetch failed"):
        chat.send([having("m3", {**linked, "url": "https://files.example/gone"})])
    chat.close()


# ---- typed input -----------------------------------------------------------------------------------------------------


class Brief(pydantic.BaseModel):
    account_id: int
    tone: str = "dry"


async def brief(input: Brief, context: Any) -> list[Message]:
    await context.files.awrite("account.csv", f"id\n{input.account_id}\n".encode())
    script = json.dumps([{"read": "account.csv"}, {"say": "rules"}])
    return [
        {"role": "system", "content": f"Be {input.tone}."},
        user(f"For {context.extra_body['user']} in {context.session.key}.\n{script}"),
    ]


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "of": {"type": "object", "properties": {"x": {"type": "string"}}}},
    "required": ["n"],
}


def said(text: str) -> str:
    return json.dumps([{"text": text}])


TYPES = {
    "account.brief": hostler.input_type(
        description="A brief on an account", input_schema=Brief, to_messages=brief, instructions="Use a table."
    ),
    "count": hostler.input_type(
        description="Counting", input_schema=SCHEMA, to_messages=lambda i, c: f"[{{\"text\": \"{i['n'] + 1}\"}}]"
    ),
    "report": hostler.input_type(
        description="With output", input_schema=SCHEMA, to_messages=lambda i, c: said(json.dumps(i)), output=dict[str, int]
    ),
}  # fmt: skip


def typed(chat: Chat, type: str, input: Any, **more: Any) -> Any:
    return hostler.generate_harness(harness=chat.harness, type=type, input=input, session=chat.key, **more)


@pytest.fixture
def jobs(models: ModelServer, tmp_path: Path) -> Iterator[Chat]:
    chat = Chat(FAKE, models, tmp_path / "data", input_types=TYPES, instructions="House rule.")
    yield chat
    if (tmp_path / "data").exists():
        chat.close()


def test_typed_input_becomes_messages(jobs: Chat) -> None:
    result = typed(jobs, "account.brief", {"account_id": 7}, extra_body={"user": "Ada"})
    assert result.text.startswith("id\n7\n")
    assert '"instructions": "House rule.\\n\\nUse a table.\\n\\nBe dry."' in result.text
    assert "For Ada in chat." in jobs.harness.sessions.get("chat").history()[0]["content"]
    # What it says is new, whatever was said before.
    assert typed(jobs, "count", {"n": 1}).text == "2"
    again = typed(jobs, "count", {"n": 1})
    assert (again.text, again.context) == ("2", "appended")
    assert len(jobs.harness.sessions.get("chat").history()) == 6


def test_an_unknown_type_runs_with_a_warning(jobs: Chat) -> None:
    result = typed(jobs, "acount.brief", {"account_id": 7})
    assert result.stop_reason == "done"
    assert '"account_id": 7' in result.text
    (warning,) = result.warnings
    assert "'acount.brief'" in warning
    assert "'account.brief'" in warning


@pytest.mark.parametrize(
    ("type", "input", "said"),
    [
        ("account.brief", {"account_id": "x"}, "account.brief.*account_id: Input should be a valid integer"),
        ("account.brief", {}, "account_id: Field required"),
        ("account.brief", None, "input: "),
        ("count", {"n": "x"}, "'count'.*n: 'x' is not of type 'integer'"),
        ("count", {"n": 1, "of": {"x": 2}}, "of.x: 2 is not of type 'string'"),
        ("count", {}, "'n' is a required property"),
    ],
)
def test_invalid_input_names_the_field_before_anything_starts(
    type: str, input: Any, said: str, jobs: Chat, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        typed(jobs, type, input)
    assert not (tmp_path / "data").exists()


def test_output_of_a_type_is_that_of_its_turns_and_can_be_overridden(jobs: Chat) -> None:
    for _ in range(2):
        assert typed(jobs, "report", {"n": 1}, run_id="r").output == {"n": 1}
    result = typed(jobs, "report", {"n": 1}, output=None)
    assert (result.text, result.output) == ('{"n": 1}', None)
    assert typed(jobs, "count", {"n": 1}).output is None
    with pytest.raises(TypeError, match="output="):
        hostler.input_type(description="d", input_schema=SCHEMA, to_messages=print, output="report")


def test_a_typed_call_with_a_run_id_is_made_once(models: ModelServer, tmp_path: Path) -> None:
    made: list[Any] = []

    def to_messages(input: Any, context: Any) -> str:
        made.append(input)
        return json.dumps([{"text": f"number {len(made)}"}])

    kind = hostler.input_type(description="d", input_schema=SCHEMA, to_messages=to_messages)
    chat = Chat(FAKE, models, tmp_path / "data", input_types={"t": kind})
    first = typed(chat, "t", {"n": 1}, run_id="r")
    second = typed(chat, "t", {"n": 1}, run_id="r")
    assert (first.turn_id, first.text) == (second.turn_id, second.text)
    assert made == [{"n": 1}]
    with pytest.raises(hostler.OptionsMismatch):
        typed(chat, "t", {"n": 2}, run_id="r")
    chat.close()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"input_schema": {"type": "no such"}}, ValueError),
        ({"input_schema": 7}, TypeError),
        ({"to_messages": "x"}, TypeError),
        ({"instructions": 7}, TypeError),
    ],
)
def test_what_is_no_input_type_is_refused(given: dict[str, Any], error: type[Exception]) -> None:
    sound: dict[str, Any] = {"description": "d", "input_schema": SCHEMA, "to_messages": lambda i, c: "x"}
    with pytest.raises(error):
        hostler.input_type(**{**sound, **given})
    with pytest.raises(TypeError, match="input_types"):
        hostler.create_harness(host=hostler.local_host("x"), runtime=FAKE.harness, input_types={"t": SCHEMA})


def test_to_messages_that_fails_or_hangs(models: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setenv("HOSTLER_TOOL_TIMEOUT", "0.3")
    go = threading.Event()

    def slow(input: Any, context: Any) -> str:
        go.wait(20)
        return "x"

    kinds = {
        "slow": hostler.input_type(description="d", input_schema=SCHEMA, to_messages=slow),
        "bad": hostler.input_type(description="d", input_schema=SCHEMA, to_messages=lambda i, c: [{"role": "user"}]),
        "raises": hostler.input_type(description="d", input_schema=SCHEMA, to_messages=lambda i, c: 1 / 0),
    }
    chat = Chat(FAKE, models, tmp_path / "data", input_types=kinds)
    for name, error in (("slow", hostler.HarnessError), ("bad", ValueError), ("raises", ZeroDivisionError)):
        with pytest.raises(error):
            typed(chat, name, {"n": 1})
    go.set()
    assert chat.harness.sessions.status(chat.key).turns == 0
    chat.close()

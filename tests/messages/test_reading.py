"""Every form in which clients send messages, to one."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from hostler.messages import File, Message, ToolUse, from_json, keys, read, to_json

OPENAI: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How many bales?"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "bales", "arguments": '{"feed": "hay"}'}},
            {"id": "c2", "type": "function", "function": {"name": "bales", "arguments": '{"feed": "oats"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "c2", "content": "12"},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "40"}]},
    {"role": "assistant", "content": "40 and 12."},
    {"role": "developer", "content": [{"type": "text", "text": "No jokes."}]},
    {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "straw?"}]},
]
UI: list[dict[str, Any]] = [
    {"id": "s", "role": "system", "parts": [{"type": "text", "text": "Be brief."}]},
    {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "How many bales?"}]},
    {
        "id": "a1",
        "role": "assistant",
        "metadata": {"tokens": 7},
        "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "text": "Hm."},
            {"type": "text", "text": "I look.", "state": "done"},
            {
                "type": "tool-bales",
                "toolCallId": "c1",
                "state": "output-available",
                "input": {"feed": "hay"},
                "output": "40",
            },
            {
                "type": "dynamic-tool",
                "toolName": "bales",
                "toolCallId": "c2",
                "state": "output-available",
                "input": {"feed": "oats"},
                "output": "12",
            },
            {"type": "step-start"},
            {"type": "source-url", "sourceId": "1", "url": "https://example.org"},
            {"type": "data-weather", "data": {"sun": True}},
            {"type": "text", "text": "40 and 12."},
        ],
    },
    {"id": "u2", "role": "user", "parts": [{"type": "text", "text": "And"}, {"type": "text", "text": "straw?"}]},
]
HAY, OATS = ToolUse("bales", '{"feed": "hay"}', "40"), ToolUse("bales", '{"feed": "oats"}', "12")


def test_openai_messages_with_tools() -> None:
    found = read(OPENAI)
    assert found.instructions == "Be brief.\n\nNo jokes."
    assert found.messages == (
        Message("user", ("How many bales?",)),
        Message("assistant", ("I look.", HAY, OATS, "40 and 12.")),
        Message("user", ("And", "straw?")),
    )


def test_ui_messages_say_the_same() -> None:
    found = read(UI)
    assert found.messages == (
        Message("user", ("How many bales?",), "u1"),
        Message("assistant", ("I look.", HAY, OATS, "40 and 12."), "a1"),
        Message("user", ("And", "straw?"), "u2"),
    )
    assert found.instructions == "Be brief."
    assert [key[:3] for key in keys(found.messages)] == [key[:3] for key in keys(read(OPENAI).messages)]


def test_model_messages_of_the_ai_sdk() -> None:
    call = {"type": "tool-call", "toolCallId": "c1", "toolName": "bales", "input": {"feed": "hay"}}
    result = {
        "type": "tool-result",
        "toolCallId": "c1",
        "toolName": "bales",
        "output": {"type": "json", "value": {"n": 40}},
    }
    found = read(
        [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]},
            {"role": "tool", "content": [result]},
        ]
    )
    assert found.messages[1].parts == ("I look.", ToolUse("bales", '{"feed": "hay"}', '{"n": 40}'))


@pytest.mark.parametrize(
    ("part", "name", "media"),
    [
        ({"type": "file", "mediaType": "text/csv", "filename": "a.csv", "url": "data:text/csv;base64,YSxi"}, "a.csv", "text/csv"),
        ({"type": "file", "mediaType": "text/csv", "filename": "a.csv", "data": b"a,b"}, "a.csv", "text/csv"),
        ({"type": "file", "mediaType": "text/csv", "data": "YSxi"}, None, "text/csv"),
        ({"type": "file", "file": {"filename": "a.csv", "file_data": "data:text/csv;base64,YSxi"}}, "a.csv", "text/csv"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,YSxi", "detail": "low"}}, None, "image/png"),
        ({"type": "image_url", "image_url": "data:image/png,a%2Cb"}, None, "image/png"),
        ({"type": "input_image", "image_url": "data:image/png;base64,YSxi"}, None, "image/png"),
        ({"type": "image", "image": bytearray(b"a,b"), "mediaType": "image/png"}, None, "image/png"),
        ({"type": "input_audio", "input_audio": {"data": "YSxi", "format": "wav"}}, None, "audio/wav"),
        ({"type": "file", "mediaType": "text/plain", "url": "data:text/plain;charset=utf-8;base64,YS xi\n"}, None, "text/plain"),
    ],
)  # fmt: skip
def test_files_in_every_form(part: dict[str, Any], name: str | None, media: str) -> None:
    (message,) = read([{"role": "user", "content": [part]}]).messages
    (file,) = message.files
    assert (file.data, file.name, file.media_type) == (b"a,b", name, media)
    assert keys([message]) == keys(read([{"role": "user", "content": [{"type": "file", "data": b"a,b"}]}]).messages)


def test_a_file_by_its_url_and_attachments_of_older_clients() -> None:
    attachment = {"name": "a.csv", "contentType": "text/csv", "url": "https://example.org/x/a%20b.csv?k=1"}
    (message,) = read([{"role": "user", "content": "see", "experimental_attachments": [attachment]}]).messages
    assert message.text == "see"
    (file,) = message.files
    assert (file.url, file.name, file.data) == (attachment["url"], "a.csv", None)
    nameless = {"type": "file", "mediaType": "text/csv", "url": attachment["url"]}
    assert read([{"role": "user", "parts": [nameless]}]).messages[0].files[0].name == "a b.csv"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("hello", "must be a list"),
        ({"role": "user"}, "must be a list"),
        ([], "nothing that was said"),
        ([{"role": "system", "content": "x"}], "nothing that was said"),
        (["hello"], r"messages\[0\] must be a dict"),
        ([{"content": "x"}], r"messages\[0\].role"),
        ([{"role": "user", "content": "x"}, {"role": "bot", "content": "x"}], r"messages\[1\].role .*'bot'"),
        ([{"role": "user", "content": 7}], r"messages\[0\].content"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], r"messages\[0\].parts\[0\] has the type 'hologram'"),
        ([{"role": "user", "content": " \n"}], "is empty"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "The last of messages is from the assistant"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "system", "content": "z"}], "assistant"),
        ([{"role": "user", "content": [{"type": "file", "file": {"file_id": "f-1"}}]}], "without its content"),
        ([{"role": "user", "content": [{"type": "file", "data": "not base 64!"}]}], "neither a data URL"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(messages: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        read(messages)


def test_half_characters_and_tool_results_without_a_call() -> None:
    found = read(
        [
            {"role": "user", "content": "a\ud800b"},
            {"role": "tool", "tool_call_id": "gone", "content": "late"},
            {"role": "assistant", "content": "\udc00"},
            {"role": "user", "content": "c"},
        ]
    )
    assert found.messages[0].text == "a�b"
    assert found.messages[1].parts == (ToolUse("tool", "{}", "late"), "�")
    json.dumps(to_json(found.messages)).encode()


def test_the_inbox_holds_all_but_the_bytes() -> None:
    data = base64.b64encode(b"x" * 1000).decode()
    part = {"type": "file", "filename": "a.bin", "mediaType": "a/b", "data": data}
    messages = read([*OPENAI[:6], {"role": "user", "content": [{"type": "text", "text": "t"}, part]}]).messages
    stored = json.loads(json.dumps(to_json(messages)))
    again = from_json(stored)
    assert "xxx" not in json.dumps(stored)
    assert len(json.dumps(stored)) < 1000
    assert keys(again) == keys(messages)
    assert again[:-1] == messages[:-1]
    assert again[-1].files == (File(messages[-1].files[0].digest, "a.bin", "a/b"),)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "parts": [{"type": "tool-x", "input": {}, "errorText": "e\ud800"}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "\ud800"}}]},
        {"role": "user", "content": [{"type": "file", "data": b"x", "filename": "\ud800", "mediaType": "\ud800"}]},
        {"role": "user", "content": [{"type": "file", "url": "https://example.com/\ud800"}]},
        {"role": "user", "id": "\ud800", "content": "x"},
    ],
)
def test_half_characters_are_nowhere_in_what_is_read(message: dict[str, Any]) -> None:
    for said in read([message, {"role": "user", "content": "y"}]).messages:
        for part in said.parts:
            texts = [part] if isinstance(part, str) else [v for v in vars_of(part) if isinstance(v, str)]
            for text in [*texts, said.id or ""]:
                text.encode()


def vars_of(part: Any) -> list[Any]:
    return [getattr(part, name) for name in part.__dataclass_fields__]


def test_a_tools_data_that_is_no_json_is_named() -> None:
    message = {"role": "assistant", "parts": [{"type": "tool-x", "input": {1: 1, "a": 2}}]}
    with pytest.raises(ValueError, match="no JSON"):
        read([message, {"role": "user", "content": "y"}])

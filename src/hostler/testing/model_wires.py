"""What a scripted step looks like on each model wire: Anthropic Messages, OpenAI Responses, Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .model_script import Said, Step

Body = Mapping[str, Any]
NewId = Callable[[str], str]
CREATED = 1_700_000_000
_NEUTRAL = frozenset({"input", "output", "cached"})


@dataclass(frozen=True)
class Frame:
    """One server-sent event; ``delta`` marks a piece of text, ``middle`` the place where a stream breaks or waits."""

    event: str | None
    data: Any
    delta: bool = False
    middle: bool = False


@dataclass(frozen=True)
class Reply:
    """A whole answer: ``body`` when it is not streamed, ``frames`` when it is."""

    body: dict[str, Any]
    frames: list[Frame] = field(default_factory=list)


class Wire(Protocol):
    """How one model wire is read and spoken."""

    def said(self, body: Body) -> tuple[list[Said], set[str], str]: ...
    def reply(self, step: Step, body: Body, new_id: NewId) -> Reply: ...
    def error(self, status: int, kind: str | None, message: str) -> dict[str, Any]: ...
    def stream_error(self, kind: str, message: str) -> Frame: ...


def pieces(text: str, count: int) -> list[str]:
    """``text`` in at most ``count`` pieces."""
    size = max(1, -(-len(text) // max(1, count)))
    return [text[i : i + size] for i in range(0, len(text), size)] or [""]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or "" for part in content or [] if isinstance(part, dict))


def usage_of(step: Step, default: Any, neutral: Callable[[int, int, int], Any]) -> Any:
    """The step's usage: as it is, or from the neutral words input (all of it), output, cached."""
    if "usage" not in step:
        return default
    given = step["usage"]
    if isinstance(given, dict) and given and set(given) <= _NEUTRAL:
        return neutral(given.get("input", 0), given.get("output", 0), given.get("cached", 0))
    return given


def _kind(status: int) -> str:
    return "rate_limit_exceeded" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"


# ---- Anthropic Messages ---------------------------------------------------------------------------------------------


class Anthropic:
    _KINDS: Mapping[int, str] = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        529: "overloaded_error",
    }

    def said(self, body: Body) -> tuple[list[Said], set[str], str]:
        said: list[Said] = []
        for message in body.get("messages") or []:
            content = message.get("content")
            blocks = content if isinstance(content, list) else []
            text = _text(content)
            if message.get("role") == "assistant":
                said.append(Said("assistant", text, sum(b.get("type") == "tool_use" for b in blocks)))
            elif any(b.get("type") == "tool_result" for b in blocks):
                said.append(Said("tool", text))
                if "@@" in text:  # a prompt that was said while a tool ran comes in the same message
                    said.append(Said("user", text))
            else:
                said.append(Said(str(message.get("role")), text))
        return said, {str(t.get("name")) for t in body.get("tools") or []}, json.dumps(body.get("messages"))

    def reply(self, step: Step, body: Body, new_id: NewId) -> Reply:
        blocks: list[dict[str, Any]] = []
        if step.get("think"):
            blocks.append({"type": "thinking", "thinking": step["think"], "signature": "scripted"})
        calls = step.get("tools") or []
        if text := step.get("text", "I will use a tool." if calls else ""):
            blocks.append({"type": "text", "text": text})
        for call in calls:
            blocks.append({"type": "tool_use", "id": new_id("toolu"), "name": call["tool"], "input": call["args"]})
        usage = usage_of(
            step,
            {
                "input_tokens": 100,
                "cache_creation_input_tokens": 20,
                "cache_read_input_tokens": 30,
                "output_tokens": 40,
            },
            lambda i, o, c: {"input_tokens": i - c, "cache_read_input_tokens": c, "output_tokens": o},
        )
        stop = "tool_use" if calls else "end_turn"
        message = {
            "id": new_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": body.get("model"),
            "content": blocks,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": usage,
        }
        first = {**usage, "output_tokens": 1} if isinstance(usage, dict) and usage else usage
        opening = {**message, "content": [], "stop_reason": None, "usage": first}
        frames = [_event("message_start", message=opening)]
        for index, block in enumerate(blocks):
            frames += self._block(index, block, step, last=index == len(blocks) - 1)
        delta = {"stop_reason": stop, "stop_sequence": None}
        frames += [_event("message_delta", delta=delta, usage=usage), _event("message_stop")]
        return Reply(message, frames)

    def _block(self, index: int, block: dict[str, Any], step: Step, last: bool) -> list[Frame]:
        def delta(**data: Any) -> Frame:
            return _delta("content_block_delta", index=index, delta=data)

        kind = block["type"]
        if kind == "text":
            empty: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [delta(type="text_delta", text=p) for p in pieces(block["text"], step.get("chunks", 2))]
        elif kind == "thinking":
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [delta(type="thinking_delta", thinking=block["thinking"])]
            deltas.append(delta(type="signature_delta", signature=block["signature"]))
        else:
            empty = {**block, "input": {}}
            deltas = [delta(type="input_json_delta", partial_json=json.dumps(block["input"]))]
        stop = Frame("content_block_stop", {"type": "content_block_stop", "index": index}, middle=last)
        return [_event("content_block_start", index=index, content_block=empty), *deltas, stop]

    def error(self, status: int, kind: str | None, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind or self._KINDS.get(status, "api_error"), "message": message}}

    def stream_error(self, kind: str, message: str) -> Frame:
        return Frame("error", {"type": "error", "error": {"type": kind, "message": message}})


def _event(name: str, **data: Any) -> Frame:
    return Frame(name, {"type": name, **data})


def _delta(name: str, **data: Any) -> Frame:
    return Frame(name, {"type": name, **data}, delta=True)


# ---- OpenAI Responses -----------------------------------------------------------------------------------------------


class Responses:
    def said(self, body: Body) -> tuple[list[Said], set[str], str]:
        given = body.get("input")
        items = given if isinstance(given, list) else [{"role": "user", "content": given}]
        said: list[Said] = []
        for item in items:
            kind = str(item.get("type", "message"))
            if kind == "message":
                said.append(Said(str(item.get("role")), _text(item.get("content"))))
            elif kind.endswith("_call"):
                # calls that were made in parallel are one step
                if said and said[-1].role == "assistant" and said[-1].calls:
                    said[-1] = said[-1]._replace(calls=said[-1].calls + 1)
                else:
                    said.append(Said("assistant", "", 1))
            elif kind.endswith("_output"):
                said.append(Said("tool", ""))
        return said, {str(t.get("name") or t.get("type")) for t in body.get("tools") or []}, json.dumps(given)

    def reply(self, step: Step, body: Body, new_id: NewId) -> Reply:
        out: list[dict[str, Any]] = []
        if think := step.get("think"):
            summary = [{"type": "summary_text", "text": think}]
            out.append({"type": "reasoning", "id": new_id("rs"), "summary": summary, "encrypted_content": "c2NyaXB0"})
        calls = step.get("tools") or []
        if (text := step.get("text", "")) or not calls:
            part = {"type": "output_text", "text": text, "annotations": []}
            item = {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "completed"}
            out.append({**item, "content": [part]})
        out += [self._call(call, new_id) for call in calls]
        usage = usage_of(
            step,
            {
                "input_tokens": 150,
                "input_tokens_details": {"cached_tokens": 30},
                "output_tokens": 40,
                "output_tokens_details": {"reasoning_tokens": 10},
                "total_tokens": 190,
            },
            lambda i, o, c: {
                "input_tokens": i,
                "input_tokens_details": {"cached_tokens": c},
                "output_tokens": o,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": i + o,
            },
        )
        response = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": CREATED,
            "status": "completed",
            "model": body.get("model"),
            "output": out,
            "usage": usage,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
        }
        opening = {**response, "status": "in_progress", "output": [], "usage": None}
        frames = [_event("response.created", response=opening)]
        for index, item in enumerate(out):
            frames += self._item(index, item, step, last=index == len(out) - 1)
        frames.append(_event("response.completed", response=response))
        numbered = [
            Frame(f.event, {**f.data, "sequence_number": n}, delta=f.delta, middle=f.middle)
            for n, f in enumerate(frames)
        ]
        return Reply(response, numbered)

    def _call(self, call: Step, new_id: NewId) -> dict[str, Any]:
        common = {"call_id": new_id("call"), "name": call["tool"], "status": "completed"}
        if call.get("custom"):
            return {"type": "custom_tool_call", "id": new_id("ctc"), **common, "input": call["args"]}
        item = {"type": "function_call", "id": new_id("fc"), **common, "arguments": json.dumps(call["args"])}
        return {**item, "namespace": call["namespace"]} if call.get("namespace") else item

    def _item(self, index: int, item: dict[str, Any], step: Step, last: bool) -> list[Frame]:
        at = {"item_id": item["id"], "output_index": index}
        kind = item["type"]
        if kind == "message":
            text, part = item["content"][0]["text"], item["content"][0]
            at = {**at, "content_index": 0}
            opened = {**item, "status": "in_progress", "content": []}
            frames = [_event("response.content_part.added", **at, part={**part, "text": ""})]
            frames += [
                Frame(
                    "response.output_text.delta", {"type": "response.output_text.delta", **at, "delta": p}, delta=True
                )
                for p in pieces(text, step.get("chunks", 2))
            ]
            frames.append(_event("response.output_text.done", **at, text=text))
            frames.append(_event("response.content_part.done", **at, part=part))
        elif kind == "reasoning":
            text, part = item["summary"][0]["text"], item["summary"][0]
            at = {**at, "summary_index": 0}
            opened = {**item, "summary": []}
            name = "response.reasoning_summary_text.delta"
            frames = [
                _event("response.reasoning_summary_part.added", **at, part={**part, "text": ""}),
                _delta(name, **at, delta=text),
                _event("response.reasoning_summary_text.done", **at, text=text),
                _event("response.reasoning_summary_part.done", **at, part=part),
            ]
        elif kind == "function_call":
            opened = {**item, "status": "in_progress", "arguments": ""}
            name = "response.function_call_arguments.delta"
            frames = [
                _delta(name, **at, delta=item["arguments"]),
                _event("response.function_call_arguments.done", **at, arguments=item["arguments"]),
            ]
        else:
            opened, frames = item, []
        done = _event("response.output_item.done", output_index=index, item=item)
        added = _event("response.output_item.added", output_index=index, item=opened)
        # the break comes after the deltas and before anything says that the item is complete
        frames = [added, *frames, done]
        end = max((i for i, f in enumerate(frames) if f.delta), default=0) + 1
        frames[end] = Frame(frames[end].event, frames[end].data, middle=last)
        return frames

    def error(self, status: int, kind: str | None, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": kind or _kind(status), "code": kind}}

    def stream_error(self, kind: str, message: str) -> Frame:
        return _event("response.failed", response={"status": "failed", "error": {"code": kind, "message": message}})


# ---- OpenAI Chat Completions ----------------------------------------------------------------------------------------


class Chat:
    def said(self, body: Body) -> tuple[list[Said], set[str], str]:
        messages = body.get("messages") or []
        said = [Said(str(m.get("role")), _text(m.get("content")), len(m.get("tool_calls") or [])) for m in messages]
        tools = {str((t.get("function") or {}).get("name")) for t in body.get("tools") or []}
        return said, tools, json.dumps(messages)

    def reply(self, step: Step, body: Body, new_id: NewId) -> Reply:
        usage = usage_of(
            step,
            {
                "prompt_tokens": 150,
                "completion_tokens": 40,
                "total_tokens": 190,
                "prompt_tokens_details": {"cached_tokens": 30},
                "completion_tokens_details": {"reasoning_tokens": 10},
            },
            lambda i, o, c: {
                "prompt_tokens": i,
                "completion_tokens": o,
                "total_tokens": i + o,
                "prompt_tokens_details": {"cached_tokens": c},
            },
        )
        base = {"id": new_id("chatcmpl"), "created": CREATED, "model": body.get("model")}
        calls = [
            {
                "index": index,
                "id": new_id("call"),
                "type": "function",
                "function": {"name": call["tool"], "arguments": json.dumps(call["args"])},
            }
            for index, call in enumerate(step.get("tools") or [])
        ]
        finish = "tool_calls" if calls else "stop"
        text = step.get("text", "")
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if step.get("think"):
            message["reasoning_content"] = step["think"]
        if calls:
            message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in calls]
        choice = {"index": 0, "message": message, "finish_reason": finish}
        whole = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}

        def chunk(delta: dict[str, Any], finish: str | None = None) -> Frame:
            choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
            data = {**base, "object": "chat.completion.chunk", "choices": choices}
            return Frame(None, data, delta=bool(delta.keys() - {"role"}), middle=finish is not None)

        frames = [chunk({"role": "assistant"})]
        if step.get("think"):
            frames.append(chunk({"reasoning_content": step["think"]}))
        if text:
            frames += [chunk({"content": piece}) for piece in pieces(text, step.get("chunks", 2))]
        if calls:
            frames.append(chunk({"tool_calls": calls}))
        frames.append(chunk({}, finish))
        if (body.get("stream_options") or {}).get("include_usage"):
            frames.append(Frame(None, {**base, "object": "chat.completion.chunk", "choices": [], "usage": usage}))
        frames.append(Frame(None, "[DONE]"))
        return Reply(whole, frames)

    def error(self, status: int, kind: str | None, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": kind or _kind(status), "code": kind}}

    def stream_error(self, kind: str, message: str) -> Frame:
        return Frame(None, {"error": {"message": message, "type": kind, "code": kind}})

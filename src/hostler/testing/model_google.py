"""What a scripted step looks like on Google's generateContent wire."""

from __future__ import annotations

import json
from typing import Any

from .model_script import Said, Step
from .model_wires import Body, Frame, NewId, Reply, pieces, usage_of

_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}


class Google:
    def said(self, body: Body) -> tuple[list[Said], set[str], str]:
        contents = body.get("contents") or []
        said: list[Said] = []
        for content in contents if isinstance(contents, list) else [contents]:
            parts = content.get("parts") or []
            text = "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))
            if content.get("role") == "model":
                said.append(Said("assistant", text, sum("functionCall" in part for part in parts)))
            elif any("functionResponse" in part for part in parts):
                said.append(Said("tool", text))
                if "@@" in text:  # a prompt that was said while a tool ran comes in the same message
                    said.append(Said("user", text))
            else:
                said.append(Said("user", text))
        groups = body.get("tools") or []
        tools = {str(tool.get("name")) for group in groups for tool in group.get("functionDeclarations") or []}
        return said, tools, json.dumps(contents)

    def reply(self, step: Step, body: Body, new_id: NewId) -> Reply:
        usage = usage_of(
            step,
            {
                "promptTokenCount": 150,
                "candidatesTokenCount": 30,
                "thoughtsTokenCount": 10,
                "cachedContentTokenCount": 30,
                "totalTokenCount": 190,
            },
            lambda i, o, c: {
                "promptTokenCount": i,
                "candidatesTokenCount": o,
                "cachedContentTokenCount": c,
                "totalTokenCount": i + o,
            },
        )
        about = {"modelVersion": body.get("model"), "responseId": new_id("resp")}
        thoughts = [{"text": step["think"], "thought": True}] if step.get("think") else []
        text = step.get("text", "")
        calls = [{"functionCall": {"name": call["tool"], "args": call["args"]}} for call in step.get("tools") or []]

        def chunk(parts: list[dict[str, Any]], *, delta: bool = True, last: bool = False) -> Frame:
            candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
            data = {**about, "candidates": [candidate]}
            if last:
                candidate["finishReason"] = "STOP"
                data["usageMetadata"] = usage
            return Frame(None, data, delta=delta, middle=last)

        frames = [chunk([thought]) for thought in thoughts]
        frames += [chunk([{"text": piece}]) for piece in pieces(text, step.get("chunks", 2))] if text else []
        if calls:
            frames.append(chunk(calls))
        frames.append(chunk([{"text": ""}], delta=False, last=True))
        parts = [*thoughts, *([{"text": text}] if text else []), *calls]
        whole = {"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
        return Reply({**about, "candidates": [whole], "usageMetadata": usage}, frames)

    def error(self, status: int, kind: str | None, message: str) -> dict[str, Any]:
        name = kind or _STATUS.get(status, "RESOURCE_EXHAUSTED" if status == 429 else "UNAVAILABLE")
        return {"error": {"code": status, "message": message, "status": name}}

    def stream_error(self, kind: str, message: str) -> Frame:
        return Frame(None, {"error": {"code": 503, "message": message, "status": kind}})

"""The loop: ask the model, run the tools that it calls, until it calls none."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from hostler import __version__
from hostler.workers import rules
from hostler.workers.acp import Blocks, Client, Refused, Turn, serve, unknown
from hostler.workers.servers import Servers
from hostler.workers.settings import Settings
from hostler.workers.shell import Shell
from hostler.workers.tool_loop.model import Call, Model, ModelFailed, Reply
from hostler.workers.tool_loop.tools import Tools
from hostler.workers.tool_loop.transcript import Message, Transcript, begin, resume

NAME = "hostler tool loop"
_PROMPT = """\
You are an agent that works on the files in {workdir} with the tools that you have. Do what the user asks, to the end, \
without asking back; look before you change something, and check what you have done. Say at the end, in few words, what \
you did and found."""


class ToolLoop:
    """The agent. One process can have several sessions, one after the other."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        effort = {"reasoning_effort": settings.effort} if settings.effort else {}
        self._model = Model(settings.url, settings.key, body={"model": settings.model, **effort})
        self._servers = Servers(settings.servers)
        self._tools = Tools(settings, self._servers, Shell(settings.workdir, os.environ))
        self._transcripts: dict[str, Transcript] = {}

    async def open(self, session: str | None) -> str:
        """Begin a session, or go on with one."""
        folder, fork = self._settings.folder, self._settings.fork
        transcript = begin(folder) if session is None else resume(folder, session, fork)
        self._transcripts[transcript.session] = transcript
        return transcript.session

    async def ready(self) -> None:
        """Until its MCP servers have started, or had their time."""
        await self._servers.ready()

    async def close(self) -> None:
        """The process is about to end."""
        await self._servers.aclose()

    async def run(self, turn: Turn) -> dict[str, Any]:
        """One turn; raises Refused when the model gives no answer."""
        transcript = self._transcripts.get(turn.session)
        if transcript is None:
            raise unknown(turn.session)
        await self._servers.ready()
        try:
            stop = await self._go_on(turn, transcript)
        except ModelFailed as error:
            raise Refused(str(error), kind="model") from None
        finally:
            transcript.close_calls()
        return {"stopReason": stop, "_meta": {"place": transcript.place}}

    async def _go_on(self, turn: Turn, transcript: Transcript) -> str:
        most = self._settings.max_turns
        asked = 0
        while True:
            transcript.add(*(_user(blocks) for blocks in turn.take()))
            if most is not None and asked >= most:
                return "max_turn_requests"
            asked += 1
            reply = await self._ask(turn.session, transcript)
            if reply.calls:
                await self._work(turn.session, transcript, reply.calls)
            elif not turn.waiting:
                return {"length": "max_tokens", "content_filter": "refusal"}.get(reply.stop or "", "end_turn")

    async def _ask(self, session: str, transcript: Transcript) -> Reply:
        item = f"m{transcript.place}"

        def told(kind: str, delta: str) -> None:
            say = self._client.text if kind == "text" else self._client.thought
            say(session, item, delta)

        messages = [self._system(), *transcript.messages]
        reply = await self._model.ask(messages, self._tools.shown(), told)
        _name_apart(reply.calls, transcript.messages)
        transcript.add(_assistant(reply))
        return reply

    async def _work(self, session: str, transcript: Transcript, calls: list[Call]) -> None:
        for call in calls:
            self._client.tool_called(session, call.id, call.name, _given(call) or {})
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(self._one(session, transcript, call))

    async def _one(self, session: str, transcript: Transcript, call: Call) -> None:
        output, failed = await self._called(session, call)
        transcript.add({"role": "tool", "tool_call_id": call.id, "content": output})
        self._client.tool_done(session, call.id, output, failed=failed)

    async def _called(self, session: str, call: Call) -> tuple[str, bool]:
        given = _given(call)
        shown = {} if given is None else given
        if not self._tools.knows(call.name):
            self._client.tool_runs(session, call.id, shown)
            return f"There is no tool {call.name!r}.", True
        if given is None:
            self._client.tool_runs(session, call.id, shown)
            return f"The arguments are not a JSON object: {call.arguments[:200]}", True
        verdict = rules.judge(self._settings, call.name, given)
        if verdict.choice == "ask" and not await self._client.allows(session, call.id, call.name, given):
            verdict = rules.Verdict("deny", "The user does not allow this.")
        self._client.tool_runs(session, call.id, shown)
        if verdict.choice == "deny":
            return verdict.reason, True
        return await self._tools.run(call.name, given, call.id)

    def _system(self) -> Message:
        parts = [_PROMPT.format(workdir=self._settings.workdir), self._settings.instructions]
        return {"role": "system", "content": "\n\n".join(part for part in parts if part)}


def _user(blocks: Blocks) -> Message:
    text = "\n".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")
    images = [block for block in blocks if block.get("type") == "image"]
    if not images:
        return {"role": "user", "content": text}
    urls = [f"data:{image.get('mimeType')};base64,{image.get('data')}" for image in images]
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [{"type": "text", "text": text}, *pictures]}


def _assistant(reply: Reply) -> Message:
    message: Message = {"role": "assistant", "content": reply.text or None}
    if not reply.calls:
        return {**message, "content": reply.text}
    calls = [(call, call.arguments if _given(call) is not None else "{}") for call in reply.calls]
    message["tool_calls"] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
        for call, arguments in calls
    ]
    return message


def _given(call: Call) -> dict[str, Any] | None:
    """The arguments, or None when they are no object."""
    try:
        given = json.loads(call.arguments or "{}")
    except ValueError:
        return None
    return given if isinstance(given, dict) else None


def _name_apart(calls: list[Call], before: list[Message]) -> None:
    """Models' servers exist that give one id to many calls."""
    used = {c.get("id") for message in before for c in message.get("tool_calls") or []}
    for call in calls:
        name, number = call.id, 1
        while call.id in used:
            number += 1
            call.id = f"{name}-{number}"
        used.add(call.id)


def main(argument: str) -> None:
    if argument == "--version":
        sys.stdout.write(f"{__version__} (part of hostler)\n")
    elif argument:
        settings = Settings.read(argument)
        serve(lambda client: ToolLoop(client, settings), NAME, __version__)
    else:
        sys.exit("This program is started by hostler, with the path of its settings.")


def run() -> None:
    """As a command: for images, which have a Python and a hostler of their own."""
    main(sys.argv[-1] if len(sys.argv) > 1 else "")

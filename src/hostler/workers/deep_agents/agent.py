"""The agent: one graph, whose threads are the sessions; its checkpoints are a database in the session's home."""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiosqlite
import httpx
import openai
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend
from deepagents.middleware.subagents import GENERAL_PURPOSE_SUBAGENT
from langchain_core.messages import AIMessageChunk, HumanMessage, convert_to_openai_messages
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from pydantic import SecretStr

from hostler.workers.acp import Blocks, Client, Refused, Turn, serve, unknown
from hostler.workers.deep_agents.backend import Backend
from hostler.workers.deep_agents.guard import Enough, Guard, ModelCut
from hostler.workers.servers import Servers
from hostler.workers.settings import Settings
from hostler.workers.shell import Shell

NAME = "Deep Agents"
DATABASE = "checkpoints.db"
_SESSION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STEPS = 100_000  # of the graph: how long a turn may go on is for the host to say
_CONNECT = 30.0
_PROMPT = """\
The working directory is {workdir}. Name files by their absolute paths. Do what the user asks, to the end, without asking \
back."""


class DeepAgents:
    """The agent, with the graph that it makes of its settings for the first turn."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._servers = Servers(settings.servers)
        self._database: aiosqlite.Connection | None = None
        self._graph: Any = None
        self._guard = Guard(client, settings, self._servers, main=True)

    async def open(self, resume: str | None) -> str:
        """Begin a session, or go on with one that the checkpoints know; as a fork, begin as another was at a place."""
        session, fork = resume or str(uuid.uuid4()), self._settings.fork
        if not _SESSION_ID.fullmatch(session):
            raise unknown(session)
        graph = await self._made()
        known = (await graph.aget_state(_thread(session))).created_at is not None
        if resume is not None and not known:
            if fork is None:
                raise unknown(session)
            await self._fork(session, str(fork["from"]), str(fork["at"]))
        return session

    async def ready(self) -> None:
        """Until its MCP servers have started, or had their time."""
        await self._servers.ready()

    async def close(self) -> None:
        """The process is about to end."""
        await self._servers.aclose()
        if self._database is not None:
            await self._database.close()

    async def run(self, turn: Turn) -> dict[str, Any]:
        """One turn; raises Refused when the model gives no answer."""
        graph = await self._made()
        self._guard.begin(turn)
        said = {"messages": [message(blocks) for blocks in turn.take()]}
        stop = "end_turn"
        try:
            async for space, (chunk, about) in graph.astream(
                said, _thread(turn.session), stream_mode="messages", subgraphs=True
            ):
                self._told(turn.session, space, chunk, about)
        except Enough:
            stop = "max_turn_requests"
        except (openai.OpenAIError, httpx.HTTPError, ModelCut) as error:
            raise Refused(_words(error), kind="model") from None
        finally:
            place = await self._written(turn.session)
        return {"stopReason": self._guard.stop or stop, "_meta": {"place": place}}

    def _told(self, session: str, space: Any, chunk: Any, about: dict[str, Any]) -> None:
        """What the main agent's model says; not what a sub-agent's does, and not a summary made on the way."""
        if space or not isinstance(chunk, AIMessageChunk) or about.get("lc_source") == "summarization":
            return
        item = str(chunk.id or session)
        for block in chunk.content_blocks:
            if block["type"] == "text" and block.get("text"):
                self._client.text(session, item, block["text"])
            elif block["type"] == "reasoning" and block.get("reasoning"):
                self._client.thought(session, item, block["reasoning"])

    async def _made(self) -> Any:
        """The graph, once it is known which tools there are."""
        await self._servers.ready()
        if self._graph is not None:
            return self._graph
        settings = self._settings
        os.makedirs(settings.folder, mode=0o700, exist_ok=True)
        self._database = await aiosqlite.connect(f"{settings.folder}/{DATABASE}")
        backend = CompositeBackend(
            default=Backend(settings.workdir, Shell(settings.workdir, os.environ)),
            routes={},
            artifacts_root=f"{settings.folder}/artifacts",  # what it moves out of the conversation
        )
        inner = Guard(self._client, settings, self._servers, main=False, turn_of=self._guard)
        tools = [self._guard.tool(served) for served in self._servers.tools.values()]
        prompt = "\n\n".join(p for p in (_PROMPT.format(workdir=settings.workdir), settings.instructions) if p)
        self._graph = create_deep_agent(
            model=_model(settings),
            tools=tools,
            system_prompt=prompt,
            middleware=[self._guard],
            subagents=[{**GENERAL_PURPOSE_SUBAGENT, "tools": tools, "middleware": [inner]}],
            skills=[settings.skills] if settings.skills else None,
            backend=backend,
            checkpointer=AsyncSqliteSaver(self._database),
        ).with_config(recursion_limit=_STEPS)
        return self._graph

    async def _fork(self, session: str, origin: str, place: str) -> None:
        """A place is named by the last message before it: that stays its name in a fork, and in a fork of that."""
        graph = await self._made()
        messages = (await graph.aget_state(_thread(origin))).values.get("messages") or []
        upto = next((n for n, message in enumerate(messages, 1) if message.id == place), None)
        if upto is None:
            raise Refused(f"The session {origin[:80]} has no place {place[:80]}.")
        await graph.aupdate_state(_thread(session), {"messages": messages[:upto]})

    async def _written(self, session: str) -> str | None:
        """The conversation as others read it, beside the checkpoints; the name of the place that it has reached."""
        state = await (await self._made()).aget_state(_thread(session))
        messages = state.values.get("messages") or []
        told = convert_to_openai_messages(messages)
        path = Path(self._settings.folder, f"{session}.json")
        path.with_suffix(".new").write_text(json.dumps([{"content": None, **message} for message in told]))
        os.replace(path.with_suffix(".new"), path)
        return messages[-1].id if messages else None


def message(blocks: Blocks) -> HumanMessage:
    """What the user says, as LangChain has it."""
    text = "\n".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")
    images = [block for block in blocks if block.get("type") == "image"]
    if not images:
        return HumanMessage(text)
    urls = [f"data:{image.get('mimeType')};base64,{image.get('data')}" for image in images]
    return HumanMessage(
        [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]
    )


def _model(settings: Settings) -> ChatOpenAI:
    return ChatOpenAI(
        model=settings.model,
        base_url=f"{settings.url}/v1",
        api_key=SecretStr(settings.key),
        reasoning_effort=settings.effort,
        use_responses_api=False,
        stream_usage=True,
        max_retries=2,
        timeout=httpx.Timeout(None, connect=_CONNECT),  # the one who serves the model decides how long it may take
    )


def _thread(session: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": session}}


def _words(error: Exception) -> str:
    body = getattr(error, "body", None)
    said = body.get("message") if isinstance(body, dict) else None
    return str(said or error)


def main(argument: str) -> None:
    if argument == "--version":
        sys.stdout.write(f"{version('deepagents')} (deepagents)\n")
    elif argument:
        settings = Settings.read(argument)
        serve(lambda client: DeepAgents(client, settings), NAME, version("deepagents"))
    else:
        sys.exit("This program is started by hostler, with the path of its settings.")


def run() -> None:
    """As a command: for images, which have a Python and a hostler of their own."""
    main(sys.argv[-1] if len(sys.argv) > 1 else "")

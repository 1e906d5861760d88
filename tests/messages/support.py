"""Chats whose every message can be told from all others, in what a model received and in what a program keeps."""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from tests.sessions.programs import FAKE_PROGRAM, Program

import hostler
from hostler.harness import Result
from hostler.testing.model_server import ModelRequest, ModelServer

Message = dict[str, Any]
_MARK = re.compile(r"[UA]n\d+q")


def user(text: str, **more: Any) -> Message:
    return {"role": "user", "content": text, **more}


def assistant(text: str | None, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def marks(said: Any) -> list[str]:
    """The marks in messages, a request or a history, in order."""
    return _MARK.findall(said if isinstance(said, str) else json.dumps(said, default=repr))


def heard(request: ModelRequest) -> list[str]:
    """What a model call was told of the conversation."""
    return marks(request.body[{"responses": "input", "gemini": "contents"}.get(request.api, "messages")])


class Chat:
    """A session of one program under a key, with a client that owns the transcript."""

    def __init__(
        self, program: Program, models: ModelServer, data_dir: Path, key: str = "chat", **options: Any
    ) -> None:
        self.program, self.models, self.key = program, models, key
        self.numbers = itertools.count(1)
        host = hostler.local_host(data_dir=data_dir)
        self.harness = hostler.create_harness(
            host=host, runtime=program.harness, **{**program.options(models), **options}
        )

    def new(self) -> Message:
        """A user message that was never said."""
        mark = f"Un{next(self.numbers)}q"
        return user(
            f"{mark}\n{json.dumps([{'text': mark.replace('U', 'A')}])}" if self.program.fake else f"Say {mark}."
        )

    def send(self, messages: list[Message], **options: Any) -> Result:
        """One turn; the model answers the last user message with its mark's counterpart."""
        if not self.program.fake:
            mark = marks(messages[-1])[-1:] or ["Un0q"]
            self.models.clear()
            self.models.script([{"text": mark[0].replace("U", "A")}])
        return hostler.generate_harness(harness=self.harness, messages=messages, session=self.key, **options)

    def say(self, messages: list[Message], expected: str | None = None, **options: Any) -> list[Message]:
        """`send`, and a look at what the program told its model: these messages, in this order, and nothing else. Gives
        the transcript with the answer."""
        result = self.send(messages, **options)
        assert result.stop_reason == "done", (result.error, result.warnings)
        if expected is not None:
            assert result.context == expected
        said = self.wanted(messages)
        if not self.program.fake:
            (call,) = self.models.calls
            assert heard(call) == said
        held = self.held()
        assert held == [*said, *marks(result.text)], (held, said)
        return [*messages, assistant(result.text)]

    def held(self) -> list[str]:
        """What the program's own history holds."""
        return self._spoken(self.harness.sessions.get(self.key).history())

    def wanted(self, messages: list[Message]) -> list[str]:
        return self._spoken(m for m in messages if m["role"] != "system")

    def _spoken(self, messages: Any) -> list[str]:
        # The script that tells the fake program what to answer is no answer.
        return [m for message in messages for m in marks(re.sub(r'\[\{\\?\\?\\?"text.*?\}\]', "", json.dumps(message)))]

    def close(self) -> None:
        self.harness.sessions.delete(self.key)


def fresh() -> Path:
    """A data dir for one example of many."""
    return Path(tempfile.mkdtemp(prefix="hostler-messages-"))


FAKE = FAKE_PROGRAM

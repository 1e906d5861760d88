"""A fake agent program: it does exactly what its prompts say, byte by byte if need be. Standard library only.

Two ways in, one vocabulary of steps:

- ``fake_program.py SCRIPT.json`` runs the list of steps in the file (or in the environment variable
  ``FAKE_PROGRAM_SCRIPT`` when no file is named) and exits.
- ``fake_program.py --agent --home DIR (--session ID | --resume ID [--fork-at N --session ID]) ...`` is an agent program
  on stdio. A prompt that is a JSON list of steps, or has one on a line of its own (the last one counts), is played; any
  other prompt is answered ``You said: ...``.

Lines in: ``{"op": "hello"}``, ``{"op": "prompt", "turn", "text", "images"}``, ``{"op": "steer", "text"}``, ``{"op":
"answer", "id", "allow", "reason", "answers"}``, ``{"op": "interrupt"}``. Lines out: ``{"ev": ...}`` with ``ready lost step text
reasoning retract tool_call tool_result ask asked compaction end``; ``parent`` names the sub-agent's tool call.

A step is an object; its first key says what is done:

    text "..." | reasoning "..." | deltas N (gap: seconds, size: characters) | sleep S | hang true
    say cwd/env/argv/memory/rules/images | output VALUE (structured) | compaction [before, after]
    tool NAME (input, output, is_error) | shell "command" | write PATH (content) | read PATH | delete PATH
    approve TOOL (input) | steered true (waits for a steer) | mcp NAME (arguments) | subagent [steps] (id)
    model "prompt" (stream: false, memory: true tells it all earlier prompts) | error CODE (message, retryable)
    raw "text" or base64 "..." (slow: one byte per write, S seconds apart; newline: false) | stderr N or "text"
    spawn plain/setsid (pidfile, seconds, stubborn: ignores SIGTERM) | close stdout/stdin | deaf true (reads no more)
    exit CODE | kill SIGNAL | next [steps] (of the next prompt that brings none)
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

Step = dict[str, Any]


class Interrupted(Exception):
    """The host asked for the end of the turn."""


class Failed(Exception):
    """The turn fails with this error."""

    def __init__(self, code: str, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, "retryable": retryable}


class Cut(Exception):
    """A model stream ended before its end."""


class Inbox:
    """Lines from stdin, read only while the program waits; so it hears an interrupt during a step."""

    def __init__(self) -> None:
        self.prompts: deque[dict[str, Any]] = deque()
        self.steers: deque[str] = deque()
        self.answers: dict[str, dict[str, Any]] = {}
        self.hello = False
        self.open = True
        self.deaf = False
        self.busy = False
        self._interrupted = False
        self._half = b""

    def wait(self, seconds: float | None) -> None:
        """Read what comes within ``seconds`` (None: until something comes). Raises Interrupted in a turn."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            if self.busy and self._interrupted:
                raise Interrupted
            left = None if end is None else max(0.0, end - time.monotonic())
            if self.deaf or not self.open:
                time.sleep(3600 if left is None else left)
                return
            if not select.select([0], [], [], left)[0]:
                return
            self._read()
            if end is None:
                end = time.monotonic()

    def begin(self) -> None:
        self.busy = True

    def end(self) -> None:
        self.busy = self._interrupted = False

    def _read(self) -> None:
        data = os.read(0, 65536)
        if not data:
            self.open = False
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            match message["op"]:
                case "hello":
                    self.hello = True
                case "prompt":
                    self.prompts.append(message)
                case "steer":
                    self.steers.append(message["text"])
                case "answer":
                    self.answers.setdefault(message["id"], message)
                case "interrupt":
                    self._interrupted = self.busy or bool(self.prompts)  # between turns there is nothing to interrupt


class Player:
    """Plays steps. ``say`` events go out as lines; the texts said are the turn's answer."""

    def __init__(self, inbox: Inbox, options: dict[str, Any], memory: list[str]) -> None:
        self.inbox, self.options, self.memory = inbox, options, memory
        self.written = 0  # messages in the file of the conversation
        self.turn = ""
        self.count = 0
        self.images = 0
        self.parent: str | None = None
        self.said: list[str] = []
        self.next: list[Step] | None = None
        self.output: Any = None

    def begin(self, turn: str, images: int) -> None:
        self.turn, self.images, self.count, self.said, self.output, self.parent = turn, images, 0, [], None, None

    def play(self, steps: list[Step]) -> None:
        for step in steps:
            if self.inbox.busy:
                self.inbox.wait(0)
            self.count += 1
            kind, value = next(iter(step.items()))
            getattr(self, f"do_{kind}")(value, step)

    def id(self) -> str:
        return f"{self.turn}.{self.count}"

    def emit(self, ev: str, **fields: Any) -> None:
        if self.parent:
            fields["parent"] = self.parent
        write_line({"ev": ev, **fields})

    def say(self, text: str) -> None:
        if not self.parent:
            self.said.append(text)
        self.emit("text", item=self.id(), delta=text)

    # ---- what the agent says ----------------------------------------------------------------------------------------

    def do_text(self, value: str, step: Step) -> None:
        self.say(value)

    def do_reasoning(self, value: str, step: Step) -> None:
        self.emit("reasoning", item=self.id(), delta=value)

    def do_deltas(self, value: int, step: Step) -> None:
        for n in range(value):
            self.say((f"{n} " + "x" * step.get("size", 0))[: max(step.get("size", 0), len(f"{n} "))])
            if gap := step.get("gap"):
                self.inbox.wait(gap)

    def do_say(self, value: str, step: Step) -> None:
        match value:
            case "cwd":
                self.say(os.getcwd())
            case "env":
                self.say(" ".join(sorted(os.environ)))
            case "argv":
                self.say(" ".join(sys.argv))
            case "memory":
                self.say(" | ".join(self.memory))
            case "rules":
                self.say(json.dumps(self.options.get("rules"), sort_keys=True))
            case "images":
                self.say(str(self.images))

    def do_compaction(self, value: list[int | None], step: Step) -> None:
        self.emit("compaction", before=value[0], after=value[1])

    def do_output(self, value: Any, step: Step) -> None:
        self.output = value

    def do_next(self, value: list[Step], step: Step) -> None:
        self.next = value

    def do_error(self, value: str, step: Step) -> None:
        raise Failed(value, step.get("message", value), step.get("retryable", False))

    # ---- what it waits for ------------------------------------------------------------------------------------------

    def do_sleep(self, value: float, step: Step) -> None:
        self.inbox.wait(value)

    def do_hang(self, value: bool, step: Step) -> None:
        while True:
            self.inbox.wait(None)

    def do_steered(self, value: bool, step: Step) -> None:
        while not self.inbox.steers:
            self.inbox.wait(None)
        self.say(self.inbox.steers.popleft())

    def do_approve(self, value: str, step: Step) -> None:
        ask = f"ask-{self.id()}"
        self.emit("ask", id=ask, tool=value, input=step.get("input", {}))
        try:
            while ask not in self.inbox.answers:
                self.inbox.wait(None)
        finally:
            self.emit("asked", id=ask)
        answer = self.inbox.answers[ask]
        if answer.get("answers"):
            self.say(f"answered: {json.dumps(answer['answers'])}")
        else:
            self.say("allowed" if answer["allow"] else f"denied: {answer['reason']}")

    # ---- what it does -----------------------------------------------------------------------------------------------

    def do_tool(self, value: str, step: Step) -> None:
        self.emit("tool_call", id=self.id(), name=value, input=step.get("input", {}))
        self.emit("tool_result", id=self.id(), output=step.get("output", ""), is_error=step.get("is_error", False))

    def do_shell(self, value: str, step: Step) -> None:
        self.emit("tool_call", id=self.id(), name="Shell", input={"command": value})
        child = subprocess.Popen(
            ["sh", "-c", value], stdin=-3, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while child.poll() is None:
                self.inbox.wait(0.02)
        except Interrupted:
            os.killpg(child.pid, signal.SIGKILL)
            self.emit("tool_result", id=self.id(), output="interrupted", is_error=True)
            raise
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)  # a grandchild may still hold the pipe
        output = (child.stdout.read() or b"").decode("utf-8", "replace")
        self.emit("tool_result", id=self.id(), output=output, is_error=child.returncode != 0)
        self.say(output)

    def do_write(self, value: str, step: Step) -> None:
        with open(value, "w", encoding="utf-8") as file:
            file.write(step.get("content", ""))

    def do_read(self, value: str, step: Step) -> None:
        with open(value, encoding="utf-8") as file:
            self.say(file.read())

    def do_delete(self, value: str, step: Step) -> None:
        os.unlink(value)

    def do_subagent(self, value: list[Step], step: Step) -> None:
        call = step.get("id", self.id())
        self.emit("tool_call", id=call, name="Agent", input={})
        self.parent, outer = call, self.parent
        try:
            self.play(value)
        finally:
            self.parent = outer
        self.emit("tool_result", id=call, output="", is_error=False)

    # ---- whom it calls ----------------------------------------------------------------------------------------------

    def do_model(self, value: str, step: Step) -> None:
        self.emit("step")
        stream, before = step.get("stream", True), len(self.said)
        prompt = "\n".join([*self.memory, value]) if step.get("memory") else value
        for attempt in range(3):
            try:
                for delta in self._call_model(prompt, stream):
                    self.say(delta)
                    self.inbox.wait(0)
                return
            except Cut:
                del self.said[before:]
                self.emit("retract", item=self.id())
                self.inbox.wait(0.1 * attempt)
            except Failed as failed:
                if not failed.error["retryable"] or attempt == 2:
                    raise
                self.inbox.wait(0.1 * attempt)  # cut before the first byte of the answer
        raise Failed("model_unavailable", "The model's stream was cut three times.", True)

    def _call_model(self, prompt: str, stream: bool) -> Iterator[str]:
        body = {
            "model": self.options["model"],
            "max_tokens": 1000,
            "stream": stream,
            "messages": [{"role": "user", "content": prompt}],
        }
        headers = {"x-api-key": os.environ["FAKE_TOKEN"], "anthropic-version": "2023-06-01"}
        status, lines = self._post(self.options["model_url"] + "/v1/messages", body, headers)
        if status != 200:
            code = {401: "model_auth", 403: "model_auth", 429: "model_rate_limited"}.get(status, "model_unavailable")
            raise Failed(code, f"{status} {b''.join(lines).decode('utf-8', 'replace')[:500]}")
        if not stream:
            yield "".join(block.get("text", "") for block in json.loads(b"".join(lines))["content"])
            return
        for line in lines:
            if line.startswith(b"data:"):
                event = json.loads(line[5:])
                if event["type"] == "content_block_delta":
                    yield event["delta"].get("text", "")
                elif event["type"] == "message_stop":
                    return
        raise Cut

    def do_mcp(self, value: str, step: Step) -> None:
        arguments = step.get("arguments", {})
        self.emit("tool_call", id=self.id(), name=f"host_{value}", input=arguments)
        request = {
            "jsonrpc": "2.0",
            "id": self.id(),
            "method": "tools/call",
            "params": {"name": value, "arguments": arguments},
        }
        headers = {
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {os.environ['FAKE_TOOL_TOKEN']}",
            "mcp-protocol-version": "2025-06-18",
        }
        status, lines = self._post(self.options["tool_url"], request, headers)
        data = [line.removeprefix(b"data:") for line in lines if not line.startswith((b"event:", b"id:", b":"))]
        text = b"".join(data).decode("utf-8", "replace")
        if status == 200 and "result" in (reply := json.loads(text)):
            output = "".join(part.get("text", "") for part in reply["result"].get("content", []))
            is_error = bool(reply["result"].get("isError"))
        else:
            output, is_error = f"{status} {text[:500]}", True
        self.emit("tool_result", id=self.id(), output=output, is_error=is_error)
        self.say(output)

    def _post(self, url: str, body: Any, headers: dict[str, str]) -> tuple[int, Iterator[bytes]]:
        """Status and lines of the answer. A thread reads, so that an interrupt is heard while the server is silent;
        lines that end before the body does end the iterator. Raises Failed if nobody answers."""
        import http.client
        import queue
        import threading
        import urllib.parse

        parts = urllib.parse.urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)
        got: queue.SimpleQueue[int | bytes | None] = queue.SimpleQueue()

        def read() -> None:
            try:
                path = f"{parts.path}?{parts.query}" if parts.query else parts.path
                connection.request("POST", path, json.dumps(body), {"content-type": "application/json", **headers})
                response = connection.getresponse()
                got.put(response.status)
                for line in response:
                    got.put(line)
            except (OSError, http.client.HTTPException, ValueError):
                pass
            got.put(None)

        def items() -> Iterator[int | bytes]:
            while True:
                while got.empty():
                    self.inbox.wait(0.005)
                if (item := got.get()) is None:
                    return
                yield item

        threading.Thread(target=read, daemon=True).start()
        answer = items()
        status = next(answer, None)
        if not isinstance(status, int):
            raise Failed("model_unavailable", f"Nobody answered at {parts.netloc}.", True)
        return status, (line for line in answer if isinstance(line, bytes))

    # ---- how it misbehaves ------------------------------------------------------------------------------------------

    def do_raw(self, value: str, step: Step) -> None:
        self._raw(value.encode("utf-8", "surrogateescape"), step)

    def do_base64(self, value: str, step: Step) -> None:
        self._raw(base64.b64decode(value), step)

    def _raw(self, data: bytes, step: Step) -> None:
        data += b"\n" if step.get("newline", True) else b""
        if (slow := step.get("slow")) is None:
            write_all(1, data)
            return
        for n in range(len(data)):
            write_all(1, data[n : n + 1])
            time.sleep(slow)

    def do_stderr(self, value: int | str, step: Step) -> None:
        write_all(2, b"e" * value if isinstance(value, int) else value.encode())

    def do_spawn(self, value: str, step: Step) -> None:
        code = "import signal,time,sys\n"
        if step.get("stubborn"):
            code += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        code += f"time.sleep({float(step.get('seconds', 60))})\n"
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=-3,
            stdout=-3,
            stderr=-3,
            start_new_session=value == "setsid",
        )
        if pidfile := step.get("pidfile"):
            with open(pidfile + ".new", "w", encoding="utf-8") as file:
                file.write(str(child.pid))
            os.replace(pidfile + ".new", pidfile)

    def do_close(self, value: str, step: Step) -> None:
        os.close({"stdin": 0, "stdout": 1}[value])
        if value == "stdin":
            self.inbox.open = False

    def do_deaf(self, value: bool, step: Step) -> None:
        self.inbox.deaf = True

    def do_exit(self, value: int, step: Step) -> None:
        os._exit(value)

    def do_kill(self, value: int, step: Step) -> None:
        os.kill(os.getpid(), value)


# ---- the agent ------------------------------------------------------------------------------------------------------


def agent(options: dict[str, Any]) -> int:
    """One session on stdio until stdin ends."""
    folder = os.path.join(options["home"], ".fake")
    source, at = options.get("resume"), options.get("fork_at")
    session = options["session"] if at else source or options["session"]
    path = os.path.join(folder, f"{session}.jsonl")
    messages: list[dict[str, str]] = []
    os.makedirs(folder, exist_ok=True)
    if source:
        try:
            messages = read_session(os.path.join(folder, f"{source}.jsonl"))
        except FileNotFoundError:
            messages = []
        if not messages or (at and int(at) > len(messages)):
            write_line({"ev": "lost", "session": source})
            return 1
        if at:
            messages = messages[: int(at)]
            for message in messages:
                remember(path, message["role"], message["content"])
    inbox = Inbox()
    player = Player(inbox, options, [m["content"] for m in messages if m["role"] == "user"])
    player.written = len(messages)
    greeted = False
    while True:
        if inbox.hello and not greeted:
            greeted = True
            write_line({"ev": "ready", "session": session, "resumed": bool(options.get("resume"))})
        if inbox.prompts:
            turn(inbox.prompts.popleft(), player, path)
        elif not inbox.open:
            return 0
        else:
            inbox.wait(None)


def turn(prompt: dict[str, Any], player: Player, path: str) -> None:
    remember(path, "user", prompt["text"])
    player.inbox.begin()
    player.begin(prompt["turn"], prompt.get("images", 0))
    stop, error = "done", None
    try:
        following, player.next = player.next, None
        player.play(steps_of(prompt["text"]) or following or [{"text": f"You said: {prompt['text']}"}])
    except Interrupted:
        stop = "interrupted"
    except Failed as failed:
        stop, error = "error", failed.error
    player.inbox.end()
    text = "".join(player.said)
    player.memory.append(prompt["text"])
    remember(path, "assistant", text)
    player.written += 2
    end = {"stop": stop, "text": text, "output": player.output, "error": error, "at": str(player.written)}
    write_line({"ev": "end", "turn": prompt["turn"], **end})


def steps_of(text: str) -> list[Step]:
    for part in (text, *reversed(text.splitlines())):
        if part.lstrip().startswith("["):
            try:
                return list(json.loads(part))
            except ValueError:
                continue
    return []


def remember(path: str, role: str, content: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"role": role, "content": content}) + "\n")


def read_session(path: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


# ---- plumbing -------------------------------------------------------------------------------------------------------


def write_line(message: Any) -> None:
    write_all(1, json.dumps(message).encode() + b"\n")


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def main(argv: list[str]) -> int:
    if argv and argv[0] == "--agent":
        options: dict[str, Any] = {}
        for name, value in zip(argv[1::2], argv[2::2], strict=True):
            options[name.removeprefix("--").replace("-", "_")] = value
        options["rules"] = json.loads(os.environ.get("FAKE_RULES", "null"))
        os.environ["FAKE_PYTHON"] = sys.executable  # for commands, wherever it is seen from
        return agent(options)
    if argv:
        with open(argv[0], encoding="utf-8") as file:
            script = json.load(file)
    else:
        script = json.loads(os.environ["FAKE_PROGRAM_SCRIPT"])
    Player(Inbox(), {}, []).play(script)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

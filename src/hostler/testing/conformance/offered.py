"""The tools that a program offers to its model, read from a model call of any wire."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..model_script import SHELLS

_SCHEMAS = ("input_schema", "parameters", "parametersJsonSchema", "parameters_json_schema")
_WRITERS = ("write", "write_file", "writefile", "create_file")
_TEXTS = ("content", "contents", "text", "file_text")


@dataclass(frozen=True)
class Offered:
    """One tool: its name for the model, the names of its arguments, and the namespace that it is called in, if any."""

    name: str
    arguments: tuple[str, ...]
    namespace: str | None = None

    def step(self, **given: Any) -> dict[str, Any]:
        """The model's step that calls it."""
        return {"tool": self.name, "args": given, **({"namespace": self.namespace} if self.namespace else {})}


def offered(body: Any) -> dict[str, Offered]:
    """The tools in the body of a model call, by name."""
    return {tool.name: tool for tool in _find((body or {}).get("tools") if isinstance(body, Mapping) else None, None)}


def _find(value: Any, namespace: str | None) -> Iterator[Offered]:
    if isinstance(value, list):
        for part in value:
            yield from _find(part, namespace)
    elif isinstance(value, Mapping):
        name, inside = value.get("name"), value.get("tools")
        if isinstance(name, str) and isinstance(inside, list):
            yield from _find(inside, name)
        elif isinstance(name, str):
            schemas = [value[key] for key in _SCHEMAS if isinstance(value.get(key), Mapping)]
            yield Offered(name, tuple((schemas or [{}])[0].get("properties") or ()), namespace)
        else:  # {"type": "function", "function": {...}}, {"functionDeclarations": [...]}
            for key in ("function", "functionDeclarations", "function_declarations"):
                yield from _find(value.get(key), namespace)


def of_app(tools: Mapping[str, Offered], name: str) -> Offered | None:
    """The tool that the app, or an MCP server, knows by this name; programs put a prefix before it."""
    return tools.get(name) or next((t for n, t in tools.items() if re.search(rf"[_./:-]{re.escape(name)}$", n)), None)


def shell(tools: Mapping[str, Offered], command: str) -> dict[str, Any] | None:
    """The step that runs a command by the program's own shell tool, also where it is not offered any more."""
    for name, argument in SHELLS:
        if name in tools:
            step: Any = ["bash", "-lc", command] if name in ("shell", "local_shell") else command
            more = {"description": "scripted"} if "description" in tools[name].arguments else {}
            return tools[name].step(**{argument: step}, **more)
    return None


def write(tools: Mapping[str, Offered], path: str, text: str) -> dict[str, Any] | None:
    """The step that writes a file by the program's own tool for that."""
    for name, tool in tools.items():
        if name.lower() in _WRITERS:
            where = next((a for a in tool.arguments if "path" in a.lower() or a.lower().startswith("file")), None)
            what = next((a for a in tool.arguments if a.lower() in _TEXTS), None)
            if where and what:
                return tool.step(**{where: path, what: text})
    # Codex takes its patches out of shell commands.
    patch = f"apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: {path}\n+{text}\n*** End Patch\nEOF\n"
    return shell(tools, patch) if {"exec_command", "shell_command"} & set(tools) else None


def attempts(paths: Mapping[str, str], python: str, port: int) -> str:
    """A shell script that writes to each path by shell and by python, and connects to a port; none keeps the next from
    being tried."""
    lines = [f"echo x > {shlex.quote(path)}" for path in paths.values()]
    codes = [f"open({f'{path}-python'!r}, 'w').write('x')" for path in paths.values()]
    codes.append(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2).sendall(b'x')")
    return "\n".join([*lines, *(f"{shlex.quote(python)} -c {shlex.quote(code)}" for code in codes), "true"])

"""Options: declared once, the same for every verb."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from .events import Approval, Record
from .runtime import Permissions

OnBusy = Literal["queue", "reject", "interrupt", "steer"]
OnPersistenceError = Literal["report", "raise"] | Callable[[Any], Any]


class OptionsDict(TypedDict, total=False):
    """The keyword arguments of `agent`, `agent_session`, `agent_resume` and, for one call, of ``run`` and ``stream``.

    Durations are seconds, costs US dollars.
    """

    sandbox: Any
    """A sandbox, or a factory called with the workspace (`sandbox.local`). None: an owned workspace."""
    model: str | None
    """``litellm_proxy/<group>`` for the gateway, else a provider's model name."""
    api_key: str | None
    api_base: str | None
    instructions: str | None
    tools: Sequence[Callable[..., Any]]
    mcp_servers: Mapping[str, Any]
    """Name to ``{"command": ..., "args": [...], "env": {...}}`` or ``{"url": ..., "headers": {...}}``, each with
    ``"start_timeout"``: seconds that it may take to start (default 30), after which the turn begins without it, or, with
    ``"required": True``, ends with the error ``mcp_server_failed``."""
    skills: Sequence[Any] | Mapping[str, str]
    """Folders with a SKILL.md (Agent Skills), or ``{name: text of the SKILL.md}``. Read when they are given."""
    disable_tools: Sequence[str]
    permissions: Permissions
    allow: Sequence[str]
    deny: Sequence[str]
    on_approval: Callable[[Approval], Any] | None
    """Called with each question; True (also awaited) allows. It wants to be given again when the session is resumed."""
    output: Any
    """The type of the answer (pydantic model, dataclass, TypedDict, ``list[Item]``, ...) or a JSON Schema as a dict."""
    max_turns: int | None
    max_cost: float | None
    timeout: float | None
    effort: str | None
    metadata: Mapping[str, Any]
    options: Mapping[str, Any]
    """Of the program itself: ``{"program": "/path/to/binary"}`` and what its page in the docs names."""
    trace: bool
    """False: what was said and done in a turn is erased from the journal when the turn is over; its outcome stays."""
    redact: Sequence[str] | None
    """Keys (``"password"``) and paths (``"customer.ssn"``) whose values are masked in the trace. None: the usual ones."""
    persistent_dirs: Sequence[Any]
    """Directories that outlive the session: `persistent_dir`, `local_dir`, `project_dir`, `fsspec_dir`, `memory`."""
    on_persistence_error: OnPersistenceError
    """``"report"``: a commit that failed is in the Result and in the journal. ``"raise"``: it is raised as well, with the
    Result. A function is called with the error."""
    on_busy: OnBusy
    on_event: Callable[[Record], Any] | None
    state_dir: str | None


class HarnessOptions(OptionsDict, total=False):
    """The keyword arguments of `create_harness`: `OptionsDict`, of which ``state_dir`` is the host's, and what only a
    harness has."""

    input_types: Mapping[str, Any]
    fetch: Callable[[str], Any] | None


@dataclass(frozen=True)
class Options:
    """`OptionsDict` with its defaults. What can be serialised belongs to the session and holds on every turn.

    ``output`` and ``skills`` are as the caller gave them until `hostler.opening.read_options` has read them.
    """

    sandbox: Any = None
    model: str | None = None
    api_key: str | None = dataclasses.field(default=None, repr=False)
    api_base: str | None = None
    instructions: str | None = None
    tools: tuple[Callable[..., Any], ...] = ()
    mcp_servers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    skills: tuple[Any, ...] = ()
    disable_tools: tuple[str, ...] = ()
    permissions: Permissions = "full"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    on_approval: Callable[[Approval], Any] | None = None
    output: Any = None
    max_turns: int | None = None
    max_cost: float | None = None
    timeout: float | None = None
    effort: str | None = None
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    trace: bool = True
    redact: tuple[str, ...] | None = None
    persistent_dirs: tuple[Any, ...] = ()
    on_persistence_error: OnPersistenceError = "report"
    on_busy: OnBusy = "queue"
    on_event: Callable[[Record], Any] | None = None
    state_dir: str | None = None

    # Rules are stored with the session; the rest must be given again, or is of one call only.
    RULES = (
        "model",
        "api_base",
        "instructions",
        "mcp_servers",
        "disable_tools",
        "permissions",
        "allow",
        "deny",
        "max_turns",
        "max_cost",
        "timeout",
        "effort",
        "output",
        "skills",
        "metadata",
        "options",
        "trace",
        "redact",
        "persistent_dirs",
        "on_persistence_error",
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Checked options from keyword arguments. Raises TypeError or ValueError that names the bad one."""
        names = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(given) - names):
            import difflib

            close = difflib.get_close_matches(unknown[0], names, n=1)
            raise TypeError(f"Unknown option {unknown[0]!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        values = dict(given)
        if isinstance(values.get("skills"), Mapping):
            values["skills"] = [{name: text} for name, text in values["skills"].items()]
        for name in ("tools", "skills", "disable_tools", "allow", "deny", "persistent_dirs"):
            if name in values:
                if isinstance(values[name], str):
                    raise TypeError(f"{name} takes a list, not a string: {name}=[{values[name]!r}].")
                values[name] = tuple(values[name] or ())
        for name in ("disable_tools", "allow", "deny"):
            if not all(isinstance(rule, str) for rule in values.get(name, ())):
                raise TypeError(f"{name} takes a list of strings, not {values[name]!r}.")
        if wrong := [dir for dir in values.get("persistent_dirs", ()) if not hasattr(dir, "rule")]:
            raise TypeError(
                f"persistent_dirs takes what persistent_dir(...), local_dir(...) and so on give, not {wrong[0]!r}."
            )
        if values.get("redact") is not None:
            if isinstance(values["redact"], str) or not all(isinstance(key, str) and key for key in values["redact"]):
                raise TypeError("redact takes a list of keys: redact=['password'].")
            values["redact"] = tuple(values["redact"])
        for name in ("mcp_servers", "metadata", "options"):
            if name in values:
                if not isinstance(values[name] or {}, Mapping):
                    raise TypeError(f"{name} takes a dict, not {values[name]!r}.")
                values[name] = dict(values[name] or {})
        for name, server in values.get("mcp_servers", {}).items():
            _check_server(name, server)
        out = cls(**values)
        if not isinstance(out.trace, bool):
            raise TypeError(f"trace must be True or False, not {out.trace!r}.")
        if out.permissions not in ("full", "read-only", "edit", "ask"):
            raise ValueError(f"permissions must be 'full', 'read-only', 'edit' or 'ask', not {out.permissions!r}.")
        if not callable(out.on_persistence_error) and out.on_persistence_error not in ("report", "raise"):
            raise ValueError(
                f"on_persistence_error must be 'report', 'raise' or a function, not {out.on_persistence_error!r}."
            )
        if out.on_busy not in ("queue", "reject", "interrupt", "steer"):
            raise ValueError(f"on_busy must be 'queue', 'reject', 'interrupt' or 'steer', not {out.on_busy!r}.")
        for name, kind in (("max_turns", int), ("max_cost", (int, float)), ("timeout", (int, float))):
            value = getattr(out, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kind) or not value > 0):
                raise ValueError(f"{name} must be a positive number or None, not {value!r}.")
        return out

    def rules(self) -> dict[str, Any]:
        """What is stored with the session, JSON-ready. Raises TypeError for what cannot be serialised."""
        import json

        rules = {name: getattr(self, name) for name in self.RULES}
        rules["output"] = None if self.output is None else self.output.schema
        rules["skills"] = [skill.manifest() for skill in self.skills]
        rules["persistent_dirs"] = [dir.rule() for dir in self.persistent_dirs]
        if callable(self.on_persistence_error):
            rules["on_persistence_error"] = "report"
        try:
            return json.loads(json.dumps(rules))  # type: ignore[no-any-return]
        except (TypeError, ValueError) as error:
            raise TypeError(f"Options that are stored with the session must be JSON values: {error}.") from None

    def callables(self) -> list[str]:
        """The names of the callables that a resume must bring again."""
        names = [f"tool {t.__name__}" for t in self.tools]
        names += [dir.needs for dir in self.persistent_dirs if dir.needs]
        names += ["on_approval"] if self.on_approval else []
        names += ["on_persistence_error"] if callable(self.on_persistence_error) else []
        return sorted(names)


def _check_server(name: object, server: object) -> None:
    sound = (
        isinstance(name, str)
        and isinstance(server, Mapping)
        and isinstance(server.get("url") or server.get("command"), str)
        and isinstance(server.get("args") or (), (list, tuple))
        and all(isinstance(server.get(part) or {}, Mapping) for part in ("env", "headers"))
        and isinstance(limit := server.get("start_timeout", 1), (int, float))
        and limit > 0
        and isinstance(server.get("required", False), bool)
    )
    if not sound:
        raise TypeError(
            'mcp_servers takes {name: {"command": "...", "args": [...], "env": {...}}} or {name: {"url": "...", '
            f'"headers": {{...}}}}, with "start_timeout" in seconds if it needs more than 30; {name!r} is not such a server.'
        )

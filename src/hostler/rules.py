"""Which rules a program can hold; what it cannot is refused before it starts."""

from __future__ import annotations

import difflib

from .types.errors import CapabilityUnsupported
from .types.options import Options
from .types.rules import is_about
from .types.runtime import Runtime

_KEY = 512  # characters
_BY_MOUNTS = ("edit", "read-only")  # what a confined sandbox holds by itself, whatever the program can


def refuse_unheld(runtime: Runtime, options: Options, *, confined: bool) -> None:
    """Raise CapabilityUnsupported, naming the first rule that this program cannot hold in a sandbox that is ``confined``
    or not."""
    can = runtime.capabilities
    rules = {option: _for_program(options, option) for option in ("allow", "deny", "disable_tools")}
    wrong = why = None
    if options.permissions not in can.permissions and not (confined and options.permissions in _BY_MOUNTS):
        wrong = f"permissions={options.permissions!r} (it can hold: {', '.join(map(repr, can.permissions))})"
        why = can.reasons.get(options.permissions)
    for name, field, given in (
        ("on_approval", "approvals", options.on_approval is not None),
        ("tools", "tools", bool(options.tools)),
        ("instructions", "instructions", options.instructions is not None),
        ("mcp_servers", "mcp_servers", bool(options.mcp_servers)),
        ("disable_tools", "disable_tools", bool(rules["disable_tools"])),
        ("allow", "allow_deny", bool(rules["allow"])),
        ("deny", "allow_deny", bool(rules["deny"])),
        ("effort", "effort", options.effort is not None),
        ("max_turns", "max_turns", options.max_turns is not None),
    ):
        if wrong is None and given and not getattr(can, field):
            wrong, why = name, can.reasons.get(field)
    for option, written in rules.items():
        wrong = wrong or _misnamed(runtime, option, written)
    if wrong:
        raise CapabilityUnsupported(
            f"{runtime.name} cannot hold {wrong}{f': {why}' if why else ''}. Leave it out, or choose another program."
        )


def _for_program(options: Options, option: str) -> list[str]:
    """Rules but for those about the app's own tools, which the tool server holds."""
    own = [getattr(tool, "__name__", "") for tool in options.tools]
    return [rule for rule in getattr(options, option) if not is_about(rule, own)]


def _misnamed(runtime: Runtime, option: str, rules: list[str]) -> str | None:
    """The first of these rules that would hold nothing, in words."""
    known = runtime.tool_names
    for rule in rules:
        name = rule.replace("(", ":").partition(":")[0].strip()
        if known is not None and name not in known and not name.startswith("mcp__"):
            close = difflib.get_close_matches(name, sorted(known), n=3) or sorted(n for n in known if n.islower())
            return f"{option}=[{rule!r}], since it has no tool {name!r} (it has {', '.join(close)})"
    return None


def check_prompt(prompt: object) -> None:
    """Raise TypeError or ValueError for what cannot be said to an agent."""
    if not isinstance(prompt, str):
        raise TypeError(f"The prompt must be a string, not {type(prompt).__name__}.")
    if not prompt.strip():
        raise ValueError("The prompt is empty.")
    check_text(prompt)


def check_text(prompt: str) -> None:
    """Raise ValueError for what is not Unicode text."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The prompt holds a lone surrogate, {prompt[error.start]!a} at index {error.start}, and is no Unicode text. "
            "Replace it, for instance with prompt.encode(errors='replace').decode()."
        ) from None


def check_key(key: object) -> None:
    """Raise TypeError or ValueError for what cannot be a session's key."""
    if not isinstance(key, str):
        raise TypeError(f"A session's key is a string, not {type(key).__name__}.")
    if not 0 < len(key) <= _KEY or "\0" in key:
        raise ValueError(f"A session's key has 1 to {_KEY} characters and no NUL; this one has {len(key)}.")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ValueError("A session's key is Unicode text; this one holds a lone surrogate.") from None

"""The rows of the table: what is asked of every program, how it is checked, and where the sheet of capabilities says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ...types.runtime import Capabilities, Permissions
from . import lasting, rules, tools, turns
from .bench import Bench

Check = Callable[[Bench], None]
_CELLS = {"schema": "by schema", "prompt": "in words", "native": "its own way", "listed": "listed", "tool": "by a tool"}


@dataclass(frozen=True)
class Row:
    """One thing that is asked of every program.

    ``check`` shows it where the sheet says yes, ``denied`` shows the no where the sheet says no; both raise `Unmet` with
    what was seen. ``field`` is the capability, or, as ``permissions.<mode>``, the mode; without one hostler promises it
    for every program.
    """

    name: str
    title: str
    check: Check
    field: str | None = None
    denied: Check | None = None

    def cell(self, can: Capabilities) -> str:
        """What the sheet says: ``yes``, ``no``, or how."""
        if self.field is None:
            return "yes"
        field, _, mode = self.field.partition(".")
        value = getattr(can, field)
        if mode in ("edit", "read-only") and mode not in value:
            return "in bubblewrap"
        if field == "skills" and value == "prompt":
            return _CELLS["listed"]
        value = mode in value if mode else value
        return _CELLS[value] if isinstance(value, str) else "yes" if value else "no"

    def reason(self, can: Capabilities) -> str | None:
        """Why not, as the sheet says; None for what is no no, or when the sheet does not say."""
        name = (self.field or "").rpartition(".")[2]
        return can.reasons.get(name) if self.cell(can) in ("no", "in bubblewrap") else None


def _mode(permissions: Permissions) -> Row:
    return Row(
        permissions,
        f'`permissions="{permissions}"`',
        partial(rules.mode, permissions),
        f"permissions.{permissions}",
        rules.refusal(permissions=permissions),
    )


def _bales(feed: str) -> str:
    """How many bales there are."""
    return feed


ROWS = (
    Row("turn", "a turn, and the next one", turns.turn),
    Row("deltas", "answers come in pieces", turns.deltas, "deltas", turns.deltas_denied),
    Row("shell", "its shell: events and changed files", turns.shell),
    Row("tools", "functions of the app (`tools=`)", tools.tools, "tools", rules.refusal(tools=[_bales])),
    Row("inputs", "calls of those tell their arguments", tools.inputs, "tells_inputs", tools.inputs_denied),
    Row(
        "mcp",
        "`mcp_servers=`",
        tools.servers,
        "mcp_servers",
        rules.refusal(mcp_servers={"barn": {"command": "true"}}),
    ),
    Row("skills", "`skills=`", tools.skills, "skills"),
    Row(
        "instructions",
        "`instructions=`",
        tools.instructions,
        "instructions",
        rules.refusal(instructions="Speak softly."),
    ),
    Row("output", "`output=`", tools.output, "output"),
    Row("images", "pictures reach the model", turns.images, "images", turns.images_refused),
    Row("steer", 'a word to the running turn (`on_busy="steer"`)', turns.steer, "steer", turns.steer_refused),
    Row(
        "approvals",
        "leave is asked for, given and denied (`on_approval=`)",
        rules.approvals,
        "approvals",
        rules.refusal(permissions="ask", on_approval=bool),
    ),
    Row("questions", "what it asks a person is answered in words", rules.questions, "questions", rules.no_questions),
    _mode("full"),
    _mode("edit"),
    _mode("read-only"),
    _mode("ask"),
    Row(
        "disable-tools",
        "`disable_tools=`",
        rules.disable_tools,
        "disable_tools",
        rules.refusal(disable_tools=["bash"]),
    ),
    Row(
        "allow-deny", "`allow=` and `deny=` for its tools", rules.allow_deny, "allow_deny", rules.refusal(deny=["bash"])
    ),
    Row("max-turns", "`max_turns=`", rules.max_turns, "max_turns", rules.refusal(max_turns=2)),
    Row("effort", "`effort=`", rules.effort, "effort", rules.refusal(effort="low")),
    Row("usage", "tokens and calls are those of the wire", turns.usage),
    Row("history", "`history()`", tools.history, "history", tools.history_refused),
    Row("new-process", "resume in a new process", lasting.new_process),
    Row("other-cwd", "resume from another directory, with the data dir moved", lasting.other_cwd),
    Row("lost-home", "resume when its home is lost", lasting.lost_home, "portable", lasting.home_is_needed),
    Row("fork-session", "`session.fork()`", lasting.fork_session, "portable", lasting.fork_is_refused),
    Row("fork", "fork before an edited message, without telling all of it", lasting.fork, "fork", lasting.fork_is_told),
    Row("restart", "the app is killed while it answers, and comes back", lasting.restart),
    Row("restart-in-tool", "the app is killed in a tool, which runs once", lasting.restart_in_tool),
    Row("cut", "a model answer that breaks off is asked for again", turns.cut, "repeats_cut_calls", turns.cut_ends),
    Row("model-error", "a model that refuses ends the turn, with its reason", turns.refused_model),
    Row("cancel", "cancel with a running tool leaves no process", turns.cancel),
    Row("sweep", "an app that is killed for good leaves no process", lasting.sweep),
    Row("odd-bytes", "odd bytes in prompts, answers, output and file names", turns.odd_bytes),
)
BY_NAME = {row.name: row for row in ROWS}

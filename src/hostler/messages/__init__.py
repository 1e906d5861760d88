"""A transcript that its caller owns, to what a program must be told of it: the new end, a fork, or all of it."""

from .chain import Append, Fork, Plan, Policy, Seed, Seen, answered, keys, plan
from .reading import Transcript, read
from .rendering import Told, told
from .values import File, Message, ToolUse, from_json, to_json

__all__ = [
    "Append",
    "File",
    "Fork",
    "Message",
    "Plan",
    "Policy",
    "Seed",
    "Seen",
    "Told",
    "ToolUse",
    "Transcript",
    "answered",
    "from_json",
    "keys",
    "plan",
    "read",
    "to_json",
    "told",
]

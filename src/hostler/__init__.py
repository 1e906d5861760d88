"""hostler runs complete agent programs in durable sessions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import ending as _ending  # noqa: F401  before a thread that hostler is first used in, when the main one may be over

if TYPE_CHECKING:
    from . import harness as harness
    from . import sandbox as sandbox
    from .api import aagent as aagent
    from .api import aagent_resume as aagent_resume
    from .api import aagent_session as aagent_session
    from .api import aagent_stream as aagent_stream
    from .api import agenerate_harness as agenerate_harness
    from .api import agent as agent
    from .api import agent_capabilities as agent_capabilities
    from .api import agent_resume as agent_resume
    from .api import agent_session as agent_session
    from .api import agent_stream as agent_stream
    from .api import astream_harness as astream_harness
    from .api import generate_harness as generate_harness
    from .api import stream_harness as stream_harness
    from .faces import Session as Session
    from .follow import Follow as Follow
    from .harness import CapabilityUnsupported as CapabilityUnsupported
    from .harness import Done as Done
    from .harness import Harness as Harness
    from .harness import HarnessError as HarnessError
    from .harness import HarnessInstallFailed as HarnessInstallFailed
    from .harness import LeaseLost as LeaseLost
    from .harness import OptionsMismatch as OptionsMismatch
    from .harness import OutputInvalid as OutputInvalid
    from .harness import PathError as PathError
    from .harness import PersistenceConflict as PersistenceConflict
    from .harness import PersistenceError as PersistenceError
    from .harness import Result as Result
    from .harness import SandboxError as SandboxError
    from .harness import SessionBusy as SessionBusy
    from .harness import SessionClosed as SessionClosed
    from .harness import SessionLost as SessionLost
    from .harness import State as State
    from .harness import StateIncompatible as StateIncompatible
    from .harness import StoreError as StoreError
    from .harness import acp_agent as acp_agent
    from .inputs import input_type as input_type
    from .persistent import fsspec_dir as fsspec_dir
    from .persistent import local_dir as local_dir
    from .persistent import memory as memory
    from .persistent import persistent_dir as persistent_dir
    from .persistent import project_dir as project_dir
    from .profile import HarnessProfile as HarnessProfile
    from .profile import create_harness as create_harness
    from .profile import local_host as local_host
    from .stream import Stream as Stream

__version__ = "0.1.0"

# Public name to the module that holds it: imported when first used, so that `import hostler` stays light.
_HOMES = {
    **dict.fromkeys(
        (
            "aagent",
            "aagent_resume",
            "aagent_session",
            "aagent_stream",
            "agenerate_harness",
            "astream_harness",
            "generate_harness",
            "stream_harness",
            "agent",
            "agent_capabilities",
            "agent_resume",
            "agent_session",
            "agent_stream",
        ),
        "api",
    ),
    **dict.fromkeys(("fsspec_dir", "local_dir", "memory", "persistent_dir", "project_dir"), "persistent"),
    "Session": "faces",
    "HarnessProfile": "profile",
    "input_type": "inputs",
    "create_harness": "profile",
    "local_host": "profile",
    "Follow": "follow",
    "Stream": "stream",
    **dict.fromkeys(
        (
            "CapabilityUnsupported",
            "Done",
            "Harness",
            "HarnessError",
            "HarnessInstallFailed",
            "LeaseLost",
            "OptionsMismatch",
            "OutputInvalid",
            "PathError",
            "PersistenceConflict",
            "PersistenceError",
            "Result",
            "SandboxError",
            "SessionBusy",
            "SessionClosed",
            "SessionLost",
            "State",
            "StateIncompatible",
            "StoreError",
            "acp_agent",
        ),
        "harness",
    ),
}
_MODULES = ("harness", "sandbox")

__all__ = sorted([*_HOMES, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if (home := _HOMES.get(name)) is not None:
        value = getattr(importlib.import_module(f".{home}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'hostler' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

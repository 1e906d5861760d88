"""Files and shell of the machine for Deep Agents, as hostler has them."""

from __future__ import annotations

from typing import Any

from deepagents.backends import LocalShellBackend
from deepagents.backends.protocol import ExecuteResponse

from hostler.workers.shell import Shell

_TIMEOUT = 120


class Backend(LocalShellBackend):
    """A command that is cancelled is ended, with all that it started in its group: the library's own would go on."""

    def __init__(self, workdir: str, shell: Shell) -> None:
        super().__init__(root_dir=workdir, virtual_mode=False, inherit_env=True)
        self._own_shell = shell

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        text, code = await self._own_shell.command(command, timeout or _TIMEOUT)
        return ExecuteResponse(output=text, exit_code=124 if code is None else code, truncated=False)

    def execute(self, command: str, *, timeout: int | None = None) -> Any:
        raise NotImplementedError("This agent runs its commands without blocking.")

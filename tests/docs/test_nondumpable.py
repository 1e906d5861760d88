"""What the README says of HOSTLER_NONDUMPABLE."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import ctypes, hostler
from hostler.testing.fake_runtime import FAKE
get = lambda: ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)  # PR_GET_DUMPABLE
before = get()
with hostler.agent_session(FAKE, model="m", api_base="http://127.0.0.1:9", api_key="k-1") as session:
    print(before, get(), session.run('[{"shell": "echo hi"}]').stop_reason)
"""


def test_the_app_cannot_be_read_by_its_users_other_processes() -> None:
    for value, dumpable in (("", "1"), ("1", "0")):
        env = {**os.environ, "HOSTLER_NONDUMPABLE": value}
        out = subprocess.run(
            [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=60, check=True
        )
        assert out.stdout.split() == ["1", dumpable, "done"]

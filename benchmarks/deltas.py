"""How fast text reaches the consumer: 20,000 deltas of a fake program, each journalled before it is seen."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from common import KEY, Row, first, folder, model_server, peer, peer_python, print_table, rate, row

import hostler
from hostler.harness import Text
from hostler.testing import fake_program
from hostler.testing.fake_runtime import FAKE

_DELTAS = 20_000

# Says what litellm reads from Claude Code: one message for each delta, then the result.
_FAKE_CLAUDE = """#!{python} -IS
import json, os, sys
sys.stdin.read()
os.write(1, b'{{"type":"system","subtype":"init","session_id":"fake"}}\\n')
for n in range({deltas}):
    os.write(1, json.dumps({{"type": "assistant", "message": {{"content": [{{"type": "text", "text": f"{{n}} "}}]}}}}).encode() + b"\\n")
os.write(1, b'{{"type":"result","is_error":false,"result":"done","session_id":"fake"}}\\n')
"""


def ours(session: hostler.harness.Session) -> float:
    """Deltas per second, from the first to the last."""
    times = [
        time.perf_counter() for event in session.stream(json.dumps([{"deltas": _DELTAS}])) if isinstance(event, Text)
    ]
    if len(times) != _DELTAS:
        raise RuntimeError(f"{len(times)} of {_DELTAS} deltas came")
    return (_DELTAS - 1) / (times[-1] - times[0])


async def bare(script: Path) -> float:
    """The same program read by a line reader that parses each line, and does nothing with it."""
    argv = (sys.executable, "-I", "-S", "-E", fake_program.__file__, str(script))
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    times = []
    async with asyncio.timeout(60):
        async for line in process.stdout:
            json.loads(line)
            times.append(time.perf_counter())
        await process.wait()
    return (len(times) - 1) / (times[-1] - times[0])


def rows(quick: bool) -> Iterator[Row]:
    n = 3 if quick else 10
    with folder() as at, model_server() as models:
        work, script, fake = at / "work", at / "script.json", at / "fake_claude"
        work.mkdir()
        script.write_text(json.dumps([{"deltas": _DELTAS}]))
        options = {"model": "claude-sonnet-4-5", "api_base": models, "api_key": KEY, "state_dir": str(at / "state")}
        with hostler.agent_session(FAKE, sandbox=hostler.sandbox.local(work), **options) as session:
            ours(session)
            pairs = [(ours(session), asyncio.run(bare(script))) for _ in range(n)]
        title = f"{_DELTAS:,} deltas, journalled; beside a line reader"
        yield row(title, pairs, first, rate, "/s", beside="line reader")
        if peer_python() is not None:
            fake.write_text(_FAKE_CLAUDE.format(python=sys.executable, deltas=_DELTAS))
            fake.chmod(0o755)
            with peer("claude_code", models, at / "peer", program=str(fake)) as theirs:
                turns = [theirs.turn() for _ in range(n)]
            rates = [((t["texts"] - 1) / t["spread"], 0.0) for t in turns]
            yield row("  litellm, which stores nothing", rates, first, rate, "/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    print_table(list(rows(parser.parse_args().quick)))

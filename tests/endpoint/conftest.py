"""Fixtures of the endpoint's tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported without it (import mode importlib)

from endpoint_door import run, shared_server

__all__ = ["run", "shared_server"]

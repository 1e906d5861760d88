"""pytest fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .model_server import ModelServer


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    """A scripted model server (`hostler.testing.model_server.ModelServer`), new for each test."""
    from .model_server import ModelServer

    with ModelServer() as server:
        yield server

"""A hub on 127.0.0.1 for the tests of models by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_server import Hub, serving, use


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


@pytest.fixture
def hub(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub without repositories, and caches without models."""
    fresh = Hub(url=server.url)
    server.__dict__.update(fresh.__dict__)
    use(server, tmp_path, monkeypatch)
    return server

"""The demo model on a server, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.server.serving import Served, client, serving


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with client(served) as found:
        yield found

"""A module's model with images, its fixture `package`, on its fixture `case` (tests/support/image_devices.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import embedllm
from embedllm import Model
from tests.support.image_devices import Case, loaded


@pytest.fixture(scope="module")
def llm(case: Case, package: Path) -> Iterator[Model]:
    with loaded(package, case) as opened:
        yield opened


@pytest.fixture(scope="module")
def reference(package: Path) -> Iterator[Model]:
    with embedllm.load(package, device="reference") as opened:
        yield opened

"""Fixtures of what tune() remembers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from embedllm.backends.base import Engine, OpenOptions
from embedllm.backends.devices import drivers
from embedllm.backends.devices.drivers import find_family


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, in which nothing is remembered yet."""
    monkeypatch.delenv("EMBEDLLM_TUNED")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "cache")
    return tmp_path / "cache" / "tuned"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[OpenOptions]:
    """What devices are opened with."""
    given: list[OpenOptions] = []

    def watch(name: str) -> None:
        driver = find_family(name)
        assert driver is not None

        def open_it(choices: OpenOptions) -> Engine:
            given.append(choices)
            return driver.open(choices)

        monkeypatch.setitem(drivers._FAMILIES, name, replace(driver, open=open_it))

    for name in ("cpu", "openvino"):
        watch(name)
    return given

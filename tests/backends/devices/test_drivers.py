"""The registry of backends: which families there are, what importing them loads, drivers of other packages."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import pytest

from embedllm.backends.base import Device
from embedllm.backends.devices import drivers, registry
from embedllm.backends.driver import Capabilities, DeviceFamily, Driver, Source
from embedllm.backends.reference import driver as reference

MINE = Device(name="mine:1", backend="mine 1.0", description="", available=True)
DRIVER = Driver(
    families=(
        replace(reference.DRIVER.families[0], name="mine", capabilities=Capabilities(moves_kv=False, tested="here")),
    ),
    sources=(Source(("mine",), lambda: [MINE]),),
)


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[metadata.EntryPoint]:
    """What installed packages announce as drivers."""
    entries: list[metadata.EntryPoint] = []
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries if group == drivers.GROUP else [])
    drivers._announced.cache_clear()
    monkeypatch.setattr(drivers, "_FAMILIES", {})
    return entries


@pytest.fixture(autouse=True, scope="module")
def forgets() -> object:
    yield
    drivers._announced.cache_clear()


def test_no_name_is_of_two_families() -> None:
    names = [family.name for driver in drivers.drivers() for family in driver.families]
    assert len(names) == len(set(names))
    assert {"cpu", "cuda", "webgpu", "directml", "openvino", "npu", "genai", "reference", "plugin"} <= set(names)


def test_drivers_are_imported_without_their_runtimes() -> None:
    code = (
        "import sys\nfrom embedllm.backends.devices import drivers\nlist(drivers.drivers())\n"
        "print([name for name in ('onnxruntime', 'openvino', 'onnxruntime_genai') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_driver_of_another_package_is_listed_and_found(announced: list[metadata.EntryPoint]) -> None:
    announced.append(metadata.EntryPoint("mine", f"{__name__}:DRIVER", drivers.GROUP))
    assert MINE in registry.devices()
    (found,) = registry.DeviceCatalog().lookup("mine:1")
    assert found == MINE
    family = drivers.find_family("mine:1")
    assert isinstance(family, DeviceFamily)
    assert family.capabilities.tested == "here"


@pytest.mark.parametrize(("value", "why"), [("no_such_module:DRIVER", "fails"), (f"{__name__}:MINE", "is no Driver")])
def test_a_driver_that_cannot_be_loaded_is_listed_with_the_reason(
    announced: list[metadata.EntryPoint], value: str, why: str
) -> None:
    announced.append(metadata.EntryPoint("mine", value, drivers.GROUP))
    (found,) = (device for device in registry.devices() if device.name == "mine")
    assert not found.available
    assert f"the entry point 'mine = {value}' {why}" in found.reason


def test_a_family_that_is_not_known_is_none() -> None:
    assert drivers.find_family("nothing") is None

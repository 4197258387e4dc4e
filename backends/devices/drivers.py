"""The backends, by the modules that have their DRIVER; each is imported when a device of it may be meant.

A new backend is a folder with such a module, and a line here. Packages of others announce theirs as entry points of the
group GROUP: NAME = "package.module:DRIVER", whose families are looked for after ours.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from importlib import import_module

from embedllm.backends.base import Device
from embedllm.backends.driver import Capabilities, DeviceFamily, Driver, Source, absent_device, family_name

GROUP = "embedllm.drivers"
# in the order in which devices are listed
MODULES = (
    "embedllm.backends.ort.driver",
    "embedllm.backends.gpu.driver",
    "embedllm.backends.ort.host_driver",
    "embedllm.backends.openvino.driver",
    "embedllm.backends.genai.driver",
    "embedllm.backends.reference.driver",
)
_FAMILIES: dict[str, DeviceFamily] = {}  # that were asked for, by their names
_log = logging.getLogger("embedllm")


def drivers() -> Iterator[Driver]:
    """Ours, then those of other packages."""
    for module in MODULES:
        yield _imported(module)
    yield from _announced()


def sources() -> list[Source]:
    """Where devices come from."""
    return [source for driver in drivers() for source in driver.sources]


def sources_of(device: str) -> list[Source]:
    """Those that list the devices of a name's family; ours are looked through first."""
    for driver in drivers():
        if family_sources := [source for source in driver.sources if source.has(device)]:
            return family_sources
    return []


def find_family(device: str) -> DeviceFamily | None:
    """Of the device with that name, listed or not; None when there is no such family."""
    name = family_name(device)
    if name not in _FAMILIES:
        family = next((one for driver in drivers() for one in driver.families if one.name == name), None)
        if family is None:
            return None
        _FAMILIES[name] = family
    return _FAMILIES[name]


def device_family(device: Device) -> DeviceFamily:
    """Of a device that was listed."""
    family = find_family(device.name)
    assert family is not None
    return family


def capabilities(device: Device) -> Capabilities:
    """Of a device that was listed."""
    return device_family(device).capabilities_of(device.name)


def python_packages() -> set[str]:
    """Distributions that bring plug-ins of our drivers, whose versions numbers depend on."""
    ours = (family for module in MODULES for family in _imported(module).families)
    return {family.python_package.replace("_", "-") for family in ours if family.python_package}


def _imported(module: str) -> Driver:
    driver: Driver = import_module(module).DRIVER
    return driver


@cache
def _announced() -> tuple[Driver, ...]:
    """Of installed packages; one that cannot be loaded lists a device that says so."""
    from importlib.metadata import entry_points  # 9 ms, for devices that are none of ours

    extra_drivers: list[Driver] = []
    for entry in entry_points(group=GROUP):
        try:
            driver = entry.load()
        except Exception as error:  # noqa: BLE001 - whatever a package of somebody else's raises
            extra_drivers.append(_broken(entry.name, f"the entry point '{entry.name} = {entry.value}' fails: {error}"))
            continue
        if isinstance(driver, Driver):
            extra_drivers.append(driver)
        else:
            extra_drivers.append(_broken(entry.name, f"the entry point '{entry.name} = {entry.value}' is no Driver"))
    return tuple(extra_drivers)


def _broken(name: str, reason: str) -> Driver:
    _log.info("%s", reason)
    device = absent_device(name, "another package", reason, "update that package, or uninstall it")
    return Driver(families=(), sources=(Source((name,), lambda: [device]),))

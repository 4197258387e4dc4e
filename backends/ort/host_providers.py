"""Providers of ONNX Runtime that run with KV in the host's memory: how each is found, and attached to a session.

Correct with any provider, because ONNX Runtime copies what a provider needs; not fast, for the same reason.
"""

from __future__ import annotations

import os
from pathlib import Path

from embedllm.backends.base import Device
from embedllm.backends.ort import plugins
from embedllm.backends.ort.engine import Attachment
from embedllm.backends.ort.plugins import Library, ProviderDevice
from embedllm.backends.ort.providers import PLUGIN, Provider
from embedllm.backends.ort.runtime import ort
from embedllm.errors import DeviceError
from embedllm.files.optional_packages import needs

PREFIX = f"{PLUGIN.device}:"  # the name of an entry point, or the path of a library, follows


def devices(provider: Provider) -> list[Device]:
    """What a provider runs on here, when its build or its package is installed."""
    if not provider.module:
        backend = f"onnxruntime {ort.__version__}"
        return [Device(name=provider.device, backend=backend, description=provider.name, available=True)]
    return _listed(provider, provider.device)


def announced_devices() -> list[Device]:
    """Those of the libraries that installed packages announce as entry points."""
    names = [library.entry.name for library in plugins.libraries() if library.entry is not None]
    return [device for name in names for device in library_devices(f"{PREFIX}{name}")]


def library_devices(name: str) -> list[Device]:
    """The device of a library that has no row, "plugin:NAME" or "plugin:PATH": the first that its provider lists."""
    return _listed(PLUGIN, name)[:1]


def attachment(provider: Provider, device: Device) -> Attachment:
    """How a session gets a provider."""
    return Attachment(
        add=lambda options: _add(options, provider, device),
        runs=provider.runs,
        model=(lambda path: None) if provider.takes_defaults else _fixed,
    )


def _listed(provider: Provider, name: str) -> list[Device]:
    """A plug-in's devices: `name`, "name:1" and so on."""
    backend = f"onnxruntime {ort.__version__}"
    try:
        provider_devices = _offered(provider, name)
    except DeviceError as error:
        return [Device(name=name, backend=backend, description="", available=False, reason=str(error).rstrip("."))]
    if not provider_devices:
        reason = f"its provider lists no device: there is no {provider.hardware} for it here, or no driver"
        return [Device(name=name, backend=backend, description="", available=False, reason=reason)]
    return [
        Device(
            name=f"{name}:{at}" if at else name,
            backend=f"{backend}, {one.provider} {one.version}".rstrip(),
            description=f"{one.description}, {one.kind}",
            available=True,
            memory=one.memory,
        )
        for at, one in enumerate(provider_devices)
    ]


def _add(options: ort.SessionOptions, provider: Provider, device: Device) -> None:
    if not provider.module:
        options.add_provider(provider.name, dict(provider.options))
        return
    index = 0 if provider is PLUGIN else int(device.name.partition(":")[2] or 0)
    options.add_provider_for_devices([_offered(provider, device.name)[index].handle], dict(provider.options))


def _offered(provider: Provider, name: str) -> list[ProviderDevice]:
    """What a plug-in runs on here, its library registered. Raises DeviceError when it cannot be loaded."""
    if provider is not PLUGIN:
        return plugins.devices(Library(provider=provider.name, package=provider.module, install=provider.install))
    library_name = name.removeprefix(PREFIX)
    announced = {library.entry.name: library for library in plugins.libraries() if library.entry is not None}
    return plugins.devices(announced.get(library_name) or _library_at(library_name))


def _library_at(path: str) -> Library:
    """A library by its path; its provider's name is found by loading it. Raises DeviceError."""
    path = os.path.abspath(path)  # noqa: PTH100 - ONNX Runtime tells it as it was given, links and all
    if names := _names_at(path):
        return Library(provider=names[0], path=path)
    trial = Library(provider=f"{PREFIX}{path}", path=path)
    plugins.register(trial)
    names = _names_at(path)
    if not names or names[0] == trial.provider:  # some take the name that they are registered under (QNN 2.7.0)
        return trial
    with plugins.quiet():
        ort.unregister_execution_provider_library(trial.provider)
    return Library(provider=names[0], path=path)


def _names_at(path: str) -> list[str]:
    """The providers that a library brought."""
    with plugins.quiet():
        return [one.ep_name for one in ort.get_ep_devices() if one.ep_metadata.get("library_path") == path]


def _fixed(path: Path) -> bytes:
    with needs("onnx", "execution providers of other makers"):
        from embedllm.backends.ort.default_inputs import without_defaults

    return without_defaults(path)

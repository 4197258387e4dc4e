"""An execution provider of ONNX Runtime as data: how it comes, what it runs and how far it is tested.

One that keeps KV in its own memory has an engine of its own (backends/gpu); all others run in the one that keeps KV in
the host's memory (backends/ort/engine.py), which is correct with any provider, and not fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from embedllm.backends.base import Device, Unsupported
from embedllm.backends.driver import Capabilities, Source, absent_device
from embedllm.backends.system.ort_builds import builds, conflict
from embedllm.package.graph_variants import FLOAT16, FLOAT32, GPU_FLOAT32

GROUP = "embedllm.providers"  # entry points of other packages: NAME = a function that returns its library's path
SWAP_BUILDS = "pip uninstall onnxruntime, then "  # a build takes the place of the CPU's: docs/devices.md#conflicts
INSTALL = "pip install onnxruntime"
_EVERYWHERE = frozenset({"linux", "win32", "darwin"})
# without which a provider would be there for show; engines of their own ask for more
_PRODUCTS = frozenset({"MatMul", "MatMulNBits"})
_SYSTEMS = {"linux": "Linux", "win32": "Windows", "darwin": "macOS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One execution provider."""

    device: str  # its name in this library
    name: str  # and in ONNX Runtime
    module: str = ""  # the Python package whose plug-in library brings it; empty: it is part of a build of ONNX Runtime
    variants: tuple[str, ...]  # of the graphs that it may run, best first
    exact: tuple[str, ...] = ()  # those of them that compute in float32 throughout
    hardware: str  # "CPU", "GPU" or "NPU"
    platforms: frozenset[str] = _EVERYWHERE  # as sys.platform says them
    install: str  # what brings it
    options: Mapping[str, str] = field(default_factory=dict)
    runs: frozenset[str] = _PRODUCTS  # operators of which none may be left to the CPU
    takes_defaults: bool = True  # False: an input with a default has to be a constant of the graph
    probed: bool = True  # a tiny model has to run and be right on it before it is used
    tested: str  # what was run on it

    def capabilities(self) -> Capabilities:
        """What its row says; backends add what their engines can do."""
        return Capabilities(
            variants=self.variants,
            exact=self.exact,
            is_gpu=self.hardware == "GPU",
            probed=self.probed,
            tested=self.tested,
        )

    def version(self, device: Device) -> str:
        """Of a plug-in: its distribution's version, or its file's size and date."""
        from importlib import metadata

        if not self.module:
            return ""
        path = Path(device.name.partition(":")[2])
        if not self.name and path.is_file():
            return f"{path.stat().st_size} {path.stat().st_mtime_ns}"
        try:
            return metadata.version(self.module.replace("_", "-"))
        except metadata.PackageNotFoundError:
            return ""


# a provider that has no row: "plugin:/path/to/library", or "plugin:NAME" of an entry point
PLUGIN = Provider(
    device="plugin",
    name="",  # the library says it
    module="a library",
    variants=(FLOAT16.name, GPU_FLOAT32.name, FLOAT32.name),
    hardware="GPU",
    install="give the path of its library: plugin:/path/to/library",
    takes_defaults=False,  # nobody knows
    tested="OpenVINO's plug-in, by its path",
)


def source(provider: Provider, devices: Callable[[], list[Device]]) -> Source:
    """What one provider offers; devices: lists them where the provider is there."""
    return Source((provider.device,), partial(_devices_of, provider, devices))


def _devices_of(provider: Provider, devices: Callable[[], list[Device]]) -> list[Device]:
    if unsupported := _unsupported(provider):
        return [absent_device(provider.device, runtime_name(), *unsupported)]
    return devices()


def _unsupported(provider: Provider) -> Unsupported | None:
    """Why a provider is not here, as far as that can be told without asking it."""
    if sys.platform not in provider.platforms and sys.platform in _SYSTEMS:
        systems = " and ".join(_SYSTEMS[name] for name in sorted(provider.platforms))
        return Unsupported(f"it is for {systems} only")
    if provider.module and find_spec(provider.module) is None:
        return Unsupported(f"the package {provider.module} is not installed", provider.install)
    if unsupported := runtime_unsupported():
        return unsupported
    if not provider.module:
        from embedllm.backends.ort.runtime import ort

        if provider.name not in ort.get_available_providers():
            name = provider.name.removesuffix("ExecutionProvider")
            return Unsupported(f"this build of ONNX Runtime has no {name} provider", provider.install)
    return None


def runtime_unsupported() -> Unsupported | None:
    """Why ONNX Runtime cannot be used; asked before it is imported."""
    if trouble := conflict(builds()):
        return Unsupported(*trouble)
    try:
        from embedllm.backends.ort import engine as ort  # noqa: F401 - whether it can be
    except ImportError as error:
        return Unsupported(f"ONNX Runtime cannot be imported ({error})", INSTALL)
    return None


def runtime_name() -> str:
    """ONNX Runtime and its version, without importing it."""
    return next((f"onnxruntime {build.version}" for build in builds()), "onnxruntime")

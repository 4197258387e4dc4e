"""The device "genai": onnxruntime-genai, for folders that it alone knows how to feed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedllm.backends.base import Unsupported
from embedllm.backends.driver import Capabilities, DeviceFamily, Driver, Source, absent_device
from embedllm.backends.ort.providers import runtime_unsupported
from embedllm.package.graph_variants import GENAI

if TYPE_CHECKING:
    from embedllm.backends.base import Device, Engine, OpenOptions

_NAME, _BACKEND = "genai", "onnxruntime-genai"
_INSTALL = "pip install embedllm[genai]"


def _devices() -> list[Device]:
    if unsupported := runtime_unsupported():
        return [absent_device(_NAME, _BACKEND, *unsupported)]
    try:
        from embedllm.backends.genai import engine
    except ImportError as error:
        return [absent_device(_NAME, _BACKEND, f"onnxruntime-genai cannot be imported ({error})", _INSTALL)]
    return engine.devices()


def _open(options: OpenOptions) -> Engine:
    from embedllm.backends.genai.engine import GenaiEngine

    return GenaiEngine(options.package, options.require_graph(), options.device, options.runtime)


def _unsupported_request(exact: bool) -> Unsupported | None:
    return Unsupported("onnxruntime-genai cannot be told to round nothing", "load it without exact") if exact else None


DRIVER = Driver(
    families=(
        DeviceFamily(
            name=_NAME,
            open=_open,
            capabilities=Capabilities(
                external_graphs=(GENAI,), moves_kv=False, tested="Linux x86-64 on the CPU, in every change"
            ),
            unsupported_request=_unsupported_request,
        ),
    ),
    sources=(Source((_NAME,), _devices),),
)

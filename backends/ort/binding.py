"""What all runs of a decoder's graph are bound to: the KV, and an adapter's factors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedllm.backends.lora import factors
from embedllm.backends.ort.runtime import ort

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.base import Cached
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.lora.adapter import Adapter


def bind_kv(binding: ort.IOBinding, kv: dict[str, NDArray[Cached]]) -> None:
    """Past and present are the same buffers: a step appends in place."""
    for name, array in kv.items():
        value = ort.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_input(f"past_key_values.{name}", value)
        binding.bind_ortvalue_output(f"present.{name}", value)


def bind_adapter(binding: ort.IOBinding, decoder: Decoder, adapter: Adapter | None) -> None:
    """The inputs of a graph with room for an adapter."""
    for name, values in factors(decoder, adapter):
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(values))

"""Where a low-rank adapter joins a graph, for ONNX and OpenVINO alike: the products, and inputs for its factors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import PackageError
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe
from embedllm.package.architecture.weights import Linear
from embedllm.package.lora.adapter import Adapter
from embedllm.package.tensors import linears, mixer_products

if TYPE_CHECKING:
    from embedllm.types import F32


def products(decoder: Decoder) -> Iterator[tuple[str, Sequence[Linear]]]:
    """Of every product in the layers: the value that it gives, and its matrices, whose outputs lie side by side."""
    for index, layer in enumerate(decoder.layers):
        mixer, mlp = layer.attention, layer.mlp
        yield from ((f"layers.{index}.{name}", parts) for name, parts in mixer_products(mixer))
        yield f"layers.{index}.o", (mixer.o,)
        if layer.ssm is not None:
            yield from ((f"layers.{index}.ssm.{name}", parts) for name, parts in mixer_products(layer.ssm))
            yield f"layers.{index}.ssm.o", (layer.ssm.o,)
        if isinstance(mlp, Moe):
            raise PackageError("adapters at run time are not for mixtures of experts. Merge one: export --lora.")
        parts = () if mlp is None else (("gate", mlp.gate), ("up", mlp.up), ("down", mlp.down))
        yield from ((f"layers.{index}.{part}", (linear,)) for part, linear in parts if linear is not None)
        if layer.laurel is not None:
            yield f"layers.{index}.laurel.down", (layer.laurel.down,)
            yield f"layers.{index}.laurel.up", (layer.laurel.up,)
        if layer.per_layer_input is not None:
            yield f"layers.{index}.per_layer_input.gate", (layer.per_layer_input.gate,)
            yield f"layers.{index}.per_layer_input.up", (layer.per_layer_input.up,)


def input_names(linear: Linear) -> tuple[str, str]:
    """Of the inputs that take a matrix's factors."""
    return f"{linear.name}.lora_a", f"{linear.name}.lora_b"


def factors(decoder: Decoder, adapter: Adapter | None) -> Iterator[tuple[str, F32]]:
    """What every such input takes: of rank 0, which adds nothing, where the adapter has nothing for a matrix."""
    by_matrix = {} if adapter is None else adapter.factors
    for linear in (linear for layer in decoder.layers for linear in linears(layer)):
        none = np.empty((linear.columns, 0), np.float32), np.empty((0, linear.rows), np.float32)
        yield from zip(input_names(linear), by_matrix.get(linear.name, none), strict=True)

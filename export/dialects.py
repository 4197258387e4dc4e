"""What differs between the graphs of one model: a row per flavour, read by onnx_graph.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One flavour of graph: which operators with which attributes, in which types."""

    name: str
    file: str
    activations: str  # "float32" or "float16": activations and KV
    accuracy_level: int  # of MatMulNBits: 0 float, 4 lets activations be rounded to int8 (docs/numerics.md)
    norm_in_attention: bool  # GroupQueryAttention applies the q and k norms itself (CUDA, WebGPU; not the CPU)
    bias_in_matmul: bool  # MatMulNBits adds the bias itself


FLOAT32 = Dialect(
    name="generic-float32",
    file="model.onnx",
    activations="float32",
    accuracy_level=4,
    norm_in_attention=False,
    bias_in_matmul=True,
)
FLOAT16 = Dialect(
    name="generic-float16",
    file="model.fp16.onnx",
    activations="float16",
    accuracy_level=0,
    norm_in_attention=True,
    bias_in_matmul=False,
)

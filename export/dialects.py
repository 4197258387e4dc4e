"""What differs between the graphs of one model: a row per flavour, read by onnx_graph.py."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One flavour of graph: which operators with which attributes, in which types."""

    name: str
    file: str
    activations: str  # "float32" or "float16": activations and KV
    accuracy_level: int  # of MatMulNBits: 0 float, 4 lets activations be rounded to int8 (docs/numerics.md)
    float_kernels: frozenset[int]  # bits for which accuracy_level 0 is a kernel, not an unpacking at every call
    norm_in_attention: bool  # GroupQueryAttention applies the q and k norms itself (CUDA, WebGPU; not the CPU)
    bias_in_matmul: bool  # MatMulNBits adds the bias itself
    # GatherBlockQuantized looks up quantized embeddings. Else standard operators do, which any reader of ONNX has:
    # OpenVINO's takes that operator only with scales that are constants in the type of the activations
    gathers_blocks: bool

    def multiplies(self, bits: int) -> bool:
        """Whether MatMulNBits is the way to multiply by matrices of that many bits."""
        return self.accuracy_level > 0 or bits in self.float_kernels


FLOAT32 = Dialect(
    name="generic-float32",
    file="model.onnx",
    activations="float32",
    accuracy_level=4,
    float_kernels=frozenset({4}),  # 8 bits: 20 ms instead of 0.3 for a 2048 x 2048 product, ONNX Runtime 1.31
    norm_in_attention=False,
    bias_in_matmul=True,
    gathers_blocks=False,
)
FLOAT16 = Dialect(
    name="generic-float16",
    file="model.fp16.onnx",
    activations="float16",
    accuracy_level=0,
    float_kernels=frozenset({4, 8}),
    norm_in_attention=True,
    bias_in_matmul=False,
    gathers_blocks=True,
)
# for GPUs without float16 arithmetic; not FLOAT32, whose rounded activations are as rough there as on a CPU
GPU_FLOAT32 = replace(FLOAT16, name="gpu-float32", file="model.fp32.onnx", activations="float32")
DIALECTS = (FLOAT32, FLOAT16, GPU_FLOAT32)  # in the order of an export and its manifest
OPENVINO = "openvino"  # the dialect of the OpenVINO model, whose operators need no table
# its layers, by the index of the decoder's: where a session cuts to the positions whose logits are wanted
OPENVINO_CONTEXT = "layers.{}.context"  # what attention saw, [B, T, heads * D]
OPENVINO_SUM = "layers.{}.sum"  # adds the projection of that to its first input, the residual

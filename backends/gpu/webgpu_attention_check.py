"""How many tokens WebGPU's attention may be given at once: asked of the provider itself, with known numbers.

From 32 tokens on it takes a kernel whose sums begin at zero in each turn of a loop, by the rules of WGSL. In the SPIR-V
that onnxruntime-ep-webgpu 0.4.0 makes of it for Vulkan they begin at zero once: a variable's initial value is given
where it is declared, with no store in the loop. So every turn after the first is wrong, on any Vulkan driver. Direct3D
and Metal get other code. docs/webgpu.md has how this was found; tests/backends/gpu/test_webgpu.py tells when it is
over.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from embedllm.backends.ort.runtime import ort
from embedllm.files.optional_packages import needs

SAFE = 31  # tokens that the other kernel takes
_TOKENS, _SIZE = 40, 16  # more tokens than one turn of the loop has, on any GPU; and the head size
_TOLERANCE = 1e-3  # right: 4e-7; wrong: 0.19


def attends_to_many(attach: Callable[[ort.SessionOptions], None]) -> bool:
    """Whether attention over more than SAFE tokens at once is right.

    attach: gives a session the provider.
    """
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, _TOKENS, _SIZE), np.float32) for _ in range(3))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    attach(options)
    session = ort.InferenceSession(_graph(), options, enable_fallback=0)
    none = np.zeros((1, 1, 0, _SIZE), np.float32)
    lengths = {"seqlens_k": np.array([_TOKENS - 1], np.int32), "total": np.array(_TOKENS, np.int32)}
    inputs = {"q": q, "k": k, "v": v, "past_key": none, "past_value": none, **lengths}
    context = np.asarray(session.run(["context"], inputs)[0])
    return bool(np.abs(context[0] - _attention(q[0], k[0], v[0])).max() < _TOLERANCE)


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """[T, D] each, causal."""
    scores = np.where(np.tri(len(q), dtype=bool), q @ k.T / _SIZE**0.5, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v


def _graph() -> bytes:
    """One GroupQueryAttention of one head, as ONNX."""
    with needs("onnx", "WebGPU"):
        from onnx import TensorProto, helper

    names = {"q": _TOKENS, "k": _TOKENS, "v": _TOKENS}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size, _SIZE]) for name, size in names.items()]
    inputs += [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, "past", _SIZE])
        for name in ("past_key", "past_value")
    ]
    inputs.append(helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, [1]))
    inputs.append(helper.make_tensor_value_info("total", TensorProto.INT32, []))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("context", "key", "value")]
    node = helper.make_node(
        "GroupQueryAttention",
        [value.name for value in inputs],
        [value.name for value in outputs],
        domain="com.microsoft",
        num_heads=1,
        kv_num_heads=1,
    )
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    return helper.make_model(graph, opset_imports=domains, ir_version=10).SerializeToString()

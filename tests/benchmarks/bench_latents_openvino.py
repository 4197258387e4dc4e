"""Attention of OpenVINO over the KV of one KV head, as latents of MLA have it, beside whole keys and values.

    python tests/benchmarks/bench_latents_openvino.py [--tokens 2048]

16 heads, as in DeepSeek-V2-Lite: keys and values of 192 for each; and keys of 576 and values of 512 of one KV head,
which the operator shares itself: nothing repeats them for every head before it. Milliseconds of CPU time, one thread:
the median of 9 steps, and the last 512 tokens of a prompt. Steps are compared with NumPy's.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import PartialShape, Type, opset13

HEADS, PIECE, STEPS = 16, 512, 9
SCALE = 0.07
_OPTIONS = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


class Case(NamedTuple):
    name: str
    kv_heads: int
    key_size: int
    value_size: int


CASES = (
    Case("whole keys and values", HEADS, 192, 192),
    Case("latents, one KV head", 1, 576, 512),
)


def model(case: Case) -> ov.Model:
    q = opset13.parameter([-1, HEADS, -1, case.key_size], np.float32, name="q")
    beams = opset13.parameter([-1], np.int32, name="beam_idx")
    mask = opset13.parameter([-1, 1, -1, -1], np.float32, name="mask")
    batch = opset13.gather(opset13.shape_of(q), opset13.constant([0]), opset13.constant(0))
    new, known, sinks = [], [], []
    for part, size in (("key", case.key_size), ("value", case.value_size)):
        new.append(opset13.parameter([-1, case.kv_heads, -1, size], np.float32, name=part))
        info = ov.op.util.VariableInfo()
        info.data_shape, info.data_type = PartialShape([-1, case.kv_heads, -1, size]), Type.f32
        info.variable_id = f"past_key_values.0.{part}present.0.{part}"
        variable = ov.op.util.Variable(info)
        shape = opset13.concat([batch, opset13.constant(np.array([case.kv_heads, 0, size]))], 0)
        held = ov.opset6.read_value(opset13.broadcast(opset13.constant(np.float32(0)), shape), variable)
        every = opset13.concat([opset13.gather(held, beams, opset13.constant(0)), new[-1]], 2)
        sinks.append(ov.opset6.assign(every, variable))
        known.append(every)
    scale = opset13.constant(np.float32(SCALE))
    found = opset13.scaled_dot_product_attention(q, *known, mask, scale, causal=False)
    results, inputs = [opset13.result(found)], [q, *new, beams, mask]
    return ov.Model(results, sinks, inputs)  # pyright: ignore[reportGeneralTypeIssues]  # their stubs


def expected(q: NDArray[np.float32], keys: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of one token."""
    scores = q @ keys.transpose(0, 1, 3, 2) * np.float32(SCALE)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ values


def measure(case: Case, tokens: int) -> None:
    random = np.random.default_rng(0)
    compiled = ov.Core().compile_model(model(case), "CPU", _OPTIONS)
    request, held, times = compiled.create_infer_request(), [], []
    position, worst = 0, 0.0
    for count in [PIECE] * (tokens // PIECE) + [1] * STEPS:
        sizes = (HEADS, case.key_size), (case.kv_heads, case.key_size), (case.kv_heads, case.value_size)
        q, key, value = (random.standard_normal((1, heads, count, size), dtype=np.float32) for heads, size in sizes)
        position += count
        held.append((key, value))
        feeds = {"q": q, "key": key, "value": value, "beam_idx": np.zeros(1, np.int32),
                 "mask": np.zeros((1, 1, count, position), np.float32)}  # fmt: skip
        started = time.process_time()
        request.infer(feeds)
        times.append((time.process_time() - started) * 1e3)
        if count == 1:
            keys, values = (np.concatenate(parts, axis=2) for parts in zip(*held, strict=True))
            difference = request.get_output_tensor().data - expected(q, keys, values)
            worst = max(worst, float(np.abs(difference).max()))
    kinds = {str(node.get_rt_info()["layerType"].value) for node in compiled.get_runtime_model().get_ops()}
    print(f"{case.name}: step {np.median(times[-STEPS:]):.2f} ms, last piece {times[-STEPS - 1]:.0f} ms, worst "
          f"difference {worst:.1e}, fused: {'ScaledDotProductAttention' in kinds}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    options = parser.parse_args()
    print(f"OpenVINO {ov.__version__}, {options.tokens} tokens")
    for case in CASES:
        measure(case, options.tokens)


if __name__ == "__main__":
    main()

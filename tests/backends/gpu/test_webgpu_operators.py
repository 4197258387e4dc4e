"""Operators of recurrent layers on WebGPU, each beside the same in NumPy.

On a GPU, or on a software one: .ci/lavapipe.sh pytest -m webgpu tests/backends/gpu/test_webgpu_operators.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from embedllm.backends.base import Device
from embedllm.backends.ort.runtime import left_to_the_cpu, recording_options
from embedllm.export import Recipe, convert
from embedllm.package.package import open_package
from tests.support.tiny_recurrent import tiny_qwen3_5

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnxruntime import InferenceSession

    Array = NDArray[np.floating]

pytestmark = pytest.mark.webgpu

CLOSE = {"float32": 2e-6, "float16": 4e-3}  # of the largest number; measured on lavapipe: 4.2e-7, 9e-4
SIZES = [(1, 2, 16, 24), (2, 4, 128, 128), (1, 4, 256, 64)]  # heads of keys and of values, sizes of a key and a value


def run(operator: str, given: Mapping[str, Array], outputs: Sequence[str], **attributes: str | float) -> list[Array]:
    """One node, with nothing of it on the CPU."""
    from onnx import helper

    node = helper.make_node(operator, list(given), list(outputs), operator, domain="com.microsoft")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values.dtype), values.shape)
              for name, values in given.items()]  # fmt: skip
    kind = next(iter(given.values())).dtype
    results = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind), None) for name in outputs]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "one", inputs, results), opset_imports=opsets, ir_version=10)
    session = webgpu_session(model.SerializeToString())
    assert not left_to_the_cpu(session, {operator})
    return [np.asarray(each) for each in session.run(None, dict(given))]


def webgpu_session(model: str | bytes) -> InferenceSession:
    from embedllm.backends.gpu import webgpu

    return webgpu.start(model, recording_options())


def linear_attention(
    given: Mapping[str, Array], heads: tuple[int, int], scale: float, *, corrects: bool
) -> tuple[Array, Array]:
    """The recurrence as its papers have it, in float64, token by token. corrects: the delta rule."""
    keys, values = heads
    q, k, v, past, decay, beta = (np.asarray(each, np.float64) for each in (*given.values(), *[1.0] * (not corrects)))
    tokens = q.shape[1]
    q, k = (np.repeat(each.reshape(tokens, keys, -1), values // keys, axis=1) for each in (q, k))
    v, state = v.reshape(tokens, values, -1), past[0].copy()
    found = np.empty_like(v)
    for token in range(tokens):
        state *= np.exp(decay[0, token])[:, None, None]
        new = v[token]
        if corrects:
            new = beta[0, token][:, None] * (new - np.einsum("hk,hkv->hv", k[token], state))
        state += np.einsum("hk,hv->hkv", k[token], new)
        found[token] = scale * np.einsum("hk,hkv->hv", q[token], state)
    return found.reshape(1, tokens, -1), state[None]


def check(found: Sequence[Array], expected: Sequence[Array], dtype: str) -> None:
    for ours, exact in zip(found, expected, strict=True):
        assert np.abs(ours - exact).max() <= CLOSE[dtype] * np.abs(exact).max()


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("tokens", [1, 33])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("rule", ["gated_delta", "gated"])
def test_linear_attention_is_the_recurrence(
    rule: str, sizes: tuple[int, int, int, int], tokens: int, dtype: str, device: Device
) -> None:
    """Gated DeltaNet's, and Mamba-2's without a correction."""
    keys, values, key_dim, value_dim = sizes
    random, scale = np.random.default_rng(5), key_dim**-0.5
    q, k = random.standard_normal((2, 1, tokens, keys, key_dim))
    q, k = (each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (q, k))
    numbers = {
        "q": q.reshape(1, tokens, -1),
        "k": k.reshape(1, tokens, -1),
        "v": random.standard_normal((1, tokens, values * value_dim)),
        "past": random.standard_normal((1, values, key_dim, value_dim)),
        "decay": -random.random((1, tokens, values)),
        "beta": random.random((1, tokens, values)),
    }
    corrects = rule == "gated_delta"
    given = {name: each.astype(dtype) for name, each in numbers.items() if corrects or name != "beta"}
    expected = linear_attention(given, (keys, values), scale, corrects=corrects)
    found = run("LinearAttention", given, ["found", "present"], q_num_heads=keys, kv_num_heads=values,
                scale=scale, update_rule=rule)  # fmt: skip
    check(found, expected, dtype)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("tokens", [1, 2, 33])
@pytest.mark.parametrize(("kernel", "activation"), [(3, "none"), (4, "silu")])
def test_convolutions_over_earlier_tokens_are_their_sums(
    kernel: int, activation: str, tokens: int, dtype: str, device: Device
) -> None:
    random, channels = np.random.default_rng(6), 80
    shapes = {"x": (1, tokens, channels), "weight": (channels, 1, kernel), "bias": (channels,),
              "past": (1, kernel - 1, channels)}  # fmt: skip
    given = {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    x, weight, bias, past = (np.asarray(each, np.float64) for each in given.values())
    seen = np.concatenate([past, x], axis=1)
    sums = bias + sum(seen[:, at : at + tokens] * weight[:, 0, at] for at in range(kernel))
    expected = [sums / (1 + np.exp(-sums)) if activation == "silu" else sums, seen[:, -(kernel - 1) :]]
    found = run("CausalConvWithState", given, ["found", "present"], channels_last=1, activation=activation)
    check(found, expected, dtype)


def test_the_delta_rule_as_one_operator_is_still_missing(device: Device, tmp_path: Path) -> None:
    """When this fails, WebGPU's graphs can have its norms and gates in one kernel (export/onnx/recurrent.py)."""
    package = open_package(convert(tiny_qwen3_5(tmp_path / "checkpoint"), tmp_path / "package", Recipe()))
    graph = package.graph("generic-float16")
    assert graph is not None
    session = webgpu_session(str(package.folder / graph.file))
    assert left_to_the_cpu(session, {"GatedDeltaNet"}) == ["GatedDeltaNet"]


def test_states_behind_each_token_are_still_missing(device: Device) -> None:
    """When this fails, a rejected guess need not be fed again: docs/concepts.md#recurrent-models."""
    x = np.ones((1, 4, 8), np.float32)
    given = {"x": x, "weight": np.ones((8, 1, 4), np.float32), "bias": x[0, 0], "past": x[:, :3]}
    with pytest.raises(Exception, match=r"does not support state_window > 0"):
        run("CausalConvWithState", given, ["found", "present"], channels_last=1, state_window=2)

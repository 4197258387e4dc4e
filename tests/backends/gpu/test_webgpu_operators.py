"""Operators of recurrent layers on WebGPU, and attention of several sequences, each beside the same in NumPy.

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
    """The recurrence as its papers have it, of one sequence, in float64, token by token. corrects: the delta rule."""
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


@pytest.mark.parametrize("dtype", CLOSE)
def test_states_of_several_sequences_are_each_ones_own(dtype: str, device: Device) -> None:
    """A step of three, which batches rely on (backends/gpu/webgpu_batch.py)."""
    random, (keys, values, key_dim, value_dim), rows = np.random.default_rng(7), SIZES[1], 3
    q, k = random.standard_normal((2, rows, 1, keys, key_dim)) * key_dim**-0.5
    given = {
        "q": q.reshape(rows, 1, -1),
        "k": k.reshape(rows, 1, -1),
        "v": random.standard_normal((rows, 1, values * value_dim)),
        "past": random.standard_normal((rows, values, key_dim, value_dim)),
        "decay": -random.random((rows, 1, values)),
        "beta": random.random((rows, 1, values)),
    }
    given = {name: each.astype(dtype) for name, each in given.items()}
    each = [linear_attention({name: part[row : row + 1] for name, part in given.items()}, (keys, values), 1.0,
                             corrects=True) for row in range(rows)]  # fmt: skip
    found = run("LinearAttention", given, ["found", "present"], q_num_heads=keys, kv_num_heads=values, scale=1.0,
                update_rule="gated_delta")  # fmt: skip
    check(found, [np.concatenate(parts) for parts in zip(*each, strict=True)], dtype)

    channels, kernel = 80, 4
    shapes = {"x": (rows, 1, channels), "weight": (channels, 1, kernel), "bias": (channels,),
              "past": (rows, kernel - 1, channels)}  # fmt: skip
    given = {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    x, weight, bias, past = (np.asarray(each, np.float64) for each in given.values())
    seen = np.concatenate([past, x], axis=1)
    sums = bias + np.einsum("rtc,ct->rc", seen, weight[:, 0])[:, None]
    found = run("CausalConvWithState", given, ["found", "present"], channels_last=1, activation="none")
    check(found, [sums, seen[:, 1:]], dtype)


# heads: of queries, of keys and values, and their size, whose shaders take a software GPU ten seconds to compile
@pytest.mark.parametrize(
    ("heads", "rotates", "dtype"),
    [((4, 2, 16), False, "float32"), ((4, 2, 16), True, "float32"), ((6, 1, 256), True, "float16")],
)
def test_attention_of_sequences_of_different_lengths_is_each_ones_own(
    heads: tuple[int, int, int], rotates: bool, dtype: str, device: Device
) -> None:
    """A step of three over room for 512 tokens, told as the length, as batches have it."""
    (queries, pairs, size), lengths, room = heads, [300, 2, 90], 512
    random, rows = np.random.default_rng(8), len(lengths)
    shapes = {"q": (rows, 1, queries * size), "k": (rows, 1, pairs * size), "v": (rows, 1, pairs * size),
              "past_k": (rows, pairs, room, size), "past_v": (rows, pairs, room, size)}  # fmt: skip
    given = {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    q, k, v, *past = (np.asarray(each, np.float64) for each in given.values())
    given["lengths"], given["total"] = np.array(lengths, np.int32), np.array([room], np.int32)
    angles = np.arange(room)[:, None] / 10 ** np.linspace(0, 3, size // 2)
    tables = [np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)]
    if rotates:
        given |= dict(zip(("cos", "sin"), tables, strict=True))

    def rotated(x: Array, place: int) -> Array:
        (cos, sin), (left, right) = (table[place].astype(np.float64) for table in tables), np.split(x, 2, axis=-1)
        both = np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
        return both if rotates else x

    expected = np.empty((rows, 1, queries * size))
    for row, place in enumerate(lengths):
        past[0][row, :, place] = rotated(k[row].reshape(pairs, size), place)
        past[1][row, :, place] = v[row].reshape(pairs, size)
        keys, values = (np.repeat(each[row, :, : place + 1], queries // pairs, axis=0) for each in past)
        scores = np.einsum("hd,htd->ht", rotated(q[row].reshape(queries, size), place), keys) * size**-0.5
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        expected[row, 0] = np.einsum("ht,htd->hd", weights, values).reshape(-1)
    found = run("GroupQueryAttention", given, ["found", "present_k", "present_v"], num_heads=queries,
                kv_num_heads=pairs, do_rotary=int(rotates))  # fmt: skip
    check(found[:1], [expected], dtype)
    for ours, exact in zip(found[1:], past, strict=True):
        for row, place in enumerate(lengths):
            check([ours[row, :, : place + 1]], [exact[row, :, : place + 1]], dtype)


def experts(dtype: str, tokens: int, columns: int) -> list[float]:
    """Errors of captured QMoE, 2 of 6 experts of 4 bits, by the spread of what is exact; of four runs, which differ."""
    from onnx import helper, numpy_helper

    from embedllm.backends.gpu import webgpu
    from embedllm.backends.ort.runtime import ort

    random, count, used, inner = np.random.default_rng(9), 6, 2, 64
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def packed(rows: int, size: int) -> tuple[NDArray[np.integer], Array, Array]:
        """As stored, the scales of groups of 32, and what these stand for."""
        numbers = random.integers(0, 16, (count, rows, size)).astype(np.uint8)
        scales = (0.02 * random.random((count, rows, size // 32)) + 0.01).astype(dtype)
        weights = (numbers.astype(np.float64) - 8) * np.repeat(scales.astype(np.float64), 32, axis=2)
        return numbers[..., ::2] | numbers[..., 1::2] << 4, scales, weights

    (up, up_scale, ups), (down, down_scale, downs) = packed(2 * inner, columns), packed(columns, inner)
    node = helper.make_node("QMoE", ["x", "router", "up", "up_scale", "", "down", "down_scale"], ["out"],
                            domain="com.microsoft", k=used, activation_type="swiglu", swiglu_fusion=1,
                            activation_alpha=1.0, activation_beta=0.0, expert_weight_bits=4, block_size=32,
                            normalize_routing_weights=1)  # fmt: skip
    stored = {"up": up, "up_scale": up_scale, "down": down, "down_scale": down_scale}
    shapes = {"x": (tokens, columns), "router": (tokens, count)}
    graph = helper.make_graph(
        [node], "experts", [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("out", kind, shapes["x"])],
        [numpy_helper.from_array(values, name) for name, values in stored.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    options = recording_options()
    options.enable_mem_pattern = False
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = webgpu.start(model, options, {"enableGraphCapture": "1"})
    assert not left_to_the_cpu(session, {"QMoE"})
    binding, replay, errors = session.io_binding(), ort.RunOptions(), []
    replay.add_run_config_entry("gpu_graph_id", "1")
    values = {name: webgpu.put(np.zeros(shape, dtype)) for name, shape in (shapes | {"out": shapes["x"]}).items()}
    for name in shapes:
        binding.bind_ortvalue_input(name, values[name])
    binding.bind_ortvalue_output("out", values["out"])
    for _ in range(4):
        x, router = (random.standard_normal(shape).astype(dtype) for shape in shapes.values())
        for name, given in (("x", x), ("router", router)):
            webgpu.write(values[name], given)
        session.run_with_iobinding(binding, replay)
        exact = np.zeros(x.shape)
        for token, (row, logits) in enumerate(zip(x.astype(np.float64), router.astype(np.float64), strict=True)):
            chosen = np.argsort(-logits)[:used]
            shares = np.exp(logits[chosen]) / np.exp(logits[chosen]).sum()
            for expert, share in zip(chosen, shares, strict=True):
                gate, linear = (ups[expert] @ row).reshape(-1, 2).T
                exact[token] += share * downs[expert] @ (gate / (1 + np.exp(-gate)) * linear)
        errors.append(float(np.sqrt(np.square(webgpu.get(values["out"]) - exact).mean()) / exact.std()))
    return errors


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-6), ("float16", 4e-3)])  # measured 1.9e-7, 1.3e-3
def test_experts_of_one_token_can_be_captured(dtype: str, close: float, device: Device) -> None:
    """Each run is of other experts."""
    assert max(experts(dtype, 1, 64)) < close


def test_experts_of_several_tokens_are_still_wrong_where_captured(device: Device) -> None:
    """When this fails, mixtures can step together: backends/gpu/webgpu.py."""
    assert max(experts("float32", 4, 64)) > 0.1


def test_experts_of_rows_of_128_are_still_rounded_to_8_bits(device: Device) -> None:
    """In float32 and, of many tokens, in float16, whatever accuracy_level says: docs/webgpu.md#mixtures."""
    assert 1e-3 < max(experts("float32", 1, 128)) < 0.03
    assert max(experts("float16", 1, 128)) < CLOSE["float16"]


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

"""A decoder of one layer as another exporter would trace it, with its formula: for tests without that exporter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.tiny import write_tokenizer

if TYPE_CHECKING:
    from embedllm.types import F32

VOCABULARY, HIDDEN, HEADS, SIZE, CONTEXT = 307, 64, 2, 32, 96
_FAR = -1e9


def weights(seed: int = 0) -> dict[str, F32]:
    numbers = np.random.default_rng(seed)
    shapes = {"table": (VOCABULARY, HIDDEN), "places": (CONTEXT, HIDDEN), "q": (HIDDEN, HIDDEN), "k": (HIDDEN, HIDDEN),
              "v": (HIDDEN, HIDDEN), "o": (HIDDEN, HIDDEN), "bias": (HIDDEN,)}  # fmt: skip
    made = {name: numbers.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    return made | {"head": np.ascontiguousarray(made["table"].T)}  # tied, and stored once more, as optimum does


def expected(found: dict[str, F32], tokens: list[int]) -> F32:
    """Logits behind every token, [T, V]."""
    count = len(tokens)
    x = found["table"][tokens] + found["places"][:count]
    q, k, v = (
        (x @ found[name]).reshape(count, HEADS, SIZE).transpose(1, 0, 2).astype(np.float64) for name in ("q", "k", "v")
    )
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(SIZE) + np.triu(np.full((count, count), _FAR), 1)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    seen = (shares / shares.sum(-1, keepdims=True)) @ v
    y = seen.transpose(1, 0, 2).reshape(count, HIDDEN) @ found["o"] + found["bias"] + x
    return (y @ found["head"]).astype(np.float32)


def write_checkpoint(folder: Path, **config: object) -> Path:
    """A folder with a config.json that nothing describes."""
    folder.mkdir(parents=True)
    values = {"model_type": "undescribed", "n_positions": CONTEXT, "vocab_size": VOCABULARY, "eos_token_id": 5}
    (folder / "config.json").write_text(json.dumps(values | config))
    empty = json.dumps({}).encode()
    (folder / "model.safetensors").write_bytes(len(empty).to_bytes(8, "little") + empty)
    write_tokenizer(folder, VOCABULARY)
    return folder


def write_graph(folder: Path, *, mask: str = "right", beside: bool = False) -> Path:
    """Its graph, model.onnx.

    mask: "right"; "whole": wrong for a piece of several tokens behind others; "wrong": for a single one, too.
    beside: its tensors lie in a file of their own.
    """
    nodes: list[onnx.NodeProto] = []
    constants = {"zero": 0, "one": 1, "two": 2, "three": 3, "far": np.float32(_FAR), "nought": np.float32(0),
                 "root": np.float32(np.sqrt(SIZE)), "apart": [0, 0, HEADS, SIZE], "together": [0, 0, HIDDEN],
                 "first": [0], "second": [1], "last": [-1]}  # fmt: skip
    tensors = [numpy_helper.from_array(array, name) for name, array in weights().items()]
    tensors += [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]

    def op(kind: str, inputs: list[str], output: str, **attributes: int | list[int]) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], f"/layer/{output}", None, "", None, **attributes))
        return output

    op("Add", [op("Gather", ["table", "input_ids"], "rows"), op("Gather", ["places", "position_ids"], "placed")], "x")
    for name in ("q", "k", "v"):
        op("Reshape", [op("MatMul", ["x", name], f"{name}.flat"), "apart"], f"{name}.split")
        op("Transpose", [f"{name}.split"], f"{name}.heads", perm=[0, 2, 1, 3])
    op("Concat", ["past_key_values.0.key", "k.heads"], "present.0.key", axis=2)
    op("Concat", ["past_key_values.0.value", "v.heads"], "present.0.value", axis=2)
    op("Transpose", ["present.0.key"], "turned", perm=[0, 1, 3, 2])
    op("Div", [op("MatMul", ["q.heads", "turned"], "product"), "root"], "scores")
    op("Gather", [op("Shape", ["input_ids"], "shape"), "one"], "count")
    op("Gather", [op("Shape", ["attention_mask"], "held"), "one"], "total")
    op("Unsqueeze", [op("Range", ["zero", "total", "one"], "columns"), "first"], "row")
    op("Unsqueeze", [op("Range", ["zero", "count", "one"], "relative"), "first"], "from_here")
    op("Where", [op("Equal", ["count", "one"], "alone"), "position_ids", "from_here"], "given")
    own = {"right": "position_ids", "whole": "given", "wrong": "from_here"}[mask]
    op("Unsqueeze", [own, "last"], "column")
    op("Where", [op("Greater", ["row", "column"], "later"), "far", "nought"], "mask")
    op("Unsqueeze", ["mask", "second"], "mask.heads")
    op("Softmax", [op("Add", ["scores", "mask.heads"], "masked")], "shares", axis=-1)
    op("Transpose", [op("MatMul", ["shares", "present.0.value"], "seen")], "seen.back", perm=[0, 2, 1, 3])
    op("MatMul", [op("Reshape", ["seen.back", "together"], "seen.flat"), "o"], "projected")
    op("Add", [op("Add", ["projected", "bias"], "biased"), "x"], "y")
    op("MatMul", ["y", "head"], "logits")

    def value(name: str, kind: int, *shape: str | int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    floats, whole = TensorProto.FLOAT, TensorProto.INT64
    pairs = [f"0.{part}" for part in ("key", "value")]
    inputs = [value("input_ids", whole, "batch", "tokens"), value("attention_mask", whole, "batch", "total")]
    inputs += [value("position_ids", whole, "batch", "tokens")]
    inputs += [value(f"past_key_values.{pair}", floats, "batch", HEADS, "past", SIZE) for pair in pairs]
    outputs = [value("logits", floats, "batch", "tokens", VOCABULARY)]
    outputs += [value(f"present.{pair}", floats, "batch", HEADS, "all", SIZE) for pair in pairs]
    graph = helper.make_graph(nodes, "traced", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=beside, location="model.onnx_data", size_threshold=1024)
    return path

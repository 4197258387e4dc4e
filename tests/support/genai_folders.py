"""Folders of onnxruntime-genai in several graphs, made by hand of the tiny decoder there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.utils import extract_model

from tests.support.external_folders import PAIRS, Edit
from tests.support.traced_models import CONTEXT, HEADS, HIDDEN, SIZE, VOCABULARY, weights, write_checkpoint, write_graph

PAD = 11
_INPUTS = {"input_ids": "input_ids", "attention_mask": "attention_mask", "position_ids": "position_ids",
           "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}  # fmt: skip
_OUTPUTS = {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
_DECODER = {"head_size": SIZE, "num_key_value_heads": HEADS, "num_hidden_layers": 1, "num_attention_heads": HEADS,
            "hidden_size": HIDDEN, "inputs": _INPUTS, "outputs": _OUTPUTS}  # fmt: skip


def pipeline(folder: Path, *, mask: str = "right", search: dict[str, object] | None = None, **model: object) -> Path:
    """A folder of onnxruntime-genai in three graphs: embeddings, the decoder without them and its head."""
    path = _whole(folder, mask)
    parts = {"embeddings": (["input_ids"], ["rows"]),
             "transformer": (["rows", "attention_mask", "position_ids", *_names("past_key_values")],
                             ["y", *_names("present")]),
             "lm_head": (["y"], ["logits"])}  # fmt: skip
    stages = []
    for name, (inputs, outputs) in parts.items():
        extract_model(path, folder / f"{name}.onnx", inputs, outputs)
        stages.append({name: {"filename": f"{name}.onnx", "inputs": inputs, "outputs": outputs}})
    path.unlink()
    described = {"type": "decoder-pipeline", "decoder": {**_DECODER, "pipeline": stages}}
    return _configured(folder, {**described, **model}, search)


def pictures(folder: Path) -> Path:
    """The same in a folder of a model that takes pictures: their features are added to the embeddings."""
    path = _whole(folder, "right")
    extract_model(path, folder / "embedding.onnx", ["input_ids"], ["rows"])
    extract_model(path, folder / "text.onnx", ["rows", "attention_mask", "position_ids", *_names("past_key_values")],
                  ["logits", *_names("present")])  # fmt: skip
    path.unlink()
    edit = Edit(folder / "embedding.onnx")
    edit.add_input("features", TensorProto.FLOAT, ["pictures", HIDDEN])
    edit.rename_output("rows", "of_tokens")
    edit.last("Add", ["of_tokens", edit.last("ReduceSum", ["features"], "added", keepdims=0)], "rows")
    edit.save()
    features = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["pictures", HIDDEN]) for name in ("in", "out")]
    graph = helper.make_graph([helper.make_node("Identity", ["in"], ["out"])], "vision", features[:1], features[1:])
    vision = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(vision, folder / "vision.onnx")
    inputs = {**_INPUTS, "inputs_embeds": "rows"}
    model = {
        "type": "phi3v",
        "decoder": {**_DECODER, "filename": "text.onnx", "inputs": inputs},
        "embedding": {"filename": "embedding.onnx", "inputs": {"input_ids": "input_ids", "image_features": "features"},
                      "outputs": {"inputs_embeds": "rows"}},
        "vision": {"filename": "vision.onnx", "inputs": {"pixel_values": "in"}, "outputs": {"image_features": "out"}},
    }  # fmt: skip
    return _configured(folder, model, None)


def combined(folder: Path) -> Path:
    """One graph, which keeps keys and values in one tensor."""
    write_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    edit = Edit(write_graph(folder))
    edit.constant("own.axis", [0])
    for at, (past, present) in enumerate(zip(_names("past_key_values"), _names("present"), strict=True)):
        edit.drop_input(past)
        edit.first("Gather", ["past_0", edit.constant(f"own.{at}", at)], past, axis=0)
        edit.last("Unsqueeze", [present, "own.axis"], f"own.{present}")
        edit.graph.output.remove(next(one for one in edit.graph.output if one.name == present))
    edit.last("Concat", [f"own.{name}" for name in _names("present")], "present_0", axis=0)
    shape = [2, "batch", HEADS, "any", SIZE]
    edit.add_input("past_0", TensorProto.FLOAT, shape)
    edit.graph.output.append(helper.make_tensor_value_info("present_0", TensorProto.FLOAT, shape))
    edit.save()
    tokens = {name: name for name in ("input_ids", "attention_mask", "position_ids")}
    inputs, outputs = {**tokens, "past_names": "past_%d"}, {"logits": "logits", "present_names": "present_%d"}
    decoder = {**_DECODER, "filename": "model.onnx", "inputs": inputs, "outputs": outputs}
    return _configured(folder, {"type": "gpt2", "decoder": decoder}, None)


def _whole(folder: Path, mask: str) -> Path:
    """The one graph that the others are cut out of: it counts tokens by their embeddings."""
    write_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    path = write_graph(folder, mask=mask)
    edit = Edit(path)
    for node in edit.graph.node:
        if node.op_type == "Shape" and node.input[0] == "input_ids":
            node.input[0] = "rows"
    for name in ("rows", "y"):
        shape = ["batch", "tokens", HIDDEN]
        edit.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    edit.save()
    return path


def _names(kind: str) -> list[str]:
    return [f"{kind}.{pair}" for pair in PAIRS]


def _configured(folder: Path, model: dict[str, object], search: dict[str, object] | None) -> Path:
    described = {"context_length": CONTEXT, "vocab_size": VOCABULARY, "eos_token_id": [7, 9], "pad_token_id": PAD}
    config = {"model": {**described, **model}, "search": search or {}}
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


def windowed(folder: Path, window: int, **model: object) -> Path:
    """A pipeline for devices of fixed shapes: a graph for windows of a prompt, and one for single tokens."""
    write_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    held = weights()
    kinds = {"past_sequence_length": [1, 1], "total_sequence_length": [1]}
    lengths = [helper.make_tensor_value_info(name, TensorProto.INT32, shape) for name, shape in kinds.items()]
    past, present = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, HEADS, CONTEXT, SIZE])
                      for name in _names(kind)] for kind in ("past_key_values", "present"))  # fmt: skip

    def save(name: str, nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto],
             outputs: Sequence[onnx.ValueInfoProto], *used: str) -> None:  # fmt: skip
        tensors = [numpy_helper.from_array(held[one], one) for one in used]
        tensors.append(numpy_helper.from_array(np.array([1]), "flat"))
        graph = helper.make_graph(nodes, name, inputs, outputs, tensors)
        domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=9), folder / f"{name}.onnx")

    def rows(name: str, count: int | str, size: int = HIDDEN) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, count, size])

    tokens = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "tokens"])
    lookup = helper.make_node("Gather", ["table", "input_ids"], ["rows"])
    save("embeddings", [lookup], [tokens], [rows("rows", "tokens")], "table")
    attention = ["q.out", "k.out", "v.out", *_names("past_key_values"), "last", "total_sequence_length"]
    nodes = [helper.make_node("MatMul", ["rows", name], [f"{name}.out"]) for name in ("q", "k", "v")] + [
        helper.make_node("Reshape", ["past_sequence_length", "flat"], ["last"]),
        helper.make_node("GroupQueryAttention", attention, ["seen", *_names("present")], domain="com.microsoft",
                         num_heads=HEADS, kv_num_heads=HEADS),
        helper.make_node("MatMul", ["seen", "o"], ["projected"]),
        helper.make_node("Add", ["projected", "bias"], ["biased"]),
        helper.make_node("Add", ["biased", "rows"], ["y"]),
    ]  # fmt: skip
    for name, count in (("context", window), ("iterator", 1)):
        save(name, nodes, [rows("rows", count), *lengths, *past], [rows("y", count), *present],
             "q", "k", "v", "o", "bias")  # fmt: skip
    save("lm_head", [helper.make_node("MatMul", ["y", "head"], ["logits"])], [rows("y", "tokens")],
         [rows("logits", "tokens", VOCABULARY)], "head")  # fmt: skip
    inputs, outputs = ["rows", *kinds, *_names("past_key_values")], ["y", *_names("present")]
    stages = {"embeddings": {"filename": "embeddings.onnx", "inputs": ["input_ids"], "outputs": ["rows"]},
              "context": {"filename": "context.onnx", "inputs": inputs, "outputs": outputs, "run_on_token_gen": False},
              "iterator": {"filename": "iterator.onnx", "inputs": inputs, "outputs": outputs, "run_on_prompt": False},
              "lm_head": {"filename": "lm_head.onnx", "inputs": ["y"], "outputs": ["logits"], "is_lm_head": True},
              }  # fmt: skip
    slides = {"window_size": window, "pad_value": 0, "alignment": "left", "slide_key_value_cache": False}
    named = {**_INPUTS, **{name: name for name in kinds}}
    decoder = {**_DECODER, "inputs": named, "sliding_window": {**slides, "slide_inputs": True}, "pipeline": stages}
    described = {"type": "decoder-pipeline", "decoder": decoder}
    return _configured(folder, {**described, **model}, {"past_present_share_buffer": True})

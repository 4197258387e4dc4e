"""Folders as transformers.js, optimum and onnxruntime-genai write them, made by hand of the tiny decoder there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedllm.package.package import MANIFEST, WEIGHTS, open_package
from tests.support.traced_models import CONTEXT, HEADS, HIDDEN, SIZE, VOCABULARY, write_checkpoint, write_graph

KINDS = {np.int32: TensorProto.INT32, np.float16: TensorProto.FLOAT16}
PAIRS = ("0.key", "0.value")


def transformers_js(folder: Path, *names: str, mask: str = "right", beside: bool = False) -> Path:
    """A folder with graphs in onnx/; names: of the graphs."""
    write_checkpoint(folder, max_position_embeddings=CONTEXT)
    (folder / "model.safetensors").unlink()
    (folder / "onnx").mkdir()
    for name in names or ("model.onnx",):
        write_graph(folder / "onnx", mask=mask, beside=beside).rename(folder / "onnx" / f".{name}")
    for path in (folder / "onnx").glob(".*"):
        path.rename(path.with_name(path.name[1:]))
    return folder


def stripped(package: Path, folder: Path) -> Path:
    """A package of ours as onnxruntime-genai would have it: without the manifest."""
    shutil.copytree(package, folder)
    (folder / MANIFEST).unlink()
    return folder


class Edit:
    """A graph that is written again, as another exporter would have written it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.model = onnx.load(path)
        self.graph = self.model.graph
        self._first: list[onnx.NodeProto] = []

    def save(self) -> None:
        nodes = [*self._first, *self.graph.node]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        onnx.save(self.model, self._path)

    def first(self, kind: str, inputs: Sequence[str], output: str, **attributes: int) -> str:
        self._first.append(helper.make_node(kind, inputs, [output], f"/{output}", None, "", None, **attributes))
        return output

    def last(self, kind: str, inputs: Sequence[str], output: str, **attributes: int) -> str:
        self.graph.node.append(helper.make_node(kind, inputs, [output], f"/{output}", None, "", None, **attributes))
        return output

    def constant(self, name: str, value: object) -> str:
        self.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
        return name

    def drop_input(self, name: str) -> None:
        self.graph.input.remove(next(one for one in self.graph.input if one.name == name))

    def add_input(self, name: str, kind: int, shape: Sequence[str | int]) -> str:
        self.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def rename_output(self, name: str, given: str) -> None:
        """Gives what was made under this name another one, so that something else can have it."""
        for node in self.graph.node:
            for index, output in enumerate(node.output):
                node.output[index] = given if output == name else output
            for index, source in enumerate(node.input):
                node.input[index] = given if source == name else source

    def rename_input(self, name: str, given: str) -> None:
        """Its readers read another value."""
        for node in self.graph.node:
            for index, source in enumerate(node.input):
                node.input[index] = given if source == name else source


def without_positions(path: Path) -> None:
    """They follow from the mask, as in newer graphs."""
    edit = Edit(path)
    edit.drop_input("position_ids")
    edit.constant("axis", [0])
    edit.constant("at", 1)
    count = edit.first("Gather", [edit.first("Shape", ["input_ids"], "own.shape"), "at"], "own.count")
    total = edit.first("Gather", [edit.first("Shape", ["attention_mask"], "own.held"), "at"], "own.total")
    start = edit.first("Sub", [total, count], "own.start")
    edit.first("Unsqueeze", [edit.first("Range", [start, total, "at"], "own.flat"), "axis"], "position_ids")
    edit.save()


def with_branch(path: Path) -> None:
    """As optimum's merged decoders: use_cache_branch says whether what came before is looked at."""
    edit = Edit(path)
    edit.add_input("use_cache_branch", TensorProto.BOOL, [1])
    edit.constant("none", np.float32(0))
    for pair in PAIRS:
        name = f"past_key_values.{pair}"
        edit.rename_input(name, f"seen.{pair}")
        edit.first("Where", ["use_cache_branch", name, "none"], f"seen.{pair}")
    edit.save()


def with_few_logits(path: Path, name: str = "num_logits_to_keep") -> None:
    """Those of the last `count` tokens."""
    edit = Edit(path)
    edit.add_input(name, TensorProto.INT64, [])
    edit.constant("own.axis", [1])
    edit.constant("own.zero", [0])
    edit.constant("own.end", [np.iinfo(np.int64).max])
    edit.rename_output("logits", "logits.all")
    negative = edit.last("Unsqueeze", [edit.last("Neg", [name], "own.negative"), "own.zero"], "own.from")
    edit.last("Slice", ["logits.all", negative, "own.end", "own.axis"], "logits")
    edit.save()


def with_last_logits(path: Path) -> None:
    """Those of the last token, whatever is asked."""
    edit = Edit(path)
    edit.constant("own.last", [-1])
    edit.rename_output("logits", "logits.all")
    edit.last("Gather", ["logits.all", "own.last"], "logits", axis=1)
    edit.save()


def with_narrow_masks(path: Path) -> None:
    """Tokens, mask and positions of 32 bits."""
    edit = Edit(path)
    for name in ("input_ids", "attention_mask", "position_ids"):
        edit.drop_input(name)
        edit.rename_input(name, f"wide.{name}")
        edit.add_input(name, TensorProto.INT32, ["batch", "any"])
        edit.first("Cast", [name], f"wide.{name}", to=TensorProto.INT64)
    edit.save()


def with_half_kv(path: Path) -> None:
    """Keys and values of 16 bits, as in model_fp16.onnx."""
    edit = Edit(path)
    for pair in PAIRS:
        past, present = f"past_key_values.{pair}", f"present.{pair}"
        edit.drop_input(past)
        edit.rename_input(past, f"wide.{past}")
        edit.rename_output(present, f"wide.{present}")
        edit.add_input(past, TensorProto.FLOAT16, ["batch", HEADS, "past", SIZE])
        edit.first("Cast", [past], f"wide.{past}", to=TensorProto.FLOAT)
        edit.last("Cast", [f"wide.{present}"], present, to=TensorProto.FLOAT16)
        output = next(one for one in edit.graph.output if one.name == present)
        output.type.tensor_type.elem_type = TensorProto.FLOAT16
    edit.save()


def with_angles(path: Path) -> None:
    """A product of positions, as of a rotation that is computed in the graph; of angles that change nothing."""
    edit = Edit(path)
    edit.constant("own.frequencies", np.zeros((1, HIDDEN), np.float32))
    edit.constant("own.end", [-1])
    edit.rename_output("placed", "own.plain")
    places = edit.first("Cast", ["position_ids"], "own.places", to=TensorProto.FLOAT)
    column = edit.first("Unsqueeze", [places, "own.end"], "own.column")
    angles = edit.first("MatMul", [column, "own.frequencies"], "own.angles")
    edit.first("Cos", [angles], "own.cosines")
    added = next(at for at, node in enumerate(edit.graph.node) if "own.plain" in node.input)
    edit.graph.node.insert(added, helper.make_node("Mul", ["own.plain", "own.cosines"], ["own.turned"], "/own.turned"))
    edit.graph.node[added + 1].input[1] = "own.turned"
    edit.save()


def in_float16(path: Path) -> None:
    """All of it in 16 bits, as a converter leaves it."""
    edit = Edit(path)
    least = np.finfo(np.float16).min
    for tensor in edit.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = np.maximum(numpy_helper.to_array(tensor), least).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*edit.graph.input, *edit.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    edit.save()


def genai(folder: Path, **model: object) -> Path:
    """A folder with a configuration, whose graph has names of its own."""
    write_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    path = write_graph(folder).rename(folder / "decoder.onnx")
    edit = Edit(path)
    for pair, short in zip(PAIRS, ("k", "v"), strict=True):
        past, present = f"past_key_values.{pair}", f"present.{pair}"
        given = next(one for one in edit.graph.input if one.name == past)
        given.name = f"past_{short}_0"
        edit.rename_input(past, given.name)
        output = next(one for one in edit.graph.output if one.name == present)
        output.name = f"new_{short}_0"
        edit.rename_output(present, output.name)
    edit.save()
    inputs = {"input_ids": "input_ids", "attention_mask": "attention_mask", "position_ids": "position_ids",
              "past_key_names": "past_k_%d", "past_value_names": "past_v_%d"}  # fmt: skip
    outputs = {"logits": "logits", "present_key_names": "new_k_%d", "present_value_names": "new_v_%d"}
    decoder = {"filename": path.name, "inputs": inputs, "outputs": outputs}
    described = {"type": "decoder", "context_length": CONTEXT, "vocab_size": VOCABULARY, "eos_token_id": [7, 9]}
    config = {"model": {**described, "decoder": decoder, **model},
              "search": {"do_sample": True, "temperature": 0.5, "top_k": 3, "top_p": 0.9}}  # fmt: skip
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


def optimum_intel(package: Path, folder: Path, **config: object) -> Path:
    """A package of ours as optimum-intel would have it: the stateful model alone, beside its weights."""
    folder.mkdir()
    ours = open_package(package)
    shutil.copy(package / "openvino_model.xml", folder)
    shutil.copy(package / WEIGHTS, folder / "openvino_model.bin")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(package / name, folder)
    values = {
        "vocab_size": ours.decoder.vocabulary,
        "max_position_embeddings": ours.context,
        "eos_token_id": 2,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(values))
    return folder

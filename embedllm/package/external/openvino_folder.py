"""Folders of optimum-intel: openvino_model.xml with keys and values in its state, its weights in openvino_model.bin."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from embedllm.errors import PackageError
from embedllm.package.external.config_files import Texts
from embedllm.package.external.types import ExternalFolder, Reading
from embedllm.package.external_graph import ExternalGraph, Names
from embedllm.package.graph_variants import STATEFUL

_DEVICES = ("openvino-gpu", "openvino")
GRAPH = "openvino_model.xml"
_INPUTS = {"input_ids", "attention_mask", "position_ids", "beam_idx"}
_NEEDED = {"input_ids", "attention_mask", "beam_idx"}
_SIZE = re.compile("[1-9][0-9]{0,8}")
_STATE = re.compile(r"past_key_values\.(\d{1,6})\.(key|value)present\.\1\.\2")
_ENDLESS = "Loop"  # "TensorIterator" has a round for each element of an axis
_ANY = ("?", "-1")  # sizes that are not fixed


@dataclass(slots=True)
class _Contents:
    inputs: dict[str, int] = field(default_factory=dict)  # number of axes
    states: dict[str, list[str]] = field(default_factory=dict)  # shapes by name
    vocabulary: int | None = None
    stored: int = 0  # values of its tensors


def read(root: Path, chosen: Path | None) -> Reading | None:
    path = chosen or root / GRAPH
    if path.suffix != ".xml" or not path.is_file():
        return None
    contents, texts = _read(path), Texts(root)
    vocabulary = contents.vocabulary or texts.vocabulary
    if vocabulary is None:
        raise PackageError(
            f"neither '{path}' nor a config.json says how many tokens the vocabulary has ('vocab_size')."
        )
    kv = _kv(contents, path)
    return Reading(
        root=root,
        graph=path,
        weights=(path.with_suffix(".bin"),),
        variant=STATEFUL,
        activations="float32",
        described=ExternalGraph(
            model_type=texts.model_type,
            context=texts.context(),
            vocabulary=vocabulary,
            kv=kv,
            parameters=contents.stored,
            in_pieces=True,  # until it is found otherwise: backends/openvino/engine.py
        ),
        stop_tokens=texts.stop_tokens(vocabulary),
        external=ExternalFolder(
            maker="optimum-intel",
            names=Names(),
            devices=_DEVICES,
            weights=path.with_suffix(".bin").relative_to(root).as_posix(),
        ),
    )


def _read(path: Path) -> _Contents:
    contents = _Contents()
    try:
        for layer in _layers(path):
            if layer.get("type") == _ENDLESS:
                raise PackageError(
                    f"'{path}' has the operation '{_ENDLESS}', whose number of rounds is not bounded. Such a model is "
                    "not run here; export its checkpoint: embedllm export SOURCE OUT."
                )
            _note(contents, layer)
    except (OSError, ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding, too
        raise PackageError(f"'{path}' is no OpenVINO model that can be read: {error}. Fetch the file again.") from error
    return contents


def _layers(path: Path) -> Iterator[ElementTree.Element]:
    for _, element in ElementTree.iterparse(path):
        if element.tag == "layer":
            yield element
            element.clear()


def _note(contents: _Contents, layer: ElementTree.Element) -> None:
    kind, data = layer.get("type"), layer.find("data")
    attributes = {} if data is None else data.attrib
    for port in layer.iterfind("output/port"):
        names = port.get("names", layer.get("name", "")).split(",")
        if kind == "Parameter":
            input_name = next((name for name in names if name in _INPUTS), names[0])
            contents.inputs[input_name] = attributes.get("shape", "").count(",") + 1
        elif "logits" in names:
            last = [size.text or "" for size in port.iterfind("dim")][-1:]  # some writers give none
            contents.vocabulary = int(last[0]) if last and last[0].isdecimal() else None
    if kind == "ReadValue":
        contents.states[attributes["variable_id"]] = attributes.get("variable_shape", "").split(",")
    elif kind == "Const":
        contents.stored += math.prod(int(size) for size in attributes.get("shape", "").split(",") if size.strip())


def _kv(contents: _Contents, path: Path) -> tuple[tuple[int, int], ...]:
    """By layer. Raises PackageError for a model that is not fed as optimum-intel's are."""
    odd = sorted(contents.inputs.keys() - _INPUTS)
    lacking = sorted(_NEEDED - contents.inputs.keys())
    if odd or lacking:
        raise PackageError(
            f"'{path}' takes {', '.join(repr(name) for name in contents.inputs)}; expected input_ids, attention_mask, "
            "beam_idx and at most position_ids. Export it as a decoder with its state inside: "
            "optimum-cli export openvino --task text-generation-with-past."
        )
    if (flat := contents.inputs.get("position_ids", 2)) != 2:
        raise PackageError(f"'position_ids' of '{path}' has {flat} axes; expected [batch, tokens].")
    shapes: dict[tuple[int, str], tuple[int, int]] = {}
    for name, shape in contents.states.items():
        match = _STATE.fullmatch(name)
        sizes = [size.strip() for size in shape]
        fixed = [_SIZE.fullmatch(size) is not None for size in sizes]
        is_open = [size in _ANY for size in sizes]
        if match is None or fixed != [False, True, False, True] or is_open != [True, False, True, False]:
            raise PackageError(
                f"'{path}' keeps the state '{name}' of the shape {shape}; expected keys and values, [batch, heads, "
                "tokens, size]. Such a model is not run here; export its checkpoint: embedllm export SOURCE OUT."
            )
        shapes[int(match[1]), match[2]] = int(sizes[1]), int(sizes[3])
    layers = sorted({layer for layer, _ in shapes})
    if not layers or any(shapes.get((layer, "key")) != shapes.get((layer, "value")) for layer in layers):
        raise PackageError(
            f"'{path}' keeps {len(shapes)} states; expected a key and a value of the same shape a layer."
        )
    if layers != list(range(len(layers))):
        raise PackageError(f"'{path}' keeps the layers {layers}; expected all of them from 0 on.")
    return tuple(shapes[layer, "key"] for layer in layers)

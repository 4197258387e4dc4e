"""Cuts a folder's OpenVINO model, when it is read, to the positions whose logits are wanted.

Not in the file, because openvino-genai takes four inputs and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.openvino.runtime import ov
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.external_graph import ExternalGraph
from embedllm.package.graph_variants import (
    HIDDEN_FROM,
    LAST_HIDDEN_STATE,
    OPENVINO_CONTEXT,
    OPENVINO_OUTPUT,
    OPENVINO_PER_LAYER_INPUT,
    OPENVINO_SSM_CONTEXT,
    OPENVINO_SUM,
)

if TYPE_CHECKING:
    from embedllm.types import F32

_POINTWISE = ("Convert", "Multiply", "Divide", "Add", "Subtract", "Tanh")  # what may follow the last product
_AXES = 3
_TO_END = int(np.iinfo(np.int64).max)
Sliced = tuple[ov.op.Parameter, Callable[[ov.Output], ov.Node]]  # an input, and what takes those that it names
op = ov.opset13


@dataclass(frozen=True, slots=True)
class GivenHidden:
    """What a draft head reads: what the head's matrix reads, or the streams in front of some layers times a matrix."""

    layers: tuple[int, ...] = ()
    fc: F32 | None = None  # [hidden, layers * hidden]


def cut_positions(model: ov.Model, decoder: Decoder | ExternalGraph, *, hidden: GivenHidden | None = None) -> None:
    """Adds the input `logits_from`: only the logits of the positions from there on are computed.

    hidden: adds `hidden_from`, the first position whose hidden state is wanted, and the output of these; logits_from
    counts from there on. Raises RuntimeError for a model whose layers have other names.
    """
    start, take = _positions("logits_from")
    if isinstance(decoder, ExternalGraph):
        _cut_before_head(model, start, take)
    elif hidden is not None:
        _cut_and_give(model, decoder, hidden, _positions(HIDDEN_FROM), (start, take))
    else:
        _cut(model, decoder, start, take)


def cut_rows(model: ov.Model, decoder: Decoder, *, hidden: GivenHidden | None = None) -> None:
    """Adds the input `rows` to a model with paged attention: only the logits of those tokens are computed.

    hidden: `rows` are the tokens whose hidden states are wanted, and `logits_rows` which of those have logits.
    """
    if hidden is None:
        _cut(model, decoder, *_rows("rows"))
    else:
        _cut_and_give(model, decoder, hidden, _rows("rows"), _rows("logits_rows"))


def _positions(name: str) -> Sliced:
    start = op.parameter([1], ov.Type.i64, name=name)
    start.output(0).set_names({name})
    bounds = [op.constant([value], ov.Type.i64) for value in (_TO_END, 1, 1)]
    return start, lambda value: op.slice(value, start, *bounds)


def _rows(name: str) -> Sliced:
    rows = op.parameter([-1], ov.Type.i64, name=name)
    rows.output(0).set_names({name})
    return rows, lambda value: op.gather(value, rows, op.constant(0, ov.Type.i64))


def _cut(model: ov.Model, decoder: Decoder, start: ov.op.Parameter, take: Callable[[ov.Output], ov.Node]) -> None:
    """Adds an input, and lets only what `take` takes of a value through where the last layer is done with others.

    That is before its output projection; of a layer whose mlp reads what its attention reads, behind it.
    start: the input that `take` reads. Raises RuntimeError for a model whose layers have other names.
    """
    last = len(decoder.layers) - 1
    named = {node.get_friendly_name(): node for node in model.get_ops()}
    if decoder.layers[last].parallel or decoder.layers[last].altup is not None:
        places = [*_layer(named, OPENVINO_OUTPUT.format(last)).output(0).get_target_inputs()]
    else:
        total = OPENVINO_OUTPUT if decoder.layers[last].mlp is None else OPENVINO_SUM
        residual = _layer(named, total.format(last)).input(0)
        contexts = (OPENVINO_CONTEXT,) if decoder.layers[last].ssm is None else (OPENVINO_CONTEXT, OPENVINO_SSM_CONTEXT)
        places = [each for name in contexts for each in _layer(named, name.format(last)).output(0).get_target_inputs()]
        places.append(residual)
    if decoder.layers[last].per_layer_input is not None and decoder.layers[last].altup is None:
        places += _layer(named, OPENVINO_PER_LAYER_INPUT.format(last)).output(0).get_target_inputs()
    for place in places:
        place.replace_source_output(take(place.get_source_output()).output(0))
    model.add_parameters([start])
    model.validate_nodes_and_infer_types()


def _cut_and_give(model: ov.Model, decoder: Decoder, hidden: GivenHidden, positions: Sliced, logits: Sliced) -> None:
    """_cut() to the positions whose hidden states are wanted, which are an output; of those `logits` become logits.

    Raises RuntimeError for a model whose layers, or last norm, have other names.
    """
    streams = _streams(model, decoder, hidden.layers)
    _cut(model, decoder, *positions)
    named = {node.get_friendly_name(): node for node in model.get_ops()}
    states = normed = _layer(named, decoder.norm.name).output(0)
    readers = normed.get_target_inputs()
    head_input = logits[1](normed).output(0)
    for reader in readers:
        reader.replace_source_output(head_input)
    if hidden.fc is not None:
        parts = op.concat([positions[1](stream) for stream in streams], -1)
        matrix = op.convert(op.constant(hidden.fc.astype(np.float16)), normed.get_element_type())
        states = op.matmul(parts, matrix, False, True).output(0)
    states.get_tensor().set_names({LAST_HIDDEN_STATE})
    model.add_parameters([logits[0]])
    model.add_results([op.result(states)])
    model.validate_nodes_and_infer_types()


def _streams(model: ov.Model, decoder: Decoder, layers: Sequence[int]) -> list[ov.Output]:
    """The streams in front of these layers."""
    named = {node.get_friendly_name(): node for node in model.get_ops()}
    total = OPENVINO_OUTPUT if decoder.layers[0].mlp is None else OPENVINO_SUM
    return [
        _layer(named, OPENVINO_OUTPUT.format(layer - 1)).output(0)
        if layer
        else _layer(named, total.format(0)).input_value(0)
        for layer in layers
    ]


def _cut_before_head(model: ov.Model, start: ov.op.Parameter, take: Callable[[ov.Output], ov.Node]) -> None:
    """_cut() of a model of another exporter; nothing where its logits are not a product of [B, T, hidden] values."""
    node = model.output("logits").get_node().input_value(0).get_node()
    while node.get_type_name() in _POINTWISE:
        node = node.input_value(0).get_node()
    if node.get_type_name() != "MatMul" or len(node.input_value(0).get_partial_shape()) != _AXES:
        return
    place = node.input(0)
    place.replace_source_output(take(place.get_source_output()).output(0))
    model.add_parameters([start])
    model.validate_nodes_and_infer_types()


def _layer(named: Mapping[str, ov.Node], name: str) -> ov.Node:
    if name not in named:
        raise RuntimeError(f"the model has no layer '{name}'")  # as OpenVINO's own, for the caller to name
    return named[name]

"""Cuts a folder's OpenVINO model, when it is read, to the positions whose logits are wanted.

Not in the file, because openvino-genai takes four inputs and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embedllm.backends.openvino.runtime import ov
from embedllm.package.architecture import Decoder
from embedllm.package.graph_variants import (
    OPENVINO_CONTEXT,
    OPENVINO_OUTPUT,
    OPENVINO_PER_LAYER_INPUT,
    OPENVINO_SSM_CONTEXT,
    OPENVINO_SUM,
)

_POINTWISE = ("Convert", "Multiply", "Divide", "Add", "Subtract", "Tanh")  # what may follow the last product
_AXES = 3


def cut(model: ov.Model, decoder: Decoder, wanted: ov.op.Parameter, taken: Callable[[ov.Output], ov.Node]) -> None:
    """Adds an input, and lets only what `taken` takes of a value through where the last layer is done with others.

    That is before its output projection; of a layer whose mlp reads what its attention reads, behind it.
    wanted: the input that `taken` reads. Raises RuntimeError for a model whose layers have other names.
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
        place.replace_source_output(taken(place.get_source_output()).output(0))
    model.add_parameters([wanted])
    model.validate_nodes_and_infer_types()


def cut_before_head(model: ov.Model, wanted: ov.op.Parameter, taken: Callable[[ov.Output], ov.Node]) -> None:
    """As cut(), of a model of another exporter; nothing where its logits are not a product of [B, T, hidden] values."""
    node = model.output("logits").get_node().input_value(0).get_node()
    while node.get_type_name() in _POINTWISE:
        node = node.input_value(0).get_node()
    if node.get_type_name() != "MatMul" or len(node.input_value(0).get_partial_shape()) != _AXES:
        return
    place = node.input(0)
    place.replace_source_output(taken(place.get_source_output()).output(0))
    model.add_parameters([wanted])
    model.validate_nodes_and_infer_types()


def _layer(named: Mapping[str, ov.Node], name: str) -> ov.Node:
    if name not in named:
        raise RuntimeError(f"the model has no layer '{name}'")  # as OpenVINO's own, for the caller to name
    return named[name]

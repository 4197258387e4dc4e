"""A folder's OpenVINO model with room for an adapter: as backends/ort/lora.py, in the model that was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedllm.backends.lora import factors, input_names, products
from embedllm.backends.openvino.runtime import ov
from embedllm.package.architecture.decoder import Decoder

if TYPE_CHECKING:
    from embedllm.package.lora.adapter import Adapter

op = ov.opset13


def add_adapters(model: ov.Model, decoder: Decoder) -> None:
    """Adds to each product of a layer the adapter's, whose factors are inputs. RuntimeError when one is not there."""
    named = {node.get_friendly_name(): node for node in model.get_ops()}
    parameters = []
    for value, parts in products(decoder):
        # the first one where a bias or minimums are added; of matrices in products of their own those side by side
        product = named.get(f"{value}.product") or named.get(value)
        name = value
        alone = None if product is None else product.output(0)
        if product is not None and product.get_type_name() == "Concat":
            name = f"{value}.0"
            product = named.get(f"{name}.product") or named.get(name)
        if product is None or alone is None or product.get_type_name() != "MatMul":
            raise RuntimeError(f"the model has no product '{value}'")  # as OpenVINO's own, for the caller to name
        x = _find_source(product.input(0).get_source_output())
        readers = alone.get_target_inputs()
        outputs = []
        for part in parts:
            a, b = (
                _parameter(name, shape)
                for name, shape in zip(input_names(part), ([part.columns, -1], [-1, part.rows]), strict=True)
            )
            parameters += [a, b]
            outputs.append(op.matmul(op.matmul(x, a, False, False), b, False, False))
        added = op.concat(outputs, -1) if len(outputs) > 1 else outputs[0]
        total = op.add(alone, added)
        for reader in readers:
            reader.replace_source_output(total.output(0))
    model.add_parameters(parameters)
    model.validate_nodes_and_infer_types()


def set_adapter(request: ov.InferRequest, decoder: Decoder, adapter: Adapter | None) -> None:
    """Gives a request the factors, which are not copied: the adapter has to live as long as they are set."""
    for name, values in factors(decoder, adapter):
        # nothing cannot be shared
        request.set_tensor(name, ov.Tensor(values, shared_memory=values.size > 0))


def _parameter(name: str, shape: list[int]) -> ov.Node:
    parameter = op.parameter(ov.PartialShape(shape), ov.Type.f32, name=name)
    parameter.output(0).set_names({name})
    return parameter


def _find_source(x: ov.Output) -> ov.Output:
    """Without the zeros that a last group of the weights is filled up with, and not yet in their columns' order."""
    while (node := x.get_node()).get_friendly_name().endswith((".padded", ".in_order")):
        x = node.input(0).get_source_output()
    return x

"""The embedding of a decoder as a graph of its own: rows of tokens, those of images in the places of their tokens.

Inputs: input_ids [B, T]; image_features of all images, [..., image_width], row by row. Output: inputs_embeds
[B, T, image_width], the features of DeepStack behind those of an embedding: zeros for tokens of text.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper

from embedllm.export.layout import Layout
from embedllm.export.onnx.builder import FLOAT_TYPES, Graph
from embedllm.export.onnx.linear import Products
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.graph_variants import INPUTS_EMBEDS, GraphVariant
from embedllm.package.packing import Packing


def build(decoder: Decoder, layout: Layout, packing: Mapping[str, Packing], variant: GraphVariant) -> onnx.ModelProto:
    """The graph of a decoder that takes images. packing: by the name of the matrix."""
    assert decoder.vision is not None
    graph = Graph(layout, variant.activations)
    graph.scope = "embedding"
    x = Products(graph, packing, variant).embedding(decoder.embedding)
    if decoder.embedding_multiplier != 1:
        x = graph.op("Mul", [x, graph.number(decoder.embedding_multiplier)], "multiplied")
    if more := decoder.image_width - decoder.hidden:
        x = graph.op("Pad", [x, graph.constant(0, 0, 0, 0, 0, more)], "with_deepstack")
    graph.scope = "images"
    inside = graph.op("Equal", ["input_ids", graph.constant(decoder.vision.image_token, scalar=True)], "inside")
    places = graph.op("Transpose", [graph.op("NonZero", [inside], "places.columns")], "places", perm=[1, 0])
    # without images there may be no rows, of which -1 would be a number of any
    features = graph.op("Reshape", ["image_features", graph.constant(-1, decoder.image_width)], "features")
    graph.node("ScatterND", [x, places, features], [INPUTS_EMBEDS], "images.seen")
    kind = FLOAT_TYPES[variant.activations]
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"]),
        # of any rank: onnxruntime-genai has [images, rows, width] where the encoder has, and [0, width] without images
        helper.make_tensor_value_info("image_features", kind, None),
    ]
    shape = ["batch", "tokens", decoder.image_width]
    output = helper.make_tensor_value_info(INPUTS_EMBEDS, kind, shape)
    return graph.model(decoder.model_type, inputs, [output])

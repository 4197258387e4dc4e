"""A vision encoder and its projector -> an ONNX graph of a few kilobytes whose weights lie in weights.safetensors.

Input: pixel_values [tiles, 3, S, S]. Output: image_features [tiles, rows of a tile, the decoder's hidden]. The names
are onnxruntime-genai's. Of images of any size: dynamic_vision.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import helper

from embedllm.export.layout import Layout
from embedllm.export.onnx import dynamic_vision
from embedllm.export.onnx.builder import FLOAT_TYPES, MICROSOFT, Graph
from embedllm.export.onnx.linear import Products
from embedllm.export.onnx.mlp import Mlps
from embedllm.export.onnx.moe import feed_forward
from embedllm.export.onnx.norms import Norms
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.vision import DynamicVision, Vision
from embedllm.package.architecture.weights import Norm
from embedllm.package.graph_variants import GraphVariant
from embedllm.package.packing import Packing
from embedllm.package.tensors import CLASS_TOKEN, PATCHES, layer_scales


def build(decoder: Decoder, layout: Layout, packing: Mapping[str, Packing], variant: GraphVariant) -> onnx.ModelProto:
    """The graph of a decoder's vision encoder. packing: by the name of the matrix."""
    assert decoder.vision is not None
    if isinstance(decoder.vision, DynamicVision):
        return dynamic_vision.build(decoder, decoder.vision, layout, packing, variant)
    return _Emitter(decoder.vision, Graph(layout, variant.activations), packing, variant).model(decoder)


class _Emitter:
    def __init__(self, vision: Vision, graph: Graph, packing: Mapping[str, Packing], variant: GraphVariant) -> None:
        self.vision, self.graph = vision, graph
        self.products = Products(graph, packing, variant)
        self.norms, self.mlps = Norms(graph), Mlps(self.products)

    def model(self, decoder: Decoder) -> onnx.ModelProto:
        graph, vision = self.graph, self.vision
        graph.scope = "vision"
        x = self.embedded()
        for index, layer in enumerate(vision.layers):
            graph.scope = f"vision.layers.{index}"
            x = self.layer(index, layer, x)
        graph.scope = "vision"
        x = self.shuffled(self.pooled(self.normed(self.without_class_token(x), vision.norm)))
        x = self.normed(x, vision.projector_norm)
        if vision.projector_up is not None:
            x = self.mlps.active("gelu", self.products.linear(x, [vision.projector_up], "projector_up"))
        self.products.linear(x, [vision.projector], "projector", output="image_features")
        kind, size = FLOAT_TYPES[graph.activations], vision.image_size
        pixels = helper.make_tensor_value_info("pixel_values", kind, ["tiles", 3, size, size])
        shape = ["tiles", vision.tile_tokens, decoder.hidden]
        features = helper.make_tensor_value_info("image_features", kind, shape)
        return graph.model(decoder.model_type, [pixels], [features])

    def embedded(self) -> str:
        """Patches with their positions, [tiles, patches, hidden]."""
        graph, vision = self.graph, self.vision
        side, hidden = vision.patch_size, vision.hidden
        kernel = graph.stored([f"{PATCHES}.weight"], shape=[hidden, 3, side, side], name="vision.patches.kernel")
        bias = graph.stored([f"{PATCHES}.bias"])
        grid = graph.op("Conv", ["pixel_values", graph.cast(kernel), graph.cast(bias)], "grid", strides=[side, side])
        flat = graph.op("Reshape", [grid, graph.constant(0, 0, -1)], "grid.flat")
        rows = graph.op("Transpose", [flat], "patches", perm=[0, 2, 1])
        positions = graph.cast(graph.stored([f"{vision.positions.name}.weight"]))
        if not vision.class_token:
            return graph.op("Add", [rows, positions], "placed")
        # what is padded with zeros has as many rows as there are positions: the token itself, when the graph is loaded
        token = graph.cast(graph.stored([CLASS_TOKEN], shape=[1, hidden], name="vision.class_token.row"))
        token = graph.op("Pad", [token, graph.constant(0, 0, vision.positions.rows - 1, 0)], "class_token.padded")
        rows = graph.op("Pad", [rows, graph.constant(0, 1, 0, 0, 0, 0)], "patches.padded")
        return graph.op("Add", [rows, graph.op("Add", [positions, token], "positions")], "placed")

    def without_class_token(self, x: str) -> str:
        graph = self.graph
        bounds = (graph.constant(1), graph.constant(self.vision.positions.rows), graph.constant(1))
        return graph.op("Slice", [x, *bounds], "patches.behind") if self.vision.class_token else x

    def layer(self, index: int, layer: Layer, x: str) -> str:
        """The stream behind a layer."""
        graph, attention = self.graph, layer.attention
        assert isinstance(attention, Attention)
        output = self.products.linear(self.context(attention, self.normed(x, layer.attention_norm)), [attention.o], "o")
        attention_scale, mlp_scale = layer_scales(index, layer)
        x = graph.op("Add", [x, self.scaled(output, attention_scale)], "attended.sum")
        assert layer.mlp is not None, "layers of encoders have one"
        output = feed_forward(self.mlps, index, layer.mlp, self.normed(x, layer.mlp_norm))
        return graph.op("Add", [x, self.scaled(output, mlp_scale)], "made.sum")

    def scaled(self, x: str, scale: str) -> str:
        """What a part of a layer adds. scale: the stored factors; "": there are none."""
        return self.graph.op("Mul", [x, self.graph.cast(self.graph.stored([scale]))], f"{x}.scaled") if scale else x

    def normed(self, x: str, norm: Norm | None) -> str:
        return x if norm is None else self.norms.plain(x, norm, norm.name.rsplit(".", 1)[-1])

    def context(self, attention: Attention, patches: str) -> str:
        """What the patches find, [tiles, patches, heads * D]: all see all."""
        q, k, v = self.products.split_linear(patches, [attention.q, attention.k, attention.v], "qkv", "qkv")
        q, k = (
            x if norm is None else self.norms.heads(x, norm, attention.heads, attention.head_dim)
            for x, norm in ((q, attention.q_norm), (k, attention.k_norm))
        )
        return self.graph.op("MultiHeadAttention", [q, k, v], "context", MICROSOFT, num_heads=attention.heads)

    def pooled(self, x: str) -> str:
        """The means of squares of patches, row by row, [tiles, rows, hidden]."""
        graph, vision, by = self.graph, self.vision, self.vision.pooling
        if by == 1:
            return x
        side = vision.grid // by
        squares = graph.op("Reshape", [x, graph.constant(0, side, by, side, by, vision.hidden)], "pooling.squares")
        means = graph.op("ReduceMean", [squares, graph.constant(2, 4)], "pooling.means", keepdims=0)
        return graph.op("Reshape", [means, graph.constant(0, side * side, vision.hidden)], "pooled")

    def shuffled(self, x: str) -> str:
        """Pixel shuffle: the patches of a square side by side, row by row, [tiles, rows, hidden * square]."""
        graph, vision, by = self.graph, self.vision, self.vision.pixel_shuffle
        if by == 1:
            return x
        side = vision.grid // vision.pooling // by
        squares = graph.op("Reshape", [x, graph.constant(0, side, by, side, by, vision.hidden)], "squares")
        ordered = graph.op("Transpose", [squares], "squares.ordered", perm=[0, 1, 3, 2, 4, 5])
        return graph.op("Reshape", [ordered, graph.constant(0, side * side, by * by * vision.hidden)], "shuffled")

"""A vision encoder of images of any size -> an ONNX graph of a few kilobytes whose weights lie in weights.safetensors.

Inputs: pixel_values [1, 3, height, width], and those that backends/image_grid.py makes of the size. Output:
image_features [1, rows, the decoder's image_width]. Variants that compute the latter have pixel_values alone, or as
patches [patches, values] beside image_grid_thw [1, 3], and image_features [rows, the decoder's image_width].
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import helper

from embedllm.export.layout import Layout
from embedllm.export.onnx.builder import FLOAT_TYPES, MICROSOFT, Graph
from embedllm.export.onnx.image_grid import image_grid, image_inputs, patch_values
from embedllm.export.onnx.linear import Products
from embedllm.export.onnx.mlp import Mlps
from embedllm.export.onnx.norms import Norms
from embedllm.export.onnx.patch_convolution import PatchConvolutions
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.recurrent import ShortConv
from embedllm.package.architecture.vision import DynamicVision, PatchMerger, PatchPooler
from embedllm.package.architecture.weights import Linear, Norm
from embedllm.package.graph_variants import (
    PATCH_ORDER,
    POSITIONS,
    ROPE,
    WINDOW_MASK,
    WINDOW_PLACES,
    WINDOWS,
    GraphVariant,
)
from embedllm.package.packing import Packing
from embedllm.package.tensors import PATCHES, POOLED


def build(
    decoder: Decoder,
    vision: DynamicVision,
    layout: Layout,
    packing: Mapping[str, Packing],
    variant: GraphVariant,
) -> onnx.ModelProto:
    """The graph of a decoder's vision encoder. packing: by the name of the matrix."""
    return _Emitter(vision, Graph(layout, variant.activations), packing, variant).model(decoder)


class _Emitter:
    def __init__(
        self, vision: DynamicVision, graph: Graph, packing: Mapping[str, Packing], variant: GraphVariant
    ) -> None:
        self.vision, self.graph = vision, graph
        self.variant = variant
        self.products = Products(graph, packing, variant)
        self.norms, self.mlps = Norms(graph), Mlps(self.products)
        self.convolutions = PatchConvolutions(vision, self.products)

    def model(self, decoder: Decoder) -> onnx.ModelProto:
        graph, vision = self.graph, self.vision
        if self.variant.grid_from != "inputs":
            image_grid(graph, vision, self.variant)
        graph.scope = "vision"
        x = self.embedded()
        features: dict[int, str] = {}  # of DeepStack, by their place
        for index, layer in enumerate(vision.layers):
            graph.scope = f"vision.layers.{index}"
            x = self.layer(index, layer, x)
            for place, deepstack in enumerate(vision.deepstack):
                if deepstack.layer == index:
                    graph.scope = f"vision.deepstack.{place}"
                    features[place] = self.merged(deepstack.merger, x)
        graph.scope = "vision.merger"
        is_one_by_one = self.variant.grid_from != "inputs"  # a runtime that reads the images of a prompt in turn
        output = "vision.rows" if is_one_by_one else "image_features"
        if isinstance(vision.merger, PatchPooler):
            self.pooled(vision.merger, x)
        elif features:
            parts = [self.merged(vision.merger, x), *(features[place] for place in sorted(features))]
            graph.node("Concat", parts, [output], output, axis=-1)
        else:
            self.merged(vision.merger, x, output=output)
        shape: list[int | str] = [1, "rows", decoder.image_width]
        if is_one_by_one:  # and lays their rows one behind the other
            graph.node("Squeeze", [output, graph.constant(0)], ["image_features"], "image_features")
            shape = shape[1:]
        kind = FLOAT_TYPES[graph.activations]
        info = helper.make_tensor_value_info("image_features", kind, shape)
        return graph.model(decoder.model_type, image_inputs(vision, self.variant, kind), [info])

    def embedded(self) -> str:
        """Patches with their positions in the order of squares, [1, patches, hidden]."""
        graph, vision = self.graph, self.vision
        side = vision.patch_size
        bias = [graph.cast(graph.stored([f"{PATCHES}.bias"]))] if vision.patches_bias else []
        if self.variant.grid_from == "patches":
            return self.placed(self.of_patches(bias))
        if vision.pixels_norm is not None:
            x = self.multiplied(self.norms.plain(self.flat_patches(), vision.pixels_norm, "pixels_norm"), bias)
            return self.placed(graph.op("Gather", [x, PATCH_ORDER], "ordered", axis=1))
        grid = graph.op("Conv", ["pixel_values", self.kernel(), *bias], "grid", strides=[side, side])
        flat = graph.op("Reshape", [grid, graph.constant(0, 0, -1)], "grid.flat")
        rows = graph.op("Transpose", [flat], "patches", perm=[0, 2, 1])
        return self.placed(graph.op("Gather", [rows, PATCH_ORDER], "ordered", axis=1))

    def of_patches(self, bias: list[str]) -> str:
        """Patches that are given one by one, in the order of squares, as products with their kernels."""
        assert not self.vision.patches_channels_last
        return self.graph.op(
            "Unsqueeze", [self.multiplied("pixel_values", bias), self.graph.constant(0)], "patches.ordered"
        )

    def multiplied(self, x: str, bias: list[str]) -> str:
        """Values x [..., values] of patches as products with their kernels, [..., hidden]."""
        graph, shape = self.graph, [self.vision.hidden, patch_values(self.vision)]
        kernels = graph.cast(graph.stored([f"{PATCHES}.weight"], shape=shape, name="vision.patches.rows"))
        x = graph.op("MatMul", [x, graph.op("Transpose", [kernels], "kernels", perm=[1, 0])], "patches")
        return graph.op("Add", [x, *bias], "patches.biased") if bias else x

    def flat_patches(self) -> str:
        """The values of each patch, row by row and the channels of a pixel side by side, [1, patches, values]."""
        graph, side = self.graph, self.vision.patch_size
        x = graph.op("Transpose", ["pixel_values"], "pixels", perm=[0, 2, 3, 1])
        x = graph.op("Reshape", [x, graph.constant(-1, side, 0, 3)], "pixels.rows")
        x = graph.op("Reshape", [x, graph.constant(0, 0, -1, 3 * side)], "pixels.columns")
        x = graph.op("Transpose", [x], "pixels.patches", perm=[0, 2, 1, 3])
        return graph.op("Reshape", [x, graph.constant(1, -1, patch_values(self.vision))], "pixels.flat")

    def placed(self, x: str) -> str:
        """Patches x [1, patches, hidden] with their norm and positions."""
        graph, vision = self.graph, self.vision
        x = self.normed(x, vision.patches_norm)
        x = x if vision.positions is None else graph.op("Add", [x, self.positions(vision.positions)], "placed")
        return self.normed(x, vision.positions_norm)

    def kernel(self) -> str:
        """Of the convolution, [hidden, 3, patch_size, patch_size]."""
        graph, vision = self.graph, self.vision
        side, in_time = vision.patch_size, vision.temporal_patch_size
        is_last = vision.patches_channels_last
        shape = [vision.hidden, *((side, side, 3) if is_last else (3, in_time, side, side))]
        kernels = graph.cast(graph.stored([f"{PATCHES}.weight"], shape=shape, name="vision.patches.kernel"))
        if is_last:
            return graph.op("Transpose", [kernels], "kernel", perm=[0, 3, 1, 2])
        # an image is as many equal ones in time as a patch has: their kernels are added
        return graph.op("ReduceSum", [kernels, graph.constant(2)], "kernel", keepdims=0)

    def positions(self, positions: Linear) -> str:
        """Learned ones, interpolated, [patches, hidden]."""
        graph, (places, weights) = self.graph, POSITIONS
        table = graph.cast(graph.stored([f"{positions.name}.weight"]))
        corners = graph.op("Gather", [table, places], "corners", axis=0)
        weighted = graph.op("Mul", [corners, weights], "corners.weighted")
        return graph.op("ReduceSum", [weighted, graph.constant(0)], "positions", keepdims=0)

    def layer(self, index: int, layer: Layer, x: str) -> str:
        """The stream behind a layer."""
        graph, mixer = self.graph, layer.attention
        assert isinstance(mixer, Attention | ShortConv)
        assert layer.attention_norm is not None
        assert layer.mlp_norm is not None
        assert isinstance(layer.mlp, Mlp)
        normed = self.norms.plain(x, layer.attention_norm, "attention_norm")
        if isinstance(mixer, ShortConv):
            context = self.convolutions.context(index, mixer, normed)
        else:
            context = self.context(index, mixer, normed)
        output = self.products.linear(context, [mixer.o], "o")
        x = graph.op("Add", [x, self.normed(output, layer.attention_post_norm)], "attended.sum")
        output = self.mlps.mlp(layer.mlp, self.norms.plain(x, layer.mlp_norm, "mlp_norm"))
        return graph.op("Add", [x, self.normed(output, layer.mlp_post_norm)], "made.sum")

    def normed(self, x: str, norm: Norm | None) -> str:
        return x if norm is None else self.norms.plain(x, norm, norm.name.rsplit(".", 1)[-1])

    def context(self, index: int, attention: Attention, patches: str) -> str:
        """What the patches find, [1, patches, heads * D]."""
        graph, parts = self.graph, [attention.q, attention.k, attention.v]
        product = self.products.linear(patches, parts, "qkv")
        q, k, v = (graph.named(part) for part in ("q", "k", "v"))
        sizes = graph.constant(*(part.rows for part in parts))
        graph.node("Split", [product, sizes], [q, k, v], graph.named("split"), axis=-1)
        q = self.normed_heads(q, attention.q_norm, attention.heads, attention.head_dim)
        pairs = (k, attention.k_norm), (v, attention.v_norm)
        k, v = (self.normed_heads(x, norm, attention.kv_heads, attention.head_dim) for x, norm in pairs)
        if self.vision.has_rope:  # row 0 of the tables is of the first patch
            q, k = (self.rotated(x) for x in (q, k))
        inputs = [q, *(self.shared(x, attention) for x in (k, v))]
        if self.vision.has_windows(index):
            inputs = [self.in_windows(x) for x in inputs] + ["", WINDOW_MASK]
        scale = {} if attention.scale is None else {"scale": attention.scale}
        output = graph.op("MultiHeadAttention", inputs, "context", MICROSOFT, num_heads=attention.heads, **scale)
        if not self.vision.has_windows(index):
            return output
        flat = graph.op("Reshape", [output, graph.constant(1, -1, attention.o.columns)], "context.flat")
        return graph.op("Gather", [flat, WINDOW_PLACES], "context.ordered", axis=1)

    def rotated(self, x: str) -> str:
        return self.graph.op("RotaryEmbedding", [x, self.graph.constant(0), *ROPE], f"{x}.rotated", MICROSOFT)

    def normed_heads(self, x: str, norm: Norm | None, heads: int, head_dim: int) -> str:
        return x if norm is None else self.norms.heads(x, norm, heads, head_dim)

    def shared(self, x: str, attention: Attention) -> str:
        """Keys or values [1, patches, kv heads * D] as one for each head of the queries."""
        graph, heads = self.graph, attention.heads
        if heads == attention.kv_heads:
            return x
        apart = graph.op("Reshape", [x, graph.constant(0, 0, attention.kv_heads, 1, attention.head_dim)], f"{x}.apart")
        times = graph.constant(1, 1, 1, heads // attention.kv_heads, 1)
        flat = graph.constant(0, 0, heads * attention.head_dim)
        return graph.op("Reshape", [graph.op("Expand", [apart, times], f"{x}.each"), flat], f"{x}.shared")

    def in_windows(self, x: str) -> str:
        """[1, patches, heads * D] as [windows, longest, heads * D]."""
        graph = self.graph
        windows = graph.op("Gather", [x, WINDOWS], f"{x}.windows", axis=1)
        return graph.op("Squeeze", [windows, graph.constant(0)], f"{x}.by_window")

    def pooled(self, pooler: PatchPooler, x: str) -> None:
        """The rows [1, rows, the decoder's hidden] of squares of patches, as the output."""
        graph, vision = self.graph, self.vision
        shape = graph.constant(-1, vision.merge_size**2, vision.hidden)
        means = graph.op("ReduceMean", [graph.op("Reshape", [x, shape], "squares"), graph.constant(1)], "means",
                         keepdims=0)  # fmt: skip
        rows = graph.op("Unsqueeze", [means, graph.constant(0)], "means.rows")
        rows = graph.op("Mul", [rows, graph.number(pooler.multiplier)], "multiplied")
        if pooler.standardize:
            bias, scale = (graph.cast(graph.stored([f"{POOLED}.{part}"])) for part in ("std_bias", "std_scale"))
            rows = graph.op("Mul", [graph.op("Sub", [rows, bias], "centred"), scale], "standardized")
        normed = self.norms.plain(rows, pooler.norm, "norm")
        self.products.linear(normed, [pooler.projector], "projector", output="image_features")

    def merged(self, merger: PatchMerger, x: str, *, output: str = "") -> str:
        """The rows [1, rows, the decoder's hidden] of squares of patches. output: a name for them."""
        graph, products, norm = self.graph, self.products, merger.norm
        flat = graph.constant(0, -1, merger.square)
        if norm.size == merger.square:
            square = self.norms.plain(graph.op("Reshape", [x, flat], "squares"), norm, "norm")
        else:
            patches = self.norms.plain(x, norm, "norm")
            if merger.projector_norm is not None:
                patches = self.norms.plain(patches, merger.projector_norm, "projector_norm")
            square = graph.op("Reshape", [patches, flat], "squares")
        if merger.square_norm is not None:
            square = self.norms.plain(square, merger.square_norm, "square_norm")
        if merger.merging is not None:
            square = products.linear(self.by_channel(merger, square), [merger.merging], "merging")
        up = products.linear(square, [merger.up], "up")
        up = up if merger.up_norm is None else self.norms.plain(up, merger.up_norm, "up_norm")
        active = self.mlps.active("gelu", up)
        if merger.gate is not None and merger.gated_up is not None:
            gate = self.mlps.active("silu", products.linear(active, [merger.gate], "gate"))
            active = graph.op("Mul", [gate, products.linear(active, [merger.gated_up], "gated_up")], "gated")
        return products.linear(active, [merger.down], "down", output=output)

    def by_channel(self, merger: PatchMerger, square: str) -> str:
        """Values of a square's patches side by side, channel by channel."""
        graph, patches = self.graph, self.vision.merge_size**2
        apart = graph.op("Reshape", [square, graph.constant(0, -1, patches, merger.square // patches)], "apart")
        channels = graph.op("Transpose", [apart], "channels", perm=[0, 1, 3, 2])
        return graph.op("Reshape", [channels, graph.constant(0, -1, merger.square)], "channels.flat")

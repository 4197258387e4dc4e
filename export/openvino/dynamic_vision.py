"""A vision encoder of images of any size -> an OpenVINO model whose weights lie in weights.safetensors.

Inputs and output are those of export/onnx/dynamic_vision.py.
"""

from __future__ import annotations

from embedllm.export.openvino.elementwise import activated, added, multiplied, multiplied_by, normed
from embedllm.export.openvino.ir import BROADCAST, Value
from embedllm.export.openvino.linear import Products
from embedllm.export.openvino.mlp import mlp
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.vision import DynamicVision, PatchMerger, PatchPooler
from embedllm.package.architecture.weights import Linear, Norm
from embedllm.package.graph_variants import PATCH_ORDER, POSITIONS, ROPE, WINDOW_MASK, WINDOW_PLACES, WINDOWS
from embedllm.package.tensors import PATCHES, POOLED

_HIDDEN = 1e30  # taken from the score of what is behind the end of a window


def write(vision: DynamicVision, products: Products) -> None:
    """Writes the encoder, up to its output `image_features`."""
    _Emitter(vision, products).write()


class _Emitter:
    def __init__(self, vision: DynamicVision, products: Products) -> None:
        self.vision, self.products, self.ir = vision, products, products.ir
        ir = self.ir
        self.pixels = ir.parameter("pixel_values", "f32", 4)
        self.order = ir.parameter(PATCH_ORDER, "i64", 1)
        rotations = [(ir.parameter(name, "f32", 2), name) for name in ROPE] if vision.has_rope else []
        places, weights = POSITIONS
        self.corners = (
            (ir.parameter(places, "i64", 2), ir.parameter(weights, "f32", 3)) if vision.positions is not None else None
        )
        self.windows: list[Value] = []  # patches, mask, places
        if vision.window:
            kinds = (WINDOWS, "i64", 2), (WINDOW_MASK, "i32", 2), (WINDOW_PLACES, "i64", 1)
            self.windows = [ir.parameter(name, kind, size) for name, kind, size in kinds]
        ir.scope = "vision"
        self.rotations = [ir.op("Concat", [each, each], f"{name}.both", axis=-1) for each, name in rotations]
        self.mask = self.window_mask() if vision.window else None

    def write(self) -> None:
        ir, vision = self.ir, self.vision
        x = self.embedded()
        features: dict[int, Value] = {}  # of DeepStack, by their place
        for index, layer in enumerate(vision.layers):
            ir.scope = f"vision.layers.{index}"
            x = self.layer(index, layer, x)
            for place, deepstack in enumerate(vision.deepstack):
                if deepstack.layer == index:
                    ir.scope = f"vision.deepstack.{place}"
                    features[place] = self.merged(deepstack.merger, x, "")
        ir.scope = "vision.merger"
        if isinstance(vision.merger, PatchPooler):
            made = self.pooled(vision.merger, x)
        else:
            made = self.merged(vision.merger, x, "" if features else "image_features")
        if features:
            parts = [made, *(features[place] for place in sorted(features))]
            made = ir.op("Concat", parts, "with_deepstack", tensor="image_features", axis=-1)
        ir.split("Result", [made], "image_features.result", 0)

    def window_mask(self) -> Value:
        """What is added to scores, [1, windows, 1, longest]."""
        ir = self.ir
        floats = ir.op("Convert", [self.windows[1]], "window_mask.floats", type="f32", destination_type="f32")
        less = ir.op("Subtract", [floats, ir.constant(1.0, "f32")], "window_mask.less", **BROADCAST)
        return ir.op("Unsqueeze", [multiplied(ir, less, _HIDDEN, "window_mask.scores"), ir.constant([0, 2])], "mask")

    def embedded(self) -> Value:
        """Patches with their positions in the order of squares, [1, patches, hidden]."""
        ir, vision = self.ir, self.vision
        side, hidden = vision.patch_size, vision.hidden
        grid = ir.op("Convolution", [self.pixels, self.kernel()], "grid", strides=f"{side}, {side}",
                     pads_begin="0, 0", pads_end="0, 0", dilations="1, 1", auto_pad="explicit")  # fmt: skip
        flat = ir.op("Reshape", [grid, ir.constant([0, hidden, -1])], "grid.flat", special_zero=True)
        rows = ir.op("Transpose", [flat, ir.constant([0, 2, 1])], "patches")
        x = ir.op("Gather", [rows, self.order, ir.constant(1)], "ordered", batch_dims=0)
        if vision.patches_bias:
            x = added(ir, [x, ir.stored([f"{PATCHES}.bias"], "f32", [hidden])], "patches.biased")
        if vision.patches_norm is not None:
            x = normed(ir, x, vision.patches_norm, "patches.norm")
        return x if vision.positions is None else added(ir, [x, self.positions(vision.positions)], "placed")

    def kernel(self) -> Value:
        """Of the convolution, [hidden, 3, patch_size, patch_size]."""
        ir, vision = self.ir, self.vision
        side, in_time = vision.patch_size, vision.temporal_patch_size
        is_last = vision.patches_channels_last
        shape = [vision.hidden, *((side, side, 3) if is_last else (3, in_time, side, side))]
        kernels = ir.stored([f"{PATCHES}.weight"], "f32", shape)
        if is_last:
            return ir.op("Transpose", [kernels, ir.constant([0, 3, 1, 2])], "kernel")
        return ir.op("ReduceSum", [kernels, ir.constant([2])], "kernel", keep_dims=False)

    def positions(self, positions: Linear) -> Value:
        """Learned ones, interpolated, [patches, hidden]."""
        ir = self.ir
        assert self.corners is not None
        places, weights = self.corners
        table = ir.stored([f"{positions.name}.weight"], "f32", [positions.rows, positions.columns])
        corners = ir.op("Gather", [table, places, ir.constant(0)], "corners", batch_dims=0)
        weighted = multiplied_by(ir, [corners, weights], "corners.weighted")
        return ir.op("ReduceSum", [weighted, ir.constant([0])], "positions", keep_dims=False)

    def layer(self, index: int, layer: Layer, x: Value) -> Value:
        """The stream behind a layer."""
        ir, attention = self.ir, layer.attention
        assert isinstance(attention, Attention)
        assert isinstance(layer.mlp, Mlp)
        context = self.context(index, attention, normed(ir, x, layer.attention_norm, "norm"))
        made = self.products.linear(context, [attention.o], "o")
        x = added(ir, [x, normed(ir, made, layer.attention_post_norm, "post_norm")], "attention.sum")
        made = mlp(self.products, layer.mlp, normed(ir, x, layer.mlp_norm, "mlp.norm"))
        made = normed(ir, made, layer.mlp_post_norm, "mlp.post_norm")
        return added(ir, [x, made], "mlp.sum")

    def context(self, index: int, attention: Attention, read: Value) -> Value:
        """What the patches find, [1, patches, heads * D]."""
        ir, parts = self.ir, [attention.q, attention.k, attention.v]
        lengths = ir.constant([part.rows for part in parts])
        together = self.products.linear(read, parts, "qkv")
        split = ir.split("VariadicSplit", [together, ir.constant(2), lengths], "qkv.split", 3)
        norms = (attention.q_norm, attention.k_norm, attention.v_norm)
        q, k, v = (self.by_head(x, attention, norm, name) for x, norm, name in zip(split, norms, "qkv", strict=True))
        if self.vision.has_rope:
            q, k = self.rotated(q, attention, "q"), self.rotated(k, attention, "k")
        if self.vision.has_windows(index):
            assert self.mask is not None
            inputs = [*(self.in_windows(x, attention, name) for x, name in ((q, "q"), (k, "k"), (v, "v"))), self.mask]
            found = ir.op("ScaledDotProductAttention", inputs, "attention.windows", causal=False)
            flat = ir.constant([1, attention.heads, -1, attention.head_dim])
            found = ir.op("Reshape", [found, flat], "attention.flat", special_zero=False)
            seen = ir.op("Gather", [found, self.windows[2], ir.constant(2)], "attention", batch_dims=0)
        else:
            if attention.scale is not None:  # the operator divides by the root of the size of a head
                q = multiplied(ir, q, attention.scale * attention.head_dim**0.5, "q.scaled")
            seen = ir.op("ScaledDotProductAttention", [q, k, v], "attention", causal=False)
        merged = ir.op("Transpose", [seen, ir.constant([0, 2, 1, 3])], "attention.tokens")
        return ir.op("Reshape", [merged, ir.constant([0, 0, attention.o.columns])], "context", special_zero=True)

    def by_head(self, x: Value, attention: Attention, norm: Norm | None, name: str) -> Value:
        """[1, patches, heads * D] as [1, heads, patches, D], each head normed."""
        ir, shape = self.ir, self.ir.constant([0, 0, attention.heads, attention.head_dim])
        heads = ir.op("Reshape", [x, shape], f"{name}.heads", special_zero=True)
        heads = normed(ir, heads, norm, f"{name}.norm")
        return ir.op("Transpose", [heads, ir.constant([0, 2, 1, 3])], f"{name}.by_head")

    def rotated(self, x: Value, attention: Attention, name: str) -> Value:
        """x * cos + (-second half, first half) * sin."""
        ir, half, (cos, sin) = self.ir, attention.head_dim // 2, self.rotations
        first, second = ir.split("VariadicSplit", [x, ir.constant(3), ir.constant([half, half])], f"{name}.halves", 2)
        crossed = ir.op("Concat", [multiplied(ir, second, -1.0, f"{name}.minus"), first], f"{name}.crossed", axis=-1)
        parts = [multiplied_by(ir, [x, cos], f"{name}.cos"), multiplied_by(ir, [crossed, sin], f"{name}.sin")]
        return added(ir, parts, f"{name}.rotated")

    def in_windows(self, x: Value, attention: Attention, name: str) -> Value:
        """[1, heads, patches, D] as [heads, windows, longest, D]."""
        ir = self.ir
        found = ir.op("Gather", [x, self.windows[0], ir.constant(2)], f"{name}.windows", batch_dims=0)
        return ir.op("Squeeze", [found, ir.constant([0])], f"{name}.by_window")

    def pooled(self, pooler: PatchPooler, x: Value) -> Value:
        """The rows [1, rows, the decoder's hidden] of squares of patches, as the output."""
        ir, vision = self.ir, self.vision
        shape = ir.constant([-1, vision.merge_size**2, vision.hidden])
        squares = ir.op("Reshape", [x, shape], "squares", special_zero=False)
        means = ir.op("ReduceMean", [squares, ir.constant([1])], "means", keep_dims=False)
        rows = ir.op("Unsqueeze", [means, ir.constant([0])], "means.rows")
        rows = multiplied(ir, rows, pooler.multiplier, "multiplied")
        if pooler.standardize:
            bias, scale = (
                ir.stored([f"{POOLED}.{part}"], "f32", [vision.hidden]) for part in ("std_bias", "std_scale")
            )
            rows = multiplied_by(ir, [ir.op("Subtract", [rows, bias], "centred", **BROADCAST), scale], "standardized")
        normed_rows = normed(ir, rows, pooler.norm, "norm")
        return self.products.linear(normed_rows, [pooler.projector], "projector", tensor="image_features")

    def merged(self, merger: PatchMerger, x: Value, tensor: str) -> Value:
        """The rows [1, rows, the decoder's hidden] of squares of patches. tensor: a name for them."""
        ir, norm = self.ir, merger.norm
        shape = ir.constant([0, -1, merger.square])
        if norm.size == merger.square:
            square = normed(ir, ir.op("Reshape", [x, shape], "squares", special_zero=True), norm, "norm")
        else:
            square = ir.op("Reshape", [normed(ir, x, norm, "norm"), shape], "squares", special_zero=True)
        if merger.square_norm is not None:
            square = normed(ir, square, merger.square_norm, "square_norm")
        if merger.merging is not None:
            square = self.products.linear(self.by_channel(merger, square), [merger.merging], "merging")
        active = activated(ir, self.products.linear(square, [merger.up], "up"), "gelu")
        return self.products.linear(active, [merger.down], "down", tensor=tensor)

    def by_channel(self, merger: PatchMerger, square: Value) -> Value:
        """Values of a square's patches side by side, channel by channel."""
        ir, patches = self.ir, self.vision.merge_size**2
        parts = ir.constant([0, -1, patches, merger.square // patches])
        apart = ir.op("Reshape", [square, parts], "apart", special_zero=True)
        channels = ir.op("Transpose", [apart, ir.constant([0, 1, 3, 2])], "channels")
        return ir.op("Reshape", [channels, ir.constant([0, -1, merger.square])], "channels.flat", special_zero=True)

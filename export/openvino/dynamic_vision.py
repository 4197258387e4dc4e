"""A vision encoder of images of any size -> an OpenVINO model whose weights lie in weights.safetensors.

Inputs and output are those of export/onnx/dynamic_vision.py.
"""

from __future__ import annotations

from embedllm.export.openvino.elementwise import added, multiplied, multiplied_by, normed
from embedllm.export.openvino.ir import BROADCAST, Value
from embedllm.export.openvino.linear import Products
from embedllm.export.openvino.patch_convolution import PatchConvolutions
from embedllm.export.openvino.vision_layers import EncoderLayers, attend_to_all
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.architecture.weights import Linear, Norm
from embedllm.package.graph_variants import PATCH_ORDER, POSITIONS, ROPE, WINDOW_MASK, WINDOW_PLACES, WINDOWS
from embedllm.package.tensors import PATCHES

_HIDDEN = 1e30  # taken from the score of what is behind the end of a window


def write(vision: DynamicVision, products: Products) -> None:
    """Writes the encoder, up to its output `image_features`."""
    _Encoder(vision, products).write()


class _Encoder:
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
        convolutions = PatchConvolutions(self.vision, self.products, self.pixels, self.order)
        layers = EncoderLayers(self.vision, self.products, self.rotations, self.attend, convolutions.context)
        features, deepstack = layers.features(self.embedded(), "image_features")
        if deepstack:
            features = self.ir.op("Concat", [features, *deepstack], "with_deepstack", tensor="image_features", axis=-1)
        self.ir.split("Result", [features], "image_features.result", 0)

    def window_mask(self) -> Value:
        """What is added to scores, [1, windows, 1, longest]."""
        ir = self.ir
        floats = ir.op("Convert", [self.windows[1]], "window_mask.floats", type="f32", destination_type="f32")
        less = ir.op("Subtract", [floats, ir.constant(1.0, "f32")], "window_mask.less", **BROADCAST)
        return ir.op("Unsqueeze", [multiplied(ir, less, _HIDDEN, "window_mask.scores"), ir.constant([0, 2])], "mask")

    def embedded(self) -> Value:
        """Patches with their positions in the order of squares, [1, patches, hidden]."""
        ir, vision = self.ir, self.vision
        rows = self.convolved() if vision.pixels_norm is None else self.multiplied(vision.pixels_norm)
        x = ir.op("Gather", [rows, self.order, ir.constant(1)], "ordered", batch_dims=0)
        if vision.patches_bias:
            x = added(ir, [x, ir.stored([f"{PATCHES}.bias"], "f32", [vision.hidden])], "patches.biased")
        x = normed(ir, x, vision.patches_norm, "patches.norm")
        x = x if vision.positions is None else added(ir, [x, self.positions(vision.positions)], "placed")
        return normed(ir, x, vision.positions_norm, "placed.norm")

    def convolved(self) -> Value:
        """Products of patches with their kernels, row by row, [1, patches, hidden]."""
        ir, side = self.ir, self.vision.patch_size
        grid = ir.op("Convolution", [self.pixels, self.kernel()], "grid", strides=f"{side}, {side}",
                     pads_begin="0, 0", pads_end="0, 0", dilations="1, 1", auto_pad="explicit")  # fmt: skip
        flat = ir.op("Reshape", [grid, ir.constant([0, self.vision.hidden, -1])], "grid.flat", special_zero=True)
        return ir.op("Transpose", [flat, ir.constant([0, 2, 1])], "patches")

    def multiplied(self, norm: Norm) -> Value:
        """The same of patches whose values are normed."""
        ir, side = self.ir, self.vision.patch_size
        values = 3 * side**2
        x = ir.op("Transpose", [self.pixels, ir.constant([0, 2, 3, 1])], "pixels")
        x = ir.op("Reshape", [x, ir.constant([-1, side, 0, 3])], "pixels.rows", special_zero=True)
        x = ir.op("Reshape", [x, ir.constant([0, 0, -1, 3 * side])], "pixels.columns", special_zero=True)
        x = ir.op("Transpose", [x, ir.constant([0, 2, 1, 3])], "pixels.patches")
        x = ir.op("Reshape", [x, ir.constant([1, -1, values])], "pixels.flat", special_zero=False)
        kernels = ir.stored([f"{PATCHES}.weight"], "f32", [self.vision.hidden, values])
        x = normed(ir, x, norm, "pixels.norm")
        return ir.op("MatMul", [x, kernels], "patches", transpose_a=False, transpose_b=True)

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

    def attend(self, index: int, attention: Attention, qkv: tuple[Value, Value, Value]) -> Value:
        ir = self.ir
        if self.vision.has_windows(index):
            assert self.mask is not None
            inputs = [*(self.in_windows(x, name) for x, name in zip(qkv, "qkv", strict=True)), self.mask]
            output = ir.op("ScaledDotProductAttention", inputs, "attention.windows", causal=False)
            flat = ir.constant([1, attention.heads, -1, attention.head_dim])
            output = ir.op("Reshape", [output, flat], "attention.flat", special_zero=False)
            return ir.op("Gather", [output, self.windows[2], ir.constant(2)], "attention", batch_dims=0)
        return attend_to_all(ir, attention, qkv)

    def in_windows(self, x: Value, name: str) -> Value:
        """[1, heads, patches, D] as [heads, windows, longest, D]."""
        ir = self.ir
        windows = ir.op("Gather", [x, self.windows[0], ir.constant(2)], f"{name}.windows", batch_dims=0)
        return ir.op("Squeeze", [windows, ir.constant([0])], f"{name}.by_window")

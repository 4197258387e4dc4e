"""The vision encoder of Qwen's models as openvino-genai runs it: patches, positions and layers are models of their own.

It makes the patches of each image, and gives all images of a prompt to the layers at once, with masks by which the
patches of an image see each other. Source: the classes of visual_language of openvino-genai (2026.4).
"""

from __future__ import annotations

from collections.abc import Mapping

from embedllm.export.openvino.elementwise import added
from embedllm.export.openvino.ir import Ir, Value
from embedllm.export.openvino.linear import Products
from embedllm.export.openvino.vision_layers import EncoderLayers
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.packing import Packing
from embedllm.package.tensors import PATCHES

_CORNERS = 4  # of a square grid's, among which a position is interpolated


def write_patches(ir: Ir, decoder: Decoder, _: Mapping[str, Packing]) -> None:
    """Writes the embedding of patches: hidden_states [patches, values] to rows [patches, hidden]."""
    vision = _vision(decoder)
    values = 3 * vision.temporal_patch_size * vision.patch_size**2
    patches = ir.parameter("hidden_states", "f32", [-1, values])
    kernels = ir.stored([f"{PATCHES}.weight"], "f32", [vision.hidden, values])
    rows = ir.op("MatMul", [patches, kernels], "patches", transpose_a=False, transpose_b=True)
    if vision.patches_bias:
        rows = added(ir, [rows, ir.stored([f"{PATCHES}.bias"], "f32", [vision.hidden])], "patches.biased")
    ir.split("Result", [rows], "patches.result", 0)


def write_positions(ir: Ir, decoder: Decoder, _: Mapping[str, Packing]) -> None:
    """Writes the table of learned positions: input [4, patches], four corners each, to rows [4, patches, hidden]."""
    positions = _vision(decoder).positions
    assert positions is not None
    places = ir.parameter("input", "i64", [_CORNERS, -1])
    table = ir.stored([f"{positions.name}.weight"], "f32", [positions.rows, positions.columns])
    rows = ir.op("Gather", [table, places, ir.constant(0)], "positions", batch_dims=0)
    ir.split("Result", [rows], "positions.result", 0)


def write_layers(ir: Ir, decoder: Decoder, packing: Mapping[str, Packing]) -> None:
    """Writes the layers: rows of patches, as they are squares, to last_hidden_state [rows, the decoder's hidden].

    Inputs: hidden_states [patches, hidden]; attention_mask [1, patches, patches], added to scores; rotary_pos_emb
    [patches, head_dim / 2], angles; with windows window_attention_mask, for patches in the order of windows, and
    window_index [squares], that order. Second output with DeepStack: deepstack_feature_lists [layers, rows, hidden].
    """
    _Layers(ir, decoder, packing).write()


class _Layers:
    def __init__(self, ir: Ir, decoder: Decoder, packing: Mapping[str, Packing]) -> None:
        self.ir, self.vision, self.packing = ir, _vision(decoder), packing
        self.x = ir.parameter("hidden_states", "f32", [-1, self.vision.hidden])
        mask = ir.parameter("attention_mask", "f32", 3)
        self.angles = ir.parameter("rotary_pos_emb", "f32", [-1, self.vision.head_dim // 2])
        self.order = ir.parameter("window_index", "i64", 1) if self.vision.window else None
        ir.scope = "vision"
        self.mask = self._by_head(mask, "mask")
        self.window_mask = self.mask
        if self.vision.window:
            ir.scope = ""
            mask = ir.parameter("window_attention_mask", "f32", 3)
            ir.scope = "vision"
            self.window_mask = self._by_head(mask, "window_mask")

    def write(self) -> None:
        ir = self.ir
        x = self._in_windows(self.x, "patches", self.vision.hidden)
        layers = EncoderLayers(self.vision, Products(ir, self.packing), self._rotations(), self._attend)
        features, deepstack = layers.features(ir.op("Unsqueeze", [x, ir.constant(0)], "patches.batch"))
        ir.scope = "vision"
        squeezed = ir.op(
            "Squeeze", [features, ir.constant([0])], "rows", tensor="" if self.order else "last_hidden_state"
        )
        rows = self._in_place(squeezed) if self.order else squeezed
        ir.split("Result", [rows], "last_hidden_state.result", 0)
        if deepstack:
            lists = ir.op("Concat", deepstack, "deepstack", tensor="deepstack_feature_lists", axis=0)
            ir.split("Result", [lists], "deepstack_feature_lists.result", 0)

    def _rotations(self) -> list[Value]:
        """cos and sin of the patches."""
        ir, tables = self.ir, list[Value]()
        for kind in ("Cos", "Sin"):
            ir.is_precise = True  # angles are more than half precision can tell apart
            half = ir.op(kind, [self.angles], f"rope.{kind.lower()}.half")
            ir.is_precise = False
            ordered = self._in_windows(half, f"rope.{kind.lower()}", self.vision.head_dim // 2)
            tables.append(ir.op("Concat", [ordered, ordered], f"rope.{kind.lower()}", axis=-1))
        return tables

    def _by_head(self, mask: Value, name: str) -> Value:
        return self.ir.op("Unsqueeze", [mask, self.ir.constant(1)], f"{name}.by_head")

    def _in_windows(self, x: Value, name: str, columns: int) -> Value:
        """Rows of patches, the squares of which are put into the order of windows."""
        if self.order is None:
            return x
        ir, square = self.ir, self.vision.merge_size**2
        apart = ir.op("Reshape", [x, ir.constant([-1, square, columns])], f"{name}.squares", special_zero=False)
        ordered = ir.op("Gather", [apart, self.order, ir.constant(0)], f"{name}.in_windows", batch_dims=0)
        return ir.op("Reshape", [ordered, ir.constant([-1, columns])], f"{name}.flat", special_zero=False)

    def _in_place(self, rows: Value) -> Value:
        """Rows of features, of squares in the order of windows, in the order of the image."""
        assert self.order is not None
        ir = self.ir
        places = ir.op("Unsqueeze", [self.order, ir.constant(1)], "places.column")
        shape = ir.op("ShapeOf", [rows], "places.shape", type="i64", output_type="i64")
        places = ir.op("Broadcast", [places, shape], "places", mode="numpy")
        return ir.op("ScatterElementsUpdate", [rows, places, rows, ir.constant(0)], "rows.in_place",
                     tensor="last_hidden_state")  # fmt: skip

    def _attend(self, index: int, _: Attention, qkv: tuple[Value, Value, Value]) -> Value:
        mask = self.window_mask if self.vision.has_windows(index) else self.mask
        return self.ir.op("ScaledDotProductAttention", [*qkv, mask], "attention", causal=False)


def _vision(decoder: Decoder) -> DynamicVision:
    assert isinstance(decoder.vision, DynamicVision)
    return decoder.vision

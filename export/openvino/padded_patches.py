"""The vision encoder of Gemma 4 as openvino-genai runs it: it is given patches row by row, and where each of them is.

Inputs: pixel_values [1, budget, values], of 0 to 1, padded; image_position_ids [1, budget, 2], column and row of each
patch, -1 of padding. Output: features [1, rows, the decoder's hidden], without any of padding. Source: the class of
Gemma 4 in visual_language of openvino-genai (2026.4).
"""

from __future__ import annotations

from collections.abc import Mapping

from embedllm.export.openvino.elementwise import added, multiplied
from embedllm.export.openvino.ir import BROADCAST, Ir, Value
from embedllm.export.openvino.linear import Products
from embedllm.export.openvino.vision_layers import EncoderLayers, attend_to_all
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.packing import Packing
from embedllm.package.rope import frequencies_2d
from embedllm.package.tensors import PATCHES


def write_padded_encoder(ir: Ir, decoder: Decoder, packing: Mapping[str, Packing]) -> None:
    """Writes the encoder."""
    assert isinstance(decoder.vision, DynamicVision)
    _Encoder(ir, decoder.vision).write(Products(ir, packing))


class _Encoder:
    def __init__(self, ir: Ir, vision: DynamicVision) -> None:
        self.ir, self.vision = ir, vision
        self.values = 3 * vision.patch_size**2
        self.pixels = ir.parameter("pixel_values", "f32", [1, -1, self.values])
        self.places = ir.parameter("image_position_ids", "i64", [1, -1, 2])
        ir.scope = "vision"

    def write(self, products: Products) -> None:
        ir = self.ir
        order = self.square_order()
        places = ir.op("Gather", [self.places, order, ir.constant(1)], "places", batch_dims=0)  # [1, patches, 2]
        x = self.embedded(order, places)
        layers = EncoderLayers(self.vision, products, self.rotations(places), self.attend)
        features, _ = layers.features(x, "last_hidden_state")
        ir.split("Result", [features], "last_hidden_state.result", 0)

    def attend(self, _: int, attention: Attention, qkv: tuple[Value, Value, Value]) -> Value:
        return attend_to_all(self.ir, attention, qkv)

    def square_order(self) -> Value:
        """[patches], the places of those that are none of padding, in the order of squares."""
        ir, side = self.ir, self.vision.merge_size
        last = ir.op("ReduceMax", [self.places, ir.constant([0, 1])], "last", keep_dims=False)
        counts = ir.op("Add", [last, ir.constant(1)], "counts", **BROADCAST)  # columns, rows
        squares = ir.op("Divide", [counts, ir.constant(side)], "squares", m_pythondiv=True, **BROADCAST)
        count = ir.op("ReduceProd", [counts, ir.constant([0])], "count", keep_dims=False)
        all_places = ir.op("Range", [ir.constant(0), count, ir.constant(1)], "all", output_type="i64")
        columns, rows = (
            ir.op("Gather", [squares, ir.constant([at]), ir.constant(0)], name, batch_dims=0)
            for at, name in enumerate(("squares.columns", "squares.rows"))
        )
        shape = ir.op("Concat", [rows, ir.constant([side]), columns, ir.constant([side])], "grid.shape", axis=0)
        grid = ir.op("Reshape", [all_places, shape], "grid", special_zero=False)
        ordered = ir.op("Transpose", [grid, ir.constant([0, 2, 1, 3])], "grid.squares")
        return ir.op("Reshape", [ordered, ir.constant([-1])], "order", special_zero=False)

    def embedded(self, order: Value, places: Value) -> Value:
        """Patches with their positions, [1, patches, hidden]."""
        ir, vision, positions = self.ir, self.vision, self.vision.positions
        assert positions is not None
        pixels = ir.op("Gather", [self.pixels, order, ir.constant(1)], "pixels", batch_dims=0)
        doubled = multiplied(ir, pixels, 2.0, "pixels.doubled")
        centred = ir.op("Subtract", [doubled, ir.constant(1.0, "f32")], "pixels.centred", **BROADCAST)
        kernels = ir.stored([f"{PATCHES}.weight"], "f32", [vision.hidden, self.values])
        x = ir.op("MatMul", [centred, kernels], "patches", transpose_a=False, transpose_b=True)
        table = ir.stored([f"{positions.name}.weight"], "f32", [positions.rows, positions.columns])
        starts = ir.constant([0, vision.positions_side])  # of those of columns, and of rows
        in_table = ir.op("Add", [places, starts], "positions.places", **BROADCAST)
        both = ir.op("Gather", [table, in_table, ir.constant(0)], "positions.both", batch_dims=0)
        summed = ir.op("ReduceSum", [both, ir.constant([2])], "positions", keep_dims=False)
        return added(ir, [x, summed], "placed")

    def rotations(self, places: Value) -> list[Value]:
        """cos and sin, [patches, head_dim]."""
        ir = self.ir
        ir.is_precise = True  # angles are more than half precision can tell apart
        floats = ir.op("Convert", [places], "places.floats", type="f32", destination_type="f32")
        axes = (0, 1) if self.vision.rope_column_first else (1, 0)
        angles: list[Value] = []
        for axis, frequencies in zip(axes, frequencies_2d(self.vision), strict=True):
            at = ir.op("Gather", [floats, ir.constant([axis]), ir.constant(2)], f"angles.{axis}.places", batch_dims=0)
            factors = ir.constant([float(one) for one in frequencies], "f32")
            angles.append(ir.op("Multiply", [at, factors], f"angles.{axis}", **BROADCAST))
        both = ir.op("Concat", [*angles, *angles], "angles", axis=-1)
        tables = [ir.op(kind, [both], f"rope.{kind.lower()}") for kind in ("Cos", "Sin")]
        ir.is_precise = False
        return tables

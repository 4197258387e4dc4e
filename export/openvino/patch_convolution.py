"""Convolutions over the grid of patches in the OpenVINO model of a vision encoder of images of any size (LFM3-VL)."""

from __future__ import annotations

from embedllm.export.openvino.elementwise import multiplied_by
from embedllm.export.openvino.ir import BROADCAST, Value
from embedllm.export.openvino.linear import Products
from embedllm.package.architecture.recurrent import ShortConv
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.tensors import patch_convolution_name


class PatchConvolutions:
    """Writes what is in place of attention in some layers. pixels: the image; order: of its patches."""

    def __init__(self, vision: DynamicVision, products: Products, pixels: Value, order: Value) -> None:
        self.vision, self.products, self.ir = vision, products, products.ir
        self.pixels, self.order = pixels, order

    def context(self, index: int, mixer: ShortConv, patches: Value) -> Value:
        """[1, patches, values], in front of the output projection."""
        ir, parts, values, kernel = self.ir, [mixer.b, mixer.c, mixer.x], mixer.x.rows, mixer.kernel
        together = self.products.linear(patches, parts, "bcx")
        lengths = ir.constant([part.rows for part in parts])
        b, c, x = ir.split("VariadicSplit", [together, ir.constant(2), lengths], "bcx.split", 3)
        weights = ir.stored([patch_convolution_name(index)], "f32", [values, 1, 1, kernel, kernel])
        edges = f"{kernel // 2}, {kernel // 2}"
        grid = ir.op("GroupConvolution", [self.as_grid(multiplied_by(ir, [b, x], "entering"), values), weights],
                     "convolved", strides="1, 1", pads_begin=edges, pads_end=edges, dilations="1, 1",
                     auto_pad="explicit")  # fmt: skip
        flat = ir.op("Reshape", [grid, ir.constant([0, 0, -1])], "convolved.flat", special_zero=True)
        rows = ir.op("Transpose", [flat, ir.constant([0, 2, 1])], "convolved.rows")
        ordered = ir.op("Gather", [rows, self.order, ir.constant(1)], "convolved.ordered", batch_dims=0)
        return multiplied_by(ir, [c, ordered], "context")

    def as_grid(self, x: Value, values: int) -> Value:
        """Patches [1, patches, values] in the order of squares as [1, values, rows, columns]."""
        ir, merge = self.ir, self.vision.merge_size
        size = ir.size(self.pixels, 3, "width")
        wide, columns = (
            ir.op("Divide", [size, ir.constant([pixels])], name, m_pythondiv=True, **BROADCAST)
            for name, pixels in (("wide", self.vision.factor), ("columns", self.vision.patch_size))
        )
        parts = [ir.constant([-1]), wide, ir.constant([merge, merge * values])]
        shape = ir.op("Concat", parts, "squares.shape", axis=0)
        squares = ir.op("Reshape", [x, shape], "squares", special_zero=False)
        rows = ir.op("Transpose", [squares, ir.constant([0, 2, 1, 3])], "squares.rows")
        shape = ir.op("Concat", [ir.constant([1, -1]), columns, ir.constant([values])], "rows.shape", axis=0)
        rows = ir.op("Reshape", [rows, shape], "rows", special_zero=False)
        return ir.op("Transpose", [rows, ir.constant([0, 3, 1, 2])], "grid")

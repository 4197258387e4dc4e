"""Convolutions over the grid of patches in the ONNX graph of a vision encoder of images of any size (LFM3-VL)."""

from __future__ import annotations

from embedllm.export.onnx.builder import Graph
from embedllm.export.onnx.linear import Products
from embedllm.package.architecture.recurrent import ShortConv
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.graph_variants import PATCH_ORDER
from embedllm.package.tensors import patch_convolution_name


class PatchConvolutions:
    """Writes what is in place of attention in some layers."""

    def __init__(self, vision: DynamicVision, products: Products) -> None:
        self.graph: Graph = products.graph
        self.vision, self.products = vision, products

    def context(self, index: int, mixer: ShortConv, normed: str) -> str:
        """[1, patches, values], in front of the output projection."""
        graph, values, kernel = self.graph, mixer.x.rows, mixer.kernel
        b, c, x = self.products.split_linear(normed, [mixer.b, mixer.c, mixer.x], "bcx", "bcx")
        grid = self.as_grid(graph.op("Mul", [b, x], "entering"), values)
        name = patch_convolution_name(index)
        weights = graph.cast(graph.stored([name], shape=[values, 1, kernel, kernel], name=name))
        grid = graph.op("Conv", [grid, weights], "convolved", group=values, pads=4 * [kernel // 2])
        flat = graph.op("Reshape", [grid, graph.constant(0, 0, -1)], "convolved.flat")
        rows = graph.op("Transpose", [flat], "convolved.rows", perm=[0, 2, 1])
        return graph.op("Mul", [c, graph.op("Gather", [rows, PATCH_ORDER], "convolved.ordered", axis=1)], "context")

    def as_grid(self, x: str, values: int) -> str:
        """Patches [1, patches, values] in the order of squares as [1, values, rows, columns]."""
        graph, merge = self.graph, self.vision.merge_size
        wide, columns = self.widths()
        shape = graph.op("Concat", [graph.constant(-1), wide, graph.constant(merge, merge * values)], "squares.shape",
                         axis=0)  # fmt: skip
        squares = graph.op("Reshape", [x, shape], "squares")
        rows = graph.op("Transpose", [squares], "squares.rows", perm=[0, 2, 1, 3])
        shape = graph.op("Concat", [graph.constant(1, -1), columns, graph.constant(values)], "rows.shape", axis=0)
        return graph.op("Transpose", [graph.op("Reshape", [rows, shape], "rows")], "grid", perm=[0, 3, 1, 2])

    def widths(self) -> tuple[str, str]:
        """Squares of a row, and patches of a row, [1] each."""
        graph, names = self.graph, ("vision.grid.wide", "vision.grid.columns")
        if not graph.has(names[0]):
            size = "vision.grid.size"
            graph.node("Shape", ["pixel_values"], [size], size, start=3, end=4)
            for name, pixels in zip(names, (self.vision.factor, self.vision.patch_size), strict=True):
                graph.node("Div", [size, graph.constant(pixels)], [name], name)
        return names

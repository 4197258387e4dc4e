"""The inputs of an encoder of images of any size, and what most are made of, computed in the graph where they are none.

The latter have the values of backends/image_grid.py, under the names of these inputs. For runtimes that give nothing
but what their own processors make: export/genai_images.py.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper

from embedllm.export.onnx.builder import FLOAT_TYPES, Graph
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.graph_variants import (
    IMAGE_GRID,
    PATCH_ORDER,
    POSITIONS,
    ROPE,
    WINDOW_MASK,
    WINDOW_PLACES,
    WINDOWS,
    GraphVariant,
)
from embedllm.package.rope import frequencies_2d


def image_inputs(vision: DynamicVision, variant: GraphVariant, kind: int) -> list[ValueInfoProto]:
    """The inputs of a variant. kind: ONNX's type of the activations."""
    pixels: tuple[str, int, list[int | str]] = ("pixel_values", kind, [1, 3, "height", "width"])
    if variant.grid_from == "pixels":
        inputs = [pixels]
    elif variant.grid_from == "patches":
        inputs = [("pixel_values", kind, ["patches", patch_values(vision)]), (IMAGE_GRID, TensorProto.INT64, [1, 3])]
    else:
        inputs = [pixels, *_made_of_size(vision, kind)]
    return [helper.make_tensor_value_info(name, type_of, shape) for name, type_of, shape in inputs]


def patch_values(vision: DynamicVision) -> int:
    """Pixels of a patch, of all channels and times."""
    return 3 * vision.temporal_patch_size * vision.patch_size**2


def _made_of_size(vision: DynamicVision, kind: int) -> list[tuple[str, int, list[int | str]]]:
    """Inputs that backends/image_grid.py makes."""
    integer = int(TensorProto.INT64)
    inputs: list[tuple[str, int, list[int | str]]] = [(PATCH_ORDER, integer, ["patches"])]
    inputs += [(name, kind, ["patches", vision.head_dim // 2]) for name in ROPE] if vision.has_rope else []
    if vision.positions is not None:
        places, weights = POSITIONS
        count = "taps" if vision.antialias else 2 if vision.positions_by_axis else 4
        inputs += [(places, integer, [count, "patches"]), (weights, kind, [count, "patches", 1])]
    if vision.window:
        inputs += [
            (WINDOWS, integer, ["windows", "longest"]),
            (WINDOW_MASK, TensorProto.INT32, ["windows", "longest"]),
            (WINDOW_PLACES, integer, ["patches"]),
        ]
    return inputs


def image_grid(graph: Graph, vision: DynamicVision, variant: GraphVariant) -> None:
    """Writes what a variant has no inputs for, from the shape of the pixels or the grid of the patches."""
    graph.scope = "grid.size"
    if variant.grid_from == "patches":  # time, rows, columns
        sizes, places = graph.op("Reshape", [IMAGE_GRID, graph.constant(-1)], "flat"), (1, 2)
    else:
        shape = graph.op("Shape", ["pixel_values"], "shape")
        sizes, places = graph.op("Div", [shape, graph.constant(vision.patch_size)], "patches"), (2, 3)
    rows, columns = (
        graph.op("Gather", [sizes, graph.constant(place, scalar=True)], name, axis=0)
        for name, place in zip(("rows", "columns"), places, strict=True)
    )
    _Writer(graph, vision, rows, columns).write()


class _Writer:
    """rows, columns: of patches, scalars. Squares are of patches that are merged, row by row, as are patches in one."""

    def __init__(self, graph: Graph, vision: DynamicVision, rows: str, columns: str) -> None:
        self.graph, self.vision, self.rows, self.columns = graph, vision, rows, columns

    def write(self) -> None:
        vision, merge = self.vision, self.number(self.vision.merge_size)
        self.graph.scope = "grid"
        square, inside = self.divmod(self.range(self.op("Mul", self.rows, self.columns)), self.number(self.square))
        wide = self.op("Div", self.columns, merge)
        square_row, square_column = self.divmod(square, wide)
        row_inside, column_inside = self.divmod(inside, merge)
        row = self.op("Add", self.op("Mul", square_row, merge), row_inside)
        column = self.op("Add", self.op("Mul", square_column, merge), column_inside)
        self.output("Add", [self.op("Mul", row, self.columns), column], PATCH_ORDER)
        if vision.has_rope:
            self.rotations(row, column)
        if vision.positions is not None:
            assert not vision.positions_by_axis  # of no model that is run in this way
            assert not vision.antialias
            assert not vision.positions_on_edges
            self.corners(row, column)
        if vision.window:
            self.windows(self.op("Div", self.rows, merge), wide)

    @property
    def square(self) -> int:
        return self.vision.merge_size**2

    def rotations(self, row: str, column: str) -> None:
        """2-D RoPE: cos and sin of half of the pairs by the row, of half by the column, in the order of the model."""
        graph, axes = self.graph, (column, row) if self.vision.rope_column_first else (row, column)
        halves: list[str] = []
        for number, (axis, frequencies) in enumerate(zip(axes, frequencies_2d(self.vision), strict=True)):
            table = graph.table(frequencies[None], f"constant.grid.frequencies.{number}")
            floats = self.op("Unsqueeze", self.single(axis), graph.constant(-1))
            halves.append(self.op("Mul", floats, table))
        angles = graph.op("Concat", halves, "angles", axis=1)
        for kind, name in zip(("Cos", "Sin"), ROPE, strict=True):
            self.as_activations(self.op(kind, angles), name)

    def corners(self, row: str, column: str) -> None:
        """The four learned positions around each patch, and their weights: the grids lie corner on corner."""
        assert self.vision.positions is not None
        graph, side = self.graph, isqrt(self.vision.positions.rows)
        axes: list[list[tuple[str, str]]] = []
        for at, count in ((row, self.rows), (column, self.columns)):
            steps = self.op("Max", self.op("Sub", count, self.number(1)), self.number(1))
            exact = self.op("Div", self.op("Mul", self.single(at), graph.single(side - 1)), self.single(steps))
            first = self.op("Floor", exact)
            share = self.op("Sub", exact, first)
            place = graph.op("Cast", [first], self.name(), to=TensorProto.INT64)
            behind = self.op("Min", self.op("Add", place, self.number(1)), self.number(side - 1))
            axes.append([(place, self.op("Sub", graph.single(1.0), share)), (behind, share)])
        pairs = [(one, other) for one in axes[0] for other in axes[1]]
        first_axis, last = graph.constant(0), graph.constant(-1)
        places, weights = list[str](), list[str]()
        for one, other in pairs:
            place = self.op("Add", self.op("Mul", one[0], self.number(side)), other[0])
            places.append(self.op("Unsqueeze", place, first_axis))
            weights.append(self.op("Unsqueeze", self.op("Mul", one[1], other[1]), first_axis))
        self.graph.node("Concat", places, [POSITIONS[0]], self.name(), axis=0)
        stacked = graph.op("Concat", weights, "weights", axis=0)
        self.as_activations(self.op("Unsqueeze", stacked, last), POSITIONS[1])

    def windows(self, rows: str, columns: str) -> None:
        """rows, columns: of squares. A window at an edge has places in it that are no square's."""
        graph, side = self.graph, self.number(self.vision.window)
        area, square = self.vision.window**2, self.number(self.square)
        high, wide = (self.op("Div", self.op("Add", each, self.number(self.vision.window - 1)), side)
                      for each in (rows, columns))  # fmt: skip
        number, slot = self.divmod(
            self.range(self.op("Mul", self.op("Mul", high, wide), self.number(area))), self.number(area)
        )
        top, left = self.divmod(number, wide)
        down, right = self.divmod(slot, side)
        row = self.op("Add", self.op("Mul", top, side), down)
        column = self.op("Add", self.op("Mul", left, side), right)
        is_inside = self.op("And", self.op("Less", row, rows), self.op("Less", column, columns))
        of_square = self.op("Where", is_inside, self.op("Add", self.op("Mul", row, columns), column), self.number(0))
        patches = graph.table(np.arange(self.square)[None], "constant.grid.square")
        last, shape = graph.constant(-1), graph.constant(-1, area * self.square)
        of_patch = self.op("Add", self.op("Unsqueeze", self.op("Mul", of_square, square), last), patches)
        self.output("Reshape", [of_patch, shape], WINDOWS)
        mask = graph.op("Cast", [is_inside], self.name(), to=TensorProto.INT32)
        each = graph.table(np.ones((1, self.square), np.int32), "constant.grid.each")
        self.output("Reshape", [self.op("Mul", self.op("Unsqueeze", mask, last), each), shape], WINDOW_MASK)
        row, column = self.divmod(self.range(self.op("Mul", rows, columns)), columns)
        (top, down), (left, right) = self.divmod(row, side), self.divmod(column, side)
        window = self.op("Add", self.op("Mul", top, wide), left)
        place = self.op("Add", self.op("Mul", window, self.number(area)),
                        self.op("Add", self.op("Mul", down, side), right))  # fmt: skip
        places = self.op("Add", self.op("Unsqueeze", self.op("Mul", place, square), last), patches)
        self.output("Reshape", [places, last], WINDOW_PLACES)

    def op(self, kind: str, *inputs: str) -> str:
        return self.graph.op(kind, inputs, self.name())

    def output(self, kind: str, inputs: list[str], name: str) -> None:
        self.graph.node(kind, inputs, [name], self.name())

    def as_activations(self, value: str, name: str) -> None:
        self.graph.node("Cast", [value], [name], self.name(), to=FLOAT_TYPES[self.graph.activations])

    def name(self) -> str:
        return self.graph.named(str(len(self.graph.nodes)))

    def number(self, value: int) -> str:
        return self.graph.constant(value, scalar=True)

    def single(self, value: str) -> str:
        return self.graph.op("Cast", [value], self.name(), to=TensorProto.FLOAT)

    def range(self, count: str) -> str:
        return self.op("Range", self.number(0), count, self.number(1))

    def divmod(self, value: str, by: str) -> tuple[str, str]:
        return self.op("Div", value, by), self.op("Mod", value, by)

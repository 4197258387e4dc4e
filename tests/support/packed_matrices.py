"""One packed matrix in a file of its own, and the floats that each runtime takes it for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from embedllm.backends.openvino.properties import EXACT
from embedllm.backends.openvino.runtime import core
from embedllm.export.layout import CONSTANTS, Entry, Layout, Writer, lay_out
from embedllm.export.onnx import linear as onnx_products
from embedllm.export.onnx.builder import Graph
from embedllm.export.openvino import linear as openvino_products
from embedllm.export.openvino.ir import Ir
from embedllm.export.writing.plan import blocks
from embedllm.package.architecture.weights import Linear
from embedllm.package.graph_variants import FLOAT32, GPU_FLOAT32, GraphVariant
from embedllm.package.package import WEIGHTS
from embedllm.package.packing import Packed, Packing, dequantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F32

_EXACT = dataclasses.replace(FLOAT32, accuracy_level=0)


def assert_same_floats(found: F32, expected: F32, packed: Packed, packing: Packing, how: str) -> None:
    """That a runtime multiplies by these weights; rounded in another order where a minimum is added apart."""
    if not packing.has_minimum or "product" not in how:
        np.testing.assert_array_equal(found, expected, err_msg=how)
        return
    assert packed.minimum is not None
    largest = np.abs(packed.scale.astype(np.float32)) * (1 << packing.bits) + np.abs(packed.minimum)
    bounds = np.repeat(largest * 3e-7, packing.group_size, axis=1)[:, : expected.shape[1]]
    assert (np.abs(found - expected) <= bounds).all(), how


def as_runtimes_see(
    folder: Path, packed: Packed, packing: Packing, columns: int, order: NDArray[np.int32] | None = None
) -> Iterator[tuple[str, F32]]:
    """(by whom and how, [rows, columns]): multiplied by the identity without rounding, and all rows looked up.

    order: of the columns of a "matrix" that has one, which is no table; the reference's are as they lie.
    """
    yield "reference", dequantize(packed, packing, columns)
    linear = Linear(name="matrix", source="matrix", rows=len(packed.weight), columns=columns)
    layout = _write(folder, packed, packing, linear, order)
    identity, every = np.eye(columns, dtype=np.float32)[None], np.arange(linear.rows)[None]
    for variant in (_EXACT, GPU_FLOAT32):
        session = _session(folder, layout, linear, packing, variant)
        given = {"x": identity, "tokens": every}
        product, *rows = session.run(None, {each.name: given[each.name] for each in session.get_inputs()})
        yield f"{variant.name}, product", np.asarray(product)[0].T
        yield from ((f"{variant.name}, rows", np.asarray(each)[0]) for each in rows)
    (folder / "model.xml").write_text(_openvino(Ir(layout), linear, packing).xml("matrix"))
    model = core().compile_model(core().read_model(folder / "model.xml", folder / WEIGHTS), "CPU", EXACT)
    found = model.create_infer_request().infer({"x": identity, **({} if packing.column_order else {"tokens": every})})
    product, *rows = (found[output] for output in model.outputs)
    yield "openvino, product", product[0].T
    yield from (("openvino, rows", each[0]) for each in rows)


def product_of_rounded(folder: Path, packed: Packed, packing: Packing, x: F32) -> F32:
    """x [N, columns] times a matrix, where ONNX Runtime may round x to integers: [N, rows]."""
    linear = Linear(name="matrix", source="matrix", rows=len(packed.weight), columns=x.shape[1])
    session = _session(folder, _write(folder, packed, packing, linear, None), linear, packing, FLOAT32)
    product, *_ = session.run(None, {"x": x[None], "tokens": np.zeros((1, 1), np.int64)})
    return np.asarray(product)[0]


def _write(folder: Path, packed: Packed, packing: Packing, linear: Linear, order: NDArray[np.int32] | None) -> Layout:
    pool = _openvino(Ir(None), linear, packing).pool
    orders = [] if order is None else [Entry("matrix.order", "I32", (linear.columns,))]
    runs = [[Entry(CONSTANTS, "U8", (len(pool),))], *filter(None, [orders]), *blocks([linear], packing)]
    layout = lay_out(runs, {"format": "embedllm"})
    with Writer(folder / WEIGHTS, layout) as writer:
        writer.write(CONSTANTS, pool)
        if order is not None:
            writer.write("matrix.order", order)
        for kind in ("weight", "scale", "minimum", "zero"):
            if (values := getattr(packed, kind)) is not None:
                writer.write(f"matrix.{kind}", np.ascontiguousarray(values))
        writer.finish()
    return layout


def _session(
    folder: Path, layout: Layout, linear: Linear, packing: Packing, variant: GraphVariant
) -> onnxruntime.InferenceSession:
    path = folder / variant.file
    path.write_bytes(_onnx(Graph(layout, "float32"), linear, packing, variant))
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def _onnx(graph: Graph, linear: Linear, packing: Packing, variant: GraphVariant) -> bytes:
    products = onnx_products.Products(graph, {linear.name: packing}, variant)
    graph.scope = "test"
    names = [products.linear("x", [linear], "product")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "rows", linear.columns])]
    if not packing.column_order:
        names.append(products.embedding(linear, "tokens"))
        inputs.append(helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "wanted"]))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    return graph.model("matrix", inputs, outputs).SerializeToString()


def _openvino(ir: Ir, linear: Linear, packing: Packing) -> Ir:
    products = openvino_products.Products(ir, {linear.name: packing})
    x = ir.op("Parameter", [], "x", type="f32", tensor="x", shape=f"?,?,{linear.columns}", element_type="f32")
    tokens = None if packing.column_order else ir.parameter("tokens", "i64", 2)
    product = products.linear(x, [linear], "product", tensor="product")
    rows = tokens and products.rows(linear, tokens, "rows")
    ir.split("Result", [product], "product.result", 0)
    if rows is not None:
        ir.split("Result", [rows], "rows.result", 0)
    return ir

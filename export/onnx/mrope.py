"""Rotary tables of M-RoPE in a graph, of the time, row and column of each token, which are an input.

position_ids [3, B, T], as transformers and onnxruntime-genai have them.
"""

from __future__ import annotations

import numpy as np

from embedllm.export.onnx.builder import Graph
from embedllm.package.architecture.rope import Mrope, Rope
from embedllm.package.graph_variants import POSITION_IDS
from embedllm.package.rope import mrope_axes


def mrope_tables(graph: Graph, rope: Rope, mrope: Mrope, tables: list[str]) -> list[str]:
    """cos and sin of the tokens, [B * T, rotated / 2]: each pair of dimensions by the axis that rotates it.

    tables: those of all positions.
    """
    half = rope.rotary_dim // 2
    axes = mrope_axes(mrope, half)
    is_of_axis = (np.arange(3)[:, None] == axes).astype(graph.activations).reshape(3, 1, 1, half)
    chosen = graph.table(is_of_axis, "constant.mrope_axes")
    with_scope, graph.scope = graph.scope, "mrope"
    rows: list[str] = []
    for part, table in zip(("cos", "sin"), tables, strict=True):
        of_all = graph.op("Gather", [table, POSITION_IDS], f"{part}.axes", axis=0)
        of_axis = graph.op("Mul", [of_all, chosen], f"{part}.chosen")
        by_token = graph.op("ReduceSum", [of_axis, graph.constant(0)], f"{part}.tokens", keepdims=0)
        rows.append(graph.op("Reshape", [by_token, graph.constant(-1, half)], part))
    graph.scope = with_scope
    return rows


def table_rows(graph: Graph) -> str:
    """Which row of those tables is of which token, [B, T]."""
    graph.scope = "mrope.rows"
    shape = graph.op("Shape", ["input_ids"], "shape")
    count = graph.op("ReduceProd", [shape, graph.constant(0)], "count", keepdims=0)
    zero, one = (graph.constant(each, scalar=True) for each in (0, 1))
    return graph.op("Reshape", [graph.op("Range", [zero, count, one], "range"), shape], "rows")

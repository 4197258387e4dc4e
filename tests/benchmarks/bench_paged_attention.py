"""Steps of attention alone on an NVIDIA GPU: GroupQueryAttention over a slot a row, and PagedAttention over blocks.

    python tests/benchmarks/bench_paged_attention.py [--rows 1 8 32 64] [--lengths 512 2048] [--blocks 16 256]
        [--layers 8] [--steps 200]

Graphs of attention nodes only, in the shape of Qwen3-0.6B (16 heads, 8 of keys, 128 channels, float16), each layer with
KV of its own; everything lies in the GPU's memory, a step is captured and replayed, and again launched node by node.
Rows have lengths of their own: from half the length to all of it. Prints microseconds a layer and step, medians.
PagedAttention's outputs are compared with GroupQueryAttention's over the same keys and values.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from embedllm.backends.gpu.cuda import memory_of, start
from embedllm.backends.ort.runtime import first_line, ort

HEADS, KV_HEADS, CHANNELS = 16, 8, 128
_HALF, _INT = TensorProto.FLOAT16, TensorProto.INT32


def _model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto],
           constants: list[onnx.TensorProto]) -> bytes:  # fmt: skip
    graph = helper.make_graph(nodes, "attention", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def _value(name: str, kind: int, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def grouped(layers: int, rows: int, capacity: int) -> bytes:
    cache: list[int | str] = [rows, KV_HEADS, capacity, CHANNELS]
    inputs = [_value("query", _HALF, [rows, 1, HEADS * CHANNELS]), _value("key", _HALF, [rows, 1, KV_HEADS * CHANNELS]),
              _value("value", _HALF, [rows, 1, KV_HEADS * CHANNELS]), _value("lengths", _INT, [rows])]  # fmt: skip
    outputs, nodes, query = [_value("out", _HALF, [rows, 1, HEADS * CHANNELS])], [], "query"
    for layer in range(layers):
        names = [f"{kind}{layer}" for kind in ("keys", "values")]
        inputs += [_value(name, _HALF, cache) for name in names]
        outputs += [_value(f"{name}.new", _HALF, cache) for name in names]
        out = "out" if layer == layers - 1 else f"out{layer}"
        nodes.append(helper.make_node("GroupQueryAttention", [query, "key", "value", *names, "lengths", "capacity"],
                                      [out, *(f"{name}.new" for name in names)], domain="com.microsoft",
                                      num_heads=HEADS, kv_num_heads=KV_HEADS))  # fmt: skip
        query = out
    return _model(nodes, inputs, outputs, [helper.make_tensor("capacity", _INT, [], [capacity])])


def paged(layers: int, rows: int, capacity: int, block: int) -> bytes:
    each = capacity // block
    cache: list[int | str] = [rows * each, block, KV_HEADS, CHANNELS]
    inputs = [_value("query", _HALF, [rows, HEADS * CHANNELS]), _value("key", _HALF, [rows, KV_HEADS * CHANNELS]),
              _value("value", _HALF, [rows, KV_HEADS * CHANNELS]), _value("starts", _INT, [rows + 1]),
              _value("past", _INT, [rows]), _value("table", _INT, [rows, each])]  # fmt: skip
    outputs, nodes, query = [_value("out", _HALF, [rows, HEADS * CHANNELS])], [], "query"
    for layer in range(layers):
        names = [f"{kind}{layer}" for kind in ("keys", "values")]
        inputs += [_value(name, _HALF, cache) for name in names]
        outputs += [_value(f"{name}.new", _HALF, cache) for name in names]
        out = "out" if layer == layers - 1 else f"out{layer}"
        given = [query, "key", "value", *names, "starts", "past", "table", *[""] * 8, "bounds"]
        nodes.append(helper.make_node("PagedAttention", given, [out, *(f"{name}.new" for name in names)],
                                      domain="com.microsoft", num_heads=HEADS, kv_num_heads=KV_HEADS))  # fmt: skip
        query = out
    return _model(nodes, inputs, outputs, [helper.make_tensor("bounds", _INT, [2], [1, capacity])])


class Steps:
    """A graph whose values lie on the GPU."""

    def __init__(self, model: bytes, values: Mapping[str, NDArray[np.generic]], *, captures: bool) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "attention.onnx"
            path.write_bytes(model)
            self.session = start(str(path), options, 0, captures=captures)
        self.binding = self.session.io_binding()
        self._kept = {name: ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0) for name, value in values.items()}
        for name, value in self._kept.items():
            self.binding.bind_ortvalue_input(name, value)
        shape = self.session.get_outputs()[0].shape
        self.out = ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float16, "cuda", 0)
        self.binding.bind_ortvalue_output("out", self.out)
        for output in self.session.get_outputs()[1:]:
            self.binding.bind_ortvalue_output(output.name, self._kept[output.name.removesuffix(".new")])
        self.run()

    def run(self, count: int = 1) -> float:
        """Seconds a step."""
        begin = time.perf_counter()
        for _ in range(count):
            self.session.run_with_iobinding(self.binding)
        memory_of(0).synchronize()
        return (time.perf_counter() - begin) / count


def _caches(layers: int, rows: int, length: int) -> list[NDArray[np.float16]]:
    """Keys and values of each layer: [rows, kv_heads, length, channels]."""
    numbers = np.random.default_rng(0)
    return [(numbers.standard_normal((rows, KV_HEADS, length, CHANNELS), np.float32) / 4).astype(np.float16)
            for _ in range(2 * layers)]  # fmt: skip


def measure(rows: int, length: int, options: argparse.Namespace) -> None:
    numbers = np.random.default_rng(1)
    capacity = length + 256
    past = np.linspace(length // 2, length, rows).astype(np.int32)
    new = {name: numbers.standard_normal((rows, heads * CHANNELS), np.float32).astype(np.float16)
           for name, heads in (("query", HEADS), ("key", KV_HEADS), ("value", KV_HEADS))}  # fmt: skip
    caches = _caches(options.layers, rows, capacity)
    names = [f"{kind}{layer}" for layer in range(options.layers) for kind in ("keys", "values")]
    graphs = {"GroupQueryAttention": (grouped(options.layers, rows, capacity),
                                      {**{name: value[:, None] for name, value in new.items()}, "lengths": past,
                                       **dict(zip(names, caches, strict=True))})}  # fmt: skip
    for block in options.blocks:
        each = capacity // block
        order = numbers.permutation(rows * each).astype(np.int32)
        values = {}
        for name, cache in zip(names, caches, strict=True):
            blocks = cache.transpose(0, 2, 1, 3).reshape(rows * each, block, KV_HEADS, CHANNELS)
            values[name] = np.empty_like(blocks)
            values[name][order] = blocks
        graphs[f"PagedAttention, blocks of {block}"] = (
            paged(options.layers, rows, capacity, block),
            {
                **new,
                "starts": np.arange(rows + 1, dtype=np.int32),
                "past": past,
                "table": order.reshape(rows, each),
                **values,
            },
        )
    expected: NDArray[np.float16] | None = None
    for name, (model, values) in graphs.items():
        said = []
        for captures in (True, False):
            try:
                steps = Steps(model, values, captures=captures)
                out = steps.out.numpy().reshape(rows, -1)
                expected = out if expected is None else expected
                worst = float(np.abs(out.astype(np.float32) - expected).max())
                times = [1e6 * steps.run(options.steps) / options.layers for _ in range(5)]
            except Exception as error:  # noqa: BLE001 - ONNX Runtime's own, told as it is
                said.append(first_line(error)[:160])
            else:
                kind = "captured" if captures else "launched"
                said.append(f"{kind} {statistics.median(times):6.1f} us (out differs by {worst:.4f})")
        print(f"{rows:3d} rows of up to {length:5d}, {name:32s} {'; '.join(said)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    for length in options.lengths:
        for rows in options.rows:
            measure(rows, length, options)


if __name__ == "__main__":
    main()

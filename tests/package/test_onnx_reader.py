"""The summary of an ONNX file: the same as the package onnx reads, and no trust in what it says of its lengths."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from embedllm.errors import PackageError
from embedllm.package.onnx_reader import FLOAT, FLOAT16, INT64, Node, ValueInfo, read_graph_summary


def model() -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.ones((4, 5), np.float32), "weight")
    outside = TensorProto(name="outside", data_type=TensorProto.FLOAT, dims=[7], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "beside.data"), ("offset", "64"), ("length", "28")):
        entry = outside.external_data.add()
        entry.key, entry.value = key, value
    inputs = [
        helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", 300, None]),
        helper.make_tensor_value_info("weight", TensorProto.FLOAT, [4, 5]),
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT16, ["batch", 5])]
    nodes = [
        helper.make_node("Own", ["tokens", "weight"], ["logits", "more"], domain="ours", axis=3, last=-1, share=0.5)
    ]
    return helper.make_model(helper.make_graph(nodes, "graph", inputs, outputs, [weight, outside]))


def test_it_gives_what_the_file_declares(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model().SerializeToString())
    found = read_graph_summary(path)
    assert found.inputs == (ValueInfo(name="tokens", kind=INT64, dims=("batch", 300, "")),)  # the weight has a default
    assert found.outputs == (ValueInfo(name="logits", kind=FLOAT16, dims=("batch", 5)),)
    numbers = {"axis": 3, "last": -1, "share": 0.5}
    node = Node(operator="Own", inputs=("tokens", "weight"), outputs=("logits", "more"), numbers=numbers)
    assert found.nodes == (node,)
    assert (found.files, found.stored) == (("beside.data",), 27)
    assert found.widths == {"weight": 5, "outside": 7}
    assert FLOAT not in {one.kind for one in found.inputs}


WHOLE = model().SerializeToString()


@given(st.data())
def test_damaged_files_are_refused_or_read_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, len(WHOLE)))
    damaged = bytearray(WHOLE[:length])
    for place in data.draw(st.lists(st.integers(0, max(length - 1, 0)), max_size=3 if length else 0)):
        damaged[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    path.write_bytes(damaged)
    with contextlib.suppress(PackageError):
        read_graph_summary(path)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"", "empty"),
        (b"\x3a\xff\xff\xff\xff\x0f", "a field ends at byte"),
        (b"\xff" * 12, "does not end"),
        (b"\x3f", "begins no field"),
        (b"\x08\x07", "it has no graph"),
        (b"\x08\x80", "in the middle of a number"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, written: bytes, said: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(written)
    with pytest.raises(PackageError, match=said):
        read_graph_summary(path)

"""Writes the small graphs that reduce a row of logits on a device: backends/gpu/heads/*.onnx.

    python tools/make_heads.py

Each takes logits [B, 1, V], in float32 or float16, and gives `out` [B, 1, ...], float32, for each row:

    row   the logits themselves, V
    best  the token of the highest logit, that logit, the log of the sum of all exponentials: 3; and `token`, int64,
          which the next step can read where it is
    list  the tokens of the highest logits, these logits, the same log: 2 LISTED + 1
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from embedllm.backends.gpu.device_logits import HEADS, LISTED

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
CAST = helper.make_node("Cast", ["logits"], ["floats"], to=TensorProto.FLOAT)
ROW = helper.make_node("Cast", ["logits"], ["out"], to=TensorProto.FLOAT)
# the highest logit by ArgMax, as CUDA's ReduceMax takes 7 ms for two rows of 150,000 (ONNX Runtime 1.31)
SUM = [
    helper.make_node("ArgMax", ["logits"], ["token"], axis=-1, keepdims=1),
    helper.make_node("GatherElements", ["floats", "token"], ["highest"], axis=-1),
    helper.make_node("Sub", ["floats", "highest"], ["below"]),
    helper.make_node("Exp", ["below"], ["weights"]),
    helper.make_node("ReduceSum", ["weights", "last"], ["sum"]),
    helper.make_node("Log", ["sum"], ["log"]),
    helper.make_node("Add", ["log", "highest"], ["logsumexp"]),
]


def joined(*parts: str) -> NodeProto:
    """The parts of each row, one after the other."""
    return helper.make_node("Concat", [*parts], ["out"], axis=-1)


BODIES = {
    "row": [ROW],
    "best": [
        CAST,
        *SUM,
        helper.make_node("Cast", ["token"], ["number"], to=TensorProto.FLOAT),
        joined("number", "highest", "logsumexp"),
    ],
    "list": [
        CAST,
        *SUM,
        helper.make_node("TopK", ["logits", "count"], ["highest_few", "tokens"], axis=-1),
        helper.make_node("Cast", ["highest_few"], ["floats_of_few"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["tokens"], ["numbers"], to=TensorProto.FLOAT),
        joined("numbers", "floats_of_few", "logsumexp"),
    ],
}
MORE = {"best": [helper.make_tensor_value_info("token", TensorProto.INT64, ["rows", 1, 1])]}  # outputs


def main() -> None:
    HEADS.mkdir(exist_ok=True)
    constants = [
        numpy_helper.from_array(np.array([-1]), "last"),
        numpy_helper.from_array(np.array([LISTED]), "count"),
    ]
    for name, nodes in BODIES.items():
        for kind, number in TYPES.items():
            used = {place for node in nodes for place in node.input}
            graph = helper.make_graph(
                nodes,
                name,
                [helper.make_tensor_value_info("logits", number, ["rows", 1, "vocabulary"])],
                [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["rows", 1, "numbers"]), *MORE.get(name, [])],
                [constant for constant in constants if constant.name in used],
            )
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
            onnx.checker.check_model(model)
            (HEADS / f"{name}.{kind}.onnx").write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main()

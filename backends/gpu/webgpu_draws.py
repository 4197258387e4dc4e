"""A graph that guesses the token which the sampler will draw from a row of logits, by ONNX's operators alone.

It runs behind each step on WebGPU (webgpu_guesses.py), captured as that is, its outputs in the place of its inputs:

    logits    [1, 1, V]               of the step, in its type
    numbers   float32 [1, NUMBERS]    how to choose, and a number in [0, 1) for each of the next rows: see numbers_of()
    rows      [ROWS, 1, V + DIGITS]   the latest rows, the last one last, each with its guess behind it: see guess_of()

    next_ids      int64 [1, 1]        the guess
    next_numbers  the same, with the number of the next row in front
    next_rows     the same, with this row

Without truncations the draw goes by ids, as the sampler's does: tokens are counted up to the number's part of the sum.
With truncations it goes by probability. Tokens of some weight go into a list, and the rank of each, and the mass
before it, come of comparing all pairs: there is no sort. What the list does not show is guessed wrong, and so are some
tokens by rounding; the sampler has the last word.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from embedllm.backends.gpu.webgpu_graph import square_side
from embedllm.files.optional_packages import needs
from embedllm.sampling.token_choice import FIRST_LOOK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from onnx import NodeProto, TensorProto

    from embedllm.sampling.options import Sampling
    from embedllm.types import F32

    _Input: TypeAlias = "str | NDArray[Any] | np.float32"  # a name, or a constant
    _Value: TypeAlias = "tuple[str, int, list[int]]"  # name, type and shape

ROWS = 4  # that are kept until the host reads them
DIGITS = 2  # of a guess, which 16-bit floats hold exactly
NUMBERS = 6 + ROWS
_BASE = 1024  # of the digits
_LISTED = 1024  # tokens that a truncated draw can choose from
_LEAST = 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3  # weight of those, of the best one's: the first at which they are few enough
_LOWEST = -3.0e38  # fills rows up
_NO_LIMIT = 1e9  # as top_k
_FADE = 2.4e-7  # what a weight loses with each place in the list: of equal ones the lower id is first


class _Sums(NamedTuple):
    """Over a square [1, D, A] of weights, in the order of ids."""

    is_listed: str  # 1 or 0
    weight: str  # of all up to each token
    listed: str  # how many are listed up to each token
    total: str  # of all, [1, 1]
    listed_count: str  # [1, 1]


def numbers_of(sampling: Sampling, uniforms: Sequence[float]) -> F32:
    """What the graph takes as `numbers`, for rows whose draws take these numbers, at most ROWS."""
    numbers = np.zeros((1, NUMBERS), np.float32)
    numbers[0, :6] = (
        1 / sampling.temperature,
        max(sampling.top_p, _FADE) if sampling.top_p < 1 else 2.0,  # rounding leaves none out
        sampling.min_p,
        sampling.top_k or _NO_LIMIT,
        sampling.top_k > 0,
        sampling.truncates,
    )
    numbers[0, 6 : 6 + len(uniforms)] = uniforms
    return numbers


def guess_of(row: NDArray[Any]) -> int:
    """The guess that lies behind a row."""
    high, low = row[-DIGITS:].tolist()
    return int(high) * _BASE + int(low)


def draws_graph(vocabulary: int, dtype: np.dtype[Any]) -> bytes:
    with needs("onnx", "WebGPU"):
        from onnx import TensorProto, helper

    kind = helper.np_dtype_to_tensor_dtype(dtype)
    graph = _Graph()
    # of a copy, as the graph writes where it reads
    copy = graph.op("Abs", "numbers")
    inverse, top_p, min_p, top_k, is_top_k, truncates, uniform = (graph.cut(copy, at, at + 1) for at in range(7))
    shifted = (graph.cut(copy, 0, 6), graph.cut(copy, 7, NUMBERS), uniform)
    graph.op("Concat", *shifted, name="next_numbers", axis=1)

    squares = _squares(graph, vocabulary)
    highest = graph.over_square("ReduceMax", squares)
    weights = graph.op("Exp", graph.op("Mul", graph.op("Sub", squares, highest), inverse))
    sums = _sums(graph, weights)
    reached = graph.op("LessOrEqual", sums.weight, graph.op("Mul", sums.total, uniform))
    by_id = graph.op("Reshape", graph.over_square("ReduceSum", graph.floats(reached)), np.array([1, 1]))
    listed = _listed(graph, weights, sums, math.prod(_square(vocabulary)))
    by_rank, is_shown = _from_list(graph, listed, sums, (top_p, min_p, top_k, is_top_k, uniform))
    is_truncated = graph.op("Greater", graph.op("Mul", is_shown, truncates), np.float32(0))
    token = graph.op("Where", is_truncated, by_rank, by_id)
    token = graph.op("Min", token, np.float32(vocabulary - 1))  # rounding may count one too many
    graph.op("Cast", token, name="next_ids", to=TensorProto.INT64)

    _keep_row(graph, token, kind)
    sizes = [1, NUMBERS], [ROWS, 1, vocabulary + DIGITS]
    inputs = ("logits", kind, [1, 1, vocabulary]), ("numbers", TensorProto.FLOAT, sizes[0]), ("rows", kind, sizes[1])
    outputs = (
        ("next_ids", TensorProto.INT64, [1, 1]), ("next_numbers", TensorProto.FLOAT, sizes[0]),
        ("next_rows", kind, sizes[1]),
    )  # fmt: skip
    return graph.model(inputs, outputs)


def _keep_row(graph: _Graph, token: str, kind: int) -> None:
    """Puts the row behind the latest ones, with the digits of its guess."""
    high = graph.op("Floor", graph.op("Mul", token, np.float32(1 / _BASE)))
    low = graph.op("Sub", token, graph.op("Mul", high, np.float32(_BASE)))
    digits = graph.op("Reshape", graph.op("Concat", high, low, axis=1), np.array([1, 1, DIGITS]))
    row = graph.op("Concat", "logits", graph.op("Cast", digits, to=kind), axis=2)
    graph.op("Slice", graph.op("Concat", "rows", row, axis=0), np.array([1]), np.array([ROWS + 1]), np.array([0]),
             name="next_rows")  # fmt: skip


def _squares(graph: _Graph, vocabulary: int) -> str:
    """The row as [1, D, A], which this provider adds up with more than one workgroup."""
    down, across = _square(vocabulary)
    row = graph.floats("logits")
    if missing := down * across - vocabulary:
        row = graph.op("Pad", row, np.array([0, 0, 0, 0, 0, missing]), np.float32(_LOWEST))
    return graph.op("Reshape", row, np.array([1, down, across]))


def _sums(graph: _Graph, weights: str) -> _Sums:
    least = np.array(_LEAST, np.float32).reshape(-1, 1, 1)
    counts = graph.over_square("ReduceSum", graph.floats(graph.op("GreaterOrEqual", weights, least)))
    fits = graph.op("LessOrEqual", counts, np.float32(_LISTED))
    least = graph.op("ReduceMin", graph.op("Where", fits, least, np.float32(_NO_LIMIT)), np.array([0]), keepdims=1)
    is_listed = graph.floats(graph.op("GreaterOrEqual", weights, least))
    both = graph.op("Concat", weights, is_listed, axis=0)
    by_row = graph.op("ReduceSum", both, np.array([2]), keepdims=1)
    before = graph.op("CumSum", by_row, np.array(1), exclusive=1)
    cumulative = graph.op("Add", graph.op("CumSum", both, np.array(2)), before)
    totals = graph.op("ReduceSum", by_row, np.array([1]), keepdims=0)
    weight, listed = (graph.cut(cumulative, at, at + 1, axis=0) for at in (0, 1))
    total, count = (graph.cut(totals, at, at + 1, axis=0) for at in (0, 1))
    return _Sums(is_listed, weight, listed, total, count)


def _from_list(
    graph: _Graph, listed: tuple[str, str], sums: _Sums, numbers: tuple[str, str, str, str, str]
) -> tuple[str, str]:
    """The token [1, 1] that a truncated draw takes, and above 0 where the list has all that it chooses from."""
    (weight, ids), (top_p, min_p, top_k, is_top_k, uniform) = listed, numbers
    mass, rank = _ranked(graph, weight)
    is_best = graph.floats(graph.op("Less", rank, top_k))
    chosen = graph.down(graph.op("Mul", weight, is_best))
    total = graph.op("Where", graph.op("Greater", is_top_k, np.float32(0)), chosen, sums.total)
    is_nucleus = graph.floats(graph.op("Less", mass, graph.op("Mul", total, top_p)))
    is_likely = graph.floats(graph.op("GreaterOrEqual", weight, min_p))
    is_left = graph.op("Mul", graph.op("Mul", is_best, is_nucleus), is_likely)
    target = graph.op("Mul", graph.down(graph.op("Mul", is_left, weight)), uniform)
    passed = graph.op("Mul", is_left, graph.floats(graph.op("LessOrEqual", mass, target)))
    place = graph.op("Sub", graph.down(passed), np.float32(1))
    is_drawn = graph.op("Mul", is_left, graph.floats(graph.op("Equal", rank, place)))
    token = graph.down(graph.op("Mul", ids, is_drawn))
    # of a larger set the sampler draws by ids: token_choice.py
    count = graph.down(is_left)
    is_small = graph.floats(graph.op("Less", count, np.float32(FIRST_LOOK + 0.5)))
    return token, graph.op("Mul", count, graph.op("Max", is_small, is_top_k))


def _listed(graph: _Graph, weights: str, sums: _Sums, tokens: int) -> tuple[str, str]:
    """The weights and ids of tokens of some weight, in the order of ids, [_LISTED, 1] each; the rest weighs 0.

    tokens: of the square. ScatterND's copy of what it scatters into is no kernel, and not captured: when a step is
    replayed, the places behind the tokens hold those of another row (onnxruntime-ep-webgpu 0.4.0).
    """
    others = graph.op("Mul", graph.op("Sub", np.float32(1), sums.is_listed), np.float32(_LISTED + 2))
    places = graph.op("Add", graph.op("Mul", sums.is_listed, sums.listed), others)
    # what has no place goes to one behind the list
    places = graph.op("Min", graph.op("Sub", places, np.float32(1)), np.float32(_LISTED))
    places = graph.op("Reshape", graph.op("Cast", places, to=graph.integers), np.array([-1, 1]))
    empty = np.zeros(_LISTED + 1, np.float32)
    columns = [
        graph.cut(graph.op("ScatterND", empty, places, values), 0, _LISTED, axis=0)
        for values in (graph.op("Reshape", weights, np.array([-1])), np.arange(tokens, dtype=np.float32))
    ]
    weight, ids = (graph.op("Reshape", values, np.array([_LISTED, 1])) for values in columns)
    is_taken = graph.op("Less", np.arange(_LISTED, dtype=np.float32).reshape(-1, 1), sums.listed_count)
    return graph.op("Where", is_taken, weight, np.float32(0)), ids


def _ranked(graph: _Graph, weight: str) -> tuple[str, str]:
    """How much weighs more than each token of the list, and how many tokens do, [_LISTED, 1] each."""
    fade = (1 - _FADE * np.arange(_LISTED, dtype=np.float32)).reshape(-1, 1)
    key = graph.op("Mul", weight, fade)
    is_above = graph.floats(graph.op("Greater", graph.op("Reshape", key, np.array([1, _LISTED])), key))
    ones = np.ones((_LISTED, 1), np.float32)
    both = graph.op("MatMul", is_above, graph.op("Concat", weight, ones, axis=1))
    return graph.cut(both, 0, 1), graph.cut(both, 1, 2)


def _square(vocabulary: int) -> tuple[int, int]:
    """Rows and columns of a square with room for a row of logits."""
    across = square_side(vocabulary)
    return -(-vocabulary // across), across


class _Graph:
    """Nodes and constants of a graph under construction."""

    def __init__(self) -> None:
        with needs("onnx", "WebGPU"):
            from onnx import TensorProto

        self.integers = int(TensorProto.INT64)
        self._float32 = int(TensorProto.FLOAT)
        self._nodes: list[NodeProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._values: list[TensorProto] = []

    def op(self, operator: str, *inputs: _Input, name: str = "", **attributes: int) -> str:
        """Adds a node; the name of what it gives."""
        from onnx import helper

        name = name or f"{operator}.{len(self._nodes)}"
        places = [one if isinstance(one, str) else self._constant(np.asarray(one)) for one in inputs]
        node = helper.make_node(operator, places, [name], name=name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self._nodes.append(node)
        return name

    def floats(self, value: str) -> str:
        return self.op("Cast", value, to=self._float32)

    def cut(self, value: str, start: int, stop: int, *, axis: int = 1) -> str:
        return self.op("Slice", value, np.array([start]), np.array([stop]), np.array([axis]))

    def down(self, column: str) -> str:
        """The sum of a column, [1, 1]."""
        return self.op("ReduceSum", column, np.array([0]), keepdims=1)

    def over_square(self, operator: str, square: str) -> str:
        """[1, D, A] reduced to [1, 1, 1], by rows at first."""
        return self.op(operator, self.op(operator, square, np.array([2]), keepdims=1), np.array([1]), keepdims=1)

    def model(self, inputs: Sequence[_Value], outputs: Sequence[_Value]) -> bytes:
        from onnx import helper

        graph = helper.make_graph(
            self._nodes,
            "draws",
            [helper.make_tensor_value_info(*value) for value in inputs],
            [helper.make_tensor_value_info(*value) for value in outputs],
            self._values,
        )
        domains = [helper.make_opsetid("", 21)]
        return cast("bytes", helper.make_model(graph, opset_imports=domains, ir_version=10).SerializeToString())

    def _constant(self, array: NDArray[Any]) -> str:
        from onnx import numpy_helper

        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = f"constant.{len(self._constants)}"
            self._values.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

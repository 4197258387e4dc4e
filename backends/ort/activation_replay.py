"""Activation replay: states behind any token of a short feed, computed of what the recurrent operators read in it.

Drafts are verified in one feed, which leaves the states behind its last token. A graph gives what its convolutions and
delta rules read of such a feed; of that, and of the states before it, those behind the accepted tokens are computed,
without the model's matrices. Source: Wu et al. 2024, "Snakes and Ladders: Accelerating SSM Inference with Speculative
Decoding". Measured: docs/concepts.md#recurrent-models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from embedllm.backends.ort.runtime import ort, run_options
from embedllm.package.onnx_reader import INT64, read_makers, read_versions
from embedllm.package.onnx_writer import constant, graph_input, graph_output, more_of_graph, node

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.ort.recurrent_state import Buffers, States

_MOST = 32  # tokens: of a step with the most drafts; at the shape of Qwen 3.5 0.8B they take 0.7 MB each
FROM = "activations_from"  # input: the first token of a feed whose activations are given
_NONE = 2**62  # no token
_AXIS, _END = "activations.axis", "activations.end"


class _Rule(NamedTuple):
    """A delta rule, or a gated sum, of a layer."""

    operator: bytes  # LinearAttention, as Maker has it
    state: str
    read: tuple[str, ...]  # outputs of the graph: keys, values, gates


class ReplayGraph:
    """What a graph has to give for that, and the graph of recurrent operators alone, loaded when it is first needed."""

    def __init__(self, data: bytes, names: Iterable[str], new_options: Callable[[], ort.SessionOptions]) -> None:
        """data: a graph. names: of its states, "KIND.LAYER".

        Raises KeyError where other operators compute them: in graphs of earlier versions.
        """
        self._new_options, self._versions = new_options, read_versions(data)
        self._session: ort.InferenceSession | None = None
        self.convolved: dict[str, str] = {}  # by state: the output of which some rows are that state
        self.rules: list[_Rule] = []
        wide: list[str] = []  # values by layer, [1, T, heads * size], of convolutions with the rows before these
        presents = {name: f"present_{name}" for name in names}
        makers = read_makers(data, presents.values())
        for name, present in presents.items():
            operator, inputs = makers[present].node.operator, makers[present].node.inputs
            if operator == "Slice":
                self.convolved[name] = _sliced(inputs[0])
                wide.append(inputs[0])
            elif operator == "LinearAttention":
                _, keys, values, _, *gates = inputs
                self.rules.append(_Rule(makers[present].operator, name, (_sliced(keys), _sliced(values), *gates)))
                wide += [keys, values]
            else:
                raise KeyError(operator)
        self._wide = wide
        self.outputs = [*map(_sliced, wide), *(gate for rule in self.rules for gate in rule.read[2:])]

    def extension(self) -> bytes:
        """What is to stand behind the graph for it to have these outputs.

        They are empty but in feeds that ask for them; not the gates, [1, T, heads], which are small.
        """
        # the other way round: ONNX Runtime begins with the last node that nobody reads, and what these read would be
        # kept for all layers until the end of a prompt (1.32; 302 MB of 512 tokens at the shape of Qwen 3.5 0.8B)
        parts = [node("Slice", [value, FROM, _END, _AXIS], [_sliced(value)]) for value in reversed(self._wide)]
        parts += map(graph_output, self.outputs)
        parts += [graph_input(FROM, INT64), constant(FROM, _NONE), constant(_END, _NONE), constant(_AXIS, 1)]
        return more_of_graph(parts)

    @property
    def session(self) -> ort.InferenceSession:
        """Of the graph that computes the states of all layers, each for itself."""
        if self._session is None:
            parts: list[bytes] = []
            for rule in self.rules:
                past, present = f"past_{rule.state}", f"present_{rule.state}"
                keys, values, *gates = rule.read  # keys in place of queries, whose results nobody reads
                parts.append(node(rule.operator, [keys, keys, values, past, *gates], [f"found.{rule.state}", present]))
                parts += [graph_output(present), *map(graph_input, (past, *rule.read))]
            model = self._versions + more_of_graph(parts)
            options = self._new_options()
            self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        return self._session


class Activations:
    """Of the latest feed of one sequence, where that was short and asked for it."""

    def __init__(self, graph: ReplayGraph | None) -> None:
        self._graph = graph
        self._is_asked = False
        self._start = self._end = 0  # positions
        self._values: dict[str, NDArray[np.float32]] = {}  # by output
        self._held: list[ort.OrtValue] = []  # whose memory that is
        self._all = ort.OrtValue.ortvalue_from_numpy(np.array([0], np.int64))  # the value of FROM

    def ask(self, count: int) -> bool:
        """Before a feed of that many tokens; whether it will give them."""
        self._is_asked = self._graph is not None and 1 < count <= _MOST
        return self._is_asked

    def bind(self, binding: ort.IOBinding) -> None:
        """For the next feed; those of the last one are forgotten."""
        self.forget()
        if self._is_asked and self._graph is not None:
            binding.bind_ortvalue_input(FROM, self._all)
            for name in self._graph.outputs:
                binding.bind_output(name)

    def take(self, binding: ort.IOBinding, position: int, count: int) -> None:
        """Takes what a feed of tokens from that position on has given."""
        if self._is_asked and self._graph is not None:
            names = self._graph.outputs
            self._held = list(binding.get_outputs()[-len(names) :])  # the last that were bound
            self._values = {name: value.numpy() for name, value in zip(names, self._held, strict=True)}
            self._start, self._end = position, position + count

    def rewind(self, position: int) -> None:
        """Forgets those of the tokens from there on."""
        self._end = min(self._end, position)
        if self._end <= self._start:
            self.forget()

    def forget(self) -> None:
        self._values, self._held = {}, []
        self._start = self._end = 0

    def reach(self, start: int, position: int) -> bool:
        """Whether the states behind a position can be computed from those behind another one."""
        return start == self._start < position <= self._end

    def replay(self, states: States, position: int) -> None:
        """Computes them, of those that are held."""
        states.follow(lambda past, present: self._compute(past, present, position - self._start))

    def _compute(self, past: Buffers, present: Buffers, count: int) -> None:
        graph = self._graph
        assert graph is not None  # of values that it gave
        for state, seen in graph.convolved.items():
            rows = present[state].shape()[1]
            present[state].update_inplace(self._values[seen][:, count : count + rows])
        if not graph.rules:
            return
        binding = graph.session.io_binding()
        bound: list[ort.OrtValue] = []  # some versions of the binding do not hold them (1.24 to 1.27)
        for rule in graph.rules:
            binding.bind_ortvalue_input(f"past_{rule.state}", past[rule.state])
            binding.bind_ortvalue_output(f"present_{rule.state}", present[rule.state])
            for name in rule.read:
                bound.append(ort.OrtValue.ortvalue_from_numpy(self._values[name][:, :count]))
                binding.bind_ortvalue_input(name, bound[-1])
        graph.session.run_with_iobinding(binding, run_options())


def _sliced(value: str) -> str:
    """The output that gives a value."""
    return f"activations.{value}"

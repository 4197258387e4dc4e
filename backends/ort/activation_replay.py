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
    from embedllm.backends.ort.recurrent_state import Buffers, States

_MOST = 32  # tokens: of a step with the most drafts; at the shape of Qwen 3.5 0.8B they take 0.7 MB each
FROM = "activations_from"  # input: the first token of a feed whose activations are given
_NONE = 2**62  # no token
_AXIS, _END, _ZERO = "activations.axis", "activations.end", "activations.zero"
_COUNT, _REST = "count", "rest"  # inputs of replay: how many tokens are accepted, and less how many are not


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
        self._convolved: dict[str, str] = {}  # by state: the output that has its rows
        self._rules: list[_Rule] = []
        wide: list[str] = []  # [1, T, heads * size] by layer, of convolutions with the rows before these, and a state
        presents = {name: f"present_{name}" for name in names}
        makers = read_makers(data, presents.values())
        for name, present in presents.items():
            operator, inputs = makers[present].node.operator, makers[present].node.inputs
            if operator == "Slice":
                self._convolved[name] = _sliced(inputs[0])
                wide += [inputs[0], present]
            elif operator == "LinearAttention":
                _, keys, values, _, *gates = inputs
                self._rules.append(_Rule(makers[present].operator, name, (_sliced(keys), _sliced(values), *gates)))
                wide += [keys, values]
            else:
                raise KeyError(operator)
        self._states, self._wide = list(presents), wide
        self.recurrent = [rule.state for rule in self._rules]  # states
        self.outputs = [*self._convolved.values(), *(value for rule in self._rules for value in rule.read)]

    def extension(self) -> bytes:
        """What is to stand behind the graph for it to have these outputs.

        They are empty but in feeds that ask for them; not the gates, [1, T, heads], which are small.
        """
        # ONNX Runtime (1.32) begins with the last node that nobody reads, and with what that needs. So they stand the
        # other way round, and the first layer's are computed first, together with its state: else what they are of
        # stayed in memory until the end of a prompt, of all layers (docs/concepts.md#recurrent-models)
        parts = [node("Slice", [value, FROM, _END, _AXIS], [_sliced(value)]) for value in reversed(self._wide)]
        parts += map(graph_output, self.outputs)
        parts += [graph_input(FROM, INT64), constant(FROM, _NONE), constant(_END, _NONE), constant(_AXIS, 1)]
        return more_of_graph(parts)

    @property
    def session(self) -> ort.InferenceSession:
        """Of the graph that computes the states of all layers, each for itself."""
        if self._session is None:
            parts = [graph_input(_COUNT, INT64), graph_input(_REST, INT64), constant(_ZERO, 0), constant(_AXIS, 1)]
            parts += [graph_input(name) for name in self.outputs]
            parts += [graph_output(f"present_{state}") for state in self._states]
            for state, seen in self._convolved.items():
                parts.append(node("Slice", [seen, _COUNT, _REST, _AXIS], [f"present_{state}"]))
            for rule in self._rules:
                first = [f"{name}.first" for name in rule.read]
                parts += [node("Slice", [name, _ZERO, _REST, _AXIS], [f"{name}.first"]) for name in rule.read]
                keys, values, *gates = first  # keys in place of queries, whose results nobody reads
                outputs = [f"found.{rule.state}", f"present_{rule.state}"]
                parts.append(node(rule.operator, [keys, keys, values, f"past_{rule.state}", *gates], outputs))
                parts.append(graph_input(f"past_{rule.state}"))
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
        self._count = 0  # tokens that there are values of, whatever was rewound since
        self._values: dict[str, ort.OrtValue] = {}  # by output
        self._all, self._none = (ort.OrtValue.ortvalue_from_numpy(np.array([first], np.int64)) for first in (0, _NONE))

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

    def unbind(self, binding: ort.IOBinding) -> None:
        """After such a feed: no output is bound any more, and the next feeds will give none of these."""
        self._is_asked = False
        binding.bind_ortvalue_input(FROM, self._none)
        binding.clear_binding_outputs()

    def take(self, binding: ort.IOBinding, position: int, count: int) -> None:
        """Takes what a feed of tokens from that position on has given."""
        if self._is_asked and self._graph is not None:
            names = self._graph.outputs
            self._values = dict(zip(names, binding.get_outputs()[-len(names) :], strict=True))  # the last to be bound
            self._start, self._end, self._count = position, position + count, count

    def rewind(self, position: int) -> None:
        """Forgets those of the tokens from there on."""
        self._end = min(self._end, position)
        if self._end <= self._start:
            self.forget()

    def forget(self) -> None:
        self._values = {}
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
        binding = graph.session.io_binding()
        # kept until the run is over: some versions of the binding do not hold them (1.24 to 1.27)
        rows = [ort.OrtValue.ortvalue_from_numpy(np.array([n], np.int64)) for n in (count, count - self._count)]
        inputs = dict(zip((_COUNT, _REST), rows, strict=True)) | self._values
        inputs |= {f"past_{state}": past[state] for state in graph.recurrent}
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for state, value in present.items():
            binding.bind_ortvalue_output(f"present_{state}", value)
        graph.session.run_with_iobinding(binding, run_options())


def _sliced(value: str) -> str:
    """The output that gives a value."""
    return f"activations.{value}"

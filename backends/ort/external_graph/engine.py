"""ONNX Runtime with a graph that another exporter has written.

Its KV grows by a copy at every step, which is slower than our own graphs, whose attention appends in place; unless its
attention does so, too. What it can be fed is found out by feeding it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import Interrupted
from embedllm.backends.checks import cannot_run, check_rewind, check_room, check_span, check_state, check_tokens
from embedllm.backends.ort.external_graph.inputs import Inputs
from embedllm.backends.ort.external_graph.kv import AppendedKv, CopiedKv
from embedllm.backends.ort.runtime import first_line, left_to_the_cpu, load_errors, ort
from embedllm.backends.sessions.chunk_check import CANNOT_BE_FED, difference
from embedllm.backends.system.host_memory import return_freed_memory
from embedllm.errors import DeviceError
from embedllm.package.entries import Graph
from embedllm.package.external_graph import Names
from embedllm.package.package import Package
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.backends.ort.external_graph.placement import Placement
    from embedllm.package.external_graph import ExternalGraph
    from embedllm.types import F32

# of the largest logit: a mask that is wrong for pieces moves logits by several tenths, rounding by a thousandth
MOST_DIFFERENCE = {False: 0.02, True: 0.2}  # by whether the graph rounds activations by what is fed at once


class ExternalGraphEngine:
    """A folder's external graph on one device; sessions share the weights."""

    def __init__(self, package: Package, graph: Graph, placement: Placement) -> None:
        """Raises DeviceError; DeviceUnavailable when part of the work would run on the CPU instead."""
        self.device = placement.device
        self.placement = placement
        self.chunk = placement.chunk
        self.package = package
        self.external_graph = package.external_graph
        self.names = Names() if package.external is None else package.external.names
        self.context = package.context
        self.remedy = package.larger_context
        path = package.folder / graph.file
        with load_errors(path), placement.lock:
            self._session: ort.InferenceSession | None = placement.start(os.fspath(path))
        if placement.heavy and (left := left_to_the_cpu(self._session, placement.heavy)):
            lack = f"ONNX Runtime gave {', '.join(left)} of '{graph.file}' to the CPU"
            raise cannot_run(placement.device, lack, "use the device 'cpu', or another graph of the folder by its path")
        self.inputs = Inputs(self._session, self.names)
        if package.external is not None:
            self.external_graph = self._tried(path)

    def _tried(self, path: Path) -> ExternalGraph:
        """What is known of the graph, and whether a prompt can be fed in pieces. Raises DeviceError where none can."""
        for described in (self.external_graph, replace(self.external_graph, in_pieces=False)):
            self.external_graph = described
            if difference(self, described) <= MOST_DIFFERENCE[self.names.rounds]:
                return described
        raise DeviceError(f"'{path}' {CANNOT_BE_FED}")

    @property
    def session(self) -> ort.InferenceSession:
        if self._session is None:
            raise ValueError("this model was closed")
        return self._session

    def open(self, capacity: int = 0) -> ExternalGraphSession:
        return ExternalGraphSession(self)

    def close(self) -> None:
        self._session = None
        return_freed_memory()


class ExternalGraphSession:
    """One sequence."""

    def __init__(self, engine: ExternalGraphEngine) -> None:
        self.position = 0
        self.is_stopping = False
        self._engine = engine
        self._external_graph = engine.external_graph
        self._inputs = engine.inputs
        self._session: ort.InferenceSession | None = engine.session
        shapes = self._inputs.kv(engine.external_graph.kv)
        placement = self._placement = engine.placement
        self._kv = (
            AppendedKv(shapes, engine.context, placement) if engine.names.appends else CopiedKv(shapes, placement)
        )
        self._options = ort.RunOptions()

    @property
    def capacity(self) -> int:
        """What is held: every token takes memory of its own."""
        return self.position

    def feed(self, tokens: Sequence[int]) -> NumpyLogits:
        return NumpyLogits(self._feed(tokens, each=False)[-1])

    def feed_all(self, tokens: Sequence[int]) -> F32:
        return self._feed(tokens, each=True)

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        if position < self.position:
            self._kv.cut(position)
        self.position = position

    def export_state(self, start: int, stop: int) -> KeyValues:
        check_span(start, stop, self.position)
        arrays = [values[0, :, start:stop].copy() for values in self._kv.arrays()]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def import_state(self, state: KeyValues) -> None:
        self._check_open()
        count = check_state(state, [(heads, size) for heads, size in self._external_graph.kv])
        check_room(self.position, count, limit=self._engine.context, remedy=self._engine.remedy)
        self._kv.append(self.position, [values for pair in state for values in pair])
        self.position += count

    def interrupt(self, stop: bool = True) -> None:
        self.is_stopping = stop
        self._options.terminate = stop

    def close(self) -> None:
        self._session = None
        self._kv.clear()
        self.position = 0

    def _feed(self, tokens: Sequence[int], *, each: bool) -> F32:
        """The logits behind the last token, or behind each: [1 or T, V]. What fails appends nothing."""
        self._check_open()
        described, start = self._external_graph, self.position
        check_tokens(
            tokens, start, vocabulary=described.vocabulary, limit=self._engine.context, remedy=self._engine.remedy
        )
        values = self._kv.save()
        parts: list[F32] = []
        try:
            for piece in self._pieces(tokens, each=each):
                rows = self._run(piece, each=each)
                if each and len(rows) < len(piece):  # the graph gives those of the last token only
                    self._inputs.gives_all = False
                    self._kv.put_back(values)
                    self.position = start
                    return self._feed(tokens, each=True)
                parts = [*parts, rows] if each else [rows[-1:]]
        except BaseException:
            self._kv.put_back(values)
            self.position = start
            raise
        return np.concatenate(parts).astype(np.float32, copy=False)

    def _pieces(self, tokens: Sequence[int], *, each: bool) -> Iterator[Sequence[int]]:
        """What the graph can be fed at once, one after the other."""
        most = 1 if each and not self._inputs.gives_all else self._placement.chunk
        at = 0
        while at < len(tokens):
            count = most if self._external_graph.in_pieces or not self.position else 1
            yield tokens[at : at + count]
            at += count

    def _run(self, tokens: Sequence[int], *, each: bool) -> F32:
        with self._placement.lock:
            return self._run_alone(tokens, each=each)

    def _run_alone(self, tokens: Sequence[int], *, each: bool) -> F32:
        assert self._session is not None  # checked
        end = self.position + len(tokens)
        length = self._kv.reserve(end)
        binding = self._session.io_binding()
        for name, value in self._inputs.feeds(tokens, self.position, each=each, length=length):
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(self._engine.names.logits)
        pairs = self._engine.names.pairs(len(self._external_graph.kv))
        self._kv.bind(binding, pairs)
        try:
            self._session.run_with_iobinding(binding, self._options)
        except Exception as error:
            if self.is_stopping:
                raise Interrupted from error
            raise DeviceError(f"ONNX Runtime failed at position {self.position}: {first_line(error)}") from error
        logits, *present = binding.get_outputs()
        self._kv.take(present)
        self.position = end
        return logits.numpy()[0]

    def _check_open(self) -> None:
        if self._session is None:
            raise ValueError("this session was closed")

"""ONNX Runtime with a graph that another exporter has traced: its KV grows by a copy at every step.

Slower than our own graphs, whose attention appends in place, but any decoder runs so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import (
    LARGER_EXPORT,
    Device,
    Interrupted,
    check_rewind,
    check_room,
    check_span,
    check_state,
    check_tokens,
)
from embedllm.backends.memory import return_freed_memory
from embedllm.backends.ort import CHUNK, session_options
from embedllm.backends.ort_runtime import first_line, ort
from embedllm.errors import DeviceError
from embedllm.knobs import USUAL, Knobs
from embedllm.package import Graph, Package
from embedllm.rows import Row

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.types import F32

_PAST, _PRESENT = "past_key_values.", "present."


class TracedEngine:
    """A folder's traced graph on the CPU; sessions share the weights."""

    chunk = CHUNK

    def __init__(
        self, package: Package, graph: Graph, device: Device, *, knobs: Knobs = USUAL, exact: bool = False
    ) -> None:
        """exact: float activations, whatever the graph allows. Raises DeviceError."""
        self.device = device
        self.package = package
        self.traced = package.traced
        self.context = package.context
        self.remedy = LARGER_EXPORT
        path = package.folder / graph.file
        try:
            self._session: ort.InferenceSession | None = ort.InferenceSession(
                os.fspath(path),
                session_options(knobs, exact),
                providers=["CPUExecutionProvider"],
                enable_fallback=0,
            )
        except Exception as error:
            raise DeviceError(f"ONNX Runtime {ort.__version__} cannot load '{path}': {first_line(error)}") from error

    @property
    def session(self) -> ort.InferenceSession:
        if self._session is None:
            raise ValueError("this model was closed")
        return self._session

    def open(self, capacity: int = 0) -> TracedSession:
        return TracedSession(self)

    def close(self) -> None:
        self._session = None
        return_freed_memory()


class TracedSession:
    """One sequence."""

    def __init__(self, engine: TracedEngine) -> None:
        self.position = 0
        self.is_stopping = False
        self._traced = engine.traced
        self._session: ort.InferenceSession | None = engine.session
        takes = (*engine.session.get_inputs(), *engine.session.get_overridable_initializers())
        self._inputs = {given.name for given in takes}
        self._names = [f"{index}.{part}" for index in range(len(engine.traced.kv)) for part in ("key", "value")]
        self._kv = {f"{_PAST}{name}": _value(self._empty(name)) for name in self._names}
        self._options = ort.RunOptions()

    @property
    def capacity(self) -> int:
        """What is held: every token takes memory of its own."""
        return self.position

    def feed(self, tokens: Sequence[int]) -> Row:
        return Row(self._feed(tokens, logits_from=-1)[-1])

    def feed_all(self, tokens: Sequence[int]) -> F32:
        return self._feed(tokens, logits_from=0)

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        if position < self.position:
            self._kv = {name: _value(_array(value)[:, :, :position]) for name, value in self._kv.items()}
        self.position = position

    def export_state(self, start: int, stop: int) -> KeyValues:
        check_span(start, stop, self.position)
        arrays = [_array(self._kv[f"{_PAST}{name}"])[0, :, start:stop].copy() for name in self._names]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def import_state(self, state: KeyValues) -> None:
        self._check_open()
        count = check_state(state, [(heads, size) for heads, size in self._traced.kv])
        check_room(self.position, count, limit=self._traced.context, remedy=LARGER_EXPORT)
        given = [values for pair in state for values in pair]
        for name, values in zip(self._names, given, strict=True):
            held = _array(self._kv[f"{_PAST}{name}"])
            self._kv[f"{_PAST}{name}"] = _value(np.concatenate([held, values[None].astype(np.float32)], axis=2))
        self.position += count

    def interrupt(self, stop: bool = True) -> None:
        self.is_stopping = stop
        self._options.terminate = stop

    def close(self) -> None:
        self._session = None
        self._kv.clear()
        self.position = 0

    def _feed(self, tokens: Sequence[int], *, logits_from: int) -> F32:
        """The logits behind the last token, or behind each: [1 or T, V]. What fails appends nothing."""
        self._check_open()
        traced = self._traced
        check_tokens(tokens, self.position, vocabulary=traced.vocabulary, limit=traced.context, remedy=LARGER_EXPORT)
        at_once = len(tokens) if traced.in_pieces or not self.position else 1
        kv, position = self._kv, self.position
        try:
            parts = [
                self._run(tokens[start : start + at_once], logits_from) for start in range(0, len(tokens), at_once)
            ]
        except BaseException:
            self._kv, self.position = kv, position
            raise
        return np.concatenate(parts)

    def _run(self, tokens: Sequence[int], logits_from: int) -> F32:
        assert self._session is not None  # checked
        end = self.position + len(tokens)
        feeds = {
            **self._kv,
            "input_ids": _value(np.array([tokens], np.int64)),
            "attention_mask": _value(np.ones((1, end), np.int64)),
            "position_ids": _value(np.arange(self.position, end)[None]),
            "logits_from": _value(np.array([logits_from], np.int64)),
        }
        wanted = {name: value for name, value in feeds.items() if name in self._inputs}
        outputs = ["logits", *(f"{_PRESENT}{name}" for name in self._names)]
        try:
            logits, *kv = self._session.run_with_ort_values(outputs, wanted, self._options)
        except Exception as error:
            if self.is_stopping:
                raise Interrupted from error
            raise DeviceError(f"ONNX Runtime failed at position {self.position}: {first_line(error)}") from error
        self._kv = {f"{_PAST}{name}": value for name, value in zip(self._names, kv, strict=True)}
        self.position = end
        return _array(logits)[0]

    def _empty(self, name: str) -> F32:
        heads, size = self._traced.kv[int(name.partition(".")[0])]
        return np.empty((1, heads, 0, size), np.float32)

    def _check_open(self) -> None:
        if self._session is None:
            raise ValueError("this session was closed")


def _value(array: np.ndarray) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def _array(value: ort.OrtValue) -> F32:
    return value.numpy()

"""Scales of a quantized KV: how far keys and values reach, channel by channel, found by running the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import DeviceError, ExportError
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import FLOAT32
from embedllm.package.package import Package

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.base import KeyValues
    from embedllm.backends.ort.runtime import ort
    from embedllm.backends.ort.session import OrtSession

_SEED = 20261121
# of what the model says by itself, which is closer to what it will read than random tokens (docs/numerics.md)
_SEQUENCES, _LENGTH = 3, 384
_PIECE = 512  # tokens of a text that are read at once
# times what was seen: of int8, a number that is cut off costs more than coarser steps; of int4 the steps cost more, up
# to here (docs/numerics.md#quantized-kv)
_MARGINS = {8: 1.25, 4: 0.85}
_LARGEST = {8: 127, 4: 7}
_LEAST = 1e-8  # of a channel that is always zero, by which the runtime divides


def kv_scales(
    package: Package, float_graph: bytes, bits: int, tokens: Sequence[int] = ()
) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """By layer, what one step of a cached key and of a cached value stands for, [kv heads, D].

    float_graph: the model's graph of the variant FLOAT32. bits: of a cached number, 8 or 4.
    tokens: of a text to be read in place of what the model says by itself.
    Raises ExportError when the model does not run on this machine.
    """
    steps = _MARGINS[bits] / _LARGEST[bits]
    return [
        (np.maximum(key * steps, _LEAST), np.maximum(value * steps, _LEAST))
        for key, value in _reach(package, float_graph, tokens)
    ]


def _reach(
    package: Package, float_graph: bytes, tokens: Sequence[int]
) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """The largest magnitudes of keys and values over all tokens, [kv heads, D]."""
    from embedllm.backends.ort.engine import Attachment, OrtEngine, devices
    from embedllm.backends.ort.session import OrtSession

    def add(options: ort.SessionOptions) -> None:
        options.add_provider("CPUExecutionProvider", {})

    # not the folder's own file, which may be damaged
    attachment = Attachment(add=add, runs=frozenset(), model=lambda path: float_graph)
    graph = Graph(file=FLOAT32.file, variant=FLOAT32.name, activations=FLOAT32.activations)
    try:
        engine = OrtEngine(package, graph, devices()[0], attachment=attachment)
        session = OrtSession(engine, 0)
        reach: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
        for _ in _read(session, tokens, package.context) if tokens else _generate(session, package):
            reach = _farther(reach, session.export_state(0, session.position))
            session.rewind(0)
    except DeviceError as error:
        raise ExportError(f"the model has to run for the scales of its KV, and does not: {error}") from error
    session.close()
    engine.close()
    return reach


def _read(session: OrtSession, tokens: Sequence[int], context: int) -> Iterator[None]:
    """Feeds a text in pieces, after each of which the session is to be looked at and rewound."""
    length = min(_PIECE, context)
    for start in range(0, len(tokens), length):
        session.feed(tokens[start : start + length])
        yield


def _generate(session: OrtSession, package: Package) -> Iterator[None]:
    """As _read, of sequences that the model draws, each from another first token on."""
    random, vocabulary = np.random.default_rng(_SEED), package.decoder.vocabulary
    for _ in range(_SEQUENCES):
        token = int(random.integers(vocabulary))
        for _ in range(min(_LENGTH, package.context)):
            token = session.feed([token]).draw(1.0, random.random())
        yield


def _farther(
    reach: list[tuple[NDArray[np.float32], NDArray[np.float32]]], state: KeyValues
) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    reached = [(np.abs(key).max(axis=1), np.abs(value).max(axis=1)) for key, value in state]
    before = reach or reached
    return [
        (np.maximum(key, keys), np.maximum(value, values))
        for (key, value), (keys, values) in zip(before, reached, strict=True)
    ]

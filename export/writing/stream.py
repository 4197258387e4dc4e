"""Streams tensors from the source through the quantizer into weights.safetensors, by pieces, on all cores.

At most a few pieces are in memory at once, so the peak does not depend on the model's size.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np

from embedllm.backends.system.cpu_threads import compute_threads
from embedllm.errors import ExportError
from embedllm.export.checkpoints.tensor_mapping import Source, check_matrix, check_vector, read_matrix, read_vector
from embedllm.export.layout import Layout, Writer
from embedllm.export.rounding.compensation import Feedback, compensated
from embedllm.export.rounding.quantize import NOT_FINITE, quantize
from embedllm.export.writing.passthrough import OrderedSource, PackedSource, read_packed
from embedllm.export.writing.plan import Plan, with_orders
from embedllm.package import rope
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.weights import Linear
from embedllm.package.packing import Packed, Packing
from embedllm.package.tensors import rope_name, small_matrices, vectors, vision_runs

if TYPE_CHECKING:
    from embedllm.types import F16, F32

_PIECE = 1 << 18  # values: 1 MB of float32, so that a piece and its intermediates stay in the cache of a core
_COMPENSATED_PIECE = 1 << 20  # values: in smaller ones, the calls for each column make threads wait for each other
_MOST_WORKERS = 16

Piece: TypeAlias = "tuple[Linear, Packed | F16 | F32]"  # rows of a matrix, as they are stored
Write: TypeAlias = Callable[[str, np.ndarray], None]  # the next values of an entry
T = TypeVar("T")
R = TypeVar("R")


class Matrices(Protocol):
    """What is decided of matrices: see Plan."""

    @property
    def packing(self) -> Mapping[str, Packing]: ...
    @property
    def runs(self) -> Sequence[Sequence[Linear]]: ...
    @property
    def search(self) -> bool: ...
    @property
    def prequantized(self) -> Collection[str]: ...


def check_source(source: Source, plan: Plan) -> None:
    """Raises ExportError unless every tensor that the plan needs is there in its shape."""
    for linear in (*(linear for run in plan.runs for linear in run), *small_matrices(plan.decoder)):
        check_matrix(source, linear)
    for vector in vectors(plan.decoder):
        check_vector(source, vector)


def write_weights(
    source: Source,
    plan: Plan,
    path: Path,
    on_bytes: Callable[[int], None],
    *,
    pieces: Iterable[Piece] | None = None,
    weights: Mapping[str, F32] | None = None,
    spreads: Mapping[str, Feedback] | None = None,
) -> str:
    """Fills the file of a plan; returns its sha256.

    on_bytes: called with the number of bytes as they are written.
    pieces: all matrices, in rows, in the order of the plan, but those of a vision encoder; None rounds the source's.
    weights, spreads: by matrix, as pack() has them; those that are not named: None.
    """

    def fill(write: Write, pool: ThreadPoolExecutor) -> None:
        _write_small(source, plan, write)
        if pieces is None:
            parts = rounded(source, plan, pool, weights or {}, spreads or {})
        else:
            parts = chain(pieces, rounded(source, replace(plan, runs=tuple(vision_runs(plan.decoder))), pool, {}, {}))
        write_matrices(plan, parts, write)

    return filled(path, plan.layout, fill, on_bytes)


def filled(
    path: Path, layout: Layout, fill: Callable[[Write, ThreadPoolExecutor], None], on_bytes: Callable[[int], None]
) -> str:
    """Writes the file of a layout; returns its sha256.

    fill: writes every entry, in their order, by the function that it is given; the threads are for what it reads.
    on_bytes: called with the number of bytes as they are written.
    """
    with Writer(path, layout) as writer, rounding_threads() as pool:

        def write(name: str, data: np.ndarray) -> None:
            writer.write(name, np.ascontiguousarray(data))
            on_bytes(data.nbytes)

        try:
            fill(write, pool)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # do not go on reading for a file that will be removed
            raise
        return writer.finish()


def write_floats(source: Source, decoder: Decoder, write: Write) -> None:
    """Every small tensor of a source: norms, biases, routers."""

    def copy(name: str, origin: str, values: F32) -> None:
        if not np.isfinite(values).all():
            raise ExportError(f"'{origin}': {NOT_FINITE}")
        write(name, values)

    for vector in vectors(decoder):
        copy(vector.name, vector.source, read_vector(source, vector))
    for linear in small_matrices(decoder):
        copy(f"{linear.name}.weight", linear.source, read_matrix(source, linear, 0, linear.rows))


def _write_small(source: Source, plan: Plan, write: Write) -> None:
    decoder = plan.decoder
    write_floats(source, decoder, write)
    write_rope(decoder, write)
    for linear in with_orders(decoder, plan.packing):
        assert isinstance(source, OrderedSource), "the plan has it from there"
        order = source.order(f"{linear.source}.weight")
        assert order is not None, linear.name
        write(f"{linear.name}.order", order)
    for name, data in plan.constants.items():
        write(name, np.frombuffer(data, np.uint8))


def write_rope(decoder: Decoder, write: Write) -> None:
    """The rotary tables."""
    for number, rotary in enumerate(decoder.ropes):
        step = max(1, _PIECE // rotary.rotary_dim)
        for index, part in enumerate(("cos", "sin")):
            for start in range(0, decoder.context, step):
                table = rope.tables(rotary, min(start + step, decoder.context), start)[index]
                write(rope_name(number, part), table)


def rounded(
    source: Source,
    plan: Matrices,
    pool: ThreadPoolExecutor,
    weights: Mapping[str, F32],
    spreads: Mapping[str, Feedback],
) -> Iterator[Piece]:
    """All matrices as they are stored, in rows. weights, spreads: as write_weights() has them."""

    def work(piece: tuple[Linear, int, int]) -> Piece:
        linear, start, stop = piece
        try:
            if linear.name in plan.prequantized:
                assert isinstance(source, PackedSource), "the plan has it from there"
                return linear, read_packed(source, linear, start, stop)
            rows, packing = read_matrix(source, linear, start, stop), plan.packing[linear.name]
            weighing, spread = weights.get(linear.name), spreads.get(linear.name)
            return linear, pack(rows, packing, search=plan.search, weights=weighing, spread=spread)
        except ExportError as error:
            raise ExportError(f"'{linear.source}.weight', rows {start} to {stop}: {error}") from error

    return _ordered(pool, work, _pieces(plan, spreads), ahead=2 * _workers())


def write_matrices(plan: Matrices, pieces: Iterable[Piece], write: Write) -> None:
    """Weights go out as they come; scales, minimums and zero points of a run follow behind its last weight."""
    tails: list[tuple[str, np.ndarray]] = []
    last = {run[-1].name: run for run in plan.runs}
    left = {linear.name: linear.rows for run in plan.runs for linear in run}
    for linear, packed in pieces:
        if isinstance(packed, Packed):
            write(f"{linear.name}.weight", packed.weight)
            tails.append((f"{linear.name}.scale", packed.scale))
            if packed.zero is not None:
                tails.append((f"{linear.name}.zero", packed.zero))
            if packed.minimum is not None:
                tails.append((f"{linear.name}.minimum", packed.minimum))
            left[linear.name] -= len(packed.weight)
        else:
            write(f"{linear.name}.weight", packed)
            left[linear.name] -= len(packed)
        if not left[linear.name] and linear.name in last:
            for kind in (".scale", ".minimum", ".zero"):
                for name, data in tails:
                    if name.endswith(kind):
                        write(name, data)
            tails.clear()


def _pieces(plan: Matrices, spreads: Container[str]) -> Iterator[tuple[Linear, int, int]]:
    for run in plan.runs:
        for linear in run:
            step = max(1, (_COMPENSATED_PIECE if linear.name in spreads else _PIECE) // linear.columns)
            for start in range(0, linear.rows, step):
                yield linear, start, min(start + step, linear.rows)


def pack(
    rows: F32, packing: Packing, *, search: bool, weights: F32 | None = None, spread: Feedback | None = None
) -> Packed | F16 | F32:
    """Rows of a matrix as they are stored.

    search, weights: as quantize() has them. spread: in their place, as compensated() has it.
    """
    if packing.quantized and spread is not None:
        return compensated(rows, spread, packing)
    if packing.quantized:
        return quantize(rows, packing, search=search, weights=weights)
    if not np.isfinite(rows).all():
        raise ExportError(NOT_FINITE)
    if packing.bits == 32:
        return rows
    with np.errstate(over="ignore"):  # found and named below
        half = rows.astype(np.float16)
    if not np.isfinite(half).all():
        raise ExportError(f"a weight of {np.abs(rows).max():.3g} does not fit into float16; use 32 bits.")
    return half


def pack_in_pieces(
    pool: ThreadPoolExecutor, rows: F32, packing: Packing, *, spread: Feedback | None
) -> Iterator[Packed | F16 | F32]:
    """Rows of a matrix as pack() has them, with searched scales, in pieces on several threads."""
    step = max(1, (_PIECE if spread is None else _COMPENSATED_PIECE) // rows.shape[1])
    return pool.map(
        lambda start: pack(rows[start : start + step], packing, search=True, spread=spread), range(0, len(rows), step)
    )


def rounding_threads() -> ThreadPoolExecutor:
    """Threads for reading and quantizing pieces."""
    return ThreadPoolExecutor(_workers(), "export")


def _ordered(pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T], ahead: int) -> Iterator[R]:
    """Results in the order of the items, at most `ahead` of them in flight."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _workers() -> int:
    """Threads for reading and quantizing; more than a few wait for the disk, and each holds pieces in memory."""
    return min(compute_threads() or os.cpu_count() or 1, _MOST_WORKERS)

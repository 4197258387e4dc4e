"""Mixed bits: 8 in place of 4 for the runs where they gain most a byte, as far as a budget goes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from embedllm.errors import ExportError
from embedllm.export.checkpoints.tensor_mapping import Source
from embedllm.export.quantization.sensitivity import excerpt, losses
from embedllm.export.recipe import Recipe
from embedllm.export.writing.plan import Plan, plan, run_bytes
from embedllm.files.progress import Progress
from embedllm.package.architecture.weights import Linear
from embedllm.package.packing import Packing
from embedllm.package.tensors import parameters, rotary_bytes, vision_runs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NARROW, WIDE = 4, 8  # bits


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run whose bits are to be chosen."""

    loss: float  # mean KL in nats when it alone has the fewer bits
    extra: int  # bytes that more bits take


def budget(narrow: Plan, recipe: Recipe) -> int | None:
    """Most bytes that the weights file may take; None when the recipe says the bits of each matrix.

    narrow: the plan with the fewer bits everywhere.
    Raises ExportError for a budget that no mix of bits meets, and for other bits beside it.
    """
    if recipe.size is None and recipe.mean_bits is None:
        return None
    if recipe.size is not None and recipe.mean_bits is not None:
        raise ExportError("both a size and mean bits are given; they say the same. Leave one out.")
    if recipe.body_bits != NARROW:
        raise ExportError(
            f"bits is {recipe.bits}, and a size or mean bits are given, which choose {NARROW} or {WIDE} for each "
            "matrix. Leave one out."
        )
    count, tables = parameters(narrow.decoder), rotary_bytes(narrow.decoder)
    size = count * recipe.mean_bits / 8 + tables if recipe.mean_bits is not None else recipe.size or 0
    least, most = narrow.layout.size, widened(narrow, recipe, open_runs(narrow, recipe)).layout.size
    if not least <= size <= most:
        raise ExportError(
            f"asked for are {size:,.0f} bytes, {8 * (size - tables) / count:.3f} bits a weight; expected {least:,} "
            f"bytes ({8 * (least - tables) / count:.3f} bits), which all matrices take in {NARROW} bits, to {most:,} "
            f"bytes ({8 * (most - tables) / count:.3f} bits), in {WIDE}. Give one between; a larger group takes less, "
            f"and so does a shorter context: its rotary tables are {tables:,} of these bytes, and none of these bits."
        )
    return int(size)


def open_runs(narrow: Plan, recipe: Recipe) -> list[tuple[Linear, ...]]:
    """The runs whose bits the recipe leaves open: all but tables that have their own, and a vision encoder's."""
    decoder = narrow.decoder
    fixed = {linear.name for run in vision_runs(decoder) for linear in run}
    if recipe.head_bits is not None:
        fixed |= {decoder.head.name, decoder.embedding.name}  # the embedding's follow the head's
    if recipe.embedding_bits is not None:
        fixed.add(decoder.embedding.name)
    return [run for run in narrow.runs if run[0].name not in fixed]


def widened(narrow: Plan, recipe: Recipe, runs: Iterable[Sequence[Linear]]) -> Plan:
    """The same plan with more bits for some runs."""

    def wider(linear: Linear) -> Packing:
        symmetric = recipe.is_symmetric(WIDE, linear.columns, is_mixture=narrow.decoder.is_mixture)
        return replace(narrow.packing[linear.name], bits=WIDE, symmetric=symmetric)

    wide = {linear.name: wider(linear) for run in runs for linear in run}
    return plan(narrow.decoder, recipe, narrow.packing | wide, openvino_images=narrow.openvino_images)


def mixed(
    source: Source,
    narrow: Plan,
    recipe: Recipe,
    sequences: NDArray[np.int64],
    size: int,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> tuple[Plan, list[dict[str, object]]]:
    """The plan within `size` bytes that a text speaks for, and what was measured on it, for the manifest.

    narrow: as for budget(). sequences: [S, T], token ids of the text.
    Raises ExportError as sensitivity.losses() does.
    """
    runs = open_runs(narrow, recipe)
    on_progress(Progress("sensitivity", 0, len(runs)))
    run_losses = losses(source, narrow.decoder, runs, narrow.packing, excerpt(sequences, narrow.decoder.vocabulary),
                        search=narrow.search, on_run=lambda *at: on_progress(Progress("sensitivity", *at)))  # fmt: skip
    measured: list[dict[str, object]] = [
        {"matrices": [linear.name for linear in run], "kl": kl} for run, kl in zip(runs, run_losses, strict=True)
    ]
    return allotted(narrow, recipe, run_losses, size), measured


def allotted(narrow: Plan, recipe: Recipe, kls: Sequence[float], size: int) -> Plan:
    """The plan within `size` bytes. kls: of open_runs(), as sensitivity.losses() gives them."""
    runs = open_runs(narrow, recipe)
    wide = widened(narrow, recipe, runs)
    candidates = [
        Candidate(kl, run_bytes(wide, run) - run_bytes(narrow, run)) for run, kl in zip(runs, kls, strict=True)
    ]

    def with_more(chosen: Iterable[int]) -> Plan:
        return widened(narrow, recipe, [runs[index] for index in chosen])

    return with_more(choose(candidates, lambda chosen: with_more(chosen).layout.size <= size))


def choose(candidates: Sequence[Candidate], fits: Callable[[Collection[int]], bool]) -> list[int]:
    """Which candidates get more bits: the one that loses most a byte first; one that does not fit is passed over.

    fits: whether the budget holds when these get them, by their places.
    """
    chosen: list[int] = []
    for index in sorted(range(len(candidates)), key=lambda at: -candidates[at].loss / candidates[at].extra):
        if fits([*chosen, index]):
            chosen.append(index)
    return chosen

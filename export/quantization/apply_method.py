"""What a method makes of a model, knowing the inputs that its matrices get: the steps before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedllm.export.quantization.awq import scaled
from embedllm.export.quantization.calibration import calibrated
from embedllm.export.quantization.importance import excerpt, input_products, spreads, weights
from embedllm.files.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embedllm.export.checkpoints.tensor_mapping import Source
    from embedllm.export.recipe import Method
    from embedllm.export.rounding.compensation import Feedback
    from embedllm.export.writing.plan import Plan
    from embedllm.export.writing.stream import Piece
    from embedllm.types import F32


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PreparedModel:
    """What is written."""

    source: Source
    # [columns], by matrix: what an error in each column counts when scales are searched; those not named: all alike
    weights: Mapping[str, F32] = field(default_factory=dict)
    # by matrix, as compensated() has them: in place of weights
    spreads: Mapping[str, Feedback] = field(default_factory=dict)
    pieces: Iterable[Piece] | None = None  # all matrices, when they are rounded on the way; None: round the source's


def apply_method(
    source: Source,
    decided: Plan,
    method: Method,
    sequences: NDArray[np.int64] | None,
    *,
    importance: Mapping[str, F32] | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> PreparedModel:
    """The model prepared by a method.

    sequences: [S, T], token ids of the text of a method that reads one. importance: mean squares of the inputs, by
    matrix, in its place; only for a method that needs nothing else.
    Raises ExportError for inputs that are not finite, and for weights that cannot be stored.
    """
    decoder, squares = decided.decoder, importance or {}
    if sequences is None or not method.reads or importance is not None:
        return PreparedModel(source=source, weights=weights(squares, decoder))
    spread: Mapping[str, Feedback] = {}
    if method.scales or method.weighs:
        on_progress(Progress("inputs", 0, len(decoder.layers)))
    if method.scales:
        source, squares = scaled(source, decoder, decided.packing, excerpt(sequences),
                                 lambda *at: on_progress(Progress("inputs", *at)))  # fmt: skip
    elif method.weighs:
        products = input_products(source, decoder, decided.packing, excerpt(sequences),
                                  lambda *at: on_progress(Progress("inputs", *at)))  # fmt: skip
        spread = spreads(products, decoder, decided.packing)
    pieces = None
    if method.compensates:
        pieces = calibrated(source, decoder, decided.packing, sequences,
                            lambda *at: on_progress(Progress("calibration", *at)))  # fmt: skip
    return PreparedModel(source=source, weights=weights(squares, decoder), spreads=spread, pieces=pieces)

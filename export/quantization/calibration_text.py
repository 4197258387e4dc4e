"""What a model is calibrated on: a text that is like what it will read, or one that it draws itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import DeviceError, ExportError
from embedllm.package.tensors import linears

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.package.architecture.decoder import Decoder

LENGTH = 512  # tokens of a sequence
FEWEST, _MOST = 16, 128  # sequences: docs/numerics.md#calibration
_MULTIPLICATIONS = 1 << 41  # of a pass through the layers: 20,000 tokens of 100M weights, docs/numerics.md#calibration
_VALUES = 1 << 27  # of the widest activations of all sequences, which are in memory some five times at once
_CHOSEN_FROM = 8  # times as many sequences are read, so that they come from all over a text
_BUILT_IN = Path(__file__).with_name("calibration.txt")
_BUILT_IN_LENGTH, _BUILT_IN_SEQUENCES = 256, 6  # more tokens change little: docs/numerics.md#the-default
_SEED = 20261121
_REPORT_S = 0.25  # between two reports of progress
_AT_ONCE = 16  # replies, of which the CPU makes a step in one run


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationText:
    """The sequences, and what a manifest says of them."""

    sequences: NDArray[np.int64]  # [S, T], token ids
    facts: dict[str, object]


def sequences_for(decoder: Decoder) -> int:
    """How many sequences a model is calibrated on: fewer when it is so large that time or memory would not do."""
    matrices = [matrix for layer in decoder.layers for matrix in linears(layer)]
    widest, weights = max(one.columns for one in matrices), sum(one.rows * one.columns for one in matrices)
    count = min(_VALUES // widest, _MULTIPLICATIONS // weights) // min(LENGTH, decoder.context)
    return max(FEWEST, min(_MOST, count // _AT_ONCE * _AT_ONCE))


def read_text(
    path: Path, folder: Path, decoder: Decoder, *, length: int = LENGTH, count: int | None = None
) -> CalibrationText:
    """Sequences from all over a file: .jsonl with documents, {"text": ...} a line, anything else one document.

    folder: of the checkpoint, whose tokenizer reads it. length: of a sequence, at most. count: of sequences, at most;
    None: sequences_for(decoder).
    Raises ExportError for what is no text, or is too short for one sequence.
    """
    from embedllm.package.package import sha256
    from embedllm.text.tokenizer import Tokenizer
    from embedllm.text.windows import read_windows

    length, count = min(length, decoder.context), count or sequences_for(decoder)
    try:
        tokenizer = Tokenizer.open(folder)
        windows = read_windows(path, tokenizer, size=length, limit=_CHOSEN_FROM * count * length).pieces
        digest = sha256(path)
    except OSError as error:
        raise ExportError(f"cannot read '{path}': {error.strerror or error}.") from error
    except ValueError as error:
        raise ExportError(f"the calibration text: {error}") from error
    step = max(1, len(windows) // count)
    sequences = np.array(windows[::step][:count], np.int64)
    if sequences.max() >= decoder.vocabulary:
        raise ExportError(
            f"the tokenizer of '{folder}' gives token {sequences.max()}; expected less than {decoder.vocabulary}, "
            "the rows of the model's embedding."
        )
    return CalibrationText(sequences=sequences, facts={"text": path.name, "sha256": digest, **_shape(sequences)})


def built_in_text(folder: Path, decoder: Decoder) -> CalibrationText:
    """Sequences of a short text of many kinds that comes with the library, for what needs no more than means.

    folder: of the checkpoint, whose tokenizer reads it. Raises ExportError for a tokenizer that is not the model's.
    """
    text = read_text(_BUILT_IN, folder, decoder, length=_BUILT_IN_LENGTH, count=_BUILT_IN_SEQUENCES)
    return CalibrationText(sequences=text.sequences, facts={**text.facts, "text": "built-in"})


def draw_text(
    folder: Path, on_progress: Callable[[int, int], None] = lambda done, total: None, *, count: int | None = None
) -> CalibrationText:
    """Sequences that the model of a package folder draws, each from another first token on.

    Several at a time, whose steps are run together as they meet, which rounds a little otherwise each time: what comes
    is not the same to the last token. on_progress: called with how many of how many tokens there are, from 0 on.
    count: of sequences; None: as many as a model is calibrated on.
    Raises ExportError when the model does not run on this machine.
    """
    from embedllm.backends.ort.engine import OrtEngine, devices
    from embedllm.package.graph_variants import FLOAT32
    from embedllm.package.package import open_package

    package = open_package(folder)
    length, count = min(LENGTH, package.context), count or sequences_for(package.decoder)
    random = np.random.default_rng(_SEED)
    first = np.resize(random.permutation(package.decoder.vocabulary), count)
    chances = random.random((count, length))
    sequences = np.zeros((count, length), np.int64)
    drawn = [0] * count  # tokens, by sequence

    ended = Event()

    def draw(at: int) -> None:
        token = int(first[at])
        try:
            with closing(engine.open(length)) as session:
                for place in range(length):
                    if ended.is_set():
                        return
                    sequences[at, place] = token
                    drawn[at] = place + 1
                    token = session.feed([token]).draw(1.0, float(chances[at, place]))
        except BaseException:
            ended.set()
            raise

    try:
        graph = package.graph(FLOAT32.name)
        assert graph is not None, "every export writes it"
        engine = OrtEngine(package, graph, devices()[0])
        with closing(engine), ThreadPoolExecutor(_AT_ONCE, "draw") as threads:
            try:
                waiting = {threads.submit(draw, at) for at in range(count)}
                on_progress(0, count * length)
                while waiting:
                    done, waiting = wait(waiting, timeout=_REPORT_S, return_when=FIRST_EXCEPTION)
                    for one in done:
                        one.result()
                    on_progress(sum(drawn), count * length)
            finally:
                ended.set()  # after Ctrl-C nothing goes on to its end
    except DeviceError as error:
        raise ExportError(f"the model has to run to draw its calibration text, and does not: {error}") from error
    return CalibrationText(sequences=sequences, facts={"text": None, **_shape(sequences)})


def _shape(sequences: NDArray[np.int64]) -> dict[str, object]:
    return {"sequences": sequences.shape[0], "tokens": sequences.shape[1]}

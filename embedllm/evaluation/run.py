"""evaluate(): gives models the same tokens and the same tasks, side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from embedllm.evaluation.measures import Record, score
from embedllm.evaluation.reading import read_text
from embedllm.evaluation.results import Evaluation, ModelScore, TaskScore, TextRead
from embedllm.evaluation.sources import Opened, Source, Wish, check_vocabularies, described, open_base, open_model
from embedllm.evaluation.tasks import Task, read_tasks, run_tasks
from embedllm.files.progress import Progress
from embedllm.model.model import Model
from embedllm.package.tensors import parameters, rotary_bytes
from embedllm.text.windows import Windows, read_windows

if TYPE_CHECKING:
    from embedllm.package.package import Package

TOKENS = 20_000
WINDOW = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workload:
    """What every model is given."""

    windows: Windows | None
    tasks: Sequence[Task]
    on_progress: Callable[[Progress], None]


def evaluate(
    models: Sequence[Source],
    text: str | os.PathLike[str] | None = None,
    *,
    against: Source | None = None,
    tokens: int = TOKENS,
    window: int = WINDOW,
    tasks: str | os.PathLike[str] | None = None,
    device: Wish = None,
    threads: int = 0,
    exact: bool | Literal["both"] = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Evaluation:
    """What models make of a text and of tasks, and how far they are from a base.

    models: package folders, "demo", or loaded Models, which the caller closes. All are loaded simultaneously, with the
    base, and mean the same by a token.
    text: a .jsonl file with {"text": "..."} a line, or one of plain text. It is read in whole windows of `window`
    tokens, each document's shorter rest left out, until `tokens` of them are read; 0: all.
    against: the base, a folder of 16 bits, say. It computes exactly (docs/numerics.md) where its device can.
    tasks: a file of tasks (docs/guide-eval.md#tasks).
    device, threads, exact: as in load(), for what is given as a folder. exact="both": each model twice, without and
    with, so that the difference is what rounded activations cost.
    on_progress: called after each window, with the tokens of all models, and after each reply.
    Raises ValueError for a file that cannot be used and for another vocabulary; OSError; what load() raises.
    """
    if isinstance(models, str | os.PathLike | Model):
        raise ValueError(f"models is {models!r}; expected a list of them, such as [{models!r}].")
    models = list(models)
    if not models or (text is None and tasks is None):
        raise ValueError("there is nothing to evaluate; give at least one model, and a text or tasks.")
    sources = [*models] if against is None else [against, *models]
    packages = [described(source) for source in sources]
    for package, _ in packages:
        package.check_generates()
    check_vocabularies(packages)
    windows = None
    if text is not None:
        _check_window(window, tokens, [package for package, _ in packages])
        windows = read_windows(Path(text), packages[0][1], size=window, limit=tokens)
    workload = _Workload(
        windows=windows,
        tasks=() if tasks is None else read_tasks(Path(tasks)),
        on_progress=on_progress or (lambda progress: None),
    )
    with ExitStack() as stack:
        opened = [] if against is None else [open_base(stack, against, device=device, threads=threads)]
        opened += _open(stack, models, exact, device, threads)
        scores = _scores(opened, workload, has_base=against is not None)
    return Evaluation(
        text=None if windows is None else _read(os.fspath(text or ""), windows),
        tasks=None if tasks is None else os.fspath(tasks),
        base=None if against is None else scores[0],
        models=tuple(scores if against is None else scores[1:]),
    )


def _check_window(window: int, tokens: int, packages: Sequence[Package]) -> None:
    least = min(packages, key=lambda package: package.context)
    if not 2 <= window <= least.context:
        raise ValueError(f"window is {window} tokens; expected 2 to {least.context}, the context of '{least.name}'.")
    if tokens < 0:
        raise ValueError(f"tokens is {tokens}; expected how many are to be read, or 0 for all.")


def _open(
    stack: ExitStack, models: Sequence[Source], exact: bool | Literal["both"], device: Wish, threads: int
) -> list[Opened]:
    ways = (False, True) if exact == "both" else (exact,)
    return [
        open_model(stack, source, device=device, threads=threads, exact=way)
        for source in models
        for way in (ways[:1] if isinstance(source, Model) else ways)
    ]


def _read(file: str, windows: Windows) -> TextRead:
    count = len(windows.pieces) * windows.size
    return TextRead(file=file, tokens=count, window=windows.size, left_out=windows.left_out)


def _scores(opened: Sequence[Opened], workload: _Workload, *, has_base: bool) -> list[ModelScore]:
    """Of each model in turn, the base's the first."""
    records = _records(opened, workload, has_base=has_base)
    did = _tasks_done(opened, workload)
    base = records[0] if has_base and records else None
    return [
        _model_score(one, record, None if record is base else base, tasks)
        for one, record, tasks in zip(opened, records or [None] * len(opened), did, strict=True)
    ]


def _records(opened: Sequence[Opened], workload: _Workload, *, has_base: bool) -> list[Record]:
    """What each model's logits say of the text; none without a text."""
    windows = workload.windows
    if windows is None:
        return []
    step = windows.size * len(opened)
    count = _Count(workload, "text", len(windows.pieces) * step)
    runners = [one.model.runner for one in opened]
    return read_text(runners, windows, has_base=has_base, done=lambda: count.add(step))


def _tasks_done(opened: Sequence[Opened], workload: _Workload) -> list[tuple[TaskScore, ...]]:
    count = _Count(workload, "tasks", len(workload.tasks) * len(opened))
    return [run_tasks(one.model, workload.tasks, lambda: count.add(1)) for one in opened]


def _model_score(one: Opened, record: Record | None, base: Record | None, tasks: tuple[TaskScore, ...]) -> ModelScore:
    package, device = one.model.package, one.model.device
    weights = package.stored
    return ModelScore(
        model=one.name,
        device=device.name,
        backend=device.backend,
        exact=one.exact,
        weights_bytes=weights.bytes,
        weights_sha256=weights.sha256,
        bits_per_weight=_bits(package),
        text=None if record is None else score(record, base),
        tasks=tasks,
    )


def _bits(package: Package) -> float | None:
    if package.external is not None:  # whose graph tells the bytes of packed weights, not their number
        return None
    return 8 * (package.stored.bytes - rotary_bytes(package.architecture)) / parameters(package.architecture)


class _Count:
    """Reports the progress of a stage."""

    def __init__(self, workload: _Workload, stage: str, total: int) -> None:
        self._tell = workload.on_progress
        self._stage = stage
        self._total = total
        self._done = 0

    def add(self, count: int) -> None:
        self._done += count
        self._tell(Progress(self._stage, self._done, self._total))

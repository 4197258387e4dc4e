"""`embedllm eval`: quality of a quantized model against its 16-bit original, on a text and on tasks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from embedllm.cli.options import common_options, note
from embedllm.cli.progress import fetch, progress_bar
from embedllm.cli.tables import new_console, new_table
from embedllm.files.version import __version__

if TYPE_CHECKING:
    from embedllm.evaluation import Evaluation, ModelScore

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_NEW_FILE = click.Path(dir_okay=False, path_type=Path, allow_dash=True)


@click.command("eval", short_help="Evaluate the quality of quantized models.")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--text", type=_FILE, metavar="FILE", help='Plain text, or .jsonl with {"text": "..."} on each line.')
@click.option("--against", metavar="FOLDER", help="Base model: a 16-bit package with the same vocabulary.")
@click.option("--tokens", type=click.IntRange(min=0), default=20_000, show_default=True, metavar="N",
              help="Number of tokens to evaluate, rounded to whole windows; 0: all.")  # fmt: skip
@click.option("--window", type=click.IntRange(min=2), default=512, show_default=True, metavar="N",
              help="Tokens per window; each window starts with an empty context.")  # fmt: skip
@click.option("--tasks", type=_FILE, metavar="FILE", help="Tasks with expected answers, .jsonl; greedy decoding.")
@click.option(
    "--device", metavar="NAME", help="A device of 'embedllm devices'. Default: EMBEDLLM_DEVICE, or the best device."
)
@click.option("--threads", type=click.IntRange(min=0), default=0, metavar="N",
              help="CPU threads. Default: number of physical cores.")  # fmt: skip
@click.option("--exact", is_flag=True, help="Float activations in every matmul.")
@click.option(
    "--exact-too", is_flag=True, help="Evaluate each model with and without --exact: what activation rounding costs."
)
@click.option(
    "--json",
    "json_file",
    type=_NEW_FILE,
    metavar="FILE",
    help="Write the results as JSON; '-': to stdout, in place of the table.",
)
@click.option(
    "--plot",
    type=_NEW_FILE,
    metavar="FILE",
    help="Plot size against KL divergence, .svg or .png (needs embedllm[plot]).",
)
@click.option("--quiet", is_flag=True, help="No progress.")
@common_options
def evaluate(
    models: tuple[str, ...],
    *,
    text: Path | None,
    against: str | None,
    tokens: int,
    window: int,
    tasks: Path | None,
    device: str | None,
    threads: int,
    exact: bool,
    exact_too: bool,
    json_file: Path | None,
    plot: Path | None,
    quiet: bool,
) -> None:
    """Evaluate models: perplexity on a text, KL divergence from a base, tasks solved.

    MODEL is a directory, 'demo', a GGUF file, or a hub repository. All models are loaded at the same time. With
    --against: the Kullback-Leibler divergence of the next token (mean, 95th and 99th percentile over all tokens), the
    top-1 agreement, and the ratio of the perplexities. The base runs with --exact where its device can.
    """
    if text is None and tasks is None:
        raise click.UsageError("give --text, --tasks or both.")
    if exact and exact_too:
        raise click.UsageError("--exact and --exact-too are mutually exclusive.")
    if plot is not None and (text is None or against is None):
        raise click.UsageError("--plot needs --text and --against.")
    _check_places(json_file, plot)
    from embedllm.evaluation import evaluate as run

    if not quiet:
        fetch(*models, *([against] if against else []))
    way: bool | Literal["both"] = "both" if exact_too else exact
    with progress_bar(is_shown=not quiet) as on_progress:
        evaluation = run(models, text, against=against, tokens=tokens, window=window, tasks=tasks, threads=threads,
                    device=device, exact=way, on_progress=on_progress)  # fmt: skip
    _write(evaluation, json_file, plot)


def _check_places(json_file: Path | None, plot: Path | None) -> None:
    """Raises what writing would raise, before hours of work."""
    from embedllm.files.atomic import check_place

    if plot is not None:
        from embedllm.files.image import check_plot

        check_plot(plot)
    for file in (json_file, plot):
        if file is not None and file != Path("-"):
            check_place(file)


def _write(evaluation: Evaluation, json_file: Path | None, plot: Path | None) -> None:
    data = json.dumps({"embedllm": __version__, **asdict(evaluation)}, ensure_ascii=False, allow_nan=False)
    if json_file == Path("-"):
        click.echo(data)
    else:
        _show(evaluation)
    if json_file is not None and json_file != Path("-"):
        from embedllm.files.atomic import atomic_write

        with atomic_write(json_file) as file:
            file.write(f"{data}\n".encode())
        note(f"wrote '{json_file}'")
    if plot is not None:
        from embedllm.evaluation.plot import write_plot

        write_plot(evaluation, plot)
        note(f"wrote '{plot}'")


def _show(evaluation: Evaluation) -> None:
    console = new_console()
    if evaluation.text is not None:
        text = evaluation.text
        left = f"; {text.left_out:,} at the ends of documents left out" if text.left_out else ""
        console.print(f"{text.tokens:,} tokens of {text.file} in windows of {text.window:,}{left}", markup=False)
    scores = [*([evaluation.base] if evaluation.base else []), *evaluation.models]
    columns = ["model", "device", "MB", "bits/weight", *_text_columns(evaluation), *(t.group for t in scores[0].tasks)]
    rows = [
        [*_about(one, is_base=one is evaluation.base), *_text_cells(one, evaluation), *_task_cells(one)]
        for one in scores
    ]
    console.print(new_table(columns, rows, numbers_from=2))


def _about(one: ModelScore, *, is_base: bool) -> Iterable[str]:
    noted = [word for word, is_so in (("base", is_base), ("exact", one.exact)) if is_so]
    yield f"{one.model} ({', '.join(noted)})" if noted else one.model
    yield one.device
    yield f"{one.weights_bytes / 1e6:,.1f}"
    yield "unknown" if one.bits_per_weight is None else f"{one.bits_per_weight:.2f}"


def _text_columns(evaluation: Evaluation) -> tuple[str, ...]:
    if evaluation.text is None:
        return ()
    return ("perplexity", "ratio", "mean KL", "95 % KL", "99 % KL", "same top") if evaluation.base else ("perplexity",)


def _text_cells(one: ModelScore, evaluation: Evaluation) -> Iterable[str]:
    if one.text is None:
        return
    yield f"{one.text.perplexity:.3f}"
    if evaluation.base is None:
        return
    if (far := one.text.divergence) is None:
        yield from ("",) * 5
        return
    yield f"{far.perplexity_ratio:.4f}"
    yield from (f"{kl:.5f}" for kl in (far.mean_kl, far.kl_95, far.kl_99))
    yield f"{far.same_top:.2%}"


def _task_cells(one: ModelScore) -> Iterable[str]:
    return (f"{score.right}/{score.tasks}" for score in one.tasks)

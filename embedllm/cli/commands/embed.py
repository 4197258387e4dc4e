"""`embedllm embed` and `embedllm rerank`: embeddings of texts, and documents ranked for a query."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import click

from embedllm.cli.options import common_options
from embedllm.cli.progress import progress_bar
from embedllm.files.progress import Progress

_PART = 512  # texts at a time: their vectors are written while the next are computed
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True)


def _shared(command: Callable[..., object]) -> Callable[..., object]:
    """Options of both commands."""
    for option in (
        common_options,
        click.option("--truncate", is_flag=True, help="Truncate texts that are too long. Default: an error."),
        click.option("--exact", is_flag=True, help="Float activations in every matmul: slower."),
        click.option(
            "--threads", type=click.IntRange(min=0), default=0, help="CPU threads. Default: number of physical cores."
        ),
        click.option("--device", metavar="NAME", help="A device of 'embedllm devices'. Default: the best."),
        click.option(
            "--file", type=_FILE, metavar="FILE", help="Read the texts from a file, one per line; - is stdin."
        ),
    ):
        command = option(command)
    return command


@click.command(short_help="Compute the embeddings of texts.")
@click.argument("folder")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--kind", metavar="NAME", help="Prompt of the model to prepend: query, document or another one.")
@click.option(
    "--dimensions",
    type=click.IntRange(min=1),
    metavar="N",
    help="Truncate each embedding to N dimensions (Matryoshka).",
)
@click.option(
    "--normalize/--raw",
    default=None,
    help="Normalize the embeddings to length 1, or not. Default: as the model was published.",
)
@_shared
def embed(
    folder: str,
    texts: tuple[str, ...],
    *,
    kind: str | None,
    dimensions: int | None,
    normalize: bool | None,
    file: Path | None,
    device: str | None,
    threads: int,
    exact: bool,
    truncate: bool,
) -> None:
    """Compute the embedding of each TEXT with the model in FOLDER: one JSON list of numbers per line."""
    inputs = _texts(texts, file)
    import embedllm

    is_shown = len(inputs) > _PART and not sys.stdout.isatty()  # where vectors scroll by, they show how far it is
    bar = progress_bar(is_shown=True) if is_shown else nullcontext(lambda _: None)
    with embedllm.load(folder, device=device, threads=threads, exact=exact) as model, bar as on_progress:
        if len(inputs) > _PART:
            model.count_tokens(inputs, kind=kind, truncate=truncate)  # a text that is too long is said before the first
        for start in range(0, len(inputs), _PART):
            part = inputs[start : start + _PART]
            vectors = model.embed(part, kind=kind, dimensions=dimensions, normalize=normalize, truncate=truncate)
            for vector in vectors.tolist():
                click.echo(json.dumps(vector))
            on_progress(Progress("texts", start + len(part), len(inputs)))


@click.command(short_help="Rank documents by relevance to a query.")
@click.argument("folder")
@click.argument("query")
@click.argument("texts", nargs=-1, metavar="[DOCUMENT]...")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Print only the best N.")
@_shared
def rerank(
    folder: str,
    query: str,
    texts: tuple[str, ...],
    *,
    top: int | None,
    file: Path | None,
    device: str | None,
    threads: int,
    exact: bool,
    truncate: bool,
) -> None:
    """Rank each DOCUMENT by relevance to QUERY with the reranker in FOLDER: one JSON object per line, best first."""
    documents = _texts(texts, file)
    import embedllm

    with embedllm.load(folder, device=device, threads=threads, exact=exact) as model:
        ranked = model.rerank(query, documents, top=top, truncate=truncate)
    for one in ranked:
        row = {"index": one.index, "score": one.score, "text": documents[one.index]}
        click.echo(json.dumps(row, ensure_ascii=False))


def _texts(texts: Sequence[str], file: Path | None) -> list[str]:
    """Those of the command line, or the lines of a file that are not blank."""
    if bool(texts) == (file is not None):
        raise click.UsageError("give texts, or --file with one per line." if not texts else "give texts or --file.")
    if file is None:
        return list(texts)
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    try:
        lines = io.StringIO(data.decode("utf-8-sig"), newline=None).read().split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"'{file}' is no UTF-8 text ({error.reason} at byte {error.start}).") from error
    text_lines = [line for line in lines if line.strip()]
    if not text_lines:
        raise ValueError(f"'{file}' has no texts; expected one per line.")
    return text_lines

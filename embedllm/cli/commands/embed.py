"""`embedllm embed` and `embedllm rerank`: vectors of texts, and documents by how well they fit a query."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from embedllm.cli.options import common_options

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True)


def _shared(command: Callable[..., object]) -> Callable[..., object]:
    """Options of both commands."""
    for option in (
        common_options,
        click.option("--truncate", is_flag=True, help="Leave out the end of what is too long. Default: an error."),
        click.option("--exact", is_flag=True, help="Float activations in every product: slower."),
        click.option("--threads", type=click.IntRange(min=0), default=0, help="For the CPU. Default: one a core."),
        click.option("--device", metavar="NAME", help="Where to run it: see `embedllm devices`. Default: the best."),
        click.option("--file", type=_FILE, metavar="FILE", help="Read the texts from here, one a line; - is stdin."),
    ):
        command = option(command)
    return command


@click.command(short_help="Give the vectors of texts.")
@click.argument("folder")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--kind", metavar="NAME", help="query, document, or another prompt of the model to put in front.")
@click.option("--dimensions", type=click.IntRange(min=1), metavar="N", help="Only the first N values of each vector.")
@click.option("--normalize/--raw", default=None, help="Vectors of the length 1, or as they are. Default: as published.")
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
    """Give the vector of each TEXT by the embedding model in FOLDER: a JSON list of numbers a line."""
    given = _texts(texts, file)
    import embedllm

    with embedllm.load(folder, device=device, threads=threads, exact=exact) as model:
        found = model.embed(given, kind=kind, dimensions=dimensions, normalize=normalize, truncate=truncate)
    for vector in found.tolist():
        click.echo(json.dumps(vector))


@click.command(short_help="Order documents by how well they fit a query.")
@click.argument("folder")
@click.argument("query")
@click.argument("texts", nargs=-1, metavar="[DOCUMENT]...")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Only the best N.")
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
    """Order each DOCUMENT by how well it fits QUERY, by the reranker in FOLDER: a JSON object a line, best first."""
    documents = _texts(texts, file)
    import embedllm

    with embedllm.load(folder, device=device, threads=threads, exact=exact) as model:
        ranked = model.rerank(query, documents, top=top, truncate=truncate)
    for one in ranked:
        found = {"index": one.index, "score": one.score, "text": documents[one.index]}
        click.echo(json.dumps(found, ensure_ascii=False))


def _texts(texts: Sequence[str], file: Path | None) -> list[str]:
    """Those of the command line, or the lines of a file that are not blank."""
    if bool(texts) == (file is not None):
        raise click.UsageError("give texts, or --file with one a line." if not texts else "give texts or --file.")
    if file is None:
        return list(texts)
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"'{file}' is no UTF-8 text ({error.reason} at byte {error.start}).") from error
    found = [line for line in lines if line.strip()]
    if not found:
        raise ValueError(f"'{file}' has no texts; expected one a line.")
    return found

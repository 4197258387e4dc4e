"""`embedllm graph`: adds a graph to a package folder whose source need not be there."""

from __future__ import annotations

import json
from pathlib import Path

import click

from embedllm.cli.commands.inspect import open_folder
from embedllm.cli.options import common_options, note


@click.command(short_help="Add a graph to a folder, without its source.")
@click.argument("folder")
@click.option("--variant", "variant_name", required=True, metavar="NAME",
              help="As 'embedllm inspect' lists them: directml-float16 ...; an unknown one lists all.")  # fmt: skip
@click.option(
    "--text",
    "sample",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="For int8-kv and int4-kv: a text like what will be read; else the model's own words.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout about the graph.")
@common_options
def graph(folder: str, *, variant_name: str, sample: Path | None, as_json: bool) -> None:
    """Add one variant of graph to a package folder, or write it anew.

    It is made from the folder's manifest and points at the weights that are there: an older folder gets what newer
    versions export, in kilobytes. A graph that is missing or damaged is mended; 'embedllm inspect --check' finds it.
    Variants with a quantized KV (int8-kv, int4-kv) are not part of an export: they run the model once.
    """
    from embedllm.export.graphs import write_variant
    from embedllm.loading.resolve import package_folder

    place = package_folder(folder)
    if place != Path(folder):
        note(f"'{folder}' is the model that is installed with embedllm, in '{place}'")
    place = open_folder(folder).folder
    tokens = []
    if sample is not None:
        from embedllm.text.tokenizer import Tokenizer

        tokens = Tokenizer.open(place).encode(sample.read_text(encoding="utf-8"), special=False)
    written = write_variant(place, variant_name, tokens=tokens)
    size = (place / written.file).stat().st_size
    note(f"wrote '{place / written.file}': {variant_name}, {size:,} bytes")
    if as_json:
        found = {"folder": str(place), "file": written.file, "variant": written.variant, "bytes": size}
        click.echo(json.dumps(found, ensure_ascii=False))

"""`embedllm graph`: adds a graph variant to a package directory, without its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import click

from embedllm.cli.commands.inspect import open_folder
from embedllm.cli.options import common_options, note


@click.command(short_help="Add a graph variant to a package.")
@click.argument("folder")
@click.option("--variant", "variant_name", required=True, metavar="NAME",
              help="Variant name, as in 'embedllm inspect'; an unknown name lists all.")  # fmt: skip
@click.option(
    "--text",
    "sample",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Calibration text for int8-kv and int4-kv; default: self-generated.",
)
@click.option("--json", "as_json", is_flag=True, help="Describe the graph as a JSON object on stdout.")
@common_options
def graph(folder: str, *, variant_name: str, sample: Path | None, as_json: bool) -> None:
    """Add a graph variant (execution provider) to a package directory, or rewrite it.

    The graph is made from the manifest and refers to the existing weights file: an older package gets the variants of
    newer versions, a few kilobytes each. A missing or damaged graph ('embedllm inspect --check') is rewritten. Variants
    with a quantized KV cache (int8-kv, int4-kv) are not part of an export: they need a calibration run.
    """
    from embedllm.export.graphs import write_variant
    from embedllm.loading.resolve import package_folder

    place = package_folder(folder)
    if place != Path(folder):
        note(f"'{folder}' is the model that ships with embedllm, in '{place}'")
    place = open_folder(folder).folder
    tokens = []
    if sample is not None:
        from embedllm.text.tokenizer import Tokenizer

        tokens = Tokenizer.open(place).encode(sample.read_text(encoding="utf-8"), special=False)
    written = write_variant(place, variant_name, tokens=tokens)
    size = (place / written.file).stat().st_size
    note(f"wrote '{place / written.file}': {variant_name}, {size:,} bytes")
    if as_json:
        summary = {"folder": str(place), "file": written.file, "variant": written.variant, "bytes": size}
        click.echo(json.dumps(summary, ensure_ascii=False))

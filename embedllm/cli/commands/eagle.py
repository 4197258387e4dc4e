"""`embedllm eagle`: adds an EAGLE-3 head to a package directory."""

from __future__ import annotations

import json
from pathlib import Path

import click

from embedllm.cli.options import common_options, note


@click.command(short_help="Add an EAGLE-3 head to a package.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("checkpoint")
@click.option("--bits", type=click.Choice(["4", "8", "16", "32"]), default="4", help="Of the head's matrices.",
              show_default=True)  # fmt: skip
@click.option("--replace", is_flag=True, help="Replace a head that is there, once the new one is complete.")
@click.option("--json", "as_json", is_flag=True, help="Describe the head as a JSON object on stdout.")
@common_options
def eagle(folder: Path, checkpoint: str, *, bits: str, replace: bool, as_json: bool) -> None:
    """Add the EAGLE-3 head CHECKPOINT to the package directory FOLDER of the model that it was trained for.

    CHECKPOINT is a directory, or a repository of the hub, of a head alone: 'fc', 'midlayer', 'norm', 'lm_head' and
    'd2t'. It is written to FOLDER/eagle and reads the embedding from FOLDER, which gets the graph variants
    eagle-hidden-float32 and eagle-hidden-float16. Use it with --draft FOLDER/eagle --speculate draft.
    """
    from embedllm.export.eagle import add_eagle

    out = add_eagle(folder, checkpoint, bits=int(bits), replace=replace)
    size = sum(path.stat().st_size for path in out.iterdir())
    note(f"wrote '{out}': {size / 1e6:,.1f} MB")
    if as_json:
        click.echo(json.dumps({"folder": str(out), "bytes": size}, ensure_ascii=False))

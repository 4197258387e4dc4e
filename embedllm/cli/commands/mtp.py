"""`embedllm mtp`: adds the multi-token prediction head of a checkpoint to a package directory."""

from __future__ import annotations

import json
from pathlib import Path

import click

from embedllm.cli.options import common_options, note


@click.command(short_help="Add a multi-token prediction head to a package.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("checkpoint")
@click.option("--bits", type=click.Choice(["4", "8", "16", "32"]), default="8", help="Of the head's matrices.",
              show_default=True)  # fmt: skip
@click.option("--replace", is_flag=True, help="Replace a head that is there, once the new one is complete.")
@click.option("--json", "as_json", is_flag=True, help="Describe the head as a JSON object on stdout.")
@common_options
def mtp(folder: Path, checkpoint: str, *, bits: str, replace: bool, as_json: bool) -> None:
    """Add the multi-token prediction head (MTP) of CHECKPOINT to the package directory FOLDER.

    CHECKPOINT is what FOLDER was exported from: a directory, a repository of the hub, or a GGUF file, with the head's
    tensors: 'mtp.*' (Qwen3-Next, Qwen 3.5), or a layer behind the last one (DeepSeek V3, GLM 4.5 to 4.7, GGUF). The
    head is written to FOLDER/mtp and reads embedding and output matrix from FOLDER, which gets the graph variants
    hidden-float32 and hidden-float16. Use it with --draft FOLDER/mtp --speculate draft.
    """
    from embedllm.export.mtp import add_mtp

    out = add_mtp(folder, checkpoint, bits=int(bits), replace=replace)
    size = sum(path.stat().st_size for path in out.iterdir())
    note(f"wrote '{out}': {size / 1e6:,.1f} MB")
    if as_json:
        click.echo(json.dumps({"folder": str(out), "bytes": size}, ensure_ascii=False))

"""The command `embedllm families`: which models can be exported."""

from __future__ import annotations

import json

import click

from embedllm.cli_options import common_options


@click.command(short_help="List the model types that can be exported.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: a list with the keys model_type, models and has.")
@common_options
def families(as_json: bool) -> None:
    """List the model types that can be exported ('model_type' in a config.json), and the models they stand for."""
    from embedllm.export import architectures

    known = [(name, *architectures.about(name)) for name in architectures.families()]
    if as_json:
        click.echo(json.dumps([{"model_type": name, "models": models, "has": has} for name, models, has in known]))
        return
    width = max(len(name) for name, _, _ in known)
    for name, models, _ in known:
        click.echo(f"{name:{width}}  {models}")

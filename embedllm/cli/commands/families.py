"""`embedllm families`: the model types that can be exported."""

from __future__ import annotations

import json

import click

from embedllm.cli.options import common_options


@click.command(short_help="List the model types that can be exported.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list with the keys model_type, models, has, tasks.")
@common_options
def families(as_json: bool) -> None:
    """List the model types that can be exported ('model_type' in a config.json), and their models."""
    from embedllm.export import architectures, encoders

    rows = [(name, *architectures.about(name), ["chat"]) for name in architectures.families()]
    for name in encoders.families():
        tasks = ["embed", "rerank"] if encoders.reranks(name) else ["embed"]
        rows.append((name, *encoders.about(name), tasks))
    if as_json:
        keys = ("model_type", "models", "has", "tasks")
        click.echo(json.dumps([dict(zip(keys, one, strict=True)) for one in rows]))
        return
    width = max(len(name) for name, *_ in rows)
    for name, models, _, tasks in rows:
        click.echo(f"{name:{width}}  {models}" + ("" if tasks == ["chat"] else f" ({', '.join(tasks)})"))

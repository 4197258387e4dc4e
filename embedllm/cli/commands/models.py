"""The commands `embedllm models`, `pull` and `rm`: what is kept of the hub's models, before they are used and after."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime

import click

from embedllm.cli.options import common_options, note
from embedllm.cli.progress import fetching
from embedllm.cli.tables import new_console, new_table
from embedllm.files.command_line import shell_word

_COMMIT = 12  # characters of a commit that are shown


@click.command(short_help="List or remove cached Hugging Face models.")
@click.option("--remove", "removed", multiple=True, metavar="NAME",
              help="Delete the cached exports and downloads of this model. Repeatable.")  # fmt: skip
@click.option("--keep-downloads", is_flag=True, help="With --remove: delete the exports only.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of the cached models, sizes in bytes.")
@common_options
def models(removed: tuple[str, ...], *, keep_downloads: bool, as_json: bool) -> None:
    """List the cached Hugging Face models, with their sizes and times of last use.

    Downloads are in the cache of huggingface_hub, which other libraries share; exports made by load() are in the user's
    cache directory.
    """
    from embedllm.loading.hub_cache import kept_models

    if keep_downloads and not removed:
        raise click.UsageError("--keep-downloads goes with --remove.")
    _remove(removed, keep_downloads=keep_downloads)
    if removed and not as_json:
        return
    entries = kept_models()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(one) for one in entries], ensure_ascii=False))
        return
    if not entries:
        note("no cached models")
        return
    columns = ("model", "what", "commit", "last used", "MB")
    rows = [
        (
            one.name,
            one.kind,
            " ".join(commit[:_COMMIT] for commit in one.commits),
            f"{datetime.fromtimestamp(one.used):%Y-%m-%d %H:%M}",
            f"{one.bytes / 1e6:,.1f}",
        )
        for one in entries
    ]
    new_console().print(new_table(columns, rows, numbers_from=4))
    note(f"{sum(one.bytes for one in entries) / 1e9:,.2f} GB in total; embedllm models --remove NAME deletes a model")


@click.command(short_help="Download a Hugging Face model, or export a GGUF file.")
@click.argument("model", metavar="MODEL")
@common_options
def pull(model: str) -> None:
    """Do now what the first load of MODEL would: download it from the hub (org/name), or export a GGUF file."""
    from embedllm.loading.resolve import find_package

    with fetching(model) as on_progress:
        if on_progress is None:
            raise click.UsageError(f"'{model}' is no name of the hub (org/name) and no GGUF file: nothing to pull.")
        folder = find_package(model, on_progress=on_progress)
    note(f"'{model}' is in '{folder}'; next: embedllm chat {shell_word(model)}")


@click.command(short_help="Remove cached Hugging Face models.")
@click.argument("names", metavar="MODEL...", nargs=-1, required=True)
@click.option("--keep-downloads", is_flag=True, help="Delete the exports only.")
@common_options
def rm(names: tuple[str, ...], *, keep_downloads: bool) -> None:
    """Delete the cached exports and downloads of models; as `embedllm models --remove`."""
    _remove(names, keep_downloads=keep_downloads)


def _remove(names: tuple[str, ...], *, keep_downloads: bool) -> None:
    from embedllm.loading.hub_cache import remove_models

    for name in names:
        note(f"removed '{name}': {remove_models(name, downloads=not keep_downloads) / 1e6:,.1f} MB")

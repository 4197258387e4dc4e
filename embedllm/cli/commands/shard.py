"""`embedllm shard`: a package folder as web servers take it that limit the size of a file, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedllm.cli.options import common_options, note
from embedllm.cli.param_types import ByteSize
from embedllm.cli.progress import progress_bar

if TYPE_CHECKING:
    from embedllm.package.package import Package


@click.command(short_help="Copy a folder in shards, for web servers that limit the size of a file.")
@click.argument("folder")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--size", type=ByteSize(), metavar="SIZE",
              help="Of a file at most, as 25MiB or 1900MB. Default: 2047MiB.")  # fmt: skip
@click.option("--join", "is_join", is_flag=True, help="Put the folder together again.")
@click.option("--replace", is_flag=True, help="Exchange an existing package folder, once the new one is whole.")
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout about the copy.")
@common_options
def shard(
    folder: str, out: Path, *, size: int | None, is_join: bool, replace: bool, quiet: bool, as_json: bool
) -> None:
    """Copy the package folder FOLDER into OUT, files that are larger than SIZE in shards.

    Browsers load OUT as they load FOLDER. For all else, --join makes FOLDER of OUT again. Every file is checked on the
    way. OUT appears when it is whole; after an error or Ctrl-C it is as it was.
    """
    if is_join and size is not None:
        raise click.UsageError("--join and --size: what is joined has no shards. Leave one out.")
    from embedllm.export import sharding
    from embedllm.loading.resolve import package_folder
    from embedllm.package.package import read_package

    place, size = package_folder(folder), size or sharding.SIZE
    left_out = sharding.unlisted(place)
    try:
        with progress_bar(is_shown=not quiet) as on_progress:
            if is_join:
                out = sharding.join(place, out, replace=replace, on_progress=on_progress)
            else:
                out = sharding.shard(place, out, size, replace=replace, on_progress=on_progress)
    except KeyboardInterrupt:
        note(f"'{out}' is as it was before.")
        raise
    package = read_package(out)
    if not quiet:
        total = sum(entry.bytes for entry in package.files.values())
        note(f"wrote '{out}': {total / 1e6:,.1f} MB")
        if not is_join:
            note(said_of_parts(package, size))
        if left_out:
            note(f"left out, because the manifest does not list them: {', '.join(left_out)}")
    if as_json:
        found = {
            "folder": str(out),
            "bytes": sum(entry.bytes for entry in package.files.values()),
            "shards": {name: [shard.file for shard in each] for name, each in package.shards.items()},
        }
        click.echo(json.dumps(found, ensure_ascii=False))


def said_of_parts(package: Package, size: int) -> str:
    """What a user should know of a folder that was to have no file of more bytes."""
    if not package.shards:
        return f"none of its files has more than {size:,} bytes: none is in shards, and every device can use it"
    cut = ", ".join(f"'{name}' in {len(sharding)} shards" for name, sharding in package.shards.items())
    return f"it is a sharded copy, for browsers only: {cut}"

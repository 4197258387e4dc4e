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


@click.command(short_help="Write a sharded web copy of a package.")
@click.argument("folder")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--size", type=ByteSize(), metavar="SIZE",
              help="Maximum file size, such as 25MiB or 1900MB. Default: 2047MiB.")  # fmt: skip
@click.option("--join", "is_join", is_flag=True, help="Join the shards of a package again.")
@click.option("--replace", is_flag=True, help="Replace an existing package directory, once the new one is complete.")
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
@click.option("--json", "as_json", is_flag=True, help="Describe the copy as a JSON object on stdout.")
@common_options
def shard(
    folder: str, out: Path, *, size: int | None, is_join: bool, replace: bool, quiet: bool, as_json: bool
) -> None:
    """Copy the package directory FOLDER to OUT; files larger than SIZE are split into shards.

    Browsers load OUT like FOLDER; everything else needs --join, which restores the package. The hash of every file is
    verified. OUT is written atomically: after an error or Ctrl-C it is unchanged.
    """
    if is_join and size is not None:
        raise click.UsageError("--join and --size are mutually exclusive.")
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
        note(f"'{out}' is unchanged.")
        raise
    package = read_package(out)
    if not quiet:
        total = sum(entry.bytes for entry in package.files.values())
        note(f"wrote '{out}': {total / 1e6:,.1f} MB")
        if not is_join:
            note(describe_shards(package, size))
        if left_out:
            note(f"not copied, because the manifest does not list them: {', '.join(left_out)}")
    if as_json:
        summary = {
            "folder": str(out),
            "bytes": sum(entry.bytes for entry in package.files.values()),
            "shards": {name: [shard.file for shard in each] for name, each in package.shards.items()},
        }
        click.echo(json.dumps(summary, ensure_ascii=False))


def describe_shards(package: Package, size: int) -> str:
    """A note about the shards of a copy with this maximum file size."""
    if not package.shards:
        return f"no file is larger than {size:,} bytes: there are no shards, and every device can use the package"
    cut = ", ".join(f"'{name}' in {len(sharding)} shards" for name, sharding in package.shards.items())
    return f"sharded web copy, for browsers only: {cut}"

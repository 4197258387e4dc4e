"""`embedllm export`: a model's checkpoint becomes a package folder."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import click

from embedllm.cli.commands.shard import said_of_parts
from embedllm.cli.options import common_options, note
from embedllm.cli.param_types import PLAIN_BITS, Bits, ByteSize
from embedllm.cli.progress import progress_bar
from embedllm.hub.name import hub_name

_BITS = click.Choice(["4", "8", "16", "32"])
_GROUPS = click.Choice(["16", "32", "64", "128", "256"])
_GROUP = 32  # values that share a scale, by default
_METHODS = ["search", "nearest", "weighted", "awq", "gptq", "awq+gptq"]
_TEXTLESS = ("search", "nearest")
_TARGETS = {"npu": 128}  # the same where a device wants another: Intel's recipe for its NPU, docs/devices.md#npu
_NPU_LEAST = 64


@click.command(short_help="Write a model into a folder.")
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--bits", type=Bits(), metavar="4|8|16|32|MEAN",
              help="Of the layers' matrices. Default: 4; of a quantized source, as they are. Others, such as 5.25: a "
              "mix of 4 and 8, at most so many a weight, 8 where they gain most.")  # fmt: skip
@click.option("--size", type=ByteSize(), metavar="SIZE",
              help="Such a mix, of so many bytes of weights at most: 26MB, 0.9GB.")  # fmt: skip
@click.option("--group", type=_GROUPS, help="Values that share a scale (4, 8 bits). Default: 32; for the NPU 128.")
@click.option("--exporter", type=click.Choice(["embedllm", "optimum"]), default="embedllm",
              help="optimum: for models that `embedllm families` does not list; they run on the CPU.")  # fmt: skip
@click.option("--target", type=click.Choice(list(_TARGETS)), help="Defaults that suit this device best.")
@click.option("--asymmetric", is_flag=True, help="Store a zero point for each group.")
@click.option("--method", type=click.Choice(_METHODS),
              help="Scales of 4 bits: of the least squared error (the default), or such as reach the extremes; or by "
              "what columns read on a text: weighted with it, or made alike by it first (awq), or each rounding made "
              "up for, which takes longest and is best (gptq).")  # fmt: skip
@click.option("--calibrate", type=click.Path(path_type=Path), metavar="FILE",
              help="The text for such methods (by default gptq) and for a mix of bits, .txt or .jsonl: like what it "
              "will read. Default: it draws one.")  # fmt: skip
@click.option("--importance", type=click.Path(path_type=Path), metavar="FILE",
              help="In place of a text, for weighted: what llama.cpp's llama-imatrix "
              "wrote for the model, as GGUF.")  # fmt: skip
@click.option("--rotate", is_flag=True,
              help="Spread what is large in a channel of the values over its head: the same model, which loses less "
              "where channels differ much.")  # fmt: skip
@click.option("--lm-head-bits", type=_BITS, help="Of the output head. Default: as --bits.")
@click.option("--embedding-bits", type=_BITS, help="Of the embedding. Default: as the head; a tied one is the head.")
@click.option("--context", type=click.IntRange(min=1), metavar="N", help="Tokens to hold. Default: as the model.")
@click.option("--task", type=click.Choice(["chat", "embed", "rerank"]),
              help="What the model is to do. Default: what its checkpoint is for.")  # fmt: skip
@click.option("--revision", metavar="NAME", help="Branch, tag or commit of a repository.")
@click.option("--lora", type=click.Path(path_type=Path), metavar="PATH",
              help="A LoRA adapter of PEFT, merged into the weights before they are rounded.")  # fmt: skip
@click.option("--exact", is_flag=True, help="Float activations in every product: slower to decode.")
@click.option("--verify", is_flag=True, help="Compare the graphs with the NumPy reference and record the differences.")
@click.option("--openvino-tokenizer", is_flag=True, help="Write what openvino-genai needs besides the model.")
@click.option("--shard", type=ByteSize(), metavar="SIZE",
              help="Write larger files in parts, for web servers that limit their size: 25MiB, 1900MB.")  # fmt: skip
@click.option("--replace", is_flag=True, help="Exchange an existing package folder, once the new one is whole.")
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout about the folder.")
@common_options
def export(
    source: str,
    out: Path,
    *,
    bits: float | None,
    size: int | None,
    group: str | None,
    exporter: str,
    target: str | None,
    asymmetric: bool,
    method: str | None,
    calibrate: Path | None,
    rotate: bool,
    importance: Path | None,
    lm_head_bits: str | None,
    embedding_bits: str | None,
    context: int | None,
    task: str | None,
    revision: str | None,
    lora: Path | None,
    exact: bool,
    verify: bool,
    openvino_tokenizer: bool,
    shard: int | None,
    replace: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write the model of SOURCE into the folder OUT.

    SOURCE: a Hugging Face folder (config.json, safetensors, tokenizer.json), a GGUF file, or a repo id of the hub,
    which is downloaded. OUT appears when it is whole; after an error or Ctrl-C it is as it was.
    """
    mean_bits = None if bits is None or bits in PLAIN_BITS else bits
    if size is not None and bits is not None:
        raise click.UsageError("--size and --bits: the size says how many bits there can be. Leave one out.")
    is_mixed = size is not None or mean_bits is not None
    method = method or _method_for(calibrate, importance)
    if calibrate is not None and method in _TEXTLESS and not is_mixed:
        raise click.UsageError(f"--calibrate and --method {method}: {method} reads no text. Leave one out.")
    if importance is not None and method != "weighted":
        raise click.UsageError(f"--importance and --method {method}: only weighted reads it. Leave one out.")
    if importance is not None and calibrate is not None and not is_mixed:
        raise click.UsageError("--importance and --calibrate: they say the same. Leave one out.")
    if target == "npu" and asymmetric:
        raise click.UsageError("--target npu and --asymmetric: the NPU's compiler takes no zero points. Leave one out.")
    if target == "npu" and group and int(group) < _NPU_LEAST:
        raise click.UsageError(
            f"--target npu and --group {group}: the NPU wants groups of {_NPU_LEAST} or more, best {_TARGETS[target]}."
        )
    if quiet:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # read when the hub's package is imported
    from embedllm.export import Recipe, convert
    from embedllm.export.openvino.tokenizer import check_installed
    from embedllm.export.writing.atomic_folder import check_place, named_place
    from embedllm.hub.checkpoint import export_source

    recipe = Recipe(
        bits=None if bits is None or mean_bits is not None else int(bits),
        size=size,
        mean_bits=mean_bits,
        group_size=int(group or _TARGETS.get(target or "", _GROUP)),
        symmetric=not asymmetric,
        method=method,
        head_bits=int(lm_head_bits) if lm_head_bits else None,
        embedding_bits=int(embedding_bits) if embedding_bits else None,
        context=context,
        exact=exact,
        rotate=rotate,
    )
    started = time.perf_counter()
    try:
        with progress_bar(is_shown=not quiet) as on_progress:
            check_place(named_place(out), replace)  # before anything is downloaded
            if openvino_tokenizer:
                check_installed()
            convert(
                export_source(source, revision=revision, on_progress=on_progress),
                out,
                recipe,
                exporter=exporter,
                revision=revision if hub_name(source) is None else None,  # else it was fetched at that
                task=task,
                lora=lora,
                calibration=calibrate,
                importance=importance,
                replace=replace,
                verify=verify,
                openvino_tokenizer=openvino_tokenizer,
                shard=shard,
                on_progress=on_progress,
            )
    except KeyboardInterrupt:
        note(f"'{out}' is as it was before.")
        raise
    _summarize(out, time.perf_counter() - started, shard=shard, quiet=quiet, as_json=as_json)


def _method_for(calibrate: Path | None, importance: Path | None) -> str:
    """The method where none is asked for."""
    return "weighted" if importance is not None else "gptq" if calibrate is not None else "search"


def _summarize(out: Path, seconds: float, *, shard: int | None, quiet: bool, as_json: bool) -> None:
    from embedllm.package.package import WEIGHTS, read_package
    from embedllm.package.tensors import parameters

    package = read_package(out)
    size, weights = sum(entry.bytes for entry in package.files.values()), package.files[WEIGHTS].bytes
    count = parameters(package.architecture)
    if not quiet:
        note(
            f"wrote '{out}': {size / 1e6:,.1f} MB, {8 * weights / count:.2f} bits a weight "
            f"({count / 1e6:,.1f} million weights), {seconds:.1f} s"
        )
        if shard:
            note(said_of_parts(package, shard))
    if as_json:
        found = {
            "folder": str(out),
            "name": package.name,
            "bytes": size,
            "weights_bytes": weights,
            "parameters": count,
            "bits_per_weight": 8 * weights / count,
            "context": package.context,
            "seconds": seconds,
            "graphs": [graph.file for graph in package.graphs],
            "shards": {name: [shard.file for shard in shards] for name, shards in package.shards.items()},
            "verification": package.manifest.get("verification"),
        }
        click.echo(json.dumps(found, ensure_ascii=False))

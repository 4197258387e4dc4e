"""`embedllm export`: exports a checkpoint to a package directory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedllm.cli.commands.shard import describe_shards
from embedllm.cli.options import common_options, note
from embedllm.cli.param_types import PLAIN_BITS, Bits, ByteSize
from embedllm.cli.progress import progress_bar
from embedllm.errors import ExportError, TemplateError
from embedllm.files.command_line import shell_word
from embedllm.hub.name import hub_name

if TYPE_CHECKING:
    from embedllm.export import Recipe
    from embedllm.package.package import Package

_BITS = click.Choice(["4", "8", "16", "32"])
_GROUPS = click.Choice(["16", "32", "64", "128", "256"])
_GROUP = 32  # values that share a scale, by default
_METHODS = ["search", "nearest", "weighted", "awq", "gptq", "awq+gptq"]
_TARGETS = {"npu": 128}  # the same where a device wants another: Intel's recipe for its NPU, docs/devices.md#npu
_NPU_LEAST = 64


@click.command(short_help="Export a model to a directory.")
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--bits", type=Bits(), metavar="4|8|16|32|MEAN",
              help="Bits of the layers' matrices. Default: 4; pre-quantized weights are kept as is. Other numbers, "
              "such as 5.25: mixed precision of 4 and 8 bits with this target average.")  # fmt: skip
@click.option("--size", type=ByteSize(), metavar="SIZE",
              help="Mixed precision with this target weight size: 26MB, 0.9GB.")  # fmt: skip
@click.option("--group", type=_GROUPS, help="Quantization group size (4, 8 bits). Default: 32; for the NPU 128.")
@click.option("--exporter", type=click.Choice(["embedllm", "optimum"]), default="embedllm",
              help="optimum: for model types that 'embedllm families' does not list; they run on the CPU.")  # fmt: skip
@click.option("--target", type=click.Choice(list(_TARGETS)), help="Use the best defaults for this device.")
@click.option("--asymmetric/--symmetric", "asymmetric", default=None,
              help="With zero points or without. Default: with, in 4 bits where every device reads them.")  # fmt: skip
@click.option("--method", type=click.Choice(_METHODS),
              help="Quantization method: weighted (MSE-optimal scales, weighted by activations as with an imatrix; "
              "default), search (the same, unweighted), nearest (round-to-nearest, min-max scales), awq, gptq "
              "(slowest, most accurate).")  # fmt: skip
@click.option("--calibrate", type=click.Path(path_type=Path), metavar="FILE",
              help="Calibration data (.txt or .jsonl) for weighted, awq, gptq (then the default) and mixed precision. "
              "Default: a short built-in text; for gptq self-generated.")  # fmt: skip
@click.option("--importance", type=click.Path(path_type=Path), metavar="FILE",
              help="Importance matrix for weighted, in place of calibration data: a GGUF "
              "file of llama.cpp's llama-imatrix.")  # fmt: skip
@click.option("--rotate", is_flag=True,
              help="Hadamard-rotate the value heads (QuaRot-style) to spread outlier channels.")  # fmt: skip
@click.option("--lm-head-bits", type=_BITS, help="Bits of the LM head. Default: as --bits.")
@click.option(
    "--embedding-bits",
    type=_BITS,
    help="Bits of the embedding. Default: as the LM head; a tied embedding is the LM head.",
)
@click.option("--context", type=click.IntRange(min=1), metavar="N", help="Context length. Default: the model's.")
@click.option("--task", type=click.Choice(["chat", "embed", "rerank"]),
              help="Task of the model. Default: that of the checkpoint.")  # fmt: skip
@click.option("--revision", metavar="NAME", help="Branch, tag or commit of a Hugging Face repository.")
@click.option("--lora", type=click.Path(path_type=Path), metavar="PATH",
              help="LoRA adapter (PEFT format) to merge into the weights before quantization.")  # fmt: skip
@click.option("--mmproj", type=click.Path(path_type=Path), metavar="FILE",
              help="GGUF file with the vision encoder of a GGUF model. Default: the mmproj file beside.")  # fmt: skip
@click.option("--no-mmproj", is_flag=True, help="Export a GGUF model as text only.")
@click.option("--exact", is_flag=True, help="Float activations in every matmul: slower decoding.")
@click.option("--verify", is_flag=True, help="Compare the graphs with the NumPy reference and record the differences.")
@click.option("--openvino-tokenizer", is_flag=True, help="Also write the tokenizer files of openvino-genai.")
@click.option("--openvino-images", is_flag=True, help="Also write what openvino-genai needs to read images: Gemma 3 "
              "and 4, Qwen2-VL to Qwen 3.5. Includes --openvino-tokenizer.")  # fmt: skip
@click.option("--genai-images", is_flag=True, help="Also write what onnxruntime-genai needs to read images: Gemma 3, "
              "Mistral 3, Qwen2-VL to Qwen 3.5.")  # fmt: skip
@click.option("--shard", type=ByteSize(), metavar="SIZE",
              help="Write a sharded web copy: split larger files into shards of this size: 25MiB, 1900MB.")  # fmt: skip
@click.option("--replace", is_flag=True, help="Replace an existing package directory, once the new one is complete.")
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
@click.option("--json", "as_json", is_flag=True, help="Describe the package as a JSON object on stdout.")
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
    asymmetric: bool | None,
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
    mmproj: Path | None,
    no_mmproj: bool,
    exact: bool,
    verify: bool,
    openvino_tokenizer: bool,
    openvino_images: bool,
    genai_images: bool,
    shard: int | None,
    replace: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Export the model SOURCE to the package directory OUT.

    SOURCE: a Hugging Face checkpoint directory (config.json, safetensors, tokenizer.json), a GGUF file, or a repo id,
    which is downloaded. OUT is written atomically: after an error or Ctrl-C it is unchanged.
    """
    _check_target(target, group, asymmetric=asymmetric)
    if mmproj is not None and no_mmproj:
        raise click.UsageError("--mmproj and --no-mmproj are mutually exclusive.")
    if quiet:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # read when the hub's package is imported
    from embedllm.export import Recipe, convert
    from embedllm.export.openvino.tokenizer import check_installed
    from embedllm.export.writing.atomic_folder import check_place, named_place
    from embedllm.loading.hub_sources import export_source

    recipe = Recipe(
        bits=int(bits) if bits in PLAIN_BITS else None,
        size=size,
        mean_bits=None if bits in PLAIN_BITS else bits,
        group_size=int(group or _TARGETS.get(target or "", _GROUP)),
        symmetric=_symmetric(target, asymmetric=asymmetric),
        method=method,
        head_bits=int(lm_head_bits) if lm_head_bits else None,
        embedding_bits=int(embedding_bits) if embedding_bits else None,
        context=context,
        exact=exact,
        rotate=rotate,
    )
    _check_calibration(recipe, has_text=calibrate is not None, has_importance=importance is not None)
    started = time.perf_counter()
    try:
        with progress_bar(is_shown=not quiet) as on_progress:
            inputs = [source, *(file for file in (lora, calibrate, importance, mmproj) if file is not None)]
            check_place(named_place(out), replace, inputs=inputs)  # before anything is downloaded
            if openvino_tokenizer or openvino_images:
                check_installed()
            checkpoint, encoder = export_source(
                source, mmproj=mmproj or not no_mmproj, revision=revision, on_progress=on_progress
            )
            convert(
                checkpoint,
                out,
                recipe,
                exporter=exporter,
                revision=revision if hub_name(source) is None else None,  # else it was fetched at that
                task=task,
                lora=lora,
                calibration=calibrate,
                importance=importance,
                mmproj=encoder,
                replace=replace,
                verify=verify,
                openvino_tokenizer=openvino_tokenizer,
                openvino_images=openvino_images,
                genai_images=genai_images,
                shard=shard,
                on_progress=on_progress,
            )
    except KeyboardInterrupt:
        note(f"'{out}' is unchanged." if out.exists() else f"nothing was written to '{out}'.")
        raise
    _summarize(source, out, time.perf_counter() - started, shard=shard, quiet=quiet, as_json=as_json)


def _symmetric(target: str | None, *, asymmetric: bool | None) -> bool | None:
    """Recipe.symmetric: the NPU reads no zero points."""
    return target == "npu" or None if asymmetric is None else not asymmetric


def _check_target(target: str | None, group: str | None, *, asymmetric: bool | None) -> None:
    if target == "npu" and asymmetric:
        raise click.UsageError("--target npu and --asymmetric: the NPU does not support zero points. Leave one out.")
    if target == "npu" and group and int(group) < _NPU_LEAST:
        raise click.UsageError(
            f"--target npu and --group {group}: the NPU needs a group size of at least {_NPU_LEAST}, best "
            f"{_TARGETS[target]}."
        )


def _check_calibration(recipe: Recipe, *, has_text: bool, has_importance: bool) -> None:
    """Before anything is downloaded: what the export itself would refuse."""
    from embedllm.export.recipe import check_calibration

    is_mixed = recipe.size is not None or recipe.mean_bits is not None
    if recipe.size is not None and (recipe.bits is not None or recipe.mean_bits is not None):
        raise click.UsageError("--size and --bits are mutually exclusive.")
    try:
        if name := recipe.method or ("weighted" if has_importance else None):
            check_calibration(name, has_budget=is_mixed, has_text=has_text, has_importance=has_importance)
    except ExportError as error:
        raise click.UsageError(str(error)) from error


def _summarize(source: str, out: Path, seconds: float, *, shard: int | None, quiet: bool, as_json: bool) -> None:
    from embedllm.package.package import WEIGHTS, read_package
    from embedllm.package.tensors import parameters, rotary_bytes

    package = read_package(out)
    size, weights = sum(entry.bytes for entry in package.files.values()), package.files[WEIGHTS].bytes
    count = parameters(package.architecture)
    bits = 8 * (weights - rotary_bytes(package.architecture)) / count
    if not quiet:
        note(
            f"wrote '{out}': {size / 1e6:,.1f} MB, {bits:.2f} bits per weight "
            f"({count / 1e6:,.1f} million weights), {seconds:.1f} s"
        )
        if isinstance(measured := package.manifest.get("verification"), dict):
            note(f"differences from the reference: {_differences(measured)}")
        if left_out := package.manifest.get("mtp_layers"):
            note(_about_heads(left_out, source, out))
        if shard:
            note(describe_shards(package, shard))
        else:
            note(f"next: {_next_command(package, out)}")
    if as_json:
        summary = {
            "folder": str(out),
            "name": package.name,
            "bytes": size,
            "weights_bytes": weights,
            "parameters": count,
            "bits_per_weight": bits,
            "context": package.context,
            "seconds": seconds,
            "graphs": [graph.file for graph in package.graphs],
            "shards": {name: [shard.file for shard in shards] for name, shards in package.shards.items()},
            "verification": package.manifest.get("verification"),
            "mtp_layers": package.manifest.get("mtp_layers", 0),
        }
        click.echo(json.dumps(summary, ensure_ascii=False))


def _differences(measured: Mapping[str, object]) -> str:
    """What --verify has measured, in one line; 'embedllm inspect' has all of it."""
    graphs = {name: difference for name, difference in measured.items() if isinstance(difference, dict)}
    return "; ".join(f"{name} KL {difference['kl_mean']:.3g}, same top token {difference['same_top']:.1%}"
                     for name, difference in graphs.items() if "kl_mean" in difference)  # fmt: skip


def _about_heads(layers: object, source: str, out: Path) -> str:
    """What is said of a multi-token prediction head, which an export leaves out."""
    if layers != 1:
        return f"left out: multi-token prediction heads (MTP) of {layers} layers; those of one layer are read."
    command = f"embedllm mtp {shell_word(out)} {shell_word(source)}"
    return f"left out: a multi-token prediction head (MTP), which drafts on cpu, openvino and cuda. Add it: {command}"


def _next_command(package: Package, out: Path) -> str:
    """What to type now: what the model is for."""
    from embedllm.text.chat_template import ChatTemplate

    word = shell_word(out)
    if package.encoder is not None:
        return f'embedllm rerank {word} "QUERY" "DOCUMENT"' if package.encoder.score_activation else (
            f'embedllm embed {word} "TEXT"')  # fmt: skip
    try:
        ChatTemplate.open(out)
    except TemplateError:
        return f'embedllm run {word} "TEXT"'
    return f"embedllm chat {word}"

"""The steps of an export in order; the folder appears under its name only when it is whole."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.export.checkpoints.lora_merge import MergedSource
from embedllm.export.checkpoints.tensor_mapping import Source
from embedllm.export.describe import check_encoder, describe_checkpoint
from embedllm.export.graphs import Model, build, variants
from embedllm.export.open_source import open_source
from embedllm.export.openvino.tokenizer import check_installed, link_weights, write_tokenizer
from embedllm.export.optimum.convert import convert_traced
from embedllm.export.quantization.apply_method import Fitted, fit
from embedllm.export.quantization.calibration_text import FEWEST, CalibrationText, draw_text, read_text
from embedllm.export.quantization.imatrix import read_importance
from embedllm.export.quantization.importance import ENOUGH
from embedllm.export.quantization.mixed_precision import budget, mixed
from embedllm.export.quantization.rotated_source import RotatedSource
from embedllm.export.recipe import METHODS, Recipe, check_method, check_model
from embedllm.export.sharding import cut_in_place
from embedllm.export.writing.atomic_folder import atomic_folder, check_place, named_place
from embedllm.export.writing.genai_config import genai_config
from embedllm.export.writing.metadata import copy_texts, facts_of, manifest_of, special_tokens, texts_of
from embedllm.export.writing.passthrough import carried, check_carried
from embedllm.export.writing.plan import Plan, plan
from embedllm.export.writing.stream import check_source, write_weights
from embedllm.files.atomic import write_json
from embedllm.files.progress import Progress
from embedllm.hub.location import Location
from embedllm.package.features import features_of
from embedllm.package.graph_variants import FLOAT32
from embedllm.package.package import MANIFEST, WEIGHTS, sha256

EXPORTERS = ("embedllm", "optimum")


def convert(
    source: str | Path | Location,
    out: str | Path,
    recipe: Recipe | None = None,
    *,
    exporter: str = "embedllm",
    revision: str | None = None,
    task: str | None = None,
    lora: str | Path | None = None,
    calibration: str | Path | None = None,
    importance: str | Path | None = None,
    replace: bool = False,
    verify: bool = False,
    openvino_tokenizer: bool = False,
    shard: int | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Path:
    """Exports a model into a package folder and returns that folder.

    source: a Hugging Face folder (config.json and safetensors), a repo id of the hub, what was located already, or a
    GGUF file, of one in parts any of them (docs/guide-gguf.md).
    exporter: "optimum" traces a model that is not described here, with optimum and torch installed; such a folder runs
    on the CPU only, and takes none of the choices below but `revision` and `replace` (docs/guide-export.md#optimum).
    revision: branch, tag or commit of a repository.
    task: "chat", "embed" or "rerank"; None: by what the checkpoint says of itself (docs/guide-embeddings.md).
    lora: an adapter as PEFT saves it, a folder or its safetensors file, merged before anything is rounded.
    calibration: for the methods "weighted", "awq", "gptq" and "awq+gptq" and for a recipe with a size or mean bits, a
    text like what the model will read: .jsonl with documents, {"text": ...} a line, or anything else as one document.
    None: the model draws one by itself.
    importance: for the method "weighted", in place of a text: what llama-imatrix of llama.cpp wrote, as GGUF.
    replace: an existing package folder is exchanged for the new one once that is whole; without it, it is an error.
    verify: compare the graphs with the NumPy reference; the measured differences go into the manifest.
    openvino_tokenizer: the folder loads in openvino-genai too; takes openvino-tokenizers and transformers.
    shard: cut files of more bytes into parts, for web servers that limit the size of a file; such a folder is loaded by
    browsers only (docs/format.md#shards).
    Raises ExportError, UnsupportedModel. Whatever happens, nothing half-written is left under the name of `out`.
    """
    if exporter not in EXPORTERS:
        raise ValueError(f"exporter is {exporter!r}; expected {' or '.join(map(repr, EXPORTERS))}.")
    given = {"lora": lora, "calibration": calibration, "importance": importance, "verify": verify,
             "openvino_tokenizer": openvino_tokenizer, "shard": shard}  # fmt: skip
    if exporter == "optimum":
        if unusable := [name for name, value in {**given, "task": task}.items() if value]:
            raise ExportError(f"{', '.join(unusable)}: not with the exporter 'optimum'. Leave it out.")
        return convert_traced(source, out, recipe, revision=revision, replace=replace, on_progress=on_progress)
    out = named_place(out)
    recipe = recipe or Recipe()
    check_place(out, replace)
    if shard is not None and shard < 1:
        raise ValueError(f"shard is {shard} bytes; expected 1 or more.")
    if openvino_tokenizer:
        check_installed()
    location, reader = open_source(source, revision)
    try:
        decoder = describe_checkpoint(reader, context=recipe.context, task=task)
        check_encoder(decoder, recipe, given)
        texts = texts_of(location.folder)
        tokens = special_tokens(reader, decoder.vocabulary)
        held = carried(reader, decoder) if recipe.bits is None else {}
        recipe = recipe if held else recipe.of_floats
        check_carried(held, recipe, {"lora": lora, "calibration": calibration, "importance": importance})
        decided = plan(decoder, recipe, held=held)
        most = budget(decided, recipe)
        check_model(recipe.method, decoder, has_budget=most is not None)
        reads = check_method(recipe.method, {packing.bits for packing in decided.packing.values()},
                             has_budget=most is not None, has_text=calibration is not None,
                             has_importance=importance is not None)  # fmt: skip
        merged = None if lora is None else MergedSource(reader, lora, decoder)
        model = RotatedSource(merged or reader, decoder) if recipe.rotate else merged or reader
        check_source(reader, decided)
        text = None if calibration is None else read_text(Path(calibration), location.folder, decoder)
        squares = None if importance is None else read_importance(Path(importance), decoder)
        draws = reads and text is None
        draft, size = decided.layout.size, most or decided.layout.size
        with atomic_folder(out, size + max(min(size, shard or 0), draft if draws else 0)) as partial:
            facts = facts_of(location, recipe, tokens, out.name) | ({"lora": merged.facts} if merged else {})
            copy_texts(texts, partial)
            job = _Job(source=model, recipe=recipe, facts=facts, on_progress=on_progress)
            if draws:
                text = _drawn(job, decided, partial)
            if openvino_tokenizer:
                write_tokenizer(location.folder, partial)
                link_weights(partial)  # now, so that a disk without links is known before the weights are written
            if most is not None:
                assert text is not None, "it is read or drawn"
                decided, facts["sensitivity"] = mixed(job.source, decided, recipe, text.sequences, most, on_progress)
            if text is not None:
                facts["calibration"] = text.facts
            if importance is not None:
                facts["importance"] = {"file": Path(importance).name, "sha256": sha256(Path(importance))}
            fitted = fit(job.source, decided, METHODS[recipe.method], None if text is None else text.sequences,
                         importance=squares, on_progress=on_progress)  # fmt: skip
            _write(job, decided, partial, fitted)
            if verify:
                from embedllm.export.verify import verify_folder

                verify_folder(partial, on_progress)
            if shard is not None:
                cut_in_place(partial, shard, on_progress)
            check_place(out, replace)  # again: somebody may have made a folder of that name meanwhile
    finally:
        reader.close()
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What the steps of an export share."""

    source: Source
    recipe: Recipe
    facts: dict[str, object]  # that begin the manifest
    on_progress: Callable[[Progress], None]


def _drawn(job: _Job, decided: Plan, partial: Path) -> CalibrationText:
    """What the model says by itself, as a plainer export of it that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="draft-", dir=partial) as folder:
        copy_texts({path.name: path for path in partial.iterdir() if path.is_file()}, Path(folder))
        plainer = dataclasses.replace(job.recipe, method="nearest")
        silent = dataclasses.replace(job, on_progress=lambda _: None)
        _write(silent, plan(decided.decoder, plainer), Path(folder), Fitted(source=job.source))
        method = METHODS[job.recipe.method]
        count = None if method.compensates else ENOUGH if method.reads else FEWEST
        return draw_text(Path(folder), lambda done, of: job.on_progress(Progress("draft", done, of)), count=count)


def _write(job: _Job, decided: Plan, partial: Path, fitted: Fitted) -> None:
    """Weights, graphs and what describes them."""
    tokens, on_progress = job.facts["tokens"], job.on_progress
    assert isinstance(tokens, dict)
    # onnxruntime-genai has other inputs for a recurrent model's states, and none for texts without a KV
    if decided.decoder.encoder is None and not decided.decoder.is_recurrent:
        write_json(partial / "genai_config.json", genai_config(decided.decoder, tokens, FLOAT32.file))
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        on_progress(Progress("weights", done, decided.layout.size))

    hashes = {WEIGHTS: write_weights(fitted.source, decided, partial / WEIGHTS, on_bytes,
                                     pieces=fitted.pieces, weights=fitted.weights)}  # fmt: skip
    on_progress(Progress("weights", decided.layout.size, decided.layout.size))
    graphs = variants(decided.decoder)
    model = Model(decoder=decided.decoder, layout=decided.layout, packing=decided.packing, exact=job.recipe.exact)
    for index, graph in enumerate(graphs):
        (partial / graph.file).write_bytes(build(graph.variant, model))
        on_progress(Progress("graphs", index + 1, len(graphs)))
    features = features_of(decided.packing.values(), is_encoder=decided.decoder.encoder is not None)
    manifest = manifest_of(
        partial, job.facts | {"features": features}, decided.decoder, graphs, decided.packing, hashes
    )
    write_json(partial / MANIFEST, manifest)

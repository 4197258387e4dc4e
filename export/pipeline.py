"""The steps of an export in order; the folder appears under its name only when it is whole."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.errors import EmbedError, ExportError
from embedllm.export.checkpoints.consistency import check_vectors, with_stored_head
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.checkpoints.lora_merge import MergedSource
from embedllm.export.checkpoints.tensor_mapping import Source
from embedllm.export.describe import check_encoder, describe_checkpoint, describe_untied
from embedllm.export.genai_images import GenaiImages, prepare_genai_images
from embedllm.export.graphs import Model, build, graph_bytes, variants
from embedllm.export.mtp import mtp_layers
from embedllm.export.open_source import Checkpoint, open_source
from embedllm.export.openvino.links import LINK, link_weights, weight_links
from embedllm.export.openvino.tokenizer import write_tokenizer
from embedllm.export.openvino_images import OpenvinoImages, prepare_openvino_images
from embedllm.export.optimum.convert import convert_with_optimum
from embedllm.export.quantization.apply_method import PreparedModel, apply_method
from embedllm.export.quantization.calibration_text import CalibrationText, built_in_text, draw_text, read_text
from embedllm.export.quantization.imatrix import read_importance
from embedllm.export.quantization.mixed_precision import budget, mixed
from embedllm.export.quantization.rotated_source import RotatedSource
from embedllm.export.recipe import UNCALIBRATED, Recipe, check_method, check_model, default_method
from embedllm.export.request import ExportRequest
from embedllm.export.sharding import cut_in_place
from embedllm.export.writing.atomic_folder import atomic_folder, check_place, named_place
from embedllm.export.writing.genai_config import FILE as GENAI_CONFIG
from embedllm.export.writing.genai_config import genai_config, runs_text
from embedllm.export.writing.metadata import (
    copy_texts,
    facts_of,
    manifest_of,
    special_tokens,
    texts_of,
    write_stop_tokens,
)
from embedllm.export.writing.passthrough import check_prequantized, prequantized
from embedllm.export.writing.plan import Plan, plan
from embedllm.export.writing.stream import check_source, write_weights
from embedllm.export.writing.tokenizer_file import (
    PackageTokenizer,
    read_tokenizer,
    warn_of_missing_rows,
    warn_of_no_end,
)
from embedllm.files.atomic import write_json
from embedllm.files.progress import Progress
from embedllm.hub.location import Location
from embedllm.package.features import features_of
from embedllm.package.graph_variants import FLOAT32
from embedllm.package.package import MANIFEST, WEIGHTS, sha256

if TYPE_CHECKING:
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.types import F32

_log = logging.getLogger("embedllm")


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
    mmproj: str | Path | bool = True,
    replace: bool = False,
    verify: bool = False,
    openvino_tokenizer: bool = False,
    openvino_images: bool = False,
    genai_images: bool = False,
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
    None: a built-in text, for "gptq" and "awq+gptq" one that the model draws by itself.
    importance: for the method "weighted", in place of a text: what llama-imatrix of llama.cpp wrote, as GGUF.
    mmproj: the GGUF file with the vision encoder of a model in GGUF; True: the one that lies beside it, if there is;
    False: text only (docs/guide-gguf.md#images).
    replace: an existing package folder is exchanged for the new one once that is whole; without it, it is an error, and
    so are inputs of the export in that folder and files that its manifest does not list, which nothing deletes.
    verify: compare the graphs with the NumPy reference; the measured differences go into the manifest.
    openvino_tokenizer: the folder loads in openvino-genai too; takes openvino-tokenizers and transformers.
    openvino_images: the same, as a model that takes images, where openvino-genai runs its kind
    (docs/guide-export.md#images-there).
    genai_images: the folder loads in onnxruntime-genai as a model that takes images, where that has its type
    (docs/guide-export.md#in-onnxruntime-genai); without it as a text decoder.
    shard: cut files of more bytes into parts, for web servers that limit the size of a file; such a folder is loaded by
    browsers only (docs/format.md#shards).
    Raises ExportError, UnsupportedModel, and HubError for a repository of the hub. Whatever happens, nothing
    half-written is left under the name of `out`.
    """
    request = ExportRequest(
        source=source,
        out=Path(out) if exporter == "optimum" else named_place(out),
        recipe=recipe or Recipe(),
        exporter=exporter,
        revision=revision,
        task=task,
        lora=None if lora is None else Path(lora),
        calibration=None if calibration is None else Path(calibration),
        importance=None if importance is None else Path(importance),
        mmproj=mmproj if isinstance(mmproj, bool) else Path(mmproj),
        replace=replace,
        verify=verify,
        openvino_tokenizer=openvino_tokenizer or openvino_images,
        openvino_images=openvino_images,
        genai_images=genai_images,
        shard=shard,
        on_progress=on_progress,
    )
    if exporter == "optimum":
        return convert_with_optimum(source, out, recipe, revision=revision, replace=replace, on_progress=on_progress)
    location, reader = open_source(source, revision, request.mmproj)
    try:
        export = _decided(request, location, reader)
        with atomic_folder(request.out, export.disk_bytes) as partial:
            _fill(export, partial)
            check_place(request.out, replace)  # again: somebody may have made a folder of that name meanwhile
    finally:
        reader.close()
    return request.out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Export:
    """An export that can be written: the request, and what was decided from the checkpoint's description."""

    request: ExportRequest
    recipe: Recipe
    location: Location
    source: Source  # with the adapter merged, and rotated
    plan: Plan  # mixed precision: in 4 bits
    budget: int | None  # bytes of the weights of mixed precision
    facts: Mapping[str, object]  # that begin the manifest
    texts: Mapping[str, Path]  # files that are copied
    tokenizer: PackageTokenizer
    text: CalibrationText | None
    generates_text: bool  # the model generates the calibration text
    importance: Mapping[str, F32] | None
    genai_images: GenaiImages | None  # None: not wanted
    openvino_images: OpenvinoImages | None  # None: not wanted

    @property
    def disk_bytes(self) -> int:
        """Bytes that have to be free: at most what the folder has at its peak (tests/export/test_disk_space.py)."""
        request, plan = self.request, self.plan
        # a file that cannot be read is refused as it is copied
        texts = sum(path.stat().st_size for path in self.texts.values() if path.exists())
        texts += len(self.tokenizer.changed or "")
        tokenizers = texts * 2 if request.openvino_tokenizer else 0  # one each way, each smaller than the texts
        images = sum(one is not None for one in (self.genai_images, self.openvino_images))
        described = graph_bytes(plan.packing) * (1 + images)
        size = self.budget or plan.layout.size
        package = size + texts + tokenizers + described + min(size, request.shard or 0)
        draft = plan.layout.size + 2 * texts + described  # removed before the package's weights are written
        return max(package, draft) if self.generates_text else package


def _decided(request: ExportRequest, location: Location, reader: Checkpoint) -> _Export:
    """Decides and checks everything that the small files of a checkpoint say; reads no weights but an adapter's."""
    recipe, lora = request.recipe, request.lora
    decoder, tensors = describe_checkpoint(reader, context=recipe.context, task=request.task)
    check_encoder(decoder, recipe, request.options)
    texts = texts_of(location.folder)
    tokenizer = read_tokenizer(location.folder)
    origin = decoder.embedding.origin  # of more rows where codes of images and audio are left out
    warn_of_missing_rows(tokenizer.tokenizer, decoder.vocabulary if origin is None else origin.rows)
    tokens = special_tokens(reader, decoder.vocabulary, () if decoder.encoder else tokenizer.tokenizer.ends)
    if decoder.encoder is None:
        warn_of_no_end(tokens["stop"])
    genai_images = prepare_genai_images(location.folder, decoder) if request.genai_images else None
    openvino_images = (
        prepare_openvino_images(location.folder, decoder, reader.config) if request.openvino_images else None
    )
    if isinstance(reader, HuggingFaceSource):
        decoder = with_stored_head(decoder, reader, lambda: describe_untied(reader, recipe.context))
    packed = prequantized(tensors, decoder) if recipe.bits is None and recipe.mean_bits is None else {}
    recipe = recipe if packed else recipe.of_floats
    check_prequantized(packed, recipe, request.weight_options)
    planned = plan(decoder, recipe, prequantized=packed, openvino_images=request.openvino_images)
    size = budget(planned, recipe)
    bits = {packing.bits for name, packing in planned.packing.items() if name not in planned.prequantized}
    calibration = {"has_text": request.calibration is not None, "has_importance": request.importance is not None}
    method = recipe.method or default_method(decoder, bits, **calibration)
    recipe = dataclasses.replace(recipe, method=method)
    check_model(method, decoder, has_budget=size is not None)
    reads = check_method(
        method,
        bits,
        has_budget=size is not None,
        **calibration,
    )
    merged = None if lora is None else MergedSource(tensors, lora, decoder)
    source = merged or tensors
    check_source(tensors, planned)
    if isinstance(reader, HuggingFaceSource):
        check_vectors(decoder, reader)
    text = None
    if reads:
        try:
            text = _text(request, recipe, location, decoder)
        except EmbedError as error:
            if not request.is_left_open:
                raise
            _warn_uncalibrated(error)
            recipe, reads = dataclasses.replace(recipe, method=UNCALIBRATED), False
    facts = facts_of(location, recipe, tokens, request.out.name)
    if left_out := mtp_layers(reader, decoder):
        facts["mtp_layers"] = left_out
        _log.info("the multi-token prediction head (MTP) is not exported; add it with: embedllm mtp %s CHECKPOINT",
                  request.out)  # fmt: skip
    return _Export(
        request=request,
        recipe=recipe,
        location=location,
        source=RotatedSource(source, decoder) if recipe.rotate else source,
        plan=planned,
        budget=size,
        facts=facts if merged is None else {**facts, "lora": merged.facts},
        texts=texts,
        tokenizer=tokenizer,
        text=text,
        generates_text=reads and recipe.way.compensates and request.calibration is None,
        importance=None if request.importance is None else read_importance(request.importance, decoder),
        genai_images=genai_images,
        openvino_images=openvino_images,
    )


def _warn_uncalibrated(error: EmbedError) -> None:
    _log.warning("exported without calibration, by the method %r: %s", UNCALIBRATED, error)


def _text(request: ExportRequest, recipe: Recipe, location: Location, decoder: Decoder) -> CalibrationText | None:
    """What calibration reads; None: what the model will generate, for a method that fits weights to the text."""
    if request.calibration is not None:
        return read_text(request.calibration, location.folder, decoder)
    return None if recipe.way.compensates else built_in_text(location.folder, decoder)


def _fill(export: _Export, partial: Path) -> None:
    """Writes the package into an empty folder."""
    request, recipe, facts, planned = export.request, export.recipe, dict(export.facts), export.plan
    copy_texts(export.texts, partial)
    export.tokenizer.write(partial)
    text = _generated_text(export, partial) if export.generates_text else export.text
    if request.openvino_tokenizer:
        write_tokenizer(export.location.folder, partial)
        write_stop_tokens(partial, facts["tokens"])
        link_weights(partial, [LINK])  # now, so that a disk without links is known before the weights are written
    if export.budget is not None:
        assert text is not None, "it is read or generated"
        planned, facts["sensitivity"] = mixed(
            export.source, planned, recipe, text.sequences, export.budget, request.on_progress
        )
    if request.importance is not None:
        facts["importance"] = {"file": request.importance.name, "sha256": sha256(request.importance)}
    try:
        prepared = apply_method(
            export.source,
            planned,
            recipe.way,
            None if text is None else text.sequences,
            importance=export.importance,
            on_progress=request.on_progress,
        )
    except ExportError as error:
        if not request.is_left_open:
            raise
        _warn_uncalibrated(error)  # of weights that are not finite, the writer names which ones
        prepared, text = PreparedModel(source=export.source), None
        facts["recipe"] = dataclasses.asdict(dataclasses.replace(recipe, method=UNCALIBRATED))
    if text is not None:
        facts["calibration"] = text.facts
    _write(prepared, planned, partial, facts, exact=recipe.exact, genai_images=export.genai_images,
           openvino_images=export.openvino_images, on_progress=request.on_progress)  # fmt: skip
    if request.verify:
        from embedllm.export.verify import verify_folder

        verify_folder(partial, request.on_progress)
    if request.shard is not None:
        cut_in_place(partial, request.shard, request.on_progress)


def _generated_text(export: _Export, partial: Path) -> CalibrationText:
    """Text that the model generates, as a plainer export of it that is removed afterwards."""
    recipe, on_progress = export.recipe, export.request.on_progress
    with tempfile.TemporaryDirectory(prefix="draft-", dir=partial) as folder:
        copy_texts({path.name: path for path in partial.iterdir() if path.is_file()}, Path(folder))
        plainer = plan(export.plan.decoder, dataclasses.replace(recipe, method="nearest"))

        def on_draft(progress: Progress) -> None:
            if progress.stage == "weights":
                on_progress(dataclasses.replace(progress, stage="draft-weights"))

        _write(PreparedModel(source=export.source), plainer, Path(folder), export.facts, exact=recipe.exact,
               on_progress=on_draft)  # fmt: skip
        return draw_text(Path(folder), lambda done, of: on_progress(Progress("draft", done, of)))


def _write(
    prepared: PreparedModel,
    planned: Plan,
    partial: Path,
    facts: Mapping[str, object],
    *,
    exact: bool,
    genai_images: GenaiImages | None = None,
    openvino_images: OpenvinoImages | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> None:
    """Weights, graphs and what describes them."""
    decoder, layout, tokens = planned.decoder, planned.layout, facts["tokens"]
    assert isinstance(tokens, dict)
    if runs_text(decoder, keeps_latent=FLOAT32.keeps_latent(decoder, planned.packing)):
        write_json(partial / GENAI_CONFIG, genai_config(decoder, tokens))
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        on_progress(Progress("weights", done, layout.size))

    digest = write_weights(
        prepared.source,
        planned,
        partial / WEIGHTS,
        on_bytes,
        pieces=prepared.pieces,
        weights=prepared.weights,
        spreads=prepared.spreads,
    )
    on_progress(Progress("weights", layout.size, layout.size))
    graphs = variants(decoder, planned.packing)
    on_progress(Progress("graphs", 0, len(graphs)))
    model = Model(decoder=decoder, layout=layout, packing=planned.packing, exact=exact)
    for index, graph in enumerate(graphs):
        (partial / graph.file).write_bytes(build(graph.variant, model))
        on_progress(Progress("graphs", index + 1, len(graphs)))
    if genai_images is not None:
        genai_images.write(partial, model, tokens)
    if openvino_images is not None:
        openvino_images.write(partial, model)
        link_weights(partial, weight_links([path.name for path in partial.iterdir()]))
    features = features_of(
        planned.packing.values(), is_encoder=decoder.encoder is not None, has_vision=decoder.vision is not None
    )
    facts = {**facts, "features": features}
    manifest = manifest_of(partial, facts, decoder, graphs, planned.packing, {WEIGHTS: digest})
    write_json(partial / MANIFEST, manifest)

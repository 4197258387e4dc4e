"""The graphs of a package, each made from the description of the model and the layout of its weights alone.

So an export writes all of them, and a folder whose source is gone gets one that it lacks.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from embedllm.errors import ExportError
from embedllm.export.layout import CONSTANTS_OF, Entry, Layout, Placed
from embedllm.export.onnx import decoder as onnx_graph
from embedllm.export.onnx import embedding as onnx_embedding
from embedllm.export.onnx import encoder as onnx_encoder
from embedllm.export.onnx import vision as onnx_vision
from embedllm.export.openvino import model as openvino_model
from embedllm.export.openvino import vision as openvino_vision
from embedllm.export.quantization.kv_scales import kv_scales
from embedllm.files.atomic import atomic_write, write_json
from embedllm.files.command_line import shell_word
from embedllm.files.safetensors_header import TensorFile, read_header
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.draft_head import Eagle
from embedllm.package.architecture.mlp import Moe
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.entries import LATENT, LATENT_AND_VALUES, Graph
from embedllm.package.graph_variants import (
    CALIBRATED,
    EAGLE_FOLDER,
    EAGLE_HIDDEN_VARIANTS,
    FLOAT32,
    GENAI_EMBEDDING,
    GENAI_VISION_OF_PATCHES,
    GENAI_VISION_OF_PIXELS,
    HEAD_VARIANTS,
    HIDDEN_VARIANTS,
    IMAGES_VARIANTS,
    OPENVINO,
    OPENVINO_LATENT,
    VARIANTS,
    VISION_OPENVINO,
    VISION_VARIANTS,
    WITH_QMOE,
    GraphVariant,
    fuses_experts,
    has_latents,
    is_fused,
)
from embedllm.package.package import MANIFEST, Package, open_package
from embedllm.package.packing import Packing, packings
from embedllm.package.tensors import mlp_runs, packed_alike

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_OPENVINO = Graph(file=openvino_model.FILE, variant=OPENVINO, activations="float32")
_OPENVINO_LATENT = Graph(
    file=openvino_model.LATENT_FILE, variant=OPENVINO_LATENT, activations="float32", kv=LATENT_AND_VALUES
)
_OF_TEXT = (*(Graph(file=d.file, variant=d.name, activations=d.activations) for d in VARIANTS), _OPENVINO,
            _OPENVINO_LATENT)  # fmt: skip
_OF_VISION = (
    *(Graph(file=d.file, variant=d.name, activations=d.activations) for d in VISION_VARIANTS),
    Graph(file=openvino_vision.FILE, variant=VISION_OPENVINO, activations="float32"),
)
_NAMES_OF_VISION = {graph.variant for graph in _OF_VISION}
_OF_IMAGES = tuple(Graph(file=d.file, variant=d.name, activations=d.activations) for d in IMAGES_VARIANTS)
_OF_HEADS = (*HIDDEN_VARIANTS, *HEAD_VARIANTS)
_GRAPHS = (*_OF_TEXT, *_OF_IMAGES, *_OF_VISION)
_CALIBRATED = tuple(Graph(file=d.file, variant=d.name, activations=d.activations) for d in CALIBRATED)
# of a model without experts, latents and vision encoder
NAMES = tuple(graph.variant for graph in _OF_TEXT if graph.variant not in (*WITH_QMOE, OPENVINO_LATENT))
# for draft heads, no part of an export
_HIDDEN = tuple(Graph(file=d.file, variant=d.name, activations=d.activations) for d in HIDDEN_VARIANTS)
_READ_BY_EAGLE = {variant.name for variant in EAGLE_HIDDEN_VARIANTS}
ALL_NAMES = tuple(graph.variant for graph in (*_GRAPHS, *_CALIBRATED, *_HIDDEN))

# of a matrix, in all graphs and the manifest: 4,500 in large mixtures to 18,000 (tests/export/test_disk_space.py)
_MATRIX_BYTES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """All that a graph is made from."""

    decoder: Decoder
    layout: Layout
    packing: Mapping[str, Packing]  # by the name of the matrix
    exact: bool  # float activations in every product
    read_by: Eagle | None = None  # the head that hidden states are for


def graph_bytes(packing: Mapping[str, Packing]) -> int:
    """Bytes that all graphs of a model and its manifest have at most. packing: by the name of the matrix."""
    return _MATRIX_BYTES * len(packing)


def variants(decoder: Decoder, packing: Mapping[str, Packing]) -> tuple[Graph, ...]:
    """Those that a model can have, in the order of a manifest. packing: by the name of the matrix."""
    return tuple(
        described(graph, decoder, packing)
        for graph in _graphs(decoder)
        if not _unsupported(graph.variant, decoder, packing)
    )


def _graphs(decoder: Decoder) -> tuple[Graph, ...]:
    """All that models of its kind may have."""
    if not isinstance(decoder.vision, DynamicVision):
        return _GRAPHS
    any_size = {VISION_OPENVINO: openvino_vision.ANY_SIZE_FILE}
    return tuple(dataclasses.replace(graph, file=any_size.get(graph.variant, graph.file)) for graph in _GRAPHS)


def described(graph: Graph, decoder: Decoder, packing: Mapping[str, Packing]) -> Graph:
    """A graph's entry with what its KV of this model holds."""
    candidates = (*VARIANTS, *IMAGES_VARIANTS, *CALIBRATED, *_OF_HEADS)
    variant = next((one for one in candidates if one.name == graph.variant), None)
    if variant is None:
        return graph
    is_latent = variant.keeps_latent(decoder, packing)
    return dataclasses.replace(graph, kv=LATENT if is_latent else "")


def build(variant_name: str, model: Model) -> bytes:
    """The file of one variant; the same bytes for the same model."""
    if variant_name in (OPENVINO, OPENVINO_LATENT):
        is_latent = variant_name == OPENVINO_LATENT
        return openvino_model.build(model.decoder, model.layout, model.packing, is_latent=is_latent)
    if variant_name == VISION_OPENVINO:
        return openvino_vision.build(model.decoder, model.layout, model.packing)
    candidates = (*VARIANTS, *IMAGES_VARIANTS, *VISION_VARIANTS, *_OF_HEADS)
    return onnx_bytes(next(variant for variant in candidates if variant.name == variant_name), model)


def onnx_bytes(
    variant: GraphVariant, model: Model, scales: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]] = ()
) -> bytes:
    """The file of one variant that is ONNX. scales: see export/onnx/decoder.py."""
    is_of_vision = variant in (*VISION_VARIANTS, GENAI_VISION_OF_PIXELS, GENAI_VISION_OF_PATCHES)
    is_embedding = variant == GENAI_EMBEDDING
    if model.exact:
        variant = dataclasses.replace(variant, accuracy_level=0)
    if model.decoder.encoder is not None:
        graph = onnx_encoder.build(model.decoder, model.layout, model.packing, variant)
        return graph.SerializeToString(deterministic=True)
    if is_of_vision:
        graph = onnx_vision.build(model.decoder, model.layout, model.packing, variant)
        return graph.SerializeToString(deterministic=True)
    if is_embedding:
        graph = onnx_embedding.build(model.decoder, model.layout, model.packing, variant)
        return graph.SerializeToString(deterministic=True)
    graph = onnx_graph.build(model.decoder, model.layout, model.packing, variant, scales, read_by=model.read_by)
    return graph.SerializeToString(deterministic=True)


def _calibrated(variant: GraphVariant, model: Model, package: Package, tokens: Sequence[int]) -> bytes:
    """A graph with numbers that running the model gives."""
    whole = dataclasses.replace(FLOAT32, latent_kv=variant.latent_kv)  # of the keys and values that it quantizes
    return onnx_bytes(variant, model, kv_scales(package, onnx_bytes(whole, model), variant.kv_bits, tokens))


def write_variant(folder: Path, variant_name: str, *, tokens: Sequence[int] = ()) -> Graph:
    """Adds a graph to a package folder, or writes it again; gives its entry in the manifest.

    The old graph may be missing or damaged, and so may others. At any moment the manifest tells the truth: it forgets
    the old graph before that is replaced by another, and lists the new one when it is there.
    tokens: of a text that is like what the model will read, for variants with a quantized KV; others ignore them.
    Raises PackageError for a folder that is no package, ExportError for a variant that there is none of, or that this
    model cannot have.
    """
    if variant_name not in ALL_NAMES:
        raise ExportError(f"there is no variant '{variant_name}'; expected one of: {', '.join(ALL_NAMES)}.")
    package = open_package(folder, whole=False)
    if reason := _unsupported(variant_name, package.decoder, packings(package.manifest)):
        raise ExportError(f"'{package.name}' cannot have the variant '{variant_name}': {reason}.")
    named = next(
        graph
        for graph in (*package.listed, *_graphs(package.decoder), *_CALIBRATED, *_HIDDEN)
        if graph.variant == variant_name
    )
    graph = described(named, package.decoder, packings(package.manifest))
    data = _make_graph(package, variant_name, tokens)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    before = package.files.get(graph.file)
    is_same = before is not None and before.as_json() == entry
    if not is_same and named in package.listed:
        write_json(folder / MANIFEST, _changed(package, graph, None))
    if not is_same or package.fault(graph.file):
        with atomic_write(folder / graph.file) as file:
            file.write(data)
    write_json(folder / MANIFEST, _changed(package, graph, entry))
    return graph


def _unsupported(variant_name: str, decoder: Decoder, packing: Mapping[str, Packing]) -> str:
    """Why a model cannot have a variant; empty when it can."""
    if variant_name in _NAMES_OF_VISION:
        return "" if decoder.vision is not None else f"'{decoder.model_type}' takes no images"
    if variant_name == OPENVINO_LATENT:
        return "" if has_latents(decoder, packing) else "it has no latents of MLA that its matrices can be absorbed for"
    described = (*VARIANTS, *IMAGES_VARIANTS, *CALIBRATED, *_OF_HEADS)
    reason = next((each.unsupported(decoder) for each in described if each.name == variant_name), "")
    if not reason and variant_name in WITH_QMOE and not fuses_experts(decoder, packing):
        return "its experts are not stored in integers that ONNX Runtime's QMoE takes"
    return reason


def stored_layout(package: Package) -> Layout:
    """Where everything lies in a package's weights file."""
    header = read_header(package.weights)
    placed = {name: Placed(Entry(name, t.dtype, t.shape), t.offset) for name, t in header.tensors.items()}
    return Layout(b"", placed, package.weights.stat().st_size)


def _make_graph(package: Package, variant_name: str, tokens: Sequence[int]) -> bytes:
    """The graph, from what is in the folder."""
    header = read_header(package.weights)
    recipe = package.manifest.get("recipe")
    model = Model(
        decoder=package.decoder,
        layout=stored_layout(package),
        packing=packings(package.manifest),
        exact=isinstance(recipe, dict) and recipe.get("exact") is True,
    )
    if variant_name in _READ_BY_EAGLE:
        model = _with_head(model, package)
    if variant_name in WITH_QMOE:
        _check_experts(package, model)
    if entry := CONSTANTS_OF.get(variant_name):
        _check_constants(package, header, entry, openvino_model.constants(model.decoder, model.packing)[entry])
    try:
        if variant := next((variant for variant in CALIBRATED if variant.name == variant_name), None):
            return _calibrated(variant, model, package, tokens)
        return build(variant_name, model)
    except (KeyError, ValueError) as error:  # an entry that is not there, or not beside its neighbour
        raise ExportError(f"'{package.weights}' does not fit its manifest: {error}. Export the model again.") from error


def _check_experts(package: Package, model: Model) -> None:
    """Without this the experts of a folder of an earlier version would not be one operator any more, unsaid."""
    for layer in model.decoder.layers:
        if not isinstance(layer.mlp, Moe) or not is_fused(layer.mlp, model.packing):
            continue
        for run in mlp_runs(dataclasses.replace(layer.mlp, shared=None)):
            is_alike = len(list(packed_alike(run, model.packing))) == 1
            if is_alike and not model.layout.are_neighbours([f"{linear.name}.weight" for linear in run]):
                raise ExportError(
                    f"'{package.weights}' has the experts one behind the other, as earlier versions wrote them; one "
                    "operator reads all gates, ups and downs side by side. Export the model again."
                )


def _with_head(model: Model, package: Package) -> Model:
    """A model whose hidden states are for the EAGLE-3 head in its folder, by the head's matrix."""
    folder = package.folder / EAGLE_FOLDER
    head = open_package(folder, whole=False) if (folder / MANIFEST).is_file() else None
    if head is None or head.decoder.eagle is None:
        raise ExportError(
            f"'{package.folder}' has no EAGLE-3 head, whose matrix this graph reads. Write both with: embedllm eagle "
            f"{shell_word(package.folder)} CHECKPOINT"
        )
    eagle = head.decoder.eagle
    own = {
        name: dataclasses.replace(placed, file=f"{EAGLE_FOLDER}/{head.weights.name}")
        for name, placed in stored_layout(head).placed.items()
        if name.startswith(f"{eagle.fc.name}.")
    }
    return dataclasses.replace(
        model,
        layout=dataclasses.replace(model.layout, placed={**model.layout.placed, **own}),
        packing={**model.packing, eagle.fc.name: packings(head.manifest)[eagle.fc.name]},
        read_by=eagle,
    )


def _check_constants(package: Package, header: TensorFile, entry: str, expected: bytes) -> None:
    """An OpenVINO model has its numbers in an entry of the weights file, which is not written again."""
    tensor = header.tensors.get(entry)
    stored = b""
    if tensor is not None:
        with package.weights.open("rb") as file:
            file.seek(tensor.offset)
            stored = file.read(tensor.length)
    if stored != expected:
        raise ExportError(
            f"'{package.weights}' has not the constants that this version's OpenVINO model needs; it was written by "
            f"{package.manifest.get('created_by')}. Export the model again."
        )


def _changed(package: Package, graph: Graph, entry: dict[str, object] | None) -> dict[str, object]:
    """The manifest with a graph, or without it when there is no entry of its file."""
    manifest = dict(package.manifest)
    graphs = {g.variant: g for g in package.listed if g.variant != graph.variant}
    files = {name: file.as_json() for name, file in package.files.items() if name != graph.file}
    if entry is not None:
        graphs[graph.variant], files[graph.file] = graph, entry
    places = {name: place for place, name in enumerate(ALL_NAMES)}
    ordered = sorted(graphs.values(), key=lambda g: places.get(g.variant, len(places)))
    manifest["graphs"] = [g.as_json() for g in ordered]
    manifest["files"] = dict(sorted(files.items(), key=lambda item: PurePosixPath(item[0])))
    measured, before = manifest.get("verification"), package.files.get(graph.file)
    if isinstance(measured, dict) and (before is None or entry != before.as_json()):
        manifest["verification"] = {name: value for name, value in measured.items() if name != graph.file}
    return manifest

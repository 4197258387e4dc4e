"""Compares an exported folder with the NumPy reference; the measured differences go into its manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import FeedsAll
from embedllm.backends.images import ImageFeatures, TakesImages, image_ids
from embedllm.backends.options import DEFAULT
from embedllm.errors import DeviceError, ExportError
from embedllm.files.atomic import write_json
from embedllm.files.progress import Progress
from embedllm.files.safetensors_header import read_header
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import (
    DIRECTML,
    IMAGES_ON_GPU,
    MULTIMODAL,
    OPENVINO,
    OPENVINO_LATENT,
    QMOE,
    VARIANTS,
    VISION_OPENVINO,
    VISION_VARIANTS,
    WASM,
)
from embedllm.package.package import MANIFEST, WEIGHTS, Package, open_package
from embedllm.package.tensors import linears, outer_matrices, parameters
from embedllm.package.wasm_floats import FLOATS, float_spans

if TYPE_CHECKING:
    from embedllm.backends.base import Engine, VisionEncoder
    from embedllm.backends.ort.engine import Attachment
    from embedllm.backends.reference.engine import ReferenceEngine
    from embedllm.types import F32

_OF_VISION = (*(variant.name for variant in VISION_VARIANTS), VISION_OPENVINO)
_ON_GPU = {variant.name for variant in IMAGES_ON_GPU.values()}
_TOKENS = 48  # enough for every position-dependent part, few enough for an 8B model in NumPy
_ROWS = 16  # of an image's features among them
_SEED = 20261121
# nats. Activations rounded to 8 bits: 0.0001 to 0.003 measured, float16 less. A graph without rotation, with the other
# rotation or with a window of one token: 0.3 and more (docs/numerics.md)
MOST_KL = 0.05
MOST_DEVIATION = 0.1  # of the features of an image, by their standard deviation; 8-bit activations: 0.02 measured
_NO_OPENVINO = 'OpenVINO is not installed; pip install "embedllm[openvino]"'
_MOST_FLOATS = 250_000_000  # weights that are unpacked to run the graph for a browser's processor: 1 GB of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two runs of the same tokens; logits of every position."""

    max_difference: float
    mean_difference: float
    max_logit: float  # the largest magnitude in the reference, to see the differences against
    kl_mean: float  # nats: KL(reference || graph), mean over positions
    same_top: float  # share of positions with the same most probable token


def compare(reference: F32, other: F32) -> Difference:
    """How far `other` is from `reference`; [T, V] both."""
    gap = np.abs(reference - other)
    ours, theirs = (_log_softmax(x.astype(np.float64)) for x in (reference, other))
    return Difference(
        max_difference=float(gap.max()),
        mean_difference=float(gap.mean()),
        max_logit=float(np.abs(reference).max()),
        kl_mean=float((np.exp(ours) * (ours - theirs)).sum(axis=-1).mean()),
        same_top=float((reference.argmax(axis=-1) == other.argmax(axis=-1)).mean()),
    )


def verify_folder(folder: Path, on_progress: Callable[[Progress], None] = lambda _: None) -> dict[str, object]:
    """Runs every graph of a folder that this machine's CPU can run, compares, and writes the manifest again.

    Returns what went into it. Raises ExportError when a graph does not run or computes something else.
    """
    from embedllm.backends.reference.engine import ReferenceEngine

    package = open_package(folder)
    on_progress(Progress("verify", 0, 1 + len(package.graphs)))
    tokens = np.random.default_rng(_SEED).integers(0, package.decoder.vocabulary, _TOKENS).tolist()
    tokens = tokens[: package.context]
    engine = ReferenceEngine(package)
    reference = engine.open().feed_all(tokens)
    on_progress(Progress("verify", 1, 1 + len(package.graphs)))
    results: dict[str, object] = {"tokens": len(tokens), "seed": _SEED}
    noise = _see_noise(engine) if any(graph.variant in _OF_VISION for graph in package.graphs) else None
    for index, graph in enumerate(package.graphs):
        if noise is not None and graph.variant in _OF_VISION:
            results[graph.file] = _measure_vision(package, graph, noise)
        elif noise is not None and graph.variant == MULTIMODAL.name:
            results[graph.file] = _measure_image(package, graph, engine, noise, tokens)
        elif graph.variant in _ON_GPU:
            results[graph.file] = {"not_run": "it reads images only, beside a graph that GPUs run"}
        else:
            results[graph.file] = _measure(package, graph, tokens, reference)
        on_progress(Progress("verify", 2 + index, 1 + len(package.graphs)))
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    write_json(folder / MANIFEST, {**manifest, "verification": results})
    return results


def _measure(package: Package, graph: Graph, tokens: list[int], reference: F32) -> dict[str, object]:
    if graph.variant == WASM.name and parameters(package.decoder) > _MOST_FLOATS:
        return {"not_run": f"it reads the weights as floats, {4 * parameters(package.decoder):,} bytes"}
    if graph.variant == QMOE.name:
        from embedllm.backends.ort.engine import unsupported_graph

        if reason := unsupported_graph(graph, DEFAULT):
            return {"not_run": reason}
    try:
        engine = _open(package, graph)
        if engine is None:
            return {"not_run": _NO_OPENVINO}
        session = engine.open()
        assert isinstance(session, FeedsAll)  # both are
        difference = compare(reference, session.feed_all(tokens))
    except DeviceError as error:
        if not _needs_a_gpu(package, graph):
            raise ExportError(f"'{graph.file}' does not run: {error}") from error
        return {"not_run": "its attention applies the q and k norms, which ONNX Runtime does on CUDA and WebGPU only"}
    return _checked(graph.file, difference, engine)


def _checked(file: str, difference: Difference, engine: Engine) -> dict[str, object]:
    if not difference.kl_mean <= MOST_KL:
        raise ExportError(
            f"'{file}' does not compute this model: the KL divergence of its logits from the reference's is "
            f"{difference.kl_mean:.3g}; expected at most {MOST_KL}. Please report this with the model's config.json."
        )
    return {"run_on": f"{engine.device.backend}, CPU", **asdict(difference)}


@dataclass(frozen=True, eq=False)
class _Image:
    """An image for the engines' cache, which its features are put into."""

    pixel_values: F32
    tokens: int
    sha256: str = "0"
    grid: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class _Noise:
    """A tile of noise, and what the reference makes of it."""

    tile: F32  # [1, 3, height, width]
    features: F32  # [tokens of a tile, the decoder's image_width]


def _see_noise(engine: ReferenceEngine) -> _Noise:
    from embedllm.backends.reference.vision import open_vision

    vision = engine.decoder.vision
    assert vision is not None
    is_dynamic = isinstance(vision, DynamicVision)  # then of an odd size, of a few windows
    sides = (7 * vision.factor, 9 * vision.factor) if is_dynamic else (vision.image_size, vision.image_size)
    tile = np.random.default_rng(_SEED).standard_normal((1, 3, *sides)).astype(np.float32)
    return _Noise(tile, open_vision(engine).encode(tile))


def _measure_vision(package: Package, graph: Graph, noise: _Noise) -> dict[str, object]:
    """The features of a tile, beside the reference's."""
    try:
        encoder = _open_vision(package, graph)
        if encoder is None:
            return {"not_run": _NO_OPENVINO}
        features = encoder.encode(noise.tile)
    except DeviceError as error:
        raise ExportError(f"'{graph.file}' does not run: {error}") from error
    gap = np.abs(features - noise.features)
    deviation = float(np.sqrt(np.square(gap).mean()) / noise.features.std())
    if not deviation <= MOST_DEVIATION:
        raise ExportError(
            f"'{graph.file}' does not compute this model: its features differ from the reference's by {deviation:.3g} "
            f"of their standard deviation; expected at most {MOST_DEVIATION}. Please report this with the model's "
            "config.json."
        )
    return {"max_difference": float(gap.max()), "mean_difference": float(gap.mean()), "deviation": deviation}


class _Features:
    """In place of a vision encoder: the features that it has made already."""

    def __init__(self, rows: F32) -> None:
        self._rows = rows

    def encode(self, pixel_values: F32) -> F32:
        return self._rows


def _measure_image(
    package: Package, graph: Graph, reference: ReferenceEngine, noise: _Noise, tokens: Sequence[int]
) -> dict[str, object]:
    """The logits of tokens with an image among them, beside the reference's."""
    from embedllm.backends.ort.engine import lacks_image_attention

    if lack := lacks_image_attention():
        return {"not_run": lack}
    engine, rows = _open(package, graph), noise.features[:_ROWS]
    assert engine is not None
    image = _Image(noise.tile, len(rows))
    ids = [*tokens[:4], *image_ids(image), *tokens[4:8]]
    logits: list[F32] = []
    for each in (reference, engine):
        assert isinstance(each, TakesImages)  # both do
        each.images = ImageFeatures(lambda: _Features(rows), bidirectional=True)
        each.images.add([image])
        session = each.open()
        assert isinstance(session, FeedsAll)
        logits.append(session.feed_all(ids))
    return _checked(MULTIMODAL.file, compare(*logits), engine)


def _open_vision(package: Package, graph: Graph) -> VisionEncoder | None:
    """The graph of a vision encoder on this machine's CPU; None when its runtime is not installed."""
    if graph.variant == VISION_OPENVINO:
        try:
            from embedllm.backends.openvino.vision import OvVision
        except ImportError:
            return None
        return OvVision(package, "CPU", {})
    from embedllm.backends.ort.engine import session_options
    from embedllm.backends.ort.vision import open_on_cpu

    variant = next(variant for variant in VISION_VARIANTS if variant.name == graph.variant)
    return open_on_cpu(package, session_options(DEFAULT, exact=False), variant)


def _open(package: Package, graph: Graph) -> Engine | None:
    """The graph on this machine's CPU; None when its runtime is not installed."""
    if graph.variant in (OPENVINO, OPENVINO_LATENT):
        try:
            from embedllm.backends.openvino import engine as ov
            from embedllm.backends.openvino import runtime as ov_runtime
        except ImportError:
            return None
        return ov.OvEngine(package, graph, ov_runtime.devices()[0], "CPU")
    from embedllm.backends.ort.engine import OrtEngine, devices

    if graph.variant == DIRECTML.name:
        from embedllm.backends.gpu.directml import DirectMLEngine

        return DirectMLEngine(package, graph, devices()[0], provider="CPUExecutionProvider")
    attachment = _given_floats(package) if graph.variant == WASM.name else None
    return OrtEngine(package, graph, devices()[0], attachment=attachment)


def _given_floats(package: Package) -> Attachment:
    """The CPU's provider, and from memory the file of floats, which is on no disk."""
    from embedllm.backends.ort.engine import Attachment
    from embedllm.backends.ort.runtime import ort
    from embedllm.backends.reference.engine import ReferenceEngine

    decoder, reference = package.decoder, ReferenceEngine(package)
    spans = float_spans(decoder, {name: t.offset for name, t in read_header(package.weights).tensors.items()})
    products = (m for layer in decoder.layers for m in linears(layer))
    matrices = {m.name: m for m in (decoder.head, *outer_matrices(decoder), *products)}
    floats = np.concatenate([reference.matrix(matrices[name]).ravel() for name in spans]).view(np.uint8)
    # all or none are from memory: "External file: ... not found from the table user provided" (ONNX Runtime 1.31)
    files = {FLOATS: floats, WEIGHTS: np.memmap(package.weights, np.uint8, "r")}

    def add(options: ort.SessionOptions) -> None:
        sizes = [data.nbytes for data in files.values()]
        options.add_external_initializers_from_files_in_memory(list(files), list(files.values()), sizes)
        options.add_provider("CPUExecutionProvider", {})

    return Attachment(add=add, runs=frozenset())


def _needs_a_gpu(package: Package, graph: Graph) -> bool:
    """Whether the graph leaves the q and k norms of its model to the attention operator."""
    normed = any(attention.q_norm is not None for attention in package.decoder.attentions)
    return normed and any(d.norm_in_attention for d in VARIANTS if d.name == graph.variant)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))

"""What a package folder holds, in numbers: its model, where its bytes go, memory it needs, whether its graphs fit.

Nothing is loaded: all of it follows from the manifest, the header of the weights file and the graphs.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from embedllm.files.safetensors_header import TensorFile, read_header
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe
from embedllm.package.architecture.rope import Rope
from embedllm.package.architecture.weights import Linear, Norm
from embedllm.package.entries import LATENT, FileEntry
from embedllm.package.external_graph import ExternalGraph
from embedllm.package.package import Package
from embedllm.package.recurrent_state import state_bytes
from embedllm.package.tensors import PATCHES, kv_bytes, mlps, parameters, rope_name, rotary_bytes
from embedllm.profiling.inspection.graph_check import GraphReport, report_graphs

_CONTEXTS = (1024, 4096, 16384, 65536, 262144)  # tokens; those below a package's own context are shown
_VISION = "vision"
# Decoder field: kind
_MATRICES = {"embedding": "embedding", "attention": "attention", "mlp": "mlp", "head": "head", "vision": _VISION}
_FIELDS = {
    **_MATRICES,
    "position_embeddings": "embedding",
    "per_layer_embedding": "embedding",
    "per_layer_input": "mlp",
    "altup_streams": "mlp",
    "altup": "mlp",
    "laurel": "attention",
}
_NORMS, _ROTARY, _GRAPH, _GAPS, _HEADER, _OTHER = "norms", "rotary tables", "graph", "gaps", "header", "other"
# of entries, by their names
_OWNERS = {"rope": _ROTARY, "rope.local": _ROTARY, "openvino": _GRAPH, "openvino.vision": _GRAPH,
           "openvino.latent": _GRAPH, "gap": _GAPS, PATCHES: _VISION}  # fmt: skip
_KINDS = (*_MATRICES.values(), _NORMS, _ROTARY, _GRAPH, _OTHER, _GAPS, _HEADER)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGroup:
    """Layers whose attention has the same shape."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None  # newest tokens that a query sees; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The model's shape."""

    model_type: str
    layers: int
    hidden: int
    mlp: tuple[int, ...]  # inner sizes that occur, smallest first
    experts: int  # of a layer with a mixture; 0: there is none
    experts_used: int  # of those, by a token
    vocabulary: int
    tied: bool  # the head is the embedding
    attention: tuple[AttentionGroup, ...]
    rope: Mapping[str, object]
    local_rope: Mapping[str, object] | None  # of layers with a window, where these turn otherwise
    context: int  # most tokens that the folder holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many bytes of the weights file one kind of tensor takes, and for what."""

    kind: str
    values: int = 0
    scales: int = 0  # and minimums
    zero_points: int = 0
    biases: int = 0
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingCount:
    """How many matrices are packed in one way."""

    matrices: int
    bits: int
    group_size: int | None  # values that share a scale; None for plain floats
    symmetric: bool | None
    has_minimum: bool = False  # minimums in place of zero points
    ordered: bool = False  # columns lie in another order than the model's


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes that one sequence of `context` tokens needs: the weights file, and a KV cache in either type.

    Not counted: the runtime itself, its activations, and what it repacks of the weights when it loads them.
    """

    context: int
    kv_float32_bytes: int
    kv_float16_bytes: int
    float32_bytes: int  # weights and KV
    float16_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Special tokens."""

    bos: int | None
    pad: int | None
    stop: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """All of a folder."""

    name: str
    folder: str
    source: str | None
    license: str | None
    created_by: str | None
    architecture: Architecture
    task: str  # what it does, in words
    parameters: int
    weights_bytes: int  # the whole weights file
    bits_per_weight: float  # of the weights file but rotary tables, by parameters
    matrix_bits_per_weight: float  # of the matrices alone, with scales and zero points
    storage: tuple[Share, ...]
    packing: tuple[PackingCount, ...]
    memory: tuple[Memory, ...]
    graphs: tuple[GraphReport, ...]
    tokens: Tokens
    files: Mapping[str, FileEntry]
    verification: Mapping[str, object] | None


def describe_package(package: Package, contexts: Sequence[int] = ()) -> Description:
    """What a folder holds.

    contexts: lengths to give the memory for; by default some up to the package's own.
    Raises PackageError for a damaged folder, ValueError for a context that the package cannot hold.
    """
    decoder, manifest = package.decoder, package.manifest
    header = read_header(package.weights)
    size = package.weights.stat().st_size
    storage = shares(header, decoder, size)
    # a draft head reads those of its target model, in another file
    rotary = rotary_bytes(decoder) if rope_name(0, "cos") in header.tensors else 0
    verification = manifest.get("verification")
    return Description(
        name=package.name,
        folder=str(package.folder),
        source=_text(manifest, "source"),
        license=_text(manifest, "license"),
        created_by=_text(manifest, "created_by"),
        architecture=_architecture(decoder),
        task=_task(decoder),
        parameters=parameters(decoder),
        weights_bytes=size,
        bits_per_weight=8 * (size - rotary) / parameters(decoder),
        matrix_bits_per_weight=_matrix_bits(storage, decoder),
        storage=storage,
        packing=_packing(package),
        memory=memory(decoder, size, contexts, is_latent=any(graph.kv == LATENT for graph in package.listed)),
        graphs=report_graphs(package, header),
        tokens=_tokens(package),
        files=package.files,
        verification=verification if isinstance(verification, dict) else None,
    )


def shares(header: TensorFile, decoder: Decoder, file_bytes: int) -> tuple[Share, ...]:
    """The weights file by kind of tensor; the header is what the tensors leave, so that the totals are the file."""
    owners = {name: kind for kind, name, _ in _stored(decoder)}
    counts: Counter[tuple[str, str]] = Counter()
    for name, tensor in header.tensors.items():
        owner, _, part = name.rpartition(".")
        kind = _OWNERS.get(owner) or owners.get(owner, _OTHER)
        part = "scale" if part == "minimum" else part
        counts[kind, part if part in ("scale", "zero", "bias") else "value"] += tensor.length
    counts[_HEADER, "value"] = file_bytes - counts.total()
    return tuple(
        Share(
            kind=kind,
            values=counts[kind, "value"],
            scales=counts[kind, "scale"],
            zero_points=counts[kind, "zero"],
            biases=counts[kind, "bias"],
            total=sum(counts[kind, part] for part in ("value", "scale", "zero", "bias")),
        )
        for kind in _KINDS
        if any(counted == kind and count for (counted, _), count in counts.items())
    )


def memory(
    decoder: Decoder | ExternalGraph, weights_bytes: int, contexts: Sequence[int] = (), *, is_latent: bool = False
) -> tuple[Memory, ...]:
    """What one sequence needs at several lengths. Raises ValueError for one that the package cannot hold.

    is_latent: the graph with float32 activations keeps latents (Graph.kv); those with float16 do not.
    """
    lengths = sorted(set(contexts)) or [*(c for c in _CONTEXTS if c < decoder.context), decoder.context]
    if not 1 <= lengths[0] <= lengths[-1] <= decoder.context:
        wrong = lengths[0] if lengths[0] < 1 else lengths[-1]
        raise ValueError(f"context is {wrong} tokens; expected 1 to {decoder.context}, what this package holds.")
    return tuple(_memory(decoder, weights_bytes, length, is_latent=is_latent) for length in lengths)


def _memory(decoder: Decoder | ExternalGraph, weights_bytes: int, context: int, *, is_latent: bool) -> Memory:
    float32 = kv_bytes(decoder, context, 4, kv=LATENT if is_latent else "") + state_bytes(decoder)
    float16 = kv_bytes(decoder, context, 2) + state_bytes(decoder)
    return Memory(
        context=context,
        kv_float32_bytes=float32,
        kv_float16_bytes=float16,
        float32_bytes=weights_bytes + float32,
        float16_bytes=weights_bytes + float16,
    )


def _stored(decoder: Decoder) -> Iterator[tuple[str, str, int]]:
    """(kind, name, weights) of everything that a description names, each once; a tied head is the embedding."""
    names: set[str] = set()

    def walk(value: object, kind: str) -> Iterator[tuple[str, str, int]]:
        if isinstance(value, Linear | Norm):
            if value.name not in names:
                names.add(value.name)
                if isinstance(value, Norm):
                    yield _NORMS, value.name, value.groups * value.size
                else:
                    yield kind, value.name, value.rows * value.columns
        elif isinstance(value, tuple):
            for item in value:
                yield from walk(item, kind)
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                own = kind if kind == _VISION else _FIELDS.get(field.name, kind)
                yield from walk(getattr(value, field.name), own)

    return walk(decoder, _OTHER)


def _matrix_bits(storage: Sequence[Share], decoder: Decoder) -> float:
    weights = sum(count for kind, _, count in _stored(decoder) if kind != _NORMS)
    stored = (share for share in storage if share.kind in _MATRICES.values())
    return 8 * sum(share.total - share.biases for share in stored) / weights


def _architecture(decoder: Decoder) -> Architecture:
    groups = Counter((a.heads, a.kv_heads, a.head_dim, a.window) for a in decoder.attentions)
    mixtures = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, Moe)]
    return Architecture(
        model_type=decoder.model_type,
        layers=len(decoder.layers),
        hidden=decoder.hidden,
        mlp=tuple(sorted({mlp.down.columns for layer in decoder.layers for mlp in mlps(layer.mlp)})),
        experts=max((len(moe.experts) for moe in mixtures), default=0),
        experts_used=max((moe.top_k for moe in mixtures), default=0),
        vocabulary=decoder.vocabulary,
        tied=decoder.tied,
        attention=tuple(
            AttentionGroup(layers=count, heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window)
            for (heads, kv_heads, head_dim, window), count in groups.items()
        ),
        rope=_rope(decoder.rope),
        local_rope=None if decoder.local_rope is None else _rope(decoder.local_rope),
        context=decoder.context,
    )


def _rope(rope: Rope) -> dict[str, object]:
    described: dict[str, object] = {"base": rope.base, "rotated": rope.rotary_dim, "scaling": None}
    if rope.scaling is not None:
        kind = type(rope.scaling).__name__.removesuffix("Scaling").lower()
        described["scaling"] = {"kind": kind, **dataclasses.asdict(rope.scaling)}
    return described


def _packing(package: Package) -> tuple[PackingCount, ...]:
    ways: Counter[tuple[int, int | None, bool | None, bool, bool]] = Counter()
    for entry in cast("Iterable[dict[str, Any]]", package.packing_entries.values()):  # JSON
        bits = int(entry.get("bits", 0))
        kinds = bool(entry.get("has_minimum")), bool(entry.get("column_order"))
        way = bits, entry.get("group_size"), entry.get("symmetric"), *kinds
        ways[way if bits < 16 else (bits, None, None, False, False)] += 1
    return tuple(
        PackingCount(
            matrices=count,
            bits=bits,
            group_size=group,
            symmetric=symmetric,
            has_minimum=minimum,
            ordered=ordered,
        )
        for (bits, group, symmetric, minimum, ordered), count in ways.most_common()
    )


def _tokens(package: Package) -> Tokens:
    named = package.manifest.get("tokens")
    assert isinstance(named, dict)  # it was checked when the package was opened
    return Tokens(bos=named.get("bos"), pad=named.get("pad"), stop=package.stop_tokens)


def _task(decoder: Decoder) -> str:
    encoder = decoder.encoder
    if encoder is None:
        return "generates text" if decoder.vision is None else "generates text, takes images"
    steps = "".join(f", {step.linear.rows} x {step.linear.columns}" for step in encoder.dense)
    origin = f"of the vectors of tokens ({encoder.pooling}{steps})"
    if encoder.score_activation:
        return f"scores pairs of texts, {origin}"
    size = encoder.dense[-1].linear.rows if encoder.dense else decoder.hidden
    prompts = ", ".join(prompt.name for prompt in encoder.prompts) or "none"
    length = " and the length 1" if encoder.normalize else ""
    return f"embeds texts, {origin}: {size} values{length}; prompts: {prompts}"


def _text(manifest: Mapping[str, object], key: str) -> str | None:
    value = manifest.get(key)
    return value if isinstance(value, str) else None

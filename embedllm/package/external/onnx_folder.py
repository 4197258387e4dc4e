"""Folders of transformers.js and optimum: config.json, tokenizer.json and one or several ONNX graphs of a model."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.files.free_memory import free_bytes
from embedllm.package.external.config_files import Texts
from embedllm.package.external.known_defects import faults
from embedllm.package.external.types import ExternalFolder, Reading
from embedllm.package.external_graph import ExternalGraph, Names
from embedllm.package.graph_variants import EXTERNAL
from embedllm.package.manifest_fields import plain_name
from embedllm.package.onnx_reader import FLOAT, FLOAT16, INT32, INT64, GraphSummary, ValueInfo, read_graph_summary

DEVICES = ("auto",)
_FOLDERS = ("onnx", ".")
_BASES = ("model", "decoder_model_merged")  # of whole decoders with past keys and values
# what a name ends with, the fastest on a processor first; float16 is computed there as float32
_ENDINGS = ("_q4", "_quantized", "_int8", "_uint8", "_bnb4", "", "_q4f16", "_fp16")
# the same on a GPU, most of which have no kernels for what is rounded by what is fed
_ROUNDED, _HALVES = ("_quantized", "_int8", "_uint8"), ("_q4f16", "_fp16")
FLOAT16_FIRST = (*_HALVES, "_q4", "", "_bnb4", *_ROUNDED)
FLOAT32_FIRST = ("_q4", "", "_bnb4", *_ROUNDED, *_HALVES)
_GRAPH = re.compile(r"(?:model|decoder_model_merged)(_\w+)?\.onnx")
# inputs that are known besides tokens, mask and positions: docs/guide-external-folders.md
OTHERS = ("use_cache_branch", "num_logits_to_keep", "logits_to_keep")
ENDLESS = "Loop"  # "Scan" has a round for each element of an axis
_WHOLE = (INT32, INT64)
_ROUNDING = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul")
_FLOATS = {FLOAT: "float32", FLOAT16: "float16"}


def read(root: Path, chosen: Path | None) -> Reading | None:
    """chosen: the graph that was asked for; None: the one that suits this machine."""
    if chosen is not None and chosen.suffix != ".onnx":
        return None
    graphs = _graphs(root)
    path = chosen or best(graphs)
    if path is None:
        return None
    texts = Texts(root)
    passed_over = tuple(one.relative_to(root).as_posix() for one in graphs if one != path)
    return reading_of(path, texts, Names(), root=root, maker="transformers.js or optimum", context=texts.context(),
                      kv=texts.kv, passed_over=passed_over, is_asked=chosen is not None)  # fmt: skip


def reading_of(
    path: Path,
    texts: Texts,
    named: Names,
    *,
    root: Path,
    maker: str,
    context: int,
    kv: tuple[int | None, int | None],
    eos: object = None,
    prefers: str = "",
    passed_over: tuple[str, ...] = (),
    is_asked: bool = False,
) -> Reading:
    """A folder whose graph is known. named, kv, eos: what it says of names, of KV heads and their size, and of the end.

    prefers: the device that it was made for.
    Raises PackageError for a graph that cannot be run here.
    """
    summary = read_graph_summary(path)
    check_ends(summary, path)
    names = find_names(summary, named, path)
    described, activations = describe(summary, names, path, texts, context=context, kv=kv)
    return Reading(
        root=root,
        graph=path,
        weights=weights_of(summary, path),
        variant=EXTERNAL.name,
        activations=activations,
        described=described,
        stop_tokens=texts.stop_tokens(described.vocabulary, stated=eos),
        external=ExternalFolder(maker=maker, names=names, devices=DEVICES, faults=faults(summary), prefers=prefers,
                        weights=path.relative_to(root).as_posix(), passed_over=passed_over, is_asked=is_asked),
    )  # fmt: skip


def _graphs(root: Path) -> list[Path]:
    """Graphs of the whole decoder, best first; of one folder and one way to name them."""
    for folder in _FOLDERS:
        for base in _BASES:
            graphs = [path for path in (root / folder).glob(f"{base}*.onnx") if _GRAPH.fullmatch(path.name)]
            if any(_ending(path) in _ENDINGS for path in graphs):
                return in_order(graphs, _ENDINGS)
    return []


def in_order(paths: Sequence[Path], endings: Sequence[str]) -> list[Path]:
    """Graphs in the order of what their names end with; those that end otherwise come last."""
    return sorted(paths, key=lambda path: (endings.index(end) if (end := _ending(path)) in endings else math.inf, path))


def _ending(path: Path) -> str:
    match = _GRAPH.fullmatch(path.name)
    return (match and match[1]) or ""


def best(paths: Sequence[Path], memory: int | None = None) -> Path | None:
    """The first whose weights are all there and fit into memory; the smallest when none does.

    memory: bytes of a device; None: what this machine has free.
    """
    free = free_bytes() if memory is None else memory
    sizes = {path: size for path in paths if (size := _bytes(path)) is not None}
    fitting = [path for path, size in sizes.items() if free is None or size < free]
    if fitting:
        return fitting[0]
    return min(sizes, key=lambda path: sizes[path], default=next(iter(paths), None))


def _bytes(path: Path) -> int | None:
    """Of a graph with its weights; None when a file of them is missing."""
    try:
        return sum(file.stat().st_size for file in (path, *weights_of(read_graph_summary(path), path)))
    except OSError:
        return None


def weights_of(summary: GraphSummary, path: Path) -> tuple[Path, ...]:
    """The files beside a graph that it names. Raises PackageError for a name that leads out of its folder."""
    return tuple(path.parent / plain_name(name) for name in summary.files)


def check_ends(summary: GraphSummary, path: Path) -> None:
    """Raises PackageError for a graph that says itself how often it computes something: it may never end."""
    if any(node.operator == ENDLESS for node in (*summary.nodes, *summary.branches)):
        raise PackageError(
            f"'{path}' has the operator '{ENDLESS}', whose number of rounds is not bounded. Such a graph is not run "
            "here; export the checkpoint: embedllm export SOURCE OUT."
        )


def find_names(summary: GraphSummary, names: Names, path: Path) -> Names:
    """The names, with the layers that a graph has, and whether its attention appends in place.

    Raises PackageError for a graph without keys and values.
    """
    pattern = re.compile(re.escape(names.past[0]).replace("%d", r"(\d{1,6})"))
    layers = sorted(int(match[1]) for one in summary.inputs if (match := pattern.fullmatch(one.name)))
    inputs = {one.name for one in summary.inputs}
    if names.tokens not in inputs:
        raise PackageError(
            f"'{path}' takes {_listed(summary.inputs)}; expected '{names.tokens}'. A graph that takes embeddings is "
            "part of a model in several graphs, which this library does not run; the engine that wrote it does."
        )
    if not layers:
        raise PackageError(
            f"'{path}' takes {_listed(summary.inputs)}, but no keys and values of what came before, such as "
            f"'{names.past[0] % 0}'. Export it with them (optimum: --task text-generation-with-past), or export the "
            "checkpoint with this library: embedllm export SOURCE OUT."
        )
    full_names = replace(names, layers=tuple(layers))
    rounds = any(node.operator in _ROUNDING for node in (*summary.nodes, *summary.branches))
    return replace(full_names, appends=_appends(summary, full_names), rounds=rounds)


def _appends(summary: GraphSummary, names: Names) -> bool:
    """Whether every past goes into GroupQueryAttention and nowhere else, and every present comes from there."""
    pairs = names.pairs(len(names.layers))
    uses = [name for node in (*summary.nodes, *summary.branches) for name in node.inputs]
    attends = [node for node in summary.nodes if node.operator == "GroupQueryAttention" and len(node.outputs) > 2]
    appended = {pair for node in attends for pair in zip(node.inputs[3:5], node.outputs[1:3], strict=True)}
    return set(pairs) <= appended and all(uses.count(past) == 1 for past, _ in pairs)


def describe(
    summary: GraphSummary, names: Names, path: Path, texts: Texts, *, context: int, kv: tuple[int | None, int | None]
) -> tuple[ExternalGraph, str]:
    """What is known of a graph, and the type of its keys and values. Raises PackageError for what cannot be fed.

    kv: heads and size of keys, where the graph has only names for them.
    """
    inputs = {one.name: one for one in summary.inputs}
    outputs = {one.name: one for one in summary.outputs}
    pairs = names.pairs(len(names.layers))
    past = [name for name, _ in pairs]
    lacking = [name for pair in pairs for name, there in zip(pair, (inputs, outputs), strict=True) if name not in there]
    unknown = inputs.keys() - {names.tokens, names.mask, names.positions, *OTHERS, *past}
    if lacking or names.logits not in outputs:
        raise PackageError(f"'{path}' has no '{(lacking or [names.logits])[0]}'. Export the model again.")
    if unknown:
        raise PackageError(
            f"'{path}' takes {', '.join(repr(name) for name in sorted(unknown))}, which this library does not know how "
            "to feed. Export the checkpoint with it: embedllm export SOURCE OUT."
        )
    _check_types(inputs, names, path)
    kinds = {inputs[name].kind for name in past}
    if len(kinds) != 1 or not kinds <= _FLOATS.keys():
        raise PackageError(f"keys and values of '{path}' are of the types {sorted(kinds)}; expected one of {_FLOATS}.")
    sizes = [_kv_size(inputs[name], kv, path) for name in past]
    uneven = next((at for at in range(0, len(sizes), 2) if sizes[at] != sizes[at + 1]), None)
    if uneven is not None:
        raise PackageError(f"'{past[uneven]}' of '{path}' has another shape than the values of its layer.")
    last = outputs[names.logits].dims[-1:]
    vocabulary = last[0] if last and isinstance(last[0], int) else texts.vocabulary
    if vocabulary is None:
        raise PackageError(
            f"neither '{path}' nor a config.json says how many tokens the vocabulary has ('vocab_size')."
        )
    described = ExternalGraph(
        model_type=texts.model_type,
        context=context,
        vocabulary=vocabulary,
        kv=tuple(sizes[::2]),
        parameters=summary.stored,
        in_pieces=True,  # until it is found otherwise: backends/ort/external_graph/engine.py
    )
    return described, _FLOATS[kinds.pop()]


def _check_types(inputs: Mapping[str, ValueInfo], names: Names, path: Path) -> None:
    for name in (names.tokens, names.mask, names.positions):
        one = inputs.get(name)
        if one is not None and (one.kind not in _WHOLE or len(one.dims) != 2):
            raise PackageError(
                f"'{name}' of '{path}' has the shape {list(one.dims)} and the type {one.kind}; expected whole numbers, "
                "[batch, tokens]. Such a graph is not run here."
            )


def _kv_size(one: ValueInfo, kv: tuple[int | None, int | None], path: Path) -> tuple[int, int]:
    if len(one.dims) == 4 and not isinstance(one.dims[2], int):
        heads, size = (dim if isinstance(dim, int) else stated
                       for dim, stated in zip(one.dims[1::2], kv, strict=True))  # fmt: skip
        if heads is not None and size is not None:
            return heads, size
    raise PackageError(
        f"'{one.name}' of '{path}' has the shape {list(one.dims)}; expected [batch, heads, tokens, size], with heads "
        "and size told there or by the configuration. Such a graph is not run here."
    )


def _listed(values: Sequence[ValueInfo]) -> str:
    names = [repr(one.name) for one in values]
    return ", ".join(names if len(names) < 5 else [*names[:4], f"{len(names) - 4} more"])

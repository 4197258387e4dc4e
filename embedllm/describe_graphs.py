"""Whether a folder's graphs and its weights file belong together: read, not run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.package import WEIGHTS, Graph, Package
from embedllm.tensorfile import Tensor, TensorFile

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

_LARGEST_CONSTANT = 1024  # bytes; what is larger inside a graph is a weight, and those lie in the weights file


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReport:
    """One graph of a folder."""

    file: str
    dialect: str
    activations: str  # "float32" or "float16"
    bytes: int
    weights: int | None  # tensors that lie in the weights file; None when onnx is not installed to look
    unused_bytes: int | None  # of the weights file: tensors that this graph does not read
    problems: tuple[str, ...]  # what does not fit, in words


@dataclass(frozen=True, slots=True)
class _Span:
    """The bytes that a tensor of a graph stands for."""

    name: str
    start: int
    stop: int


def report_graphs(package: Package, header: TensorFile) -> tuple[GraphReport, ...]:
    """Every graph of a folder, checked against the header of its weights file."""
    return tuple(_report(package, graph, header) for graph in package.graphs)


def _report(package: Package, graph: Graph, header: TensorFile) -> GraphReport:
    weights: int | None = None
    unused: int | None = None
    problems: tuple[str, ...] = ()
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        pass  # the report says None: not looked at
    else:
        try:
            model = onnx.load(package.folder / graph.file, load_external_data=False)
        except DecodeError as error:
            problems = (f"cannot be read as ONNX: {error}",)
        else:
            spans, problems = check_model(model, header, package.files[WEIGHTS].bytes)
            weights, unused = len(spans), _unused(spans, header)
    return GraphReport(
        file=graph.file,
        dialect=graph.dialect,
        activations=graph.activations,
        bytes=package.files[graph.file].bytes,
        weights=weights,
        unused_bytes=unused,
        problems=problems,
    )


def check_model(model: ModelProto, header: TensorFile, file_bytes: int) -> tuple[list[_Span], tuple[str, ...]]:
    """Where the weights of a graph lie, and what is wrong: outside of the file, across its tensors, stored again."""
    spans: list[_Span] = []
    problems: list[str] = []
    starts = {tensor.offset for tensor in header.tensors.values()}
    stops = {tensor.offset + tensor.length for tensor in header.tensors.values()}
    for tensor in _tensors(model):
        if not tensor.external_data:
            if tensor.ByteSize() > _LARGEST_CONSTANT:
                problems.append(f"'{tensor.name}' is stored in the graph itself: {tensor.ByteSize():,} bytes")
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        problem, span = _locate(tensor.name, place, file_bytes)
        if span is not None:
            spans.append(span)
            if span.start not in starts or span.stop not in stops:
                problem = f"'{span.name}' is bytes {span.start:,} to {span.stop:,}, which are no whole tensors"
        if problem:
            problems.append(problem)
    return spans, tuple(problems)


def _locate(name: str, place: Mapping[str, str], file_bytes: int) -> tuple[str, _Span | None]:
    """(problem, span); the problem is empty when the span lies in the weights file."""
    if place.get("location") != WEIGHTS:
        return f"'{name}' lies in '{place.get('location')}', not in {WEIGHTS}", None
    if not all(place.get(key, "").isdecimal() for key in ("offset", "length")):
        return f"'{name}' has no offset and length", None
    start, length = int(place["offset"]), int(place["length"])
    if start + length > file_bytes:
        return f"'{name}' ends at byte {start + length:,}; {WEIGHTS} has {file_bytes:,}", None
    return "", _Span(name, start, start + length)


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t


def _unused(spans: Sequence[_Span], header: TensorFile) -> int:
    """Bytes of the weights file's tensors that no span covers, gaps aside."""
    covered: list[tuple[int, int]] = []  # (start, stop), in order and apart from each other
    for span in sorted(spans, key=lambda span: span.start):
        if covered and span.start <= covered[-1][1]:
            covered[-1] = (covered[-1][0], max(covered[-1][1], span.stop))
        else:
            covered.append((span.start, span.stop))

    def is_read(tensor: Tensor) -> bool:
        place = bisect_right(covered, (tensor.offset, math.inf)) - 1
        return place >= 0 and tensor.offset + tensor.length <= covered[place][1]

    return sum(t.length for name, t in header.tensors.items() if not name.startswith("gap.") and not is_read(t))

"""Whether a folder's graphs and its weights file belong together: read, not run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.export.layout import CONSTANTS_OF
from embedllm.files.safetensors_header import Tensor, TensorFile
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import DIRECTML, KV_SCALES, OPENVINO, OPENVINO_LATENT, VISION_OPENVINO, WASM
from embedllm.package.package import WEIGHTS, Package
from embedllm.package.wasm_floats import FLOATS, float_spans

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from onnx import ModelProto, TensorProto

_RULES = {DIRECTML.name: "DirectML's kernels"}  # by variant: what its operators are held to
_LARGEST_CONSTANT = 1024  # bytes; what is larger inside a graph is a weight, and those lie in the weights file


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReport:
    """One graph of a folder."""

    file: str
    variant: str
    activations: str  # "float32" or "float16"
    bytes: int
    weights: int | None  # tensors out of the weights file; None when onnx is not installed to look
    unused_bytes: int | None  # of the weights file: tensors that this graph does not read
    held_to: str  # rules besides that its weights are whole, as "DirectML's kernels"; empty for none
    problems: tuple[str, ...]  # what does not fit, in words


@dataclass(frozen=True, slots=True)
class _Span:
    """The bytes that a tensor of a graph stands for."""

    name: str
    start: int
    stop: int


def report_graphs(package: Package, header: TensorFile) -> tuple[GraphReport, ...]:
    """Every graph of a folder, checked against the header of its weights file."""
    return tuple(_report(package, graph, header) for graph in package.listed)


def _report(package: Package, graph: Graph, header: TensorFile) -> GraphReport:
    if fault := package.damaged.get(graph.variant):
        result = None, None, (fault,)
    else:
        is_ir = graph.variant in (OPENVINO, OPENVINO_LATENT, VISION_OPENVINO)
        result = (_look_at_ir if is_ir else _look_at_onnx)(package, graph, header)
    weights, unused, problems = result or (None, None, ())
    return GraphReport(
        file=graph.file,
        variant=graph.variant,
        activations=graph.activations,
        bytes=package.files[graph.file].bytes,
        weights=weights,
        unused_bytes=unused,
        held_to=_RULES.get(graph.variant, "") if weights is not None else "",
        problems=problems,
    )


_Findings = tuple[int | None, int | None, tuple[str, ...]]  # weights, unused bytes, problems


def _look_at_onnx(package: Package, graph: Graph, header: TensorFile) -> _Findings | None:
    """None when onnx is not installed."""
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        return None
    try:
        model = onnx.load(package.folder / graph.file, load_external_data=False)
    except DecodeError as error:
        return None, None, (f"cannot be read as ONNX: {error}",)
    floats = _floats(package, header) if graph.variant == WASM.name else {}
    spans, problems = check_model(model, header, package.files[WEIGHTS].bytes, floats)
    if graph.variant == DIRECTML.name:
        from embedllm.export.onnx.directml_rules import check_directml

        problems += check_directml(model)
    return len({span.name for span in spans}), unused(spans, header), problems


def _floats(package: Package, header: TensorFile) -> dict[str, tuple[int, int]]:
    """The layout of the file that a browser makes; empty when the weights file lacks one of its matrices."""
    try:
        return float_spans(package.decoder, {name: tensor.offset for name, tensor in header.tensors.items()})
    except KeyError:
        return {}


def _look_at_ir(package: Package, graph: Graph, header: TensorFile) -> _Findings:
    from xml.etree import ElementTree

    try:
        root = ElementTree.parse(package.folder / graph.file).getroot()
    except ElementTree.ParseError as error:
        return None, None, (f"cannot be read as XML: {error}",)
    spans, problems = check_ir(root, header, package.files[WEIGHTS].bytes)
    return len(spans), unused(spans, header), problems


def check_ir(root: Element, header: TensorFile, file_bytes: int) -> tuple[list[_Span], tuple[str, ...]]:
    """As check_model, of an OpenVINO model: its constants are whole tensors, or parts of the entry of small ones."""
    spans: list[_Span] = []
    problems: list[str] = []
    small = [t for name, t in header.tensors.items() if name in CONSTANTS_OF.values()]
    for layer in root.iterfind("layers/layer[@type='Const']"):
        name, data = layer.get("name", ""), layer.find("data")
        place = {"location": WEIGHTS} if data is None else {"location": WEIGHTS, **data.attrib}
        problem, span = _locate(name, {**place, "length": place.get("size", "")}, file_bytes)
        if span is not None:
            inside = any(t.offset <= span.start and span.stop <= t.offset + t.length for t in small)
            problem = "" if inside else _across(span, header)
            spans += [] if inside else [span]
        if problem:
            problems.append(problem)
    return spans, tuple(problems)


def check_model(
    model: ModelProto, header: TensorFile, file_bytes: int, floats: Mapping[str, tuple[int, int]] | None = None
) -> tuple[list[_Span], tuple[str, ...]]:
    """Where the weights of a graph lie, and what is wrong: outside of the file, across its tensors, stored again.

    floats: matrices that the graph may read from the file of floats, which a browser makes of the weights file; the
    spans are those of what each is made from. None of them may be read twice, as each is unpacked for who reads it.
    """
    float_matrices = set[str]()  # matrices that were read as floats
    spans: list[_Span] = []
    problems: list[str] = []
    for tensor in _tensors(model):
        if not tensor.external_data:
            if tensor.ByteSize() > _LARGEST_CONSTANT and not tensor.name.endswith(KV_SCALES):
                problems.append(f"'{tensor.name}' is stored in the graph itself: {tensor.ByteSize():,} bytes")
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        if floats and place.get("location") == FLOATS:
            problem, names = _matrices(tensor.name, place, floats)
            spans += [_Span(tensor.name, t.offset, t.offset + t.length) for t in _sources(names, header)]
            if twice := float_matrices & set(names):
                problem = f"'{tensor.name}' is made once more of '{min(twice)}'"
            float_matrices |= set(names)
            problems += [problem] if problem else []
            continue
        problem, span = _locate(tensor.name, place, file_bytes)
        if span is not None:
            spans.append(span)
            problem = _across(span, header)
        if problem:
            problems.append(problem)
    return spans, tuple(problems)


def _matrices(
    name: str, place: Mapping[str, str], floats: Mapping[str, tuple[int, int]]
) -> tuple[str, tuple[str, ...]]:
    """(problem, matrices that a tensor of the file of floats holds); the problem is empty when they are whole."""
    problem, span = _locate(name, place, sum(length for _, length in floats.values()), FLOATS)
    if span is None:
        return problem, ()
    names = [at for at, (start, length) in floats.items() if span.start <= start and start + length <= span.stop]
    if sum(floats[at][1] for at in names) != span.stop - span.start:
        return f"'{name}' is bytes {span.start:,} to {span.stop:,} of {FLOATS}, which are no whole matrices", ()
    return "", tuple(names)


def _sources(names: Sequence[str], header: TensorFile) -> Iterator[Tensor]:
    """What matrices are made from."""
    for name in names:
        for kind in ("weight", "scale", "minimum", "zero", "order"):
            if (tensor := header.tensors.get(f"{name}.{kind}")) is not None:
                yield tensor


def _across(span: _Span, header: TensorFile) -> str:
    """What is wrong with a span that is no run of whole tensors; empty when it is one."""
    starts, stops = header.bounds
    if span.start in starts and span.stop in stops:
        return ""
    return f"'{span.name}' is bytes {span.start:,} to {span.stop:,}, which are no whole tensors"


def _locate(name: str, place: Mapping[str, str], file_bytes: int, file: str = WEIGHTS) -> tuple[str, _Span | None]:
    """(problem, span); the problem is empty when the span lies in the file."""
    if place.get("location") != file:
        return f"'{name}' lies in '{place.get('location')}', not in {file}", None
    if not all(place.get(key, "").isdecimal() for key in ("offset", "length")):
        return f"'{name}' has no offset and length", None
    start, length = int(place["offset"]), int(place["length"])
    if start + length > file_bytes:
        return f"'{name}' ends at byte {start + length:,}; {file} has {file_bytes:,}", None
    return "", _Span(name, start, start + length)


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t


def unused(spans: Sequence[_Span], header: TensorFile) -> int:
    """Bytes of the weights file's tensors that no span covers, gaps and OpenVINO's numbers aside."""
    covered: list[tuple[int, int]] = []  # (start, stop), in order and apart from each other
    for span in sorted(spans, key=lambda span: span.start):
        if covered and span.start <= covered[-1][1]:
            covered[-1] = (covered[-1][0], max(covered[-1][1], span.stop))
        else:
            covered.append((span.start, span.stop))

    def is_read(tensor: Tensor) -> bool:
        place = bisect_right(covered, (tensor.offset, math.inf)) - 1
        return place >= 0 and tensor.offset + tensor.length <= covered[place][1]

    return sum(
        tensor.length
        for name, tensor in header.tensors.items()
        if not name.startswith("gap.") and name not in CONSTANTS_OF.values() and not is_read(tensor)
    )

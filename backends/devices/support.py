"""Why a device cannot run a model: what its weights or layers have that the device does not take."""

from __future__ import annotations

from embedllm.backends.base import Unsupported
from embedllm.backends.driver import DeviceFamily
from embedllm.package.external_graph import ExternalGraph
from embedllm.package.package import Package
from embedllm.package.tensors import linears, outer_matrices, tables


def external_graph_unsupported(
    package: Package, family: DeviceFamily, *, exact: bool, kv: str | None
) -> Unsupported | None:
    """Why a device cannot run a graph that another exporter has written; None where it can, or it is described."""
    can = family.capabilities
    if not isinstance(package.architecture, ExternalGraph):
        if can.external_graphs and not can.variants:
            return Unsupported("it runs folders of onnxruntime-genai that no other device runs", "use the device 'cpu'")
        return None
    runs = any(graph.variant in can.external_graphs for graph in package.graphs)
    if not runs or (can.is_gpu and package.external is None):
        maker = "optimum" if package.external is None else package.external.maker
        remedy = f"use the device '{'cpu' if package.external is None else package.external.surest}'"
        return Unsupported(
            f"'{package.name}' is a graph without an architecture description that {maker} wrote for other devices",
            remedy,
        )
    faults = {} if package.external is None else package.external.faults
    if family.name in faults:
        others = "'cpu'" if can.is_gpu else "'cuda' or 'webgpu'"
        remedy = f"use the device {others}, or another graph of the folder by its path"
        return Unsupported(f"in the graph of '{package.name}' {faults[family.name]}", remedy)
    if can.is_gpu and exact:
        return Unsupported(
            "how it rounds in a graph of another exporter is not known", "load it without exact, or on 'cpu'"
        )
    return (
        None
        if kv is None
        else Unsupported(f"the graph of '{package.name}' keeps its KV as floats", "load it without kv")
    )


def package_unsupported(package: Package, family: DeviceFamily, *, kv: str | None) -> Unsupported | None:
    """What is in the way, and what helps; None when nothing is. kv: the type of a quantized KV that is asked for."""
    if (unsupported := family.unsupported_package(package, kv)) is not None:
        return unsupported
    if isinstance(package.architecture, ExternalGraph):
        return None  # see external_graph_unsupported()
    can = family.capabilities
    if not can.odd_zero_points and (odd_matrix := _odd_zero_points(package)):
        name, count = odd_matrix
        return Unsupported(
            f"the matrix '{name}' of '{package.name}' has rows of {count} zero points of 4 bits, an odd number, which "
            "the operators there misread",
            "use the device 'cpu' or 'openvino', or export it again with --bits 4, without zero points",
        )
    if not can.recurrent and package.decoder.is_recurrent:
        return Unsupported(
            f"layers of '{package.name}' keep a state of fixed size of what came before, which sessions there do not",
            "use the device 'cpu', 'openvino', 'cuda' or 'webgpu'",
        )
    if not can.chunks and (chunk := package.decoder.chunk):
        return Unsupported(
            f"layers of '{package.name}' attend in chunks of {chunk} tokens, and its context of {package.context} "
            "exceeds them, which attention there does not do",
            f"use the device 'cpu' or 'openvino', or export it with --context {chunk}",
        )
    return None


def _odd_zero_points(package: Package) -> tuple[str, int] | None:
    """A matrix of 4 bits whose rows have an odd number of zero points, and that number."""
    from embedllm.package.packing import packings

    decoder = package.decoder
    inner = (linear for layer in decoder.layers for linear in linears(layer))
    by_name = packings(package.manifest)
    for linear in (*inner, *outer_matrices(decoder), *tables(decoder), decoder.head):
        packing = by_name.get(linear.name)
        if packing is not None and packing.bits == 4 and packing.stores_zeros:
            count = packing.groups(linear.columns)
            if count % 2:
                return linear.name, count
    return None

"""Why a device cannot run a model: what its weights or layers have that the device does not take."""

from __future__ import annotations

from embedllm.backends.devices.drivers import Driver
from embedllm.package.external_graph import ExternalGraph
from embedllm.package.graph_variants import OPENVINO
from embedllm.package.package import Package
from embedllm.package.tensors import linears, outer_matrices, tables


def external_graph_unsupported(
    package: Package, driver: Driver, *, exact: bool, kv: str | None
) -> tuple[str, str] | None:
    """Why a device cannot run a model that another exporter has traced; None where it can, or it is described."""
    if not isinstance(package.architecture, ExternalGraph):
        if driver.external_graphs and not driver.variants:
            return "it runs folders of onnxruntime-genai that no other device runs", "use the device 'cpu'"
        return None
    runs = any(graph.variant in driver.external_graphs for graph in package.graphs)
    if not runs or (driver.is_gpu and package.external is None):
        maker = "optimum" if package.external is None else package.external.maker
        remedy = f"use the device '{'cpu' if package.external is None else package.external.surest}'"
        return f"of '{package.name}' nothing but its graph is known, which {maker} wrote for other devices", remedy
    faults = {} if package.external is None else package.external.faults
    if driver.provider is not None and driver.provider.device in faults:
        others = "'cuda' or 'webgpu'" if driver.provider.device == "cpu" else "'cpu'"
        remedy = f"use the device {others}, or another graph of the folder by its path"
        return f"in the graph of '{package.name}' {faults[driver.provider.device]}", remedy
    if driver.is_gpu and exact:
        return "how it rounds in a graph of another exporter is not known", "load it without exact, or on 'cpu'"
    return None if kv is None else (f"the graph of '{package.name}' keeps its KV as floats", "load it without kv")


def model_lack(package: Package, driver: Driver, *, kv: str | None) -> tuple[str, str] | None:
    """What is in the way, and what helps; None when nothing is. kv: the type of a quantized KV that is asked for."""
    entries = package.manifest.get("quantization")
    packings = entries.values() if isinstance(entries, dict) else ()
    if not driver.zero_points and not all(isinstance(p, dict) and p.get("symmetric", True) for p in packings):
        return (
            f"the weights of '{package.name}' have zero points, which the NPU's compiler does not take",
            "export it with --target npu",
        )
    if not driver.zero_points and any(isinstance(p, dict) and p.get("scale_bits", 16) != 16 for p in packings):
        return (
            f"the weights of '{package.name}' have scales in float32, which the NPU's compiler is not known to take",
            "export it anew with --bits 4 --target npu",
        )
    if isinstance(package.architecture, ExternalGraph):
        return None  # see external_graph_unsupported()
    if not driver.odd_zero_points and (found := _odd_zero_points(package)):
        name, count = found
        return (
            f"the matrix '{name}' of '{package.name}' has rows of {count} zero points of 4 bits, an odd number, which "
            "ONNX Runtime's CUDA operators misread",
            "use the device 'cpu' or 'openvino', or export it anew with --bits 4, without zero points",
        )
    if not driver.mixtures and package.decoder.is_mixture:
        return (
            f"'{package.name}' is a mixture of experts, which take as many tokens as there happen to be; the NPU's "
            "shapes are fixed",
            "use another device",
        )
    if not driver.recurrent and package.decoder.is_recurrent:
        return (
            f"layers of '{package.name}' keep a state of fixed size of what came before, which sessions there do not",
            "use the device 'cpu' or 'openvino'",
        )
    capped = any(attention.softcap for attention in package.decoder.attentions)
    if kv is not None and OPENVINO in driver.kv.get(kv, ()) and capped:
        return (
            f"attention of '{package.name}' caps its scores, which OpenVINO does with a KV of floats only",
            "load it without kv",
        )
    return None


def _odd_zero_points(package: Package) -> tuple[str, int] | None:
    """A matrix of 4 bits whose rows have an odd number of zero points, and that number."""
    from embedllm.package.packing import packings

    decoder = package.decoder
    inner = (linear for layer in decoder.layers for linear in linears(layer))
    held = packings(package.manifest)
    for linear in (*inner, *outer_matrices(decoder), *tables(decoder), decoder.head):
        packing = held.get(linear.name)
        if packing is not None and packing.bits == 4 and packing.stores_zeros:
            count = packing.groups(linear.columns)
            if count % 2:
                return linear.name, count
    return None

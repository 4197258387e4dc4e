"""Why a device cannot run a model: what its weights or layers have that the device does not take."""

from __future__ import annotations

from embedllm.backends.drivers import Driver
from embedllm.export.dialects import OPENVINO
from embedllm.package import Package


def model_lack(package: Package, driver: Driver, *, kv: str | None) -> tuple[str, str] | None:
    """What is in the way, and what helps; None when nothing is. kv: the type of a quantized KV that is asked for."""
    entries = package.manifest.get("quantization")
    packings = entries.values() if isinstance(entries, dict) else ()
    if not driver.zero_points and not all(isinstance(p, dict) and p.get("symmetric", True) for p in packings):
        return (
            f"the weights of '{package.name}' have zero points, which the NPU's compiler does not take",
            "export it with --target npu",
        )
    if not driver.mixtures and package.decoder.is_mixture:
        return (
            f"'{package.name}' is a mixture of experts, which take as many tokens as there happen to be; the NPU's "
            "shapes are fixed",
            "use another device",
        )
    capped = any(layer.attention.softcap for layer in package.decoder.layers)
    if kv is not None and OPENVINO in driver.kv.get(kv, ()) and capped:
        return (
            f"attention of '{package.name}' caps its scores, which OpenVINO does with a KV of floats only",
            "load it without kv",
        )
    return None

"""What a model is compiled with in OpenVINO: its properties, from options and from what the processor is slow at."""

from __future__ import annotations

import os

from embedllm.backends.openvino.runtime import cache_folder, fingerprint, has_bf16
from embedllm.backends.options import OpenVINOOptions
from embedllm.backends.system.cpu_threads import compute_threads
from embedllm.backends.system.hardware import has_slow_bf16
from embedllm.package.package import Package
from embedllm.package.packing import packings
from embedllm.package.tensors import linears

# float activations, no rounding to int8, KV as it is computed. EXECUTION_MODE_HINT=ACCURACY stands for the same three,
# but unpacks the weights at every step where their scales are float16 (OpenVINO 2026.4)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "KV_CACHE_PRECISION": "f32"}


def properties(package: Package, target: str, options: OpenVINOOptions, threads: int, exact: bool) -> dict[str, object]:
    """The options in OpenVINO's words, for one device or for several behind one name (AUTO, HETERO)."""
    plugin = target.partition(".")[0]
    if options.precision == "f16" and plugin != "GPU":
        raise ValueError(f"precision 'f16' is for GPUs; on {target} OpenVINO 2026.4 crashes. Use bf16 or f32.")
    if options.kv == "bf16" and plugin == "CPU" and not has_bf16():
        raise ValueError("kv is 'bf16', which this processor does not compute in. Use u8, f16 or f32.")
    chosen: dict[str, object] = {"PERFORMANCE_HINT": "LATENCY"}  # one step at a time
    wishes = {
        "INFERENCE_PRECISION_HINT": options.precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": options.rounding_group,
        "KV_CACHE_PRECISION": options.kv,
    }
    # the plugin takes bf16 wherever a processor has it, and pages a KV of bf16 only then
    if plugin == "CPU" and options.kv != "bf16" and has_slow_bf16() and _steps_are_packed(package):
        chosen["INFERENCE_PRECISION_HINT"] = "f32"
    chosen |= {key: value for key, value in wishes.items() if value is not None}
    if exact:
        chosen |= EXACT
    if plugin == "CPU" and (count := threads or compute_threads()):
        chosen["INFERENCE_NUM_THREADS"] = count
        if count == 1:  # bf16, which processors with AMX take, would end the process: docs/openvino.md#sessions
            chosen.setdefault("INFERENCE_PRECISION_HINT", "f32")
    if plugin == "GPU":  # minutes to compile
        chosen["CACHE_DIR"] = os.fspath(cache_folder(options, target, fingerprint(target)))
    return chosen


def _steps_are_packed(package: Package) -> bool:
    """Whether all that a step multiplies by has 8 bits or fewer, as far as is known.

    Matrices of 16 would be copied to float32, and a step, which reads them, take longer (docs/performance.md#bf16).
    """
    if package.external is not None:
        return False
    decoder, by_name = package.decoder, packings(package.manifest)
    matrices = [matrix for layer in decoder.layers for matrix in linears(layer)]
    if decoder.encoder is None:
        matrices.append(decoder.head)
    return all(matrix.name in by_name and by_name[matrix.name].quantized for matrix in matrices)

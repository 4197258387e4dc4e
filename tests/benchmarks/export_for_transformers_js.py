"""A checkpoint as ONNX for transformers.js, the way its users get it, for bench_web.py.

The float graph is onnxruntime-genai's (fused attention; logits of the last position only, which spares transformers.js
the largest part of a prompt's copying); q4 and q8 follow the settings of transformers.js' own scripts/quantize.py:
blocks of 32, symmetric, no accuracy level; dynamic 8 bit, unsigned because of the fused attention. For a GPU there is
q4f16 alone, of the builder's float16 graph for WebGPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
FILES = {"fp32": "model.onnx", "q4": "model_q4.onnx", "q8": "model_quantized.onnx", "q4f16": "model_q4f16.onnx"}


def export(checkpoint: Path, folder: Path, *, is_gpu: bool = False) -> None:
    """Writes the folder that `from_pretrained` reads; nothing is done when it is there."""
    if folder.exists():
        return
    made = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(made, ignore_errors=True)
    (made / "onnx").mkdir(parents=True)
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(checkpoint), "-o", str(made / "raw")]
    kind = ["-p", "fp16", "-e", "webgpu"] if is_gpu else ["-p", "fp32", "-e", "cpu"]
    given = [*kind, "-c", str(made / "cache"), "--extra_options", "prune_lm_head=true"]
    done = subprocess.run([*builder, *given], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"onnxruntime-genai's builder failed: {done.stderr[-2000:]}")
    head_dim = json.loads((checkpoint / "config.json").read_text())["head_dim"]
    _name_head_dim(made / "raw" / "model.onnx", head_dim)
    _quantize(made / "raw" / "model.onnx", made / "onnx", is_gpu=is_gpu)
    for name in COPIED:
        if (checkpoint / name).exists():
            shutil.copy(checkpoint / name, made / name)
    for name in ("config.json", "generation_config.json"):
        config = json.loads((checkpoint / name).read_text())
        config.pop("eos_token_id", None)  # no reply of a measurement ends by itself
        (made / name).write_text(json.dumps(config, indent=1))
    shutil.rmtree(made / "raw")
    shutil.rmtree(made / "cache", ignore_errors=True)
    made.rename(folder)


def _name_head_dim(file: Path, head_dim: int) -> None:
    """Gives the size of a head as a number: transformers.js takes the one that the builder left open for 0."""
    import onnx

    model = onnx.load(file, load_external_data=False)
    for value in (*model.graph.input, *model.graph.output):
        if value.name.startswith(("past_key_values.", "present.")):
            value.type.tensor_type.shape.dim[3].dim_value = head_dim
    onnx.save(model, file)


def _quantize(source: Path, folder: Path, *, is_gpu: bool) -> None:
    import onnx
    from onnxruntime.quantization import QuantizationMode, QuantType
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
    from onnxruntime.quantization.registry import IntegerOpsRegistry

    four = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=True, accuracy_level=None)
    four.process()
    quantized: Any = four.model  # its type says ModelProto, but process() leaves an ONNXModel there
    onnx.save(quantized.model, folder / FILES["q4f16" if is_gpu else "q4"])
    if is_gpu:
        return
    onnx.save(onnx.load(source), folder / FILES["fp32"])
    eight = ONNXQuantizer(
        onnx.load(source), False, False, mode=QuantizationMode.IntegerOps, static=False,
        weight_qType=QuantType.QUInt8, activation_qType=QuantType.QUInt8, tensors_range=None, nodes_to_quantize=[],
        nodes_to_exclude=[], op_types_to_quantize=list(IntegerOpsRegistry),
        extra_options={"EnableSubgraph": True, "MatMulConstBOnly": True},
    )  # fmt: skip
    eight.quantize_model()
    onnx.save(eight.model.model, folder / FILES["q8"])

"""Random LoRA adapters for tiny checkpoints, in the form that PEFT saves, and the checkpoints that they make."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from embedllm.loading.resolve import package_folder
from embedllm.package.package import open_package
from embedllm.package.tensors import linears

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_STRENGTH = 0.5  # of a product with A and B beside that with the weight, which is about 1


def shapes_of(checkpoint: Path, targets: Sequence[str] = ALL) -> dict[str, tuple[int, int]]:
    """Rows and columns of a checkpoint's matrices, by the names of their modules."""
    tensors = load_file(checkpoint / "model.safetensors")
    matrices = {name.removesuffix(".weight"): value.shape for name, value in tensors.items() if value.ndim == 2}
    return {name: (shape[0], shape[1]) for name, shape in matrices.items() if name.rpartition(".")[2] in targets}


def config_of(targets: Sequence[str], rank: int, alpha: float, **overrides: object) -> dict[str, object]:
    """What PEFT writes, as far as it matters."""
    return {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": list(targets), "bias": "none",
            "use_rslora": False, "use_dora": False, "fan_in_fan_out": False, "init_lora_weights": True,
            "lora_dropout": 0.05, "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {},
            "task_type": "CAUSAL_LM", "qalora_group_size": 16, "megatron_core": "megatron.core",
            **overrides}  # fmt: skip


def write_adapter(
    folder: Path,
    checkpoint: Path,
    *,
    targets: Sequence[str] = ALL,
    rank: int = 4,
    ranks: Mapping[str, int] | None = None,
    seed: int = 0,
    **config: object,
) -> Path:
    """Writes an adapter of all modules that end with one of the targets. ranks: of some of those, by their ends."""
    shapes = shapes_of(checkpoint, targets)
    about = config_of(targets, rank, **{"alpha": float(rank), "rank_pattern": dict(ranks or {}), **config})  # type: ignore[arg-type]
    return write_factors(folder, shapes, about, ranks=ranks, seed=seed)


def write_factors(
    folder: Path,
    shapes: Mapping[str, tuple[int, int]],
    about: Mapping[str, object],
    *,
    ranks: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Path:
    """An adapter of these modules. about: its configuration, with the rank of those that `ranks` does not name."""
    random, rank = np.random.default_rng(seed), int(str(about["r"]))
    tensors: dict[str, np.ndarray] = {}
    for module, (rows, columns) in shapes.items():
        own = (ranks or {}).get(module.rpartition(".")[2], rank)
        a = random.standard_normal((own, columns)) / math.sqrt(columns)
        b = random.standard_normal((rows, own)) * _STRENGTH / math.sqrt(own)
        tensors[f"base_model.model.{module}.lora_A.weight"] = a.astype(np.float32)
        tensors[f"base_model.model.{module}.lora_B.weight"] = b.astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(about))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def write_demo_adapter(folder: Path, seed: int) -> Path:
    """A weak one for the demo model, whose replies stay replies."""
    layers = open_package(package_folder("demo")).decoder.layers
    matrices = [linear for layer in layers for linear in linears(layer)]
    shapes = {linear.source: (linear.rows, linear.columns) for linear in matrices}
    return write_factors(folder, shapes, config_of(ALL, 4, 1.0), seed=seed)


def merged_checkpoint(checkpoint: Path, adapter: Path, out: Path, scale: float = 1.0) -> Path:
    """A copy of a checkpoint with an adapter merged by the formula alone, all modules with one scale."""
    out.mkdir(parents=True)
    for path in checkpoint.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    tensors = load_file(checkpoint / "model.safetensors")
    factors = load_file(adapter / "adapter_model.safetensors")
    for name, value in tensors.items():
        at = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{at}.lora_A.weight" in factors:
            a, b = (factors[f"{at}.lora_{part}.weight"].astype(np.float64) for part in "AB")
            tensors[name] = (value + scale * (b @ a)).astype(np.float32)
    save_file(tensors, out / "model.safetensors")
    return out

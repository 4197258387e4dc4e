"""Texts to calibrate tiny models on, models that need it, and how far models are apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file, save_file

from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.package.package import MANIFEST, open_package

if TYPE_CHECKING:
    from embedllm.types import F32


def text(path: Path, seed: int = 0, words: int = 1500) -> Path:
    """Documents of words that come again and again, as words do."""
    random = np.random.default_rng(seed)
    known = ["the", "dog", "list", "all", "files", "jumps", "café", "print('hello')", "sort", "by", "size", "東京"]
    lines = [" ".join(random.choice(known, words // 5).tolist()) for _ in range(5)]
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    return path


def with_outliers(checkpoint: Path, by: float) -> Path:
    """Makes some inputs of each layer's matrices much larger than others, as those of large models are."""
    tensors = load_file(checkpoint / "model.safetensors")
    for name, value in tensors.items():
        if name.endswith("layernorm.weight"):
            value[[at for at in (3, 17, 40) if at < len(value)]] *= np.float32(by)
    save_file(tensors, checkpoint / "model.safetensors")
    return checkpoint


def logits(package: Path, sequences: np.ndarray) -> F32:
    engine = ReferenceEngine(open_package(package))
    return np.concatenate([engine.open().feed_all(one.tolist()) for one in sequences])


def kl(base: F32, other: F32) -> float:
    one, two = (x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in (base, other))
    return float((np.exp(one) * (one - two)).sum(axis=-1).mean())


def manifest(package: Path) -> dict[str, object]:
    return json.loads((package / MANIFEST).read_text(encoding="utf-8"))

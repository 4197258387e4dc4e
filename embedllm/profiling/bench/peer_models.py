"""What is known of the model that another engine runs: from our manifest, a GGUF header, or a config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embedllm.package.package import MANIFEST, open_package
from embedllm.package.tensors import kv_bytes
from embedllm.profiling.bench.engine import Facts
from embedllm.profiling.bench.ours import package_facts

_HALF = 2  # bytes; the KV of llama.cpp's default
_MANY = 1 << 31  # tokens: a context that nothing tells
_FILE_TYPES = {"2": (4, 32), "3": (4, 32), "7": (8, 32)}  # bits and group of Q4_0, Q4_1, Q8_0; of mixed ones neither


def folder_facts(folder: Path, *, kv_bits: int) -> Facts:
    """Of a folder of ours, or of one that onnxruntime-genai's or optimum's tools wrote."""
    if not (folder / MANIFEST).exists():
        return _external(folder)
    package = open_package(folder, whole=False)
    kv = kv_bytes(package.decoder, 1, 1) * kv_bits / 8
    return package_facts(package, context=package.context, kv_bytes_per_token=kv)


def gguf_facts(path: Path, header: Mapping[str, str], vocabulary: int) -> Facts:
    """header: the file's metadata, as texts."""
    family = header.get("general.architecture", "")
    numbers = [
        header.get(f"{family}.{key}")
        for key in ("block_count", "attention.head_count_kv", "attention.key_length", "attention.value_length")
    ]
    kv = None
    if all(numbers):
        layers, heads, key, value = (int(str(number)) for number in numbers)
        kv = layers * heads * (key + value) * _HALF
    size = path.stat().st_size
    bits, group = _FILE_TYPES.get(header.get("general.file_type", ""), (None, None))
    return Facts(
        model=path.name,
        weights_bytes=size,
        bits=bits,
        group=group,
        vocabulary=vocabulary,
        context=int(header.get(f"{family}.context_length", _MANY)),
        step_bytes=size,
        kv_bytes_per_token=kv,
    )


def transformers_facts(folder: Path, config: Any, itemsize: int) -> Facts:  # noqa: ANN401
    """config: a PretrainedConfig. itemsize: bytes of a value."""
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Facts(
        model=folder.name,
        weights_bytes=size,
        bits=8 * itemsize,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        step_bytes=size if config.tie_word_embeddings else size - config.vocab_size * config.hidden_size * itemsize,
        kv_bytes_per_token=2 * config.num_hidden_layers * config.num_key_value_heads * head * itemsize,
    )


def _external(folder: Path) -> Facts:
    """A folder without our manifest: its largest file is its weights, and its config tells the rest."""
    sizes = [file.stat().st_size for file in folder.iterdir() if file.is_file()]
    try:
        decoder = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]
    except OSError:
        decoder = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        decoder["context_length"] = decoder["max_position_embeddings"]
    weights = max(sizes)
    return Facts(model=folder.name, weights_bytes=weights, vocabulary=int(decoder["vocab_size"]),
                 context=int(decoder["context_length"]), step_bytes=weights)  # fmt: skip

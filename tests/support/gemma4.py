"""A tiny Gemma 4 that takes images, without torch, with a template like its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.tensors import CLIPS
from tests.support.described import RandomSource
from tests.support.dynamic_vision import IMAGE_TOKEN
from tests.support.families import (
    BASE,
    GEMMA4,
    GEMMA4_TOKENS,
    GEMMA4_UNIFIED_VISION,
    GEMMA4_VISION,
    KEYS_AS_VALUES,
)
from tests.support.tiny import write_tokenizer

BUDGET = 70  # tokens of an image; the least that transformers knows
_TEXT = {**BASE, **GEMMA4, "eos_token_id": None, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
         "sliding_window": 80, "pad_token_id": 0}  # fmt: skip
_VISION = {**GEMMA4_VISION, "position_embedding_size": 2 * BUDGET + 4}
# by what differs: E2B and E4B have clipped linears, 26B-A4B and 31B standardized features, 12B no encoder
CONFIGS: dict[str, dict[str, Any]] = {
    "small": {"text_config": {**_TEXT, "num_kv_shared_layers": 3},
              "vision_config": {**_VISION, "use_clipped_linears": True}},
    "large": {"text_config": {**_TEXT, **KEYS_AS_VALUES, "use_bidirectional_attention": "vision"},
              "vision_config": {**_VISION, "standardize": True}},
    "unified": {"model_type": "gemma4_unified", "text_config": {**_TEXT, **KEYS_AS_VALUES},
                "vision_config": {**GEMMA4_UNIFIED_VISION, "mm_posemb_size": BUDGET + 4}},
}  # fmt: skip
_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn>{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] | trim }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|image|>{% elif part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}{% endfor %}{% endif %}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


def gemma4_config(size: str = "small", text: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """text: what is otherwise in the decoder's section."""
    sections = CONFIGS[size]
    return {"model_type": "gemma4", **GEMMA4_TOKENS, **sections, "text_config": {**sections["text_config"], **text}}


def gemma4_checkpoint(folder: Path, size: str = "small", config: dict[str, Any] | None = None) -> Path:
    """A random model with the names of published checkpoints; returns the folder. config: in place of a size's."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config or gemma4_config(size)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = RandomSource(describe(Config(config))).tensors
    tensors.pop("", None)  # of norms without weights
    for name, values in list(tensors.items()):
        if name.endswith(CLIPS):
            bound = 1 + np.abs(values[0])
            tensors[name] = np.array(-bound if name.endswith("_min") else bound, np.float32)  # of no dimension
        elif name.endswith("position_embedding_table.weight"):
            tensors[name.removesuffix(".weight")] = tensors.pop(name).reshape(2, -1, values.shape[1])
        elif name.endswith("pos_embedding.weight"):
            tensors[name.removesuffix(".weight")] = tensors.pop(name).reshape(-1, 2, values.shape[1])
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            tensors[name] = values / np.float32(2)  # of scores that nothing divides: float16 would round them too much
        elif name.endswith(("std_scale", "layer_scalar")):
            tensors[name] = values + np.float32(1)
    save_file(tensors, folder / "model.safetensors")
    write_gemma4_chat(folder, "Gemma4Unified" if config["model_type"] == "gemma4_unified" else "Gemma4")
    return folder


def write_gemma4_chat(folder: Path, name: str = "Gemma4") -> None:
    """The tokens, the chat template and the image processor of such a model. name: its classes begin with it."""
    write_tokenizer(folder, IMAGE_TOKEN - 10)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([f"<unused{place}>" for place in range(IMAGE_TOKEN - tokenizer.get_vocab_size())])
    tokenizer.add_special_tokens(["<|image|>", "<|image>", "<image|>", "<|turn>", "<turn|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "<turn|>", "bos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
             "boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "chat_template": _TEMPLATE}))
    pixels = {"image_processor_type": f"{name}ImageProcessor", "patch_size": 4, "pooling_kernel_size": 2,
              "max_soft_tokens": BUDGET, "do_normalize": False, "image_mean": [0.0] * 3,
              "image_std": [1.0] * 3}  # fmt: skip
    processor = {"processor_class": f"{name}Processor", "image_seq_length": BUDGET, "image_processor": pixels}
    (folder / "processor_config.json").write_text(json.dumps(processor))  # transformers 5 saves one file

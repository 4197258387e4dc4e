"""Checkpoints written as GGUF: what llama.cpp's converters do, with the names that the Python package gguf has.

Source: conversion/*.py of llama.cpp.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from embedllm.files.float_types import to_float32
from embedllm.files.safetensors_header import BYTES, read_header
from tests.support.gguf_converters import Config, Tensors, full_head_dim, prepared, said_of_parts, turned, usual

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
TURNED = (
    "llama",
    "olmo",
    "granite",
    "granitemoe",
    "granitehybrid",
    "smollm3",
    "arcee",
    "mistral3",
)  # whose q and k llama.cpp's converters permute
ARCHITECTURES = {"mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3", "gpt_neox": "gptneox",
                 "cohere": "command-r", "phi": "phi2", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
                 "gpt_oss": "gpt-oss", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
                 "granitemoeshared": "granitemoe", "glm4_moe": "glm4moe", "glm": "chatglm", "olmo3": "olmo2",
                 "ernie4_5_moe": "ernie4_5-moe", "exaone_moe": "exaone-moe", "hunyuan_v1_dense": "hunyuan-dense",
                 "hunyuan_v1_moe": "hunyuan-moe", "ministral3": "mistral3",
                 "lfm2_moe": "lfm2moe", "qwen3_next": "qwen3next", "qwen3_5_text": "qwen35",
                 "qwen3_5_moe_text": "qwen35moe",
                 "granitemoehybrid": "granitehybrid", "falcon_h1": "falcon-h1",
                 "minimax_m2": "minimax-m2", "llama4_text": "llama4",
                 "gemma3n_text": "gemma3n", "gemma4_text": "gemma4"}  # fmt: skip


SHIFTED = ("gemma", "gemma2", "gemma3", "gemma-embedding", "nemotron")  # whose norms hold their one
# matrices that are one tensor: of experts, of AltUp's streams
STACKED = re.compile(r"(.*\.(?:experts|altup_projections|altup_unembed_projections))\.(\d+)\.(.*)")

NEXTN = {
    name: name.replace(".", "_")
    for name in ("eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.norm", "shared_head.head")
}
Change = Callable[[Tensors], Tensors]


def name_of(config: Config) -> str:
    family = str(config["model_type"])
    if family == "nemotron_h" and "moe" in config["layers_block_type"]:
        return "nemotron_h_moe"
    return ARCHITECTURES.get(family, family)


def write_gguf(
    path: Path,
    folder: Path,
    *,
    kind: str = "F32",
    pre: str = "gpt-2",
    architecture: str = "",
    more: Mapping[str, Any] | None = None,
    change: Change = lambda tensors: tensors,
) -> Path:
    """A checkpoint's folder as one GGUF file.

    kind: of the matrices of layers, as gguf calls it. pre: the name of how texts are cut. architecture: where that
    is not the usual one. more: metadata besides, or in
    place of what the folder says; None leaves out. change: of all tensors, by their GGUF names.
    """
    config = usual(json.loads((folder / "config.json").read_text()))
    name = architecture or name_of(config)
    ids = {"eos": config.get("eos_token_id"), "padding": config.get("pad_token_id")}
    tensors = loaded(folder / "model.safetensors")
    said = {**metadata(config, name), **heads_said(tensors, config, name), **tokens(folder, pre), **special(ids)}
    tensors = change(converted(tensors, config, name))
    return write_file(path, name, {**said, **(more or {})}, tensors, kind=kind)


def write_file(path: Path, name: str, said: Mapping[str, Any], tensors: Tensors, *, kind: str) -> Path:
    """Metadata and tensors under their GGUF names. name: of the architecture."""
    writer = gguf.GGUFWriter(path, name)
    for key, value in said.items():
        if value is not None:
            put(writer, key, value)
    for tensor, values in tensors.items():
        # biases of experts are one tensor, and weights of a norm that each group has; positions are added
        is_matrix = values.ndim > 1 and not tensor.endswith((".bias", ".ssm_norm.weight", ".position_embd.weight"))
        if is_matrix and kind != "F32" and (kind == "F16" or not values.shape[-1] % 32):
            quantized = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
            writer.add_tensor(tensor, quantized, raw_dtype=gguf.GGMLQuantizationType[kind])
        else:
            writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def loaded(path: Path) -> Tensors:
    """All tensors of a file, bfloat16 among them, as float32."""
    data, found = path.read_bytes(), Tensors()
    for name, tensor in read_header(path).tensors.items():
        size = int(np.prod(tensor.shape)) * BYTES[tensor.dtype]
        raw = bytearray(data[tensor.offset : tensor.offset + size])
        found[name] = to_float32(raw, tensor.dtype).reshape(tensor.shape)
    return found


def put(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        (writer.add_uint64 if value >> 32 else writer.add_uint32)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, np.ndarray):
        writer.add_array(key, value.tobytes() if value.dtype == np.uint8 else value.tolist())
    else:
        assert isinstance(value, Sequence)
        writer.add_array(key, value)


def metadata(config: Config, name: str) -> dict[str, Any]:
    """What config.json says, under GGUF's keys."""
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    norms = ("layer_norm_eps", "norm_epsilon", "norm_eps", "layer_norm_epsilon")
    norm = next((config[key] for key in norms if key in config), None)
    windowed = config.get("use_sliding_window", True) and config.get("sliding_window")
    own = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config.get("intermediate_size"),
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config.get("num_key_value_heads", config["num_attention_heads"]),
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps"),
        "attention.layer_norm_epsilon": norm,
        "attention.sliding_window": None if name == "mistral3" else windowed or None,
        "attn_logit_softcapping": config.get("attn_logit_softcapping"),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
        "rope.dimension_count": int(head * part),
        "rope.freq_base": float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
        "use_parallel_residual": config.get("use_parallel_residual", True if name == "stablelm" else None),
        "expert_count": config.get("num_local_experts", config.get("num_experts")),
        "expert_used_count": config.get("num_experts_per_tok", config.get("top_k_experts")),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
        "residual_scale": config.get("residual_multiplier"),
        "embedding_scale": config.get("embedding_multiplier"),
        "attention.scale": config.get("attention_multiplier"),
        "logit_scale": config.get("logits_scaling", config.get("logit_scale")),
        "vocab_size": config["vocab_size"],
    }
    kinds = [kind == "sliding_attention" for kind in config.get("layer_types") or []]
    if windowed and True in kinds and False in kinds:
        own["attention.sliding_window_pattern"] = kinds
    if rope.get("rope_type") in ("linear", "yarn"):
        own |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"]),
                "rope.scaling.original_context_length": rope.get("original_max_position_embeddings")}  # fmt: skip
    if rope.get("rope_type") == "longrope":
        own["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        own["rope.scaling.attn_factor"] = rope.get("attention_factor")
    own |= said_of_parts(config, name)
    return {f"{name}.{key}": value for key, value in own.items()}


def heads_said(tensors: Tensors, config: Config, name: str) -> dict[str, Any]:
    """What is said of multi-token prediction layers (MTP), which count as blocks."""
    layers, heads = config["num_hidden_layers"], sum(tensor.endswith(".hnorm.weight") for tensor in tensors)
    return {f"{name}.block_count": layers + heads, f"{name}.nextn_predict_layers": heads} if heads else {}


def tokens(folder: Path, pre: str) -> dict[str, Any]:
    """The tokenizer of a folder, a byte-level BPE, with its template."""
    data = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = {at: text for text, at in data["model"]["vocab"].items()}
    types = dict.fromkeys(vocabulary, NORMAL)
    for token in data["added_tokens"]:
        vocabulary[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    order = sorted(vocabulary)
    assert order == list(range(len(order)))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in data["model"]["merges"]]
    template = folder / "chat_template.jinja"
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [vocabulary[at] for at in order],
        "tokenizer.ggml.token_type": [types[at] for at in order],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": template.read_text() if template.is_file() else None,
        "general.license": "apache-2.0",
    }


def special(ids: Mapping[str, int | None]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{role}_token_id": at for role, at in ids.items()}


def converted(tensors: Tensors, config: Config, name: str) -> Tensors:
    """The tensors under GGUF's names, their rows where llama.cpp has them."""
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    architecture = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)
    names = gguf.get_tensor_name_map(architecture, layers + 1)  # and a multi-token prediction layer
    found: Tensors = {}
    experts: dict[str, dict[int, np.ndarray]] = {}
    for source, values in prepared(tensors, config, name).items():
        if name in SHIFTED and source.endswith("norm.weight"):
            values = values + np.float32(1)
        if name in TURNED and ".q_proj." in source:
            values = turned(values, heads)
        if name in TURNED and ".k_proj." in source:
            values = turned(values, config.get("num_key_value_heads", heads))
        if name == "gptneox" and ".query_key_value." in source:
            values = grouped(values, heads)
        if stacked := STACKED.fullmatch(source):
            before, number, part = stacked.groups()
            experts.setdefault(f"{before}.{part}", {})[int(number)] = values
            continue
        part, _, end = source.partition(f"model.layers.{layers}.")[2].rpartition(".")
        if part in NEXTN:
            found[f"blk.{layers}.nextn.{NEXTN[part]}.{end}"] = values
            continue
        place = names.get_name(source, try_suffixes=(".weight", ".bias", ".scale"))
        assert place is not None, source
        found[place] = values.reshape(-1) if "ffn_gate_inp_shexp" in place else values
    for source, parts in experts.items():
        stacked = np.stack([parts[number] for number in sorted(parts)])
        if ".block_sparse_moe." in source or name == "lfm2moe":  # as the converters call them
            source = source.replace("model.layers", "layers").replace(".block_sparse_moe.", ".feed_forward.")
        place = names.get_name(source, try_suffixes=(".weight", ".bias"))
        assert place is not None, source
        found[place] = stacked
    rope = config.get("rope_parameters") or {}
    if name == "gemma4":
        found["rope_freqs.weight"] = proportional(config, rope["full_attention"])
    if rope.get("rope_type") == "longrope":
        for part in ("long", "short"):
            found[f"rope_factors_{part}.weight"] = np.array(rope[f"{part}_factor"], np.float32)
    return found


def proportional(config: Config, rope: Config) -> np.ndarray:
    """What Gemma4Model divides frequencies by."""
    half = full_head_dim(config) // 2
    rotated = int(half * rope["partial_rotary_factor"])
    return np.array([1.0] * rotated + [1e30] * (half - rotated), np.float32)


def grouped(values: np.ndarray, heads: int) -> np.ndarray:
    """What GPTNeoXModel does with q, k and v."""
    parts = values.reshape(heads, 3, -1, *values.shape[1:])
    return np.concatenate([parts[:, part].reshape(-1, *values.shape[1:]) for part in range(3)])

"""Tiny random checkpoints in the form of Hugging Face folders, made without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_TEXT = [
    "The quick brown fox jumps over the lazy dog; the dog does not mind.",
    "def main(): print('hello, world') # café, naïve, 東京, 😀",
    "List all files that were changed today, and sort them by size.",
]
_FAMILIES: dict[str, dict[str, object]] = {
    "gemma2": {
        "attn_logit_softcapping": 0.5,
        "final_logit_softcapping": 4.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 16,
        "sliding_window": 64,
        "tie_word_embeddings": True,
    },
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"use_sliding_window": False},
}


def tiny_config(family: str = "qwen3", **overrides: object) -> dict[str, object]:
    """A config.json of about a hundred thousand weights: odd sizes on purpose where a family allows them."""
    return {
        "model_type": family,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 307,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": family == "qwen3",
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **_FAMILIES[family],
        **overrides,
    }


def tiny_checkpoint(folder: Path, family: str = "qwen3", *, seed: int = 0, shards: int = 1,
                    dtype: str = "F32", **overrides: object) -> Path:  # fmt: skip
    """Writes config, random weights (safetensors), tokenizer and template; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(family, **overrides)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "max_new_tokens": 32}))
    tensors = tiny_tensors(config, seed)
    if dtype == "BF16":
        write_bf16(folder / "model.safetensors", tensors)
    else:
        kind = {"F32": np.float32, "F16": np.float16}[dtype]
        _write_shards(folder, {name: value.astype(kind) for name, value in tensors.items()}, shards)
    write_tokenizer(folder, int(str(config["vocab_size"])))
    return folder


def tiny_tensors(config: dict[str, object], seed: int) -> dict[str, np.ndarray]:
    """Normal weights under the names that transformers gives them."""
    size = {key: int(str(value)) for key, value in config.items() if type(value) is int}
    hidden, inner, head = size["hidden_size"], size["intermediate_size"], size["head_dim"]
    q, kv = size["num_attention_heads"] * head, size["num_key_value_heads"] * head
    family = config["model_type"]
    qkv_bias = family == "qwen2" or bool(config.get("attention_bias"))
    matrices: dict[str, tuple[int, int]] = {"model.embed_tokens": (size["vocab_size"], hidden)}
    norms = {"model.norm": hidden}
    biases: dict[str, int] = {}
    for index in range(size["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        attention = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q)}
        mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
        matrices |= {f"{layer}.self_attn.{name}": shape for name, shape in attention.items()}
        matrices |= {f"{layer}.mlp.{name}": shape for name, shape in mlp.items()}
        norms |= {f"{layer}.input_layernorm": hidden, f"{layer}.post_attention_layernorm": hidden}
        if family == "gemma2":
            norms |= {f"{layer}.{when}_feedforward_layernorm": hidden for when in ("pre", "post")}
        if family == "qwen3":
            norms |= {f"{layer}.self_attn.q_norm": head, f"{layer}.self_attn.k_norm": head}
        if qkv_bias:
            biases |= {f"{layer}.self_attn.{name}": attention[name][0] for name in ("q_proj", "k_proj", "v_proj")}
        if config.get("attention_bias") and family != "qwen2":
            biases[f"{layer}.self_attn.o_proj"] = hidden
        if config.get("mlp_bias"):
            biases |= {f"{layer}.mlp.{name}": shape[0] for name, shape in mlp.items()}
    if not config["tie_word_embeddings"]:
        matrices["lm_head"] = (size["vocab_size"], hidden)
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    tensors = {f"{name}.weight": normal(*shape) / np.float32(shape[1] ** 0.5) for name, shape in matrices.items()}
    tensors |= {f"{name}.weight": 1 + normal(count) / 10 for name, count in norms.items()}
    return tensors | {f"{name}.bias": normal(count) / 10 for name, count in biases.items()}


def write_bf16(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A bfloat16 file, byte by byte: NumPy has no such type."""
    header: dict[str, object] = {}
    data = b""
    for name, value in tensors.items():
        halves = (value.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        span = [len(data), len(data) + len(halves)]
        header[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": span}
        data += halves
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """A byte-level BPE tokenizer of at most `vocabulary` tokens and a ChatML template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "chat_template": TEMPLATE}))


def _write_shards(folder: Path, tensors: dict[str, np.ndarray], shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for index in range(shards):
        file = f"model-{index + 1:05}-of-{shards:05}.safetensors"
        part = names[index::shards]
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

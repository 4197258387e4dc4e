"""Tiny random checkpoints whose multi-token prediction head (MTP) is a layer behind the model's, made without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.support.tiny import write_tokenizer

LAYERS = 2  # of the model: a dense one, and one with experts; the head's is like the latter
_VOCABULARY, _HIDDEN, _INNER, _EXPERTS = 307, 64, 32, 4
_SIZES: dict[str, object] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": _HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "n_routed_experts": _EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": _INNER,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
Shapes = Mapping[str, tuple[int, ...]]
_LATENT: Mapping[str, object] = {"q_lora_rank": 32, "kv_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
                                 "v_head_dim": 24, "num_key_value_heads": 4}  # fmt: skip
_OF_LATENTS: Shapes = {
    "self_attn.q_a_proj": (32, _HIDDEN),
    "self_attn.q_a_layernorm": (32,),
    "self_attn.q_b_proj": (128, 32),
    "self_attn.kv_a_proj_with_mqa": (64, _HIDDEN),
    "self_attn.kv_a_layernorm": (48,),
    "self_attn.kv_b_proj": (160, 48),
    "self_attn.o_proj": (_HIDDEN, 96),
}
_OF_HEADS: Shapes = {
    "self_attn.q_proj": (64, _HIDDEN),
    "self_attn.k_proj": (32, _HIDDEN),
    "self_attn.v_proj": (32, _HIDDEN),
    "self_attn.o_proj": (_HIDDEN, 64),
    "self_attn.q_norm": (16,),
    "self_attn.k_norm": (16,),
}


def tiny_glm4_moe(folder: Path) -> Path:
    """GLM 4.5, whose head has copies of embedding and output matrix."""
    config = {"model_type": "glm4_moe", "num_key_value_heads": 2, "head_dim": 16, "use_qk_norm": True,
              "partial_rotary_factor": 0.5, "first_k_dense_replace": 1}  # fmt: skip
    return _written(folder, config, _OF_HEADS)


def tiny_deepseek_v3(folder: Path) -> Path:
    """DeepSeek V3, whose head has neither."""
    config = {**_LATENT, "model_type": "deepseek_v3", "first_k_dense_replace": 1}
    return _written(folder, config, _OF_LATENTS, copies=False)


def tiny_glm4_moe_lite(folder: Path) -> Path:
    """GLM 4.7 Flash, with experts by "mlp_layer_types", which does not list the head's layer."""
    config = {**_LATENT, "model_type": "glm4_moe_lite", "mlp_layer_types": ["dense", "sparse"]}
    return _written(folder, config, _OF_LATENTS)


def _written(folder: Path, config: Mapping[str, object], attention: Shapes, *, copies: bool = True) -> Path:
    random, shapes = np.random.default_rng(0), _shapes(attention)
    tensors: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32)
        ending = "" if name.endswith("_bias") else ".weight"
        scaled = values / np.float32(shape[-1] ** 0.5) if len(shape) > 1 else 1 + values / 10
        tensors[f"{name}{ending}"] = scaled
    if copies:
        tensors[f"model.layers.{LAYERS}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].copy()
        tensors[f"model.layers.{LAYERS}.shared_head.head.weight"] = tensors["lm_head.weight"].copy()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**_SIZES, "num_nextn_predict_layers": 1, **config}))
    write_tokenizer(folder, _VOCABULARY)
    return folder


def _shapes(attention: Shapes) -> dict[str, tuple[int, ...]]:
    """Of all tensors, by their names without ".weight"."""
    table = (_VOCABULARY, _HIDDEN)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": table, "model.norm": (_HIDDEN,), "lm_head": table}
    for index in range(LAYERS + 1):
        parts = {**attention, "input_layernorm": (_HIDDEN,), "post_attention_layernorm": (_HIDDEN,)}
        parts |= _gated("mlp", 96) if index == 0 else _experts()
        if index == LAYERS:
            parts |= dict.fromkeys(("enorm", "hnorm", "shared_head.norm"), (_HIDDEN,))
            parts["eh_proj"] = (_HIDDEN, 2 * _HIDDEN)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in parts.items()}
    return shapes


def _experts() -> dict[str, tuple[int, ...]]:
    parts: dict[str, tuple[int, ...]] = {"mlp.gate": (_EXPERTS, _HIDDEN), "mlp.gate.e_score_correction_bias": (4,)}
    for number in range(_EXPERTS):
        parts |= _gated(f"mlp.experts.{number}", _INNER)
    return parts | _gated("mlp.shared_experts", _INNER)


def _gated(place: str, inner: int) -> dict[str, tuple[int, ...]]:
    return {f"{place}.{part}_proj": (inner, _HIDDEN) for part in ("gate", "up")} | {
        f"{place}.down_proj": (_HIDDEN, inner)
    }

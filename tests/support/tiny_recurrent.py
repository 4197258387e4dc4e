"""Tiny random checkpoints of recurrent models, made without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.graph_variants import QMOE_FLOAT16
from tests.support.described import described_package
from tests.support.tiny import write_tokenizer

_SIZES: dict[str, object] = {
    "vocab_size": 307,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}
_BARE = ("A_log", "dt_bias", ".D")  # tensors that are no module's weight


def tiny_lfm2(folder: Path) -> Path:
    """LFM2: a layer with a convolution over three tokens, and one with attention."""
    config = {**_SIZES, "model_type": "lfm2", "layer_types": ["conv", "full_attention"], "conv_L_cache": 3,
              "block_auto_adjust_ff_dim": False}  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens": (307, 64),
        "embedding_norm": (64,),
        "layers.0.conv.in_proj": (192, 64),
        "layers.0.conv.conv": (64, 1, 3),
        "layers.0.conv.out_proj": (64, 64),
        "layers.1.self_attn.q_proj": (64, 64),
        "layers.1.self_attn.k_proj": (32, 64),
        "layers.1.self_attn.v_proj": (32, 64),
        "layers.1.self_attn.out_proj": (64, 64),
        "layers.1.self_attn.q_layernorm": (16,),
        "layers.1.self_attn.k_layernorm": (16,),
    }
    for index in range(2):
        mlp = {"w1": (96, 64), "w3": (96, 64), "w2": (64, 96)}
        shapes |= {f"layers.{index}.feed_forward.{name}": shape for name, shape in mlp.items()}
        shapes |= {f"layers.{index}.{name}": (64,) for name in ("operator_norm", "ffn_norm")}
    return _written(folder, config, shapes)


def tiny_qwen3_5(folder: Path) -> Path:
    """Qwen 3.5: a layer with a delta rule over two value heads for one key head, and one with attention."""
    config = {**_SIZES, "model_type": "qwen3_5_text", "layer_types": ["linear_attention", "full_attention"],
              "head_dim": 16, "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 16,
              "linear_value_head_dim": 24, "tie_word_embeddings": True}  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens": (307, 64),
        "norm": (64,),
        "layers.0.linear_attn.in_proj_qkv": (80, 64),
        "layers.0.linear_attn.in_proj_z": (48, 64),
        "layers.0.linear_attn.in_proj_a": (2, 64),
        "layers.0.linear_attn.in_proj_b": (2, 64),
        "layers.0.linear_attn.conv1d": (80, 1, 4),
        "layers.0.linear_attn.norm": (24,),
        "layers.0.linear_attn.out_proj": (64, 48),
        "layers.0.linear_attn.A_log": (2,),
        "layers.0.linear_attn.dt_bias": (2,),
        "layers.1.self_attn.q_proj": (128, 64),
        "layers.1.self_attn.k_proj": (32, 64),
        "layers.1.self_attn.v_proj": (32, 64),
        "layers.1.self_attn.o_proj": (64, 64),
        "layers.1.self_attn.q_norm": (16,),
        "layers.1.self_attn.k_norm": (16,),
    }
    for index in range(2):
        mlp = {"gate_proj": (96, 64), "up_proj": (96, 64), "down_proj": (64, 96)}
        shapes |= {f"layers.{index}.mlp.{name}": shape for name, shape in mlp.items()}
        shapes |= {f"layers.{index}.{name}": (64,) for name in ("input_layernorm", "post_attention_layernorm")}
    return _written(folder, config, shapes)


def tiny_falcon_h1(folder: Path) -> Path:
    """Falcon-H1: two layers with attention and a state space of four heads in two groups side by side."""
    config = {**_SIZES, "model_type": "falcon_h1", "mamba_d_ssm": 96, "mamba_n_heads": 4, "mamba_n_groups": 2,
              "mamba_d_state": 16, "mamba_conv_bias": False, "ssm_in_multiplier": 0.7, "attention_in_multiplier": 1.3,
              "mlp_multipliers": [0.8, 1.1]}  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (307, 64), "final_layernorm": (64,)}
    for index in range(2):
        parts: dict[str, tuple[int, ...]] = {
            "mamba.in_proj": (260, 64),
            "mamba.out_proj": (64, 96),
            "mamba.conv1d": (160, 1, 4),
            "mamba.A_log": (4,),
            "mamba.D": (4,),
            "mamba.dt_bias": (4,),
            "self_attn.q_proj": (64, 64),
            "self_attn.k_proj": (32, 64),
            "self_attn.v_proj": (32, 64),
            "self_attn.o_proj": (64, 64),
            "feed_forward.gate_proj": (96, 64),
            "feed_forward.up_proj": (96, 64),
            "feed_forward.down_proj": (64, 96),
            "input_layernorm": (64,),
            "pre_ff_layernorm": (64,),
        }
        shapes |= {f"layers.{index}.{name}": shape for name, shape in parts.items()}
    return _written(folder, {**config, "tie_word_embeddings": True}, shapes)


def tiny_hybrid_mixture(folder: Path, variant: str = QMOE_FLOAT16.name) -> Path:
    """A package of Qwen 3.5's mixtures: a delta rule in one of two layers, 2 of 4 experts and a shared one in both."""
    config = {**_SIZES, "model_type": "qwen3_5_moe_text", "layer_types": ["linear_attention", "full_attention"],
              "head_dim": 16, "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 16,
              "linear_value_head_dim": 24, "tie_word_embeddings": True, "num_experts": 4, "num_experts_per_tok": 2,
              "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
              "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6}  # fmt: skip
    return described_package(folder, describe(Config(config), None), Recipe(method="nearest"), variant=variant)


def tiny_granite_hybrid(folder: Path, variant: str, **config: object) -> Path:
    """A package of Granite 4.0's hybrids: a layer with Mamba-2 in place of attention, and one with attention."""
    return _described(folder, variant, model_type="granitemoehybrid", layer_types=["mamba", "attention"],
                      mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1, shared_intermediate_size=96,
                      num_local_experts=0, **config)  # fmt: skip


def tiny_olmo_hybrid(folder: Path, variant: str) -> Path:
    """A package of OLMo Hybrid: a delta rule with negative eigenvalues, and attention."""
    return _described(folder, variant, model_type="olmo_hybrid", layer_types=["linear_attention", "full_attention"],
                      linear_key_head_dim=16)  # fmt: skip


def tiny_nemotron_h(folder: Path, variant: str) -> Path:
    """A package of Nemotron-H: Mamba-2 of two groups, an MLP and attention, each a layer of its own."""
    return _described(folder, variant, model_type="nemotron_h", layers_block_type=["mamba", "mlp", "attention"],
                      num_hidden_layers=3, head_dim=16, mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=16,
                      n_groups=2)  # fmt: skip


def _described(folder: Path, variant: str, **config: object) -> Path:
    decoder = describe(Config(_SIZES | config), None)
    return described_package(folder, decoder, Recipe(method="nearest"), variant=variant)


def _written(folder: Path, config: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]) -> Path:
    """The folder of a checkpoint: norms near 1, other weights of the size that keeps values as large as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    tensors = {}
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32)
        ending = "" if name.endswith(_BARE) else ".weight"
        scaled = values / np.float32(shape[-1] ** 0.5) if len(shape) > 1 else 1 + values / 10
        tensors[f"model.{name}{ending}"] = scaled
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, 307)
    return folder

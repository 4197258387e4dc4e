"""A tiny checkpoint with multi-head latent attention (MLA)."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import save_file

from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from tests.support.described import RandomSource
from tests.support.tiny import write_tokenizer

CONFIG = {"model_type": "deepseek_v2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
          "first_k_dense_replace": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 307,
          "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "q_lora_rank": None,
          "kv_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 24, "hidden_act": "silu",
          "n_routed_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 64, "n_shared_experts": None,
          "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip


def mla_checkpoint(folder: Path) -> Path:
    """A random DeepSeek V2 without experts."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(RandomSource(describe(Config(CONFIG))).tensors, folder / "model.safetensors")
    write_tokenizer(folder, 307)
    return folder

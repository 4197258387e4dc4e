"""Nomic Embed's first checkpoints, whose config.json has GPT-2's keys."""

from __future__ import annotations

from typing import Any

import pytest

from embedllm.errors import UnsupportedModel
from embedllm.export.encoders import describe_encoder

# as of nomic-embed-text-v1.5, but smaller
FIRST: dict[str, Any] = {
    "model_type": "nomic_bert", "vocab_size": 30, "n_embd": 64, "n_head": 4, "n_inner": 96, "n_layer": 2,
    "n_positions": 8192, "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "max_trained_positions": 2048, "activation_function": "swiglu", "prenorm": False, "causal": False,
    "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "type_vocab_size": 2,
    "use_rms_norm": False,
}  # fmt: skip
NEW: dict[str, Any] = {
    "model_type": "nomic_bert", "vocab_size": 30, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96,
    "num_hidden_layers": 2, "max_position_embeddings": 8192, "layer_norm_eps": 1e-12, "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}, "type_vocab_size": 2,
}  # fmt: skip
_MOE = {"moe_every_n_layers": 2, "num_experts": 4, "moe_top_k": 2, "qkv_proj_bias": True, "mlp_fc1_bias": True,
        "mlp_fc2_bias": True, "activation_function": "gelu"}  # fmt: skip


def test_the_keys_of_gpt_2_say_the_same() -> None:
    assert describe_encoder(FIRST, None, "embed") == describe_encoder(NEW, None, "embed")


def test_texts_are_as_long_as_need_no_dynamic_scaling() -> None:
    assert describe_encoder({**FIRST, "rotary_scaling_factor": 2}, None, "embed").context == 2048


@pytest.mark.parametrize(("changes", "message"), [
    ({"moe_every_n_layers": 2}, "qkv_proj_bias is false"),
    ({**_MOE, "moe_normalize_expert_weights": True}, "moe_normalize_expert_weights is true"),
    ({**_MOE, "moe_top_k": 9}, "9 experts of a token; expected at most all 4 of a layer"),
    ({"qkv_proj_bias": True}, "qkv_proj_bias is true"),
    ({"prenorm": True}, "prenorm is true"),
    ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction is 0.5"),
    ({"activation_function": "gelu"}, "activation_function 'gelu'"),
])  # fmt: skip
def test_other_variants_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        describe_encoder({**FIRST, **changes}, None, "embed")

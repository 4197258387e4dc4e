"""A variant of a family that its file does not describe is refused by the key and the value that say so."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures import describe, families
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.rope import tables
from tests.support.tiny import tiny_config

KEYS = {"gpt2": "activation_function", "opt": "activation_function", "falcon": "activation"}
KEYS["nemotron_h"] = "mlp_hidden_act"
KEYS |= dict.fromkeys(
    (
        "gemma2",
        "gemma3_text",
        "gemma3",
        "vaultgemma",
        "gemma4",
        "gemma4_text",
        "gemma4_unified",
        "gemma4_unified_text",
        "gemma3n",
        "gemma3n_text",
    ),
    "hidden_activation",
)
OWN = {
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128},
    "opt": {"ffn_dim": 96},
    "exaone_moe": {"num_experts": 4, "num_experts_per_tok": 2},
    "solar_open": {"n_routed_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v2": {"num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "glm4_moe_lite": {"num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "minicpm3": {"num_key_value_heads": 4},
    "youtu": {"num_key_value_heads": 4},
    "hy_v3": {"num_experts": 4, "num_experts_per_tok": 2},
    "sarvam_mla": {"num_key_value_heads": 4, "n_routed_experts": 8},
    "gemma3n": {"num_kv_shared_layers": 0},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4": {"vocab_size_per_layer_input": 307},
    "gemma4_text": {"vocab_size_per_layer_input": 307},
    "lfm2_vl": {"full_attn_idxs": [1]},
    "lfm2_moe": {"num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2},
    "lfm3_vl": {"layer_types": ["conv", "full_attention"]},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": {"full_attention_interval": 2, "num_experts": 4, "num_experts_per_tok": 2},
    "qwen3_5_text": {"full_attention_interval": 2},
    "qwen3_5": {"full_attention_interval": 2},
    "qwen3_5_moe_text": {"full_attention_interval": 2, "num_experts": 4, "num_experts_per_tok": 2},
    "qwen3_5_moe": {"full_attention_interval": 2, "num_experts": 4, "num_experts_per_tok": 2},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "nemotron_h": {"layers_block_type": ["mamba", "mlp", "attention"]},
    "llama4": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}

VISION: dict[str, object] = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "image_size": 64}


def config(family: str, **overrides: object) -> dict[str, object]:
    """A tiny config.json: Llama's keys, which most families read."""
    values = {**tiny_config("llama"), "model_type": family, **OWN.get(family, {}), **overrides}
    values.pop("hidden_act") if "hidden_act" not in overrides else None
    if family == "mistral3":
        values["model_type"] = values.get("text_model", "ministral3")
    if family == "lfm2_vl":
        return {"model_type": family, "text_config": {**values, "model_type": "lfm2"}, "image_token_id": 300,
                "vision_config": {"num_hidden_layers": 1}}  # fmt: skip
    if family == "lfm3_vl":
        return {"model_type": family, "text_config": {**values, "model_type": "lfm3"}, "image_token_id": 300,
                "vision_config": {"num_hidden_layers": 3}}  # fmt: skip
    if family == "lighton_ocr":
        return {"model_type": family, "text_config": {**values, "model_type": "qwen3"}, "image_token_id": 300,
                "vision_config": {"num_hidden_layers": 1}}  # fmt: skip
    if family == "internvl":
        return {"model_type": family, "text_config": {**values, "model_type": "qwen2"}, "image_token_id": 300,
                "vision_config": {"num_hidden_layers": 1}}  # fmt: skip
    if family == "glm_ocr":
        return {"model_type": family, "text_config": {"rope_scaling": {"mrope_section": [2, 3, 3]}, **values},
                "vision_config": {"depth": 1, "out_hidden_size": 64}, "image_token_id": 300}  # fmt: skip
    if family == "paddleocr_vl":
        return {"model_type": family, "text_config": {"rope_scaling": {"mrope_section": [2, 3, 3]}, **values},
                "vision_config": {"num_hidden_layers": 1}, "image_token_id": 300}  # fmt: skip
    if family in ("idefics3", "smolvlm"):
        return {"model_type": family, "text_config": {**values, "model_type": "llama"}, "vision_config": VISION,
                "image_token_id": 300}  # fmt: skip
    sees = ("gemma3", "gemma3n", "gemma4", "gemma4_unified", "mistral3", "qwen3_5", "qwen3_5_moe")
    return values if family not in sees else {"model_type": family, "text_config": values}


def described(family: str, **overrides: object) -> Decoder:
    return describe(Config(config(family, **overrides)))


@pytest.mark.parametrize("family", families())
def test_what_a_config_leaves_out_has_a_default(family: str) -> None:
    decoder = described(family)
    assert decoder.model_type == family
    assert len(decoder.layers) == 2


@pytest.mark.parametrize("family", families())
def test_another_activation_is_refused(family: str) -> None:
    key = KEYS.get(family, "hidden_act")
    with pytest.raises(UnsupportedModel, match=f"{key} is 'quick_gelu'; the {family} description knows .*silu"):
        described(family, **{key: "quick_gelu"})


@pytest.mark.parametrize("family", families())
def test_a_decoder_that_attends_in_both_directions_is_refused(family: str) -> None:
    """transformers follows the key in any model; embedding models made of decoders have it."""
    with pytest.raises(UnsupportedModel, match="is_causal is false"):
        described(family, is_causal=False)


@pytest.mark.parametrize(
    ("family", "values", "says"),
    [
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        ("gemma3n_text", {"altup_correct_scale": False}, "altup_correct_scale is false"),
        ("gemma3n_text", {"altup_active_idx": 1}, "altup_active_idx is not 0"),
        ("gemma4_text", {"attention_bias": True}, "attention_bias is true"),
        ("gemma4_text", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
        ("iquestcoder", {"use_sliding_window": True}, "use_sliding_window is true"),
        ("iquestcoder", {"clip_qkv": 8}, "clip_qkv is 8; expected null"),
        ("lfm2", {"layer_types": ["conv", "sliding_attention"]}, "layer type 'sliding_attention' is not described"),
        ("lfm2", {"layer_types": ["conv", "conv"]}, "no layer has attention"),
        ("lfm3", {"layer_types": ["conv", "conv"]}, "no layer has attention"),
        ("lara_mini", {"layer_types": ["linear_attention"] * 2}, "no layer has attention"),
        ("olmo_hybrid", {"layer_types": ["linear_attention"] * 2}, "no layer has attention"),
        ("olmo_hybrid", {"layer_types": ["sliding_attention", "full_attention"]}, "layer type 'sliding_attention'"),
        ("olmo_hybrid", {"linear_num_value_heads": 6}, "6 value heads are no multiple of 4 key heads"),
        ("apertus1p5_text", {"output_vocab_size": 400}, "output_vocab_size is 400; .* at most the 307 tokens"),
        ("apertus1p5_text", {"output_vocab_size": 300, "tie_word_embeddings": True}, "expected a head of its own"),
        ("qwen3_next", {"full_attention_interval": 4}, "no layer has attention"),
        ("qwen3_next", {"layer_types": ["conv", "full_attention"]}, "layer type 'conv' is not described"),
        ("qwen3_5_text", {"linear_num_key_heads": 3}, "32 value heads are no multiple of 3 key heads"),
        ("falcon_h1", {"projectors_bias": True}, "projectors_bias is true"),
        ("falcon_h1", {"mamba_rms_norm": True}, "mamba_norm_before_gate is true"),
        ("falcon_h1", {"mamba_n_heads": 3}, "64 values in 3 heads"),
        (
            "nemotron_h",
            {"layers_block_type": ["mlp", "attention"]},
            "block 0 of the pattern '-\\*' is an mlp that does",
        ),
        ("nemotron_h", {"layers_block_type": ["mamba", "conv"]}, "layer type 'conv' is not described"),
        ("nemotron_h", {"layers_block_type": ["mamba", "moe", "attention"], "moe_latent_size": 32}, "moe_latent_size"),
        ("nemotron_h", {"layers_block_type": ["mamba", "mlp"]}, "no layer has attention"),
        ("granitemoe_swa", {"num_hidden_layers": 3, "layer_rope_theta": [2, 3, 4]}, "layer_rope_theta has 3 bases"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm is true"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm is true"),
        ("falcon", {"alibi": True}, "alibi is true"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is false"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is true"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is true"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before is false"),
        ("opt", {"word_embed_proj_dim": 32}, "word_embed_proj_dim is 32; expected hidden_size, 64"),
        ("olmo", {"clip_qkv": 8.0}, "clip_qkv is 8.0"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is 8.0"),
        ("mixtral", {"num_local_experts": 2, "num_experts_per_tok": 3}, "3 experts of a token; expected at most all 2"),
        ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok is 3; SparseMixer chooses 2 experts of a token"),
        ("phimoe", {"num_local_experts": 1}, "2 experts of a token; expected at most all 1"),
        ("phimoe", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "of a Phi-MoE is 'linear'; .*longrope"),
        ("phimoe", {"lm_head_bias": True, "tie_word_embeddings": True}, "a head with a bias that is tied"),
        ("ernie4_5_moe", {"use_bias": True, "tie_word_embeddings": True}, "a head with a bias that is tied"),
        ("ernie4_5_moe", {"moe_norm_min": 0.5}, "moe_norm_min is 0.5"),
        ("mistral3", {"text_model": "pixtral"}, "the text model is a 'pixtral'; the description knows mistral"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob is true"),
        ("deepseek_v2", {"v_head_dim": 256}, "v_head_dim is 256; expected at most the 192 values of a key"),
        ("deepseek_v3", {"n_group": 4, "topk_group": 1}, "2 experts of a token; expected at most the 1 of 1 groups"),
        ("minicpm3", {"num_key_value_heads": 1}, "num_key_value_heads is 1; expected num_attention_heads, 4"),
        ("dots1", {"n_group": 3}, "4 experts in 3 groups .'n_group'."),
        ("dots1", {"topk_group": 2}, "4 experts in 1 groups .*, of which 2 take part"),
        ("cohere2", {"layer_types": ["full_attention", "chunked_attention"]}, "layer type 'chunked_attention'"),
        ("cohere2_moe", {"rope_scaling": {"type": "yarn"}}, "'rope_scaling' is given, which transformers 5.24 leaves"),
        ("cohere2_moe", {"expert_selection_fn": "tanh"}, "expert_selection_fn is 'tanh'; expected softmax or sigmoid"),
        (
            "cohere2_moe",
            {"num_shared_experts": 1, "shared_expert_combination_strategy": "max"},
            "shared_expert_combination_strategy is 'max'; expected sum or average",
        ),
        ("afmoe", {"score_func": "softmax"}, "score_func is 'softmax'; expected sigmoid"),
        ("afmoe", {"route_norm": False}, "route_norm is false"),
        ("olmo3", {"rope_scaling": {"type": "ntk"}}, "rope type 'ntk' is not described"),
        ("stablelm", {"partial_rotary_factor": 0.2}, "partial_rotary_factor is 0.2"),
        ("gpt_neox", {"rotary_pct": 0.2}, "rotary_pct is 0.2"),
    ],
)
def test_a_variant_that_is_not_described_is_refused_by_its_key(
    family: str, values: dict[str, object], says: str
) -> None:
    with pytest.raises(UnsupportedModel, match=says):
        described(family, **values)


@pytest.mark.parametrize(
    ("family", "values", "says"),
    [
        ("smollm3", {"no_rope_layers": [1]}, "'no_rope_layers' has 1 entries; expected 2, one a layer"),
        ("smollm3", {"no_rope_layers": ["a"]}, "'no_rope_layers' is .*; expected a list of whole numbers"),
        (
            "gemma4_text",
            {"vocab_size_per_layer_input": 300},
            "'vocab_size_per_layer_input' is 300 and 'vocab_size' 307",
        ),
        ("gemma4_text", {"num_kv_shared_layers": 2}, "the last 2 of 2 layers read the keys .*'num_kv_shared_layers'"),
        (
            "gemma4_text",
            {"per_layer_config": {"1": {"num_key_value_heads": 3}}},
            "4 attention heads are no multiple of 3",
        ),
        ("gemma3n_text", {"activation_sparsity_pattern": [0.5, 1.0]}, "'activation_sparsity_pattern' is .0.5, 1.0."),
        ("gemma3n_text", {"intermediate_size": [96]}, "'intermediate_size' is .96.; expected 2 numbers >= 1"),
        ("gemma3n_text", {"intermediate_size": "x"}, "'intermediate_size' is 'x'; expected a whole number"),
        ("granite", {"logits_scaling": 0}, "'logits_scaling' is 0; expected a number > 0"),
        ("granite", {"attention_multiplier": 0.0}, "'attention_multiplier' is 0.0; expected a number > 0"),
        ("granite_swa", {"layer_rope_theta": [0]}, "'layer_rope_theta' is .0.; expected a list of 2 numbers"),
        ("granite_swa", {"layer_rope_theta": [0, 0.5]}, "'layer_rope_theta' has 0.5; expected 0, .*, or a number > 1"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "'attn_logit_softcapping' is -1.0; expected a number > 0"),
        ("gemma2", {"query_pre_attn_scalar": "x"}, "'query_pre_attn_scalar' is 'x'; expected a number > 0"),
        ("hunyuan_v1_dense", {"rope_scaling": {"alpha": 0}}, "'alpha' is 0; expected a number > 0"),
        ("qwen3_moe", {"mlp_only_layers": 1}, "'mlp_only_layers' is 1; expected a list of whole numbers"),
        ("hunyuan_v1_moe", {"moe_topk": [1]}, "'moe_topk' is .1.; expected a whole number >= 1, or a list of 2"),
        ("exaone_moe", {"mlp_layer_types": ["dense"]}, "'mlp_layer_types' has 1 entries; expected 2, one a layer"),
        ("phimoe", {"router_jitter_noise": 0}, "'router_jitter_noise' is 0; expected a number > 0"),
        (
            "phimoe",
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}},
            "rope_scaling has no 'short_mscale'",
        ),
        ("gpt2", {"n_embd": 0}, r"^config\.json: 'n_embd' is 0; expected a whole number >= 1"),
        ("gpt2", {"n_layer": None}, r"^config\.json has no 'n_layer'"),
        ("gemma3", {"hidden_size": None}, r"^config\.json: text_config has no 'hidden_size'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(family: str, values: dict[str, object], says: str) -> None:
    with pytest.raises(ExportError, match=says):
        described(family, **values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"vision_config": {"model_type": "siglip"}}, "the vision encoder is a 'siglip'; .*knows pixtral"),
        ({"vision_config": {"num_channels": 1}}, "num_channels is 1 in vision_config; expected 3"),
        ({"vision_config": {"hidden_size": 96}}, "heads of the vision encoder have 6 values; expected a multiple of 4"),
        ({"vision_config": {"hidden_act": "tanh"}}, "hidden_act is 'tanh'"),
        ({"vision_feature_layer": -2}, "vision_feature_layer is -2; expected -1"),
        ({"vision_feature_layer": [3, -1]}, r"vision_feature_layer is \[3, -1\]; expected -1"),
        ({"projector_hidden_act": "relu"}, "projector_hidden_act is 'relu'; expected gelu"),
        ({"image_token_index": 307}, "image_token_index is 307; expected a token of the model, 0 to 306"),
    ],
)
def test_a_vision_encoder_that_is_not_pixtral_s_is_refused(values: dict[str, object], says: str) -> None:
    whole = {**config("mistral3"), "image_token_index": 300, "vision_config": {"model_type": "pixtral"}}
    assert describe(Config(whole)).vision is not None
    with pytest.raises(ExportError, match=says):
        describe(Config({**whole, **values}))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"text_config": None}, "has no 'text_config'"),
        ({"vision_config": None}, "has no 'vision_config'"),
        ({"text_config": {"model_type": "llama"}}, "the text model is a 'llama'; the description knows lfm2"),
        ({"vision_config": {"model_type": "siglip"}}, "the vision encoder is a 'siglip'; .*siglip2_vision_model"),
        ({"vision_config": {"num_channels": 1}}, "num_channels is 1 in vision_config; expected 3"),
        ({"vision_config": {"num_patches": 255}}, "num_patches is 255; expected a square number"),
        ({"vision_config": {"hidden_act": "tanh"}}, "hidden_act is 'tanh'"),
        ({"vision_feature_layer": -2}, "vision_feature_layer is -2; expected -1"),
        ({"projector_hidden_act": "silu"}, "projector_hidden_act is 'silu'; expected gelu"),
        ({"image_token_id": 307}, "image_token_id is 307; expected a token of the model, 0 to 306"),
    ],
)
def test_an_lfm2_vl_of_other_parts_is_refused(values: dict[str, object], says: str) -> None:
    whole = config("lfm2_vl")
    assert describe(Config(whole)).vision is not None
    with pytest.raises(ExportError, match=says):
        describe(Config({**whole, **values}))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"text_config": None}, "has no 'text_config'"),
        ({"vision_config": None}, "has no 'vision_config'"),
        (
            {"text_config": {"model_type": "internlm2"}},
            "is a 'internlm2'; .*knows qwen2, qwen3, qwen3_moe, llama, gpt_o",
        ),
        ({"vision_config": {"model_type": "siglip"}}, "the vision encoder is a 'siglip'; .*knows internvl_vision"),
        ({"vision_config": {"num_channels": 1}}, "num_channels is 1 in vision_config; expected 3"),
        ({"vision_config": {"use_absolute_position_embeddings": False}}, "use_absolute_position_embeddings is false"),
        ({"vision_config": {"norm_type": "batch"}}, "norm_type is 'batch' .*expected layer_norm or rms_norm"),
        ({"vision_config": {"hidden_act": "tanh"}}, "hidden_act is 'tanh'"),
        (
            {"vision_config": {"image_size": [448, 224]}},
            r"image_size is \[448, 224\] in vision_config; expected a square",
        ),
        ({"vision_config": {"image_size": [448]}}, r"image_size is \[448\] in vision_config; expected a square"),
        ({"vision_config": {"image_size": [0, 0]}}, "'image_size' is 0; expected a whole number >= 1"),
        ({"vision_config": {"patch_size": [14, 16]}}, r"patch_size is \[14, 16\] in vision_config; expected a square"),
        ({"vision_config": {"image_size": 434}}, "image_size is 434 in vision_config; expected a multiple of 28"),
        ({"downsample_ratio": 0.3}, "downsample_ratio is 0.3; expected 1 divided by a whole number"),
        ({"downsample_ratio": 2.0}, "downsample_ratio is 2; expected 1 divided by a whole number"),
        ({"vision_feature_layer": -2}, "vision_feature_layer is -2; expected -1"),
        ({"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy is 'full'; expected 'default'"),
        ({"projector_hidden_act": "silu"}, "projector_hidden_act is 'silu'; expected gelu"),
        ({"image_token_id": 307}, "image_token_id is 307; expected a token of the model, 0 to 306"),
    ],
)
def test_an_internvl_of_other_parts_is_refused(values: dict[str, object], says: str) -> None:
    whole = config("internvl")
    assert describe(Config(whole)).vision is not None
    with pytest.raises(ExportError, match=says):
        describe(Config({**whole, **values}))


def test_an_idefics3_of_another_text_model_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="the text model is a 'mistral'; the description knows llama, granite"):
        describe(Config({**config("idefics3"), "text_config": {"model_type": "mistral"}}))


def test_a_lighton_ocr_under_its_first_model_type_is_described() -> None:
    """As LightOnOCR-2 was published."""
    whole = config("lighton_ocr")
    assert describe(Config({**whole, "model_type": "mistral3"})) == describe(Config(whole))


def test_an_lfm3_vl_of_another_text_model_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="the text model is a 'lfm2'; the description knows lfm3"):
        describe(Config({**config("lfm3_vl"), "text_config": {"model_type": "lfm2"}}))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model_type": "siglip2_vision_model"}, "the vision encoder is a 'siglip2_vision_model'; .*lfm3_vl_vision"),
        ({"in_channels": 1}, "in_channels is 1 in vision_config; expected 3"),
        ({"conv_kernel_size": 4}, "conv_kernel_size is 4 in vision_config; expected an odd number"),
        ({"hidden_size": 96}, "heads of the vision encoder have 6 values; expected a multiple of 4"),
        ({"layer_types": ["conv"] * 3}, "no layer of the vision encoder has attention"),
    ],
)
def test_an_lfm3_vl_of_another_vision_encoder_is_refused(values: dict[str, object], says: str) -> None:
    whole = config("lfm3_vl")
    assert describe(Config(whole)).vision is not None
    with pytest.raises(UnsupportedModel, match=says):
        describe(Config({**whole, "vision_config": {"num_hidden_layers": 3, **values}}))


@pytest.mark.parametrize(
    ("family", "values", "says"),
    [
        ("glm_ocr", {"out_hidden_size": 32}, "out_hidden_size is 32 in vision_config; expected 64"),
        ("glm_ocr", {"hidden_act": "gelu"}, "hidden_act is 'gelu' in vision_config; expected silu"),
        ("glm_ocr", {"num_heads": 512}, "heads of the vision encoder have 2 values; expected a multiple of 4"),
        ("paddleocr_vl", {"num_channels": 1}, "num_channels is 1 in vision_config; expected 3"),
        (
            "paddleocr_vl",
            {"num_attention_heads": 576},
            "heads of the vision encoder have 2 values; expected a multiple",
        ),
    ],
)
def test_another_vision_encoder_of_an_ocr_model_is_refused(family: str, values: dict[str, object], says: str) -> None:
    whole = config(family)
    vision = whole["vision_config"]
    assert isinstance(vision, dict)
    with pytest.raises(UnsupportedModel, match=says):
        describe(Config({**whole, "vision_config": {**vision, **values}}))


@pytest.mark.parametrize(
    "family", ["gemma3", "gemma3n", "gemma4", "gemma4_unified", "glm_ocr", "internvl", "lfm3_vl", "mistral3"]
)
def test_a_family_that_sees_without_a_text_model_is_refused(family: str) -> None:
    with pytest.raises(ExportError, match="has no 'text_config'"):
        describe(Config({"model_type": family}))


@pytest.mark.parametrize(
    ("family", "epsilon"), [("idefics3", 1e-6), ("smolvlm", 1e-6), ("qwen2_vl", 1e-5), ("qwen2_5_vl", 1e-5)]
)
def test_an_epsilon_that_a_config_leaves_out_is_that_of_transformers(family: str, epsilon: float) -> None:
    """Of Idefics 3 not that of a config without 'text_config'."""
    values = config(family)
    text = values.get("text_config", values)
    assert isinstance(text, dict)
    text.pop("rms_norm_eps", None)
    assert describe(Config(values)).norm.epsilon == epsilon


def test_a_rotation_that_an_apertus_leaves_out_is_transformers_default() -> None:
    """Saved configs leave out what is the default; a base beside it is followed."""
    given = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 8192}  # fmt: skip
    assert described("apertus").rope == described("apertus", rope_scaling=given).rope
    assert described("apertus").rope.scaling is not None
    assert described("apertus", rope_parameters={"rope_type": "default"}).rope.scaling is None


@pytest.mark.parametrize(
    ("values", "has_rope"),
    [
        ({"rope_theta": None}, False),
        ({"rope_parameters": {"rope_theta": None}}, False),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}}, True),
        ({"rope_parameters": None}, True),
        ({}, True),
    ],
)
def test_an_olmo_hybrid_has_rope_unless_its_base_is_null(values: dict[str, object], has_rope: bool) -> None:
    """As transformers reads it: what is left out is 10,000."""
    (attention,) = described("olmo_hybrid", **values).attentions
    assert (attention.rope == 0) == has_rope


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("family", ["gemma3", "gemma3n", "gemma4", "mistral3", "qwen3_5", "qwen3_5_moe", "smolvlm"])
def test_a_head_is_tied_as_the_whole_config_says(family: str, whole: bool) -> None:
    """What 'text_config' says counts only where the whole one says nothing, as in transformers."""
    values = config(family, tie_word_embeddings=not whole)
    assert describe(Config({**values, "tie_word_embeddings": whole})).tied == whole
    assert describe(Config(values)).tied != whole


def test_rotations_of_their_own_are_kept_apart() -> None:
    """A factor for long texts is not one for windows."""
    decoder = described("gemma3_text", rope_scaling={"type": "linear", "factor": 8.0}, rope_local_base_freq=1e4)
    assert decoder.rope.scaling is not None
    assert decoder.local_rope is not None
    assert decoder.local_rope.scaling is None
    assert [attention.rope for attention in decoder.attentions] == [1, 1]
    assert described("olmo3").local_rope is None  # they are alike


NAMES = ["hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window", "layer_types",
         "rope_scaling", "rope_parameters", "partial_rotary_factor", "rotary_pct", "num_experts", "num_local_experts",
         "num_experts_per_tok", "no_rope_layers", "mlp_only_layers", "logits_scaling", "logit_scale", "n_embd",
         "query_pre_attn_scalar", "use_sliding_window", "sliding_window_pattern", "new_decoder_architecture",
         "multi_query", "num_kv_heads", "num_kv_shared_layers", "per_layer_config", "global_head_dim",
         "scale_emb", "scale_depth", "dim_model_base", "n_group"]  # fmt: skip
JUNK = st.one_of(
    st.none(), st.booleans(), st.floats(1e-3, 1e6), st.lists(st.integers(0, 2), max_size=2),
    st.sampled_from((0, 1, 2, 3, 16, 64, -1, 1e300, math.nan, "silu", "full_attention")),
    st.dictionaries(st.sampled_from(("alpha", "type", "factor", "full_attention", "rope_theta")),
                    st.sampled_from((2.0, 0, "linear", {"rope_theta": 5.0}, None)), max_size=3),
)  # fmt: skip


@given(st.sampled_from(families()), st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=3))
def test_any_config_is_described_or_refused(family: str, changes: dict[str, object]) -> None:
    """An ExportError or a decoder whose tables can be computed, no other error."""
    try:
        decoder = described(family, **changes)
    except ExportError:
        return
    assert all(len(tables(rope, 4)[0]) == 4 for rope in decoder.ropes)


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_a_context_beyond_the_learned_positions_is_refused(family: str) -> None:
    read = Config(config(family))
    longest = describe(read).context
    decoder = describe(read, longest)
    assert decoder.position_embeddings is not None
    assert decoder.position_embeddings.rows == decoder.context == longest
    with pytest.raises(ExportError, match=f"context is {longest + 1} tokens; expected 1 to {longest}"):
        describe(read, longest + 1)

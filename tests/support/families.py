"""Every family as a tiny model of transformers' own config class, and what its configuration is there to prove."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedllm.package.tensors import CLIPS
from tests.support.tiny import write_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Tensors = dict[str, np.ndarray]
Rearranged = Callable[[Tensors, dict[str, Any]], tuple[Tensors, dict[str, Any]]]
WINDOW = 8  # of those that have one: shorter than the prompts


@dataclass(frozen=True, kw_only=True)
class Case:
    """A tiny model."""

    family: str  # its model_type here
    config_class: str  # in transformers
    verified: str  # what of the family the case has in it, in a few words
    values: Mapping[str, object] = field(default_factory=dict)  # of the configuration, in place of those of BASE
    # for what transformers lacks: its tensors and config.json as the family's own checkpoints have them
    rearranged: Rearranged | None = None


BASE: dict[str, Any] = {
    "vocab_size": 307,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,  # so that every term moves the logits
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make_checkpoint(folder: Path, case: Case, *, seed: int = 0) -> PreTrainedModel:
    """Writes a case's checkpoint; returns transformers' model of it, on float32.

    Norms and biases that begin as ones or zeros are moved from there, or a fault in them would not be seen.
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    values = {key: value for key, value in {**BASE, **case.values}.items() if value is not ...}
    config = getattr(transformers, case.config_class)(**values, attn_implementation="eager")
    decoders, others = transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText
    sees = type(config) in others._model_mapping and getattr(config, "vision_config", None) is not None
    auto = others if sees or type(config) not in decoders._model_mapping else decoders
    model = auto.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() == 1 or parameter.std() == 0:
                parameter += 0.3 * torch.randn(parameter.shape)
            parameter.copy_(parameter.bfloat16())  # as published ones are: float16 holds such a weight exactly
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer += 0.3 * torch.randn(buffer.shape)
            elif name.endswith(("std_bias", "std_scale", *CLIPS)):
                low, high = (-1.3, -0.7) if name.endswith("_min") else (0.7, 1.3)
                buffer.uniform_(low, high)
    model.save_pretrained(folder)
    if case.rearranged is not None:
        _rearrange(folder, case.rearranged)
    write_tokenizer(folder, 307)
    # its forward() fails for texts too (transformers 5.24): test_llama4.py tells when to remove this
    return model.language_model if case.family == "llama4" else model


def _rearrange(folder: Path, change: Rearranged) -> None:
    import json

    from safetensors.numpy import load_file, save_file

    path = folder / "config.json"
    tensors, config = change(load_file(folder / "model.safetensors"), json.loads(path.read_text()))
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, folder / "model.safetensors")
    path.write_text(json.dumps(config))


WINDOWED = {"sliding_window": WINDOW}
GRANITE = {"embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.3, "logits_scaling": 2.0}
GRANITE_HYBRID = {**GRANITE, "num_hidden_layers": 3, "head_dim": ..., "shared_intermediate_size": 48,
                  "layer_types": ["linear_attention", "full_attention", "linear_attention"], "mamba_n_heads": 4,
                  "mamba_d_state": 24, "mamba_d_conv": 3, "mamba_chunk_size": 8}  # fmt: skip
# multipliers are powers of two, so that float16 holds a weight's product with them exactly
FALCON_H1 = {"mamba_d_ssm": 96, "mamba_n_heads": 4, "mamba_d_head": 24, "mamba_d_state": 16, "mamba_chunk_size": 8,
             "embedding_multiplier": 2.0, "lm_head_multiplier": 0.5, "attention_in_multiplier": 0.5,
             "attention_out_multiplier": 2.0, "key_multiplier": 0.25, "mlp_multipliers": [2.0, 0.5],
             "ssm_in_multiplier": 0.5, "ssm_out_multiplier": 0.25,
             "ssm_multipliers": [0.5, 1.0, 4.0, 8.0, 0.25]}  # fmt: skip
ROPE_KINDS = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.3, 1.6],
    "long_factor": [1.2, 1.9, 3.0, 4.5],
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
OLMO3_ROPE = {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


COHERE2_MOE = {"num_experts": 4, "logit_scale": 0.5, **WINDOWED}
GROUPED_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
"n_shared_experts": 2,
             "moe_intermediate_size": 32, "routed_scaling_factor": 1.7}  # fmt: skip
# time_step_min: the least step of transformers' prefill, but not of its decoding; so small that it has no effect
NEMOTRON_H = {"num_hidden_layers": ..., "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 24,
              "n_groups": 2, "conv_kernel": 3, "chunk_size": 8, "time_step_min": 1e-12}  # fmt: skip
MLA = {"q_lora_rank": 32, "kv_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 24,
          "num_key_value_heads": 4}  # fmt: skip
LONG_ROPE_8 = {**LONG_ROPE, "partial_rotary_factor": 1.0, "short_factor": [1.0 + 0.1 * n for n in range(8)],
               "long_factor": [1.0 + 0.4 * n for n in range(8)]}  # fmt: skip
ATTENTION_TEMPERATURE = {**YARN, "original_max_position_embeddings": 12, "mscale": 1.0, "mscale_all_dim": 1.0,
           "llama_4_scaling_beta": 0.7}  # fmt: skip
YARN_SCORES = {**YARN, "mscale": 0.8, "mscale_all_dim": 1.1}
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "head_dim", "max_position_embeddings")  # fmt: skip
GEMMA3 = {**BASE, **WINDOWED, "sliding_window_pattern": 2, "rope_parameters": ROPE_KINDS, "query_pre_attn_scalar": 24}
GEMMA4 = {"num_hidden_layers": 6, "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2, **WINDOWED,
          "global_head_dim": 32, "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 307}  # fmt: skip
GEMMA4_UNIFIED = {key: value for key, value in GEMMA4.items() if not key.endswith("_per_layer_input")}
GEMMA3N = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, **WINDOWED,
           "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 290,
           "activation_sparsity_pattern": [0.8, 0.0, 0.9, 0.0], "laurel_rank": 16,
           "intermediate_size": [96, 64, 96, 128]}  # fmt: skip
LLAMA4 = {"intermediate_size": 48, "intermediate_size_mlp": 112, "num_local_experts": 4,
          "interleave_moe_layer_step": 2, "no_rope_layers": [1, 0], "attention_chunk_size": WINDOW, "floor_scale": 5,
          "attn_scale": 0.7, "rms_norm_eps": 0.03,
          "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                              "high_freq_factor": 1.0, "original_max_position_embeddings": 32}}  # fmt: skip
KEYS_AS_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0}
MROPE = {"rope_type": "default", "rope_theta": 2e4, "mrope_section": [2, 3, 3]}
# heads of 24 values; a square of 2 times 2 patches is 8 pixels a side, a window of 2 times 2 squares 16
QWEN_TOKENS = {"image_token_id": 300, "vision_start_token_id": 301, "vision_end_token_id": 302,
               "tie_word_embeddings": False}  # fmt: skip
QWEN2_VISION = {"depth": 3, "embed_dim": 48, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 2, "patch_size": 4,
                "initializer_range": 0.2}  # fmt: skip
QWEN2_5_VISION = {"depth": 3, "hidden_size": 48, "intermediate_size": 80, "num_heads": 2, "out_hidden_size": 64,
                  "patch_size": 4, "initializer_range": 0.2, "window_size": 16,
                  "fullatt_block_indexes": [1]}  # fmt: skip
QWEN3_VISION = {"depth": 3, "hidden_size": 48, "intermediate_size": 80, "num_heads": 2, "out_hidden_size": 64,
                "patch_size": 4, "initializer_range": 0.2, "num_position_embeddings": 25,
                "deepstack_visual_indexes": [0, 1]}  # fmt: skip
PIXTRAL_VISION = {"model_type": "pixtral", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
                  "num_attention_heads": 2, "image_size": 64, "patch_size": 4, "hidden_act": "silu",
                  "initializer_range": 0.2}  # fmt: skip
PIXTRAL_TOKENS = {"image_token_index": 300, "spatial_merge_size": 2, "tie_word_embeddings": False}
SIGLIP2_VISION = {"model_type": "siglip2_vision_model", "hidden_size": 48, "intermediate_size": 80,
                  "num_hidden_layers": 3, "num_attention_heads": 3, "patch_size": 4, "num_patches": 25,
                  "vision_use_head": False}  # fmt: skip
PADDLE_VISION = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "patch_size": 4, "image_size": 20, "initializer_range": 0.2}  # fmt: skip
GLM_OCR_VISION = {"depth": 2, "hidden_size": 48, "intermediate_size": 80, "num_heads": 2, "out_hidden_size": 64,
                  "patch_size": 4, "initializer_range": 0.2}  # fmt: skip
LFM2_TEXT = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 32}
LFM3_VISION = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "patch_size": 4,
}  # two convolutions, attention, a convolution
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
        "image_size": 16, "patch_size": 8}  # fmt: skip
SIGLIP = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 3,
          "image_size": 32, "patch_size": 4, "initializer_range": 0.2}  # fmt: skip
GEMMA4_VISION = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 3,
                 "num_key_value_heads": 3, "head_dim": 16, "patch_size": 4, "pooling_kernel_size": 2,
                 "position_embedding_size": 24, "initializer_range": 0.2, "rms_norm_eps": 1e-3}  # fmt: skip
GEMMA4_UNIFIED_VISION = {"patch_size": 4, "pooling_kernel_size": 2, "mm_embed_dim": 48, "mm_posemb_size": 12,
                         "output_proj_dims": 48, "initializer_range": 0.2, "rms_norm_eps": 1e-3}  # fmt: skip
GEMMA4_TOKENS = {
    "image_token_id": 300,
    "video_token_id": 400,
    "audio_token_id": 401,
    "audio_config": None,
}  # beyond the vocabulary: no reply has them
# 8 patches a side, of which 2 times 2 become one: 16 rows of a tile
INTERNVIT = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 3,
             "image_size": [32, 32], "patch_size": 4, "initializer_range": 0.2, "attention_bias": True}  # fmt: skip
INTERNVL = {"vision_config": INTERNVIT, "image_token_id": 300}
SMOLVLM = {"text_config": {**BASE, "model_type": "llama"}, "vision_config": SIGLIP, "scale_factor": 2,
           "image_token_id": 300, "tie_word_embeddings": False}  # fmt: skip
FALCON = {"ffn_hidden_size": 96, "intermediate_size": ..., "head_dim": ..., "num_key_value_heads": ...}


def as_internlm2(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """A Llama's tensors under InternLM2's names: of each key head its queries, its key, its value, in one matrix."""
    names = {"embed_tokens": "tok_embeddings", "lm_head": "output", "self_attn.o_proj": "attention.wo",
             "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
             "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}  # fmt: skip
    heads, size = config["num_key_value_heads"], config["head_dim"]
    found: Tensors = {}
    for name, value in tensors.items():
        if ".q_proj." in name:
            parts = (tensors[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj"))
            split = [part.reshape(heads, -1, *part.shape[1:]) for part in parts]
            fused = np.concatenate(split, axis=1).reshape(-1, *value.shape[1:])
            found[name.replace("self_attn.q_proj", "attention.wqkv")] = fused
        elif ".k_proj." not in name and ".v_proj." not in name:
            for theirs, ours in names.items():
                name = name.replace(theirs, ours)
            found[name] = value
    assert size * (config["num_attention_heads"] + 2 * heads) == len(found["model.layers.0.attention.wqkv.bias"])
    return found, {**config, "model_type": "internlm2", "bias": True}


def with_keys(keys: Mapping[str, str], **values: object) -> Rearranged:
    """config.json as a family's own checkpoints have it. keys: {transformers' key: theirs}."""
    return lambda tensors, config: (tensors, {**{keys.get(key, key): config[key] for key in config}, **values})


def as_minicpm(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """A Granite's tensors, and its multipliers as MiniCPM's config.json has them."""
    kept = {key: value for key, value in config.items() if not key.endswith(("_multiplier", "_scaling"))}
    own = {"model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}
    return tensors, {**kept, **own}


def as_base_model(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """The tensors as they are named where a model is saved without its head."""
    return {name.removeprefix("model."): value for name, value in tensors.items()}, config


def as_first_qwen_vl(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """As published: what config.json says of the text model is beside all else."""
    text = {key: value for key, value in config["text_config"].items() if key not in ("rope_parameters", "model_type")}
    scaling = {"type": "mrope", "mrope_section": MROPE["mrope_section"]}
    return tensors, {**config, **text, "text_config": None, "rope_theta": MROPE["rope_theta"], "rope_scaling": scaling}


def as_published_experts(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Rows and columns of experts exchanged, which transformers accepts and does not write."""
    return {name: value.swapaxes(1, 2) if ".experts." in name else value for name, value in tensors.items()}, config


def with_stacked_experts(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Experts as Qwen 3.5's own checkpoints have them: all gates and ups of a layer in one tensor, all downs in one."""
    found = {name: value for name, value in tensors.items() if ".experts." not in name}
    for place in sorted({name.partition(".experts.")[0] for name in tensors if ".experts." in name}):
        count = sum(name.startswith(f"{place}.experts.") for name in tensors) // 3
        parts = {part: [tensors[f"{place}.experts.{number}.{part}_proj.weight"] for number in range(count)]
                 for part in ("gate", "up", "down")}  # fmt: skip
        together = [np.concatenate(each) for each in zip(parts["gate"], parts["up"], strict=True)]
        found[f"{place}.experts.gate_up_proj"] = np.stack(together)
        found[f"{place}.experts.down_proj"] = np.stack(parts["down"])
    return found, config


def as_published_olmo_hybrid(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Convolutions of queries, keys and values by their sizes, and post-norms by OLMo 2's names."""
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    found = dict(tensors)
    for index, kind in enumerate(config["layer_types"]):
        place = f"model.layers.{index}"
        if kind == "full_attention":
            post_norm = found.pop(f"{place}.feedforward_layer_norm.weight")
            found[f"{place}.post_attention_layernorm.weight"] = post_norm
            continue
        names = [f"{place}.linear_attn.{part}_conv1d.weight" for part in "qkv"]
        parts = np.split(np.concatenate([tensors[name] for name in names]), [keys, 2 * keys])
        found.update(zip(names, parts, strict=True))
    return found, config


def as_part_of(model_type: str) -> Rearranged:
    """A text model in its place in a multimodal checkpoint."""

    def change(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
        named = {name.replace("model.", "model.language_model.", 1): value for name, value in tensors.items()}
        return named, {"model_type": model_type, "eos_token_id": config["eos_token_id"], "text_config": config}

    return change


def case(family: str, config_class: str, verified: str, **values: object) -> Case:
    return Case(family=family, config_class=config_class, verified=verified, values=values)


# a layer with attention between two with Gated DeltaNet, of two value heads for a key head
DELTA: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
QWEN3_5: dict[str, Any] = {**BASE, **DELTA}
QWEN_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
                "shared_expert_intermediate_size": 32}  # fmt: skip
QWEN3_5_VISION = {key: value for key, value in QWEN3_VISION.items() if key != "deepstack_visual_indexes"}
QWEN3_5_HEADS = {
    "head_dim": 32,
    "rope_parameters": {**MROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25},
}
FAMILIES: dict[str, Case] = {
    "llama": case("llama", "LlamaConfig", "biases, untied head", attention_bias=True, mlp_bias=True),
    "mistral": case("mistral", "MistralConfig", "window", **WINDOWED),
    "qwen2": case("qwen2", "Qwen2Config", "biases, window on the later layers", use_sliding_window=True,
                  max_window_layers=1, head_dim=..., **WINDOWED),
    "qwen3": case("qwen3", "Qwen3Config", "q and k norms"),
    "qwen3 base": Case(family="qwen3", config_class="Qwen3Config", rearranged=as_base_model,
                       verified="a checkpoint without the name prefix 'model.', as Qwen3-Embedding's",
                       values={"tie_word_embeddings": True}),
    "gemma": case("gemma", "GemmaConfig", "norms, scaled embeddings, tied head"),
    "smolvlm": case("smolvlm", "SmolVLMConfig", "decoder, vision encoder, projector; several images", **SMOLVLM),
    "idefics3": case("idefics3", "Idefics3Config", "decoder, vision encoder, projector; several images", **SMOLVLM),
    "idefics3 granite": case("idefics3", "Idefics3Config", "and Granite's multipliers",
                             **{**SMOLVLM, "text_config": {**BASE, **GRANITE, "model_type": "granite"}}),
    "internvl": case("internvl", "InternVLConfig", "vision encoder, projector; several images; Qwen 3, untied head",
                     text_config={**BASE, "model_type": "qwen3"}, tie_word_embeddings=False, **INTERNVL),
    # as of 38B and 241B
    "internvl 6B": case("internvl", "InternVLConfig", "RMS norms, q and k norms over all heads; a norm behind the "
                        "encoder; Qwen 3 with a mixture, tied head",
                        text_config={**BASE, **EXPERTS, "model_type": "qwen3_moe", "norm_topk_prob": True},
                        image_token_id=300,
                        vision_config={**INTERNVIT, "attention_bias": False, "norm_type": "rms_norm",
                                       "use_qk_norm": True, "use_mean_pooling": False}),
    "internvl qwen2": case("internvl", "InternVLConfig", "Qwen 2, dynamic RoPE scaling",
                           text_config={**BASE, "model_type": "qwen2", "rope_parameters": {
                               "rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6}}, **INTERNVL),
    "internvl gpt_oss": case("internvl", "InternVLConfig", "gpt-oss", tie_word_embeddings=False,
                             text_config={**BASE, "model_type": "gpt_oss", "num_local_experts": 4,
                                          "num_experts_per_tok": 2, "swiglu_limit": 2.0, "rope_parameters": {
                                              **YARN, "truncate": False}, **WINDOWED}, **INTERNVL),
    "gemma2": case("gemma2", "Gemma2Config", "window on one of two layers, both soft caps", attn_logit_softcapping=5.0,
                   final_logit_softcapping=4.0, query_pre_attn_scalar=24, **WINDOWED),
    "gemma3_text": case("gemma3_text", "Gemma3TextConfig", "window, two RoPE bases", sliding_window_pattern=2,
                        rope_parameters=ROPE_KINDS, query_pre_attn_scalar=24, **WINDOWED),
    "phi3": case("phi3", "Phi3Config", "fused QKV, fused gate and up, window", **WINDOWED),
    "phi3 longrope": case("phi3", "Phi3Config", "LongRoPE, partial rotary embedding (50%)", rope_parameters=LONG_ROPE,
                          original_max_position_embeddings=64),
    "phi3 yarn": case("phi3", "Phi3Config", "LongRoPE under the name of its first configs",
                      rope_parameters={**LONG_ROPE, "rope_type": "yarn"}, original_max_position_embeddings=64),
    # the noise is large, so that other experts' logits count; a head of another size, as of mini and tiny
    "phimoe": case("phimoe", "PhimoeConfig", "2 of 4 experts by SparseMixer, layer norms, biases, LongRoPE with "
                   "factors of its own, window", num_local_experts=4, router_jitter_noise=0.25, attention_bias=True,
                   lm_head_bias=True, head_dim=32, original_max_position_embeddings=64, rope_parameters={
                       **LONG_ROPE, "partial_rotary_factor": 1.0, "short_mscale": 1.3, "long_mscale": 1.6,
                       "short_factor": [1.0 + 0.1 * n for n in range(16)],
                       "long_factor": [1.0 + 0.4 * n for n in range(16)]}, **WINDOWED),
    "phimoe plain": case("phimoe", "PhimoeConfig", "no biases, tied head", num_local_experts=8,
                         tie_word_embeddings=True),
    "phi": case("phi", "PhiConfig", "parallel blocks, biases, partial rotary embedding (50%)", head_dim=...),
    "mixtral": case("mixtral", "MixtralConfig", "2 of 4 experts, window", num_local_experts=4, **WINDOWED),
    "qwen2_moe": case("qwen2_moe", "Qwen2MoeConfig", "2 of 4 experts and a shared one, a dense layer",
                      shared_expert_intermediate_size=48, mlp_only_layers=[0], head_dim=..., **EXPERTS),
    "qwen3_moe": case("qwen3_moe", "Qwen3MoeConfig", "2 of 4 experts, weights normalised", norm_topk_prob=True,
                      **EXPERTS),
    "smollm3": case("smollm3", "SmolLM3Config", "a NoPE layer, window", no_rope_layers=[1, 0],
                    use_sliding_window=True, head_dim=..., **WINDOWED),
    "granite": case("granite", "GraniteConfig", "all four multipliers", head_dim=..., **GRANITE),
    "granitemoe": case("granitemoe", "GraniteMoeConfig", "2 of 4 experts in one tensor, multipliers",
                       num_local_experts=4, num_experts_per_tok=2, head_dim=..., **GRANITE),
    "granitemoeshared": case("granitemoeshared", "GraniteMoeSharedConfig", "a shared expert",
                             num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=48, head_dim=...,
                             **GRANITE),
    "granitemoehybrid": case("granitemoehybrid", "GraniteMoeHybridConfig", "Mamba-2 in two of three layers, NoPE "
                             "attention, 2 of 4 experts and a shared one", num_local_experts=4, num_experts_per_tok=2,
                             **GRANITE_HYBRID),
    "granitemoehybrid dense": case("granitemoehybrid", "GraniteMoeHybridConfig", "RoPE, no experts, attention last",
                                   position_embedding_type="rope", mamba_conv_bias=False, num_local_experts=0,
                                   **{**GRANITE_HYBRID, "num_hidden_layers": 2,
                                      "layer_types": ["linear_attention", "full_attention"]}),
    "granite_swa": case("granite_swa", "GraniteSWAConfig", "attention sinks, window, two RoPE bases that are scaled, a "
                        "NoPE layer, all four multipliers", num_hidden_layers=5, rope_parameters=YARN,
                        layer_rope_theta=[5e5, 1e4, 0, 1e4, 5e5], head_dim=..., **GRANITE, **WINDOWED),
    "granite_swa biases": case("granite_swa", "GraniteSWAConfig", "biases, untied head, NoPE layers only",
                               layer_types=["sliding_attention", "full_attention"], layer_rope_theta=[0, 0],
                               attention_bias=True, mlp_bias=True, tie_word_embeddings=False, head_dim=...,
                               **GRANITE, **WINDOWED),
    "granitemoe_swa": case("granitemoe_swa", "GraniteMoeSWAConfig", "2 of 4 experts and a shared one, attention sinks, "
                           "window, one RoPE base and a NoPE layer", num_local_experts=4, num_experts_per_tok=2,
                           num_hidden_layers=3, shared_intermediate_size=48, layer_rope_theta=[0, 1e5, 1e5],
                           head_dim=..., **GRANITE, **WINDOWED),
    "granitemoe_swa plain": Case(family="granitemoe_swa", config_class="GraniteMoeSWAConfig",
                                 verified="no shared expert, biases, tied head; config.json without types and bases of "
                                 "layers", rearranged=with_keys({}, layer_types=None, layer_rope_theta=None),
                                 values={"num_local_experts": 4, "attention_bias": True, "tie_word_embeddings": True,
                                         "head_dim": ..., **GRANITE, **WINDOWED}),
    "falcon_h1": case("falcon_h1", "FalconH1Config", "Mamba-2 beside attention in every layer, all multipliers, untied "
                      "head", tie_word_embeddings=False, **FALCON_H1),
    "falcon_h1 norm": case("falcon_h1", "FalconH1Config", "a norm of 2 groups behind the state space, tied head",
                           mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_n_groups=2, mamba_conv_bias=False,
                           tie_word_embeddings=True, **FALCON_H1),
    "nemotron_h": case("nemotron_h", "NemotronHConfig", "Mamba-2 of 2 groups with an MLP and without, NoPE attention, "
                       "squared ReLU", layers_block_type=["linear_attention", "mlp", "linear_attention",
                                                          "full_attention", "mlp"], **NEMOTRON_H),
    "nemotron_h experts": case("nemotron_h", "NemotronHConfig", "4 of 8 experts without a gate in 2 of 4 groups, score "
                               "correction bias, and a shared one; attention last", layers_block_type=[
                                   "linear_attention", "moe", "full_attention"], moe_shared_expert_intermediate_size=40,
                               **NEMOTRON_H, **GROUPED_EXPERTS),
    "olmo": case("olmo", "OlmoConfig", "layer norms without weights", head_dim=...),
    "olmo2": case("olmo2", "Olmo2Config", "post-norms, q and k norms over all heads", head_dim=...),
    "olmo3": case("olmo3", "Olmo3Config", "window, YaRN on the full layers only", head_dim=...,
                  layer_types=["sliding_attention", "full_attention"], rope_parameters=OLMO3_ROPE, **WINDOWED),
    "stablelm": case("stablelm", "StableLmConfig", "layer norms, partial rotary embedding (25%)", use_qkv_bias=True,
                     head_dim=..., hidden_size=128),
    "stablelm parallel": case("stablelm", "StableLmConfig", "parallel blocks", use_parallel_residual=True,
                              head_dim=..., hidden_size=128),
    "gemma3": case("gemma3", "Gemma3Config", "decoder, vision encoder, projector; several images", text_config=GEMMA3,
                   vision_config=SIGLIP, mm_tokens_per_image=16, image_token_index=300),
    "cohere": case("cohere", "CohereConfig", "parallel blocks, interleaved RoPE, scaled logits", logit_scale=0.5,
                   head_dim=...),
    "cohere qk norm": case("cohere", "CohereConfig", "q and k norms with weights of each head", use_qk_norm=True,
                           logit_scale=0.5, attention_bias=True, head_dim=...),
    "cohere2": case("cohere2", "Cohere2Config", "window, a NoPE layer", sliding_window_pattern=2,
                    logit_scale=0.5, head_dim=..., **WINDOWED),
    "glm": case("glm", "GlmConfig", "fused gate and up, interleaved RoPE, partial (50%), biases"),
    "glm4": case("glm4", "Glm4Config", "post-norms, interleaved RoPE, partial (50%), biases"),
    "exaone4": case("exaone4", "Exaone4Config", "window, a NoPE layer, post-norms",
                    sliding_window_pattern=2, **WINDOWED),
    "exaone4 small": case("exaone4", "Exaone4Config", "no window, no NoPE layer", sliding_window=None,
                          layer_types=["full_attention"] * 2),
    "starcoder2": case("starcoder2", "Starcoder2Config", "layer norms, biases, MLP without a gate, window",
                       head_dim=...,
                       **WINDOWED),
    "gpt2": case("gpt2", "GPT2Config", "learned position embeddings, transposed weights", n_embd=64, n_layer=2,
                 n_head=4, n_positions=128, **dict.fromkeys(SIZES, ...)),
    "gpt_neox": case("gpt_neox", "GPTNeoXConfig", "parallel blocks, fused QKV by heads, partial rotary embedding (25%)",
                     hidden_size=128, head_dim=..., num_key_value_heads=...),
    "gpt_neox in turn": case("gpt_neox", "GPTNeoXConfig", "sequential blocks", use_parallel_residual=False,
                             rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 1.0}, head_dim=...,
                             num_key_value_heads=...),
    "falcon": case("falcon", "FalconConfig", "7B's: one KV head, one norm", **FALCON),
    "falcon new": case("falcon", "FalconConfig", "40B's: grouped KV heads, two norms", num_kv_heads=2,
                       new_decoder_architecture=True, **FALCON),
    "falcon rw": case("falcon", "FalconConfig", "sequential blocks, biases, multi-head attention", multi_query=False,
                      parallel_attn=False, bias=True, **FALCON),
    "ministral": case("ministral", "MinistralConfig", "window on one of two layers",
                      layer_types=["sliding_attention", "full_attention"], **WINDOWED),
    "ministral3": case("ministral3", "Ministral3Config", "YaRN, attention temperature",
                       rope_parameters=ATTENTION_TEMPERATURE),
    "mistral3": case("mistral3", "Mistral3Config", "decoder, Ministral 3's, window; vision encoder, projector; several "
                     "images of any size", vision_config=PIXTRAL_VISION,
                     text_config={**BASE, "model_type": "ministral3", "rope_parameters": ATTENTION_TEMPERATURE,
                                  **WINDOWED}, **PIXTRAL_TOKENS),
    "mistral3 small": case("mistral3", "Mistral3Config", "and Mistral's; biases of the projector",
                           text_config={**BASE, "model_type": "mistral", "sliding_window": None,
                                        "rms_norm_eps": 1e-3},
                           vision_config={**PIXTRAL_VISION, "num_attention_heads": 4, "hidden_act": "gelu",
                                          "rope_parameters": {"rope_type": "axial", "rope_theta": 500.0}},
                           multimodal_projector_bias=True, **PIXTRAL_TOKENS),
    "exaone": Case(family="exaone", config_class="ExaoneConfig", verified="llama3 RoPE scaling; tied head",
                   rearranged=with_keys({"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon",
                                         "hidden_act": "activation_function", "rope_parameters": "rope_scaling"},
                                        rope_theta=1e6),
                   values={"tie_word_embeddings": True, "rms_norm_eps": 0.03,
                           "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6, "factor": 8.0,
                                               "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                               "original_max_position_embeddings": 32}}),
    "exaone biases": case("exaone", "ExaoneConfig", "biases, untied head; config.json of transformers 5.24",
                          attention_bias=True, mlp_bias=True, rms_norm_eps=0.03),
    "seed_oss": case("seed_oss", "SeedOssConfig", "biases", attention_out_bias=True),
    "ernie4_5": case("ernie4_5", "Ernie4_5Config", "interleaved RoPE, biases", use_bias=True),
    "ernie4_5_moe": case("ernie4_5_moe", "Ernie4_5_MoeConfig", "2 of 4 experts, score correction bias, a shared one; "
                         "a dense layer; biases", use_bias=True, tie_word_embeddings=False, moe_num_experts=4, moe_k=2,
                         moe_intermediate_size=32, head_dim=...),
    "hunyuan_v1_dense": case("hunyuan_v1_dense", "HunYuanDenseV1Config", "q and k norms after RoPE, NTK-aware RoPE "
                             "base",
                             rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}),
    "hunyuan_v1_moe": case("hunyuan_v1_moe", "HunYuanMoEV1Config", "2 or 3 of 4 experts and a shared one",
                           num_experts=4, moe_topk=[2, 3]),
    "nemotron": case("nemotron", "NemotronConfig", "layer norms, MLP without a gate, partial rotary embedding (50%)"),
    "helium": case("helium", "HeliumConfig", "interleaved RoPE"),
    "arcee": case("arcee", "ArceeConfig", "MLP without a gate, squared ReLU, biases", mlp_bias=True),
    "internlm2": Case(family="internlm2", config_class="LlamaConfig", rearranged=as_internlm2,
                      verified="against Llama with the same weights, rearranged: transformers lacks the family",
                      values={"attention_bias": True}),
    "minicpm": Case(family="minicpm", config_class="GraniteConfig", rearranged=as_minicpm,
                    verified="against Granite with the same multipliers: transformers lacks the family",
                    values={"embedding_multiplier": 12.0, "residual_multiplier": 1.4 / math.sqrt(2),
                            "logits_scaling": 64 / 16, "attention_multiplier": 0.25, "head_dim": ...}),
    "olmoe": case("olmoe", "OlmoeConfig", "2 of 4 experts, q and k norms over all heads", num_experts=4,
                  num_experts_per_tok=2, head_dim=...),
    "dots1": case("dots1", "Dots1Config", "4 of 8 experts in 2 of 4 groups, score correction bias, and a shared one; "
                  "a dense layer; window", first_k_dense_replace=1, max_window_layers=1, norm_topk_prob=True,
                  **GROUPED_EXPERTS,
                  **WINDOWED),
    "glm4_moe": case("glm4_moe", "Glm4MoeConfig", "4 of 8 experts in 2 of 4 groups, score correction bias, weights "
                     "not normalised; "
                     "partial rotary embedding (50%), q and k norms", first_k_dense_replace=0, attention_bias=True,
                     use_qk_norm=True, norm_topk_prob=False, **GROUPED_EXPERTS),
    "sarvam_moe": Case(family="sarvam_moe", config_class="SarvamMoEConfig",
                       verified="4 of 8 experts in 2 of 4 groups, score correction bias, and shared ones; a dense "
                       "layer; fused QKV with biases",
                       rearranged=with_keys({"n_routed_experts": "num_experts", "n_shared_experts":
                                             "num_shared_experts", "attention_bias": "use_qkv_bias"}),
                       values={"attention_bias": True, "first_k_dense_replace": 1, **GROUPED_EXPERTS}),
    "sarvam_moe plain": case("sarvam_moe", "SarvamMoEConfig", "no groups, no q and k norms, weights not normalised; "
                             "partial rotary embedding (50%); config.json of transformers 5.24", use_qk_norm=False,
                             norm_topk_prob=False, first_k_dense_replace=0,
                             rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
                             **{**GROUPED_EXPERTS, "n_group": 1, "topk_group": 1}),
    "sarvam_mla": Case(family="sarvam_mla", config_class="SarvamMLAConfig",
                       verified="MLA without a query latent; 4 of 8 experts, score correction bias, and shared ones, a "
                       "dense layer; YaRN with mscale; config.json as published",
                       rearranged=with_keys({"n_routed_experts": "num_experts", "n_shared_experts":
                                             "num_shared_experts"}, head_dim=64, q_head_dim=32, rope_parameters=None,
                                            rope_theta=1e4, rope_scaling={**YARN_SCORES, "rope_type": "deepseek_yarn"}),
                       values={"rope_parameters": YARN_SCORES, **{**MLA, "q_lora_rank": None},
                               **{**GROUPED_EXPERTS, "n_group": 1, "topk_group": 1}}),
    "sarvam_mla latent": case("sarvam_mla", "SarvamMLAConfig", "a query latent, groups, biases, RoPE by halves; "
                              "config.json of transformers 5.24", attention_bias=True, rope_interleave=False,
                              first_k_dense_replace=0, **MLA, **GROUPED_EXPERTS),
    "solar_open": case("solar_open", "SolarOpenConfig", "4 of 8 experts in 2 of 4 groups, score correction bias",
                       intermediate_size=..., **GROUPED_EXPERTS),
    "exaone_moe": case("exaone_moe", "ExaoneMoeConfig", "2 of 4 experts, score correction bias, and a shared one; a "
                       "dense layer; window", sliding_window_pattern=2, **EXPERTS, **WINDOWED),
    "deepseek_v2": case("deepseek_v2", "DeepseekV2Config", "MLA with a query latent; 3 of 8 experts in 2 of 4 "
                        "groups, a dense layer; YaRN with mscale, biases", first_k_dense_replace=1,
                        topk_method="group_limited_greedy", attention_bias=True, rope_parameters=YARN_SCORES,
                        **MLA, **{**GROUPED_EXPERTS, "num_experts_per_tok": 3}),
    "deepseek_v2 lite": case("deepseek_v2", "DeepseekV2Config", "MLA without a query latent, no groups",
                             **{**MLA, "q_lora_rank": None}, **{**GROUPED_EXPERTS, "n_group": 1, "topk_group": 1}),
    "deepseek_v3": case("deepseek_v3", "DeepseekV3Config", "4 of 8 experts in 2 of 4 groups, score correction bias, "
                        "a dense layer; YaRN with mscale", first_k_dense_replace=1, rope_parameters=YARN_SCORES,
                        **MLA, **GROUPED_EXPERTS),
    "deepseek_v3 halves": case("deepseek_v3", "DeepseekV3Config", "RoPE by halves, values as wide as keys, biases",
                               first_k_dense_replace=1, rope_interleave=False, attention_bias=True,
                               **{**MLA, "v_head_dim": 32}, **GROUPED_EXPERTS),
    "glm4_moe_lite": case("glm4_moe_lite", "Glm4MoeLiteConfig", "MoE layers by 'mlp_layer_types'",
                          mlp_layer_types=["sparse", "dense"], **{**MLA, "head_dim": ...}, **GROUPED_EXPERTS),
    "minicpm3": case("minicpm3", "MiniCPM3Config", "MLA with a query latent, all three multipliers, LongRoPE",
                     dim_model_base=16, rope_parameters=LONG_ROPE_8, **MLA),
    "cohere2_moe": Case(family="cohere2_moe", config_class="Cohere2MoeConfig",
                        verified="2 of 4 experts by sigmoids, and 2 shared ones; dense layers of another size, "
                        "global with RoPE; layer norms, window, NoPE layers; config.json without types of layers",
                        rearranged=with_keys({}, layer_types=None, mlp_layer_types=None, first_k_dense_replace=2),
                        values={"num_hidden_layers": 4, "num_shared_experts": 2, "expert_selection_fn": "sigmoid",
                                "shared_expert_combination_strategy": "sum",
                                "first_k_dense_replace": 2, "prefix_dense_intermediate_size": 80,
                                "sliding_window_pattern": 2, "layer_norm_eps": 0.03, **COHERE2_MOE}),
    "cohere2_moe rms": case("cohere2_moe", "Cohere2MoeConfig", "RMS norms, biases, untied head; experts by a softmax, "
                            "averaged with a shared one; a dense NoPE layer", num_hidden_layers=3, num_shared_experts=1,
                            rms_norm_eps=0.03,
                            mlp_layer_types=["dense", "sparse", "sparse"], prefix_dense_sliding_window_pattern=2,
                            layer_types=["full_attention", "sliding_attention", "full_attention"],
                            rope_parameters=YARN, attention_bias=True, tie_word_embeddings=False, **COHERE2_MOE),
    "cohere2_moe plain": case("cohere2_moe", "Cohere2MoeConfig", "no shared experts, sigmoids that are not normalised",
                              expert_selection_fn="sigmoid", norm_topk_prob=False, rope_theta=5e4, **COHERE2_MOE),
    "gpt_oss": case("gpt_oss", "GptOssConfig", "2 of 4 experts with biases and clamped SwiGLU, attention sinks, "
                    "window on one of two "
                    "layers, YaRN", num_local_experts=4, num_experts_per_tok=2, swiglu_limit=2.0,
                    rope_parameters={**YARN, "truncate": False}, **WINDOWED),
    "flint": Case(family="flint", config_class="FlintConfig", verified="2 of 4 experts and a shared one, dense layers, "
                  "attention sinks, window, NoPE layers; config.json without types of layers",
                  rearranged=with_keys({}, layer_types=None, mlp_only_layers=None),
                  values={"num_hidden_layers": 5, "shared_expert_intermediate_size": 48, **EXPERTS, **WINDOWED}),
    "flint biases": case("flint", "FlintConfig", "experts in every other layer, whose weights are not normalised; "
                         "biases, tied head, window on the first of two layers", decoder_sparse_step=2,
                         mlp_only_layers=[], shared_expert_intermediate_size=48, norm_topk_prob=False,
                         attention_bias=True, tie_word_embeddings=True,
                         layer_types=["sliding_attention", "full_attention"], **EXPERTS, **WINDOWED),
    "afmoe": Case(family="afmoe", config_class="AfmoeConfig", verified="2 of 4 experts, score correction bias, and two "
                  "shared ones; a dense layer; gated attention, q and k norms, window, NoPE layers, scaled embedding; "
                  "config.json without types of layers", rearranged=with_keys({}, layer_types=None),
                  values={"num_hidden_layers": 4, "global_attn_every_n_layers": 2, "mup_enabled": True,
                          "route_scale": 1.7, "rms_norm_eps": 0.03, **EXPERTS, **WINDOWED}),
    "afmoe biases": case("afmoe", "AfmoeConfig", "biases, tied head, no dense layer, a shared expert",
                         attention_bias=True, tie_word_embeddings=True, num_dense_layers=0, num_shared_experts=1,
                         layer_types=["full_attention", "sliding_attention"], **EXPERTS, **WINDOWED),
    "mellum": case("mellum", "MellumConfig", "2 of 4 experts, weights normalised, a dense layer; window with a RoPE of "
                   "its own, YaRN elsewhere", num_hidden_layers=3, rope_parameters=OLMO3_ROPE,
                   mlp_layer_types=["dense", "sparse", "sparse"],
                   layer_types=["sliding_attention", "full_attention", "sliding_attention"], **EXPERTS, **WINDOWED),
    "mellum plain": Case(family="mellum", config_class="MellumConfig", verified="no windows, biases, tied head, "
                         "weights not normalised; config.json without RoPE and types of layers",
                         rearranged=with_keys({}, layer_types=None, mlp_layer_types=None, rope_parameters=None),
                         values={"norm_topk_prob": False, "attention_bias": True, "tie_word_embeddings": True,
                                 **EXPERTS}),
    "youtu": case("youtu", "YoutuConfig", "MLA with a query latent, interleaved RoPE, tied head", **MLA),
    "iquestcoder": case("iquestcoder", "IQuestCoderConfig", "biases", attention_bias=True, mlp_bias=True),
    "cwm": Case(family="cwm", config_class="CwmConfig", verified="window on one of two layers, llama3 RoPE scaling; "
                "config.json without types of layers", rearranged=with_keys({}, layer_types=None),
                values={"mlp_bias": True, "bos_token_id": 1, **WINDOWED}),
    "hyperclovax": case("hyperclovax", "HyperCLOVAXConfig", "post-norms, all four multipliers",
                        embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.3,
                        logits_scaling=2.0),
    "hy_v3": case("hy_v3", "HYV3Config", "2 of 4 experts, score correction bias, and two shared ones; a dense layer; q "
                  "and k norms, biases", num_shared_experts=2, attention_bias=True, mlp_bias=True, **EXPERTS),
    "opt": case("opt", "OPTConfig", "learned position embeddings, layer norms, biases", ffn_dim=96,
                word_embed_proj_dim=64,
                init_std=0.2, intermediate_size=..., num_key_value_heads=..., head_dim=...),
    "internlm3": case("internlm3", "InternLM3Config", "biases", attention_bias=True, mlp_bias=True),
    "jais2": case("jais2", "Jais2Config", "layer norms, biases, MLP without a gate, squared ReLU"),
    "vaultgemma": case("vaultgemma", "VaultGemmaConfig", "window on one of two layers, both soft caps",
                       attn_logit_softcapping=5.0, final_logit_softcapping=4.0, query_pre_attn_scalar=24, **WINDOWED),
    "gemma3n_text": case("gemma3n_text", "Gemma3nTextConfig", "AltUp, LAuReL, per-layer embeddings (PLE), KV sharing "
                         "across layers, sparse MLPs, tokens without a PLE row, window", **GEMMA3N),
    "gemma3n": Case(family="gemma3n", config_class="Gemma3nTextConfig", rearranged=as_part_of("gemma3n"),
                    verified="the text decoder of a multimodal checkpoint: the vision tower's package is not "
                    "installed", values=GEMMA3N),
    "gemma4_text": case("gemma4_text", "Gemma4TextConfig", "per-layer embeddings (PLE), KV sharing across layers, "
                        "wider MLP; larger heads with partial RoPE in global layers",
                        num_kv_shared_layers=3, use_double_wide_mlp=True, final_logit_softcapping=4.0,
                        **GEMMA4),
    "gemma4": case("gemma4", "Gemma4Config", "the text decoder of a multimodal checkpoint; keys used as values, "
                   "and fewer KV heads, in global layers", text_config={**BASE, **GEMMA4, **KEYS_AS_VALUES},
                   vision_config=None, audio_config=None),
    # as E2B and E4B
    "gemma4 clipped": case("gemma4", "Gemma4Config", "with images: clipped linears, PLE of images",
                           text_config={**BASE, **GEMMA4, "num_kv_shared_layers": 3},
                           vision_config={**GEMMA4_VISION, "use_clipped_linears": True}, **GEMMA4_TOKENS),
    # as 26B-A4B and 31B
    "gemma4 standardized": case("gemma4", "Gemma4Config", "with images: standardized features, tokens of an image "
                                "that attend to one another in layers with a window",
                                text_config={**BASE, **GEMMA4, **KEYS_AS_VALUES,
                                             "sliding_window": 30, "use_bidirectional_attention": "vision"},
                                vision_config={**GEMMA4_VISION, "standardize": True}, **GEMMA4_TOKENS),
    "gemma4_unified_text": case("gemma4_unified_text", "Gemma4UnifiedTextConfig", "larger heads with partial RoPE in "
                                "global layers, window, KV sharing across layers, soft cap", num_kv_shared_layers=3,
                                final_logit_softcapping=4.0, **GEMMA4_UNIFIED),
    "gemma4_unified": case("gemma4_unified", "Gemma4UnifiedConfig", "the text decoder of a multimodal checkpoint; keys "
                           "used as values, and fewer KV heads, in global layers", vision_config=None,
                           audio_config=None, text_config={**BASE, **GEMMA4_UNIFIED, "attention_k_eq_v": True,
                                                           "num_global_key_value_heads": 1}),
    "gemma4_unified images": case("gemma4_unified", "Gemma4UnifiedConfig", "with images: norms of pixels, patches and "
                                  "positions, tokens of an image that attend to one another in layers with a window",
                                  text_config={**BASE, **GEMMA4_UNIFIED, "sliding_window": 30},
                                  vision_config=GEMMA4_UNIFIED_VISION, **GEMMA4_TOKENS),
    "gemma4_text experts": case("gemma4_text", "Gemma4TextConfig", "2 of 4 experts beside the MLP, with norms of their "
                                "own", final_logit_softcapping=4.0, enable_moe_block=True, num_experts=4,
                                top_k_experts=2, moe_intermediate_size=48,
                                **{**GEMMA4, **KEYS_AS_VALUES}),
    "apertus": case("apertus", "ApertusConfig", "xIELU, q and k norms, llama3 RoPE scaling"),
    "apertus1p5_text": case("apertus1p5_text", "Apertus1p5TextConfig", "a head of fewer tokens than the embedding",
                            output_vocab_size=307, vocab_size=320),
    "apertus1p5": Case(family="apertus1p5", config_class="Apertus1p5TextConfig", rearranged=as_part_of("apertus1p5"),
                       verified="the text decoder of a multimodal checkpoint"),
    "lfm2": case("lfm2", "Lfm2Config", "convolutions in two of three layers, q and k norms", num_hidden_layers=3,
                 layer_types=["conv", "full_attention", "conv"], block_multiple_of=32, head_dim=...),
    "lfm2 biases": case("lfm2", "Lfm2Config", "biases, convolution over 4 tokens, untied head, attention last",
                        layer_types=["conv", "full_attention"], conv_bias=True, conv_L_cache=4, head_dim=...,
                        block_auto_adjust_ff_dim=False, tie_word_embeddings=False),
    "lfm3": case("lfm3", "Lfm3Config", "convolutions over 7 tokens, window, post-norms; attention with a gate for each "
                 "head; partial RoPE in global layers", num_hidden_layers=5, **WINDOWED),
    "lfm3 plain": case("lfm3", "Lfm3Config", "no gate, no post-norms; biases, untied head; RoPE of whole heads",
                       layer_types=["full_attention", "conv"], use_sandwich_norm=False, use_attention_gate=False,
                       conv_bias=True, attention_bias=True, tie_word_embeddings=False, norm_eps=0.03,
                       rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e4},
                                        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
    "lfm3_vl": case("lfm3_vl", "Lfm3VlConfig", "decoder, vision encoder, projector; several images of any size; "
                    "untied head", text_config={**BASE, **WINDOWED, "model_type": "lfm3", "num_hidden_layers": 5},
                    vision_config=LFM3_VISION, image_token_id=300, projector_hidden_size=72,
                    tie_word_embeddings=False),
    "lighton_ocr": case("lighton_ocr", "LightOnOcrConfig", "decoder, vision encoder, projector; several images of any "
                        "size; tied head", text_config={**BASE, "model_type": "qwen3"}, vision_config=PIXTRAL_VISION,
                        image_token_id=300),
    "paddleocr_vl": case("paddleocr_vl", "PaddleOCRVLConfig", "decoder, vision encoder, M-RoPE, projector; several "
                         "images of any size; biases, tied head", vision_config=PADDLE_VISION, image_token_id=300,
                         vision_start_token_id=301, vision_end_token_id=302,
                         text_config={**BASE, "rope_parameters": MROPE, "use_bias": True}),
    "glm_ocr": case("glm_ocr", "GlmOcrConfig", "decoder, vision encoder, M-RoPE, projector; several images of any size",
                    text_config={**BASE, "rope_parameters": MROPE}, vision_config=GLM_OCR_VISION, image_token_id=300,
                    image_start_token_id=301, image_end_token_id=302),
    "lfm2_vl": case("lfm2_vl", "Lfm2VlConfig", "decoder, vision encoder, projector; several images of any size, tiles",
                    text_config={**BASE, "model_type": "lfm2", **LFM2_TEXT}, vision_config=SIGLIP2_VISION,
                    image_token_id=300, projector_hidden_size=72),
    "lfm2_vl plain": case("lfm2_vl", "Lfm2VlConfig", "projector without norm and biases, untied head",
                          text_config={**BASE, "model_type": "lfm2", **LFM2_TEXT, "conv_bias": True},
                          vision_config={**SIGLIP2_VISION, "num_patches": 9, "hidden_act": "gelu"}, image_token_id=300,
                          projector_hidden_size=72, projector_bias=False, projector_use_layernorm=False,
                          tie_word_embeddings=False),
    "lfm2_moe": case("lfm2_moe", "Lfm2MoeConfig", "convolutions, 2 of 4 experts, score correction bias, in two of "
                     "three layers",
                     num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], num_dense_layers=1,
                     num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, head_dim=...),
    "qwen3_next": case("qwen3_next", "Qwen3NextConfig", "Gated DeltaNet in two of three layers, 2 of 4 experts and a "
                       "shared one, gated attention, partial rotary embedding (25%)", **QWEN_EXPERTS, **DELTA),
    "olmo_hybrid": Case(family="olmo_hybrid", config_class="OlmoHybridConfig", rearranged=as_published_olmo_hybrid,
                        verified="Gated DeltaNet with negative eigenvalues in two of three layers, NoPE attention",
                        values={**DELTA, "rope_parameters": {"rope_theta": None},
                                "rms_norm_eps": 0.03}),
    "olmo_hybrid rope": case("olmo_hybrid", "OlmoHybridConfig", "RoPE, biases, tied head, no negative eigenvalues; "
                             "tensors of transformers 5.24", num_hidden_layers=3, head_dim=..., attention_bias=True,
                             tie_word_embeddings=True, linear_allow_neg_eigval=False),
    "lara_mini": case("lara_mini", "LaraMiniConfig", "Gated DeltaNet, window, a NoPE layer; 2 of 4 experts and a "
                      "shared one", intermediate_size=..., **QWEN_EXPERTS, **WINDOWED,
                      **{**DELTA, "layer_types": ["linear_attention", "sliding_attention", "full_attention"]}),
    "lara_mini biases": case("lara_mini", "LaraMiniConfig", "biases, untied head, weights of experts not normalised",
                             intermediate_size=..., attention_bias=True, tie_word_embeddings=False,
                             norm_topk_prob=False, **QWEN_EXPERTS, **WINDOWED,
                             **{**DELTA, "num_hidden_layers": 4, "layer_types": ...}),
    "qwen3_5_text": case("qwen3_5_text", "Qwen3_5TextConfig", "Gated DeltaNet in two of three layers, gated attention, "
                         "partial rotary embedding (25%)", **DELTA),
    "qwen3_5": case("qwen3_5", "Qwen3_5Config", "decoder, vision encoder, M-RoPE in turns; several images of any size",
                    text_config={**QWEN3_5, **QWEN3_5_HEADS},
                    vision_config=QWEN3_5_VISION, **QWEN_TOKENS),
    "qwen3_5_moe_text": case("qwen3_5_moe_text", "Qwen3_5MoeTextConfig", "Gated DeltaNet in two of three layers, 2 of "
                             "4 experts and a shared one, gated attention", intermediate_size=..., **QWEN_EXPERTS,
                             **DELTA),
    "qwen3_5_moe": Case(family="qwen3_5_moe", config_class="Qwen3_5MoeConfig", rearranged=with_stacked_experts,
                        verified="decoder, whose experts are two tensors, vision encoder, M-RoPE in turns; several "
                        "images of any size",
                        values={"text_config": {**QWEN3_5, **QWEN_EXPERTS, **QWEN3_5_HEADS},
                                "vision_config": QWEN3_5_VISION, **QWEN_TOKENS}),
    "qwen2_vl": Case(family="qwen2_vl", config_class="Qwen2VLConfig", rearranged=as_first_qwen_vl,
                     verified="decoder, whose checkpoint has no 'text_config', vision encoder, M-RoPE; several images "
                     "of any size",
                     values={"text_config": {**BASE, "rope_parameters": MROPE}, "vision_config": QWEN2_VISION,
                             **QWEN_TOKENS}),
    "qwen3_vl": case("qwen3_vl", "Qwen3VLConfig", "decoder, vision encoder, M-RoPE in turns; several images of any "
                     "size", text_config={**BASE, "num_hidden_layers": 3, "rope_parameters": MROPE},
                     vision_config=QWEN3_VISION, **QWEN_TOKENS),
    "qwen2_5_vl": Case(family="qwen2_5_vl", config_class="Qwen2_5_VLConfig", rearranged=as_first_qwen_vl,
                       verified="decoder, whose checkpoint has no 'text_config', vision encoder, M-RoPE; several "
                       "images of any size",
                       values={"text_config": {**BASE, "rope_parameters": MROPE}, "vision_config": QWEN2_5_VISION,
                               **QWEN_TOKENS}),
    "minimax_m2": case("minimax_m2", "MiniMaxM2Config", "2 of 4 experts, score correction bias, q and k norms over all "
                       "heads, partial rotary embedding (50%)", num_local_experts=4, num_experts_per_tok=2,
                       rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    "qwen3_vl_moe": Case(family="qwen3_vl_moe", config_class="Qwen3VLMoeConfig", rearranged=as_published_experts,
                         verified="decoder of 2 of 4 experts in two tensors, vision encoder, M-RoPE; several images "
                         "of any size",
                         values={"text_config": {**BASE, "num_hidden_layers": 3, "rope_parameters": MROPE, **EXPERTS,
                                                 "moe_intermediate_size": 48},
                                 "vision_config": QWEN3_VISION, **QWEN_TOKENS}),
    "llama4_text": case("llama4_text", "Llama4TextConfig", "chunked attention, a NoPE layer with attention "
                        "temperature, L2 norms of q and k, interleaved RoPE; 1 of 4 experts, whose input is scaled, "
                        "and a shared one; a dense layer", **LLAMA4),
    "llama4_text dense": case("llama4_text", "Llama4TextConfig", "no experts, biases, no norms",
                              intermediate_size_mlp=112, moe_layers=[], use_qk_norm=False, attention_bias=True,
                              attn_temperature_tuning=False, layer_types=["full_attention"] * 2),
    "llama4": case("llama4", "Llama4Config", "the text decoder of a multimodal checkpoint; 2 of 4 experts",
                   text_config={**BASE, **LLAMA4, "num_experts_per_tok": 2},
                   vision_config={**VISION, "projector_input_dim": 16, "projector_output_dim": 16,
                                  "vision_output_dim": 16}),
}  # fmt: skip

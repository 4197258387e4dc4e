"""What llama.cpp's converters do with the tensors of some architectures before they name them, and say of experts.

Source: conversion/*.py of llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]
Config = Mapping[str, Any]
SIGMOID = 2  # of expert_gating_func
ROUTED = ("deepseek2", "glm4moe", "dots1", "exaone-moe", "ernie4_5-moe", "lfm2moe")
# what GPT-2 calls sizes, by the names that others have for them
GPT2_KEYS = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
             "max_position_embeddings": "n_positions"}  # fmt: skip


def usual(config: dict[str, Any]) -> dict[str, Any]:
    """config.json with the keys that most have."""
    found = {ours: config[theirs] for ours, theirs in GPT2_KEYS.items() if theirs in config}
    if found:
        found["intermediate_size"] = config["n_inner"] or 4 * config["n_embd"]
    if "layers_block_type" in config:
        found["num_hidden_layers"] = len(config["layers_block_type"])
    return {**found, **config}


def turned(values: np.ndarray, heads: int) -> np.ndarray:
    """LlamaModel.permute of llama.cpp."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def prepared(tensors: Tensors, config: Config, name: str) -> Tensors:
    """All tensors as their converter has them when it names them."""
    change = CHANGES.get(name)
    if change is None:
        return tensors
    return {new: part for source, values in tensors.items() for new, part in change(source, values, config).items()}


def _gpt_oss(name: str, values: np.ndarray, config: Config) -> Tensors:
    if name.endswith(".sinks"):
        return {f"{name}.weight": values}
    is_bias, base = name.endswith("_bias"), name.removesuffix("_bias")
    end = "bias" if is_bias else "weight"
    rows = values if is_bias else values.swapaxes(-1, -2) if values.ndim == 3 else values
    if base.endswith(".experts.down_proj"):
        return {f"{base}.{end}": rows}
    if base.endswith(".experts.gate_up_proj"):
        place = base.removesuffix("gate_up_proj")
        return {f"{place}gate_proj.{end}": rows[:, ::2], f"{place}up_proj.{end}": rows[:, 1::2]}
    return {name: values}


def _llama4(name: str, values: np.ndarray, config: Config) -> Tensors:
    if ".experts." not in name:
        return {name: values}
    rows, place = values.swapaxes(-1, -2), name.rpartition(".")[0]
    if name.endswith("down_proj"):
        return {f"{name}.weight": rows}
    gate, up = np.split(rows, 2, axis=1)
    return {f"{place}.gate_proj.weight": gate, f"{place}.up_proj.weight": up}


def _halved(values: np.ndarray, name: str, gate: str, up: str) -> Tensors:
    half = values.shape[-2] // 2
    place = name.rpartition(".input_linear.")[0].rpartition(".")[0]
    return {f"{place}.{gate}.weight": values[..., :half, :], f"{place}.{up}.weight": values[..., half:, :]}


def _granite_moe(name: str, values: np.ndarray, config: Config) -> Tensors:
    if name.endswith("block_sparse_moe.input_linear.weight"):
        return _halved(values, name, "mlp.experts.gate_proj", "mlp.experts.up_proj")
    if name.endswith("shared_mlp.input_linear.weight"):
        return _halved(values, name, "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
    return {name: values}


def _gpt2(name: str, values: np.ndarray, config: Config) -> Tensors:
    has_rope = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
    return {name: np.ascontiguousarray(values.T) if has_rope else values}


def _internlm2(name: str, values: np.ndarray, config: Config) -> Tensors:
    """Of biases, which the converter cannot take, the same."""
    place, marked, end = name.partition("attention.wqkv.")
    if not marked:
        return {name: values}
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    parts = values.reshape(groups, heads // groups + 2, -1, *values.shape[1:])
    q, k, v = (each.reshape(-1, *values.shape[1:]) for each in (parts[:, :-2], parts[:, -2], parts[:, -1]))
    return {f"{place}attention.wq.{end}": turned(q, heads), f"{place}attention.wk.{end}": turned(k, groups),
            f"{place}attention.wv.{end}": v}  # fmt: skip


def _deepseek(name: str, values: np.ndarray, config: Config) -> Tensors:
    if not name.endswith("kv_b_proj.weight"):
        return _corrected(name, values, config)
    parts = values.reshape(config["num_attention_heads"], -1, values.shape[-1])
    keys, found = np.split(parts, [config["qk_nope_head_dim"]], axis=1)
    return {name.replace("kv_b_proj", "k_b_proj"): keys.swapaxes(1, 2), name.replace("kv_b_proj", "v_b_proj"): found}


def _corrected(name: str, values: np.ndarray, config: Config) -> Tensors:
    if name.endswith("e_score_correction_bias"):
        return {name.replace("correction_bias", "correction.bias"): values.reshape(-1)}
    return {name: values}


def _convolved(name: str, values: np.ndarray, config: Config) -> Tensors:
    """Of LFM2."""
    if ".conv.conv." in name:
        return {name: values.squeeze(1) if values.ndim == 3 else values}
    return {name.replace(".expert_bias", ".expert_bias.bias"): values}


def tiled(values: np.ndarray, keys: int, heads: int, axis: int = 0) -> np.ndarray:
    """_reorder_v_heads of Qwen 3.5's converter: of `heads` value heads along an axis."""
    shape = values.shape
    parts = values.reshape(*shape[:axis], keys, heads // keys, shape[axis] // heads, *shape[axis + 1 :])
    return np.ascontiguousarray(parts.swapaxes(axis, axis + 1).reshape(shape))


def _qwen35(name: str, values: np.ndarray, config: Config) -> Tensors:
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    if keys != heads and ".linear_attn." in name and not name.endswith(".norm.weight"):
        if ".in_proj_qkv." in name or ".conv1d." in name:
            before = 2 * keys * config["linear_key_head_dim"]
            values = np.concatenate([values[:before], tiled(values[before:], keys, heads)])
        else:
            values = tiled(values, keys, heads, axis=int(".out_proj." in name))
    return _qwen3_next(name, values, config)


def _qwen3_next(name: str, values: np.ndarray, config: Config) -> Tensors:
    if name.endswith(".A_log"):
        return {name: -np.exp(values)}
    if name.endswith(".dt_bias"):
        return {name.replace(".dt_bias", ".dt_proj.bias"): values}
    if ".conv1d." in name:
        return {name: values.squeeze(1)}
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return {name: values + np.float32(1)}
    if ".in_proj_qkvz." in name:
        keys, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
        of_values = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
        shares = np.split(values.reshape(keys, -1, values.shape[-1]), np.cumsum([key_dim, key_dim, of_values]), axis=1)
        q, k, v, z = (share.reshape(-1, values.shape[-1]) for share in shares)
        return {name.replace("qkvz", "qkv"): np.concatenate([q, k, v]), name.replace("qkvz", "z"): z}
    return {name: values}


def _mamba2(name: str, values: np.ndarray, config: Config) -> Tensors:
    """Mamba2Model: vectors as matrices of a column, norms as those of a row for each group."""
    groups = config.get("mamba_n_groups", config.get("n_groups", 1))
    if name.endswith(".A_log"):
        return {name: -np.exp(values).reshape(-1, 1)}
    if name.endswith(".D"):
        return {name: values.reshape(-1, 1)}
    if name.endswith(".dt_bias"):
        return {name.replace(".dt_bias", ".dt_proj.bias"): values}
    if name.endswith(".conv1d.weight"):
        return {name: values.squeeze(1)}
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        return {name: values.reshape(groups, -1)}
    return {name: values}


def _granite_hybrid(name: str, values: np.ndarray, config: Config) -> Tensors:
    """Without experts, the shared one has the names of an MLP."""
    if ".mamba." in name:
        return _mamba2(name, values, config)
    if not config["num_local_experts"] and ".shared_mlp.input_linear." in name:
        return _halved(values, name, "mlp.gate_proj", "mlp.up_proj")
    if not config["num_local_experts"]:
        return {name.replace(".shared_mlp.output_linear.", ".mlp.down_proj."): values}
    return _granite_moe(name, values, config)


def _falcon_h1(name: str, values: np.ndarray, config: Config) -> Tensors:
    """Tensors have the multipliers in them."""
    read, (gate, down) = config["attention_in_multiplier"], config["mlp_multipliers"]
    by = {"lm_head": config["lm_head_multiplier"], "embed_tokens": config["embedding_multiplier"], "q_proj": read,
          "k_proj": read * config["key_multiplier"], "v_proj": read, "gate_proj": gate, "down_proj": down,
          "o_proj": config["attention_out_multiplier"], "out_proj": config["ssm_out_multiplier"]}  # fmt: skip
    part = name.removesuffix(".weight").rpartition(".")[2]
    if part == "in_proj":
        inner, state = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        rows = np.repeat(config["ssm_multipliers"], [inner, inner, state, state, config["mamba_n_heads"]])
        return {name: values * (config["ssm_in_multiplier"] * rows[:, None]).astype(np.float32)}
    return _mamba2(name, values * np.float32(by.get(part, 1)), config)


def _nemotron_h(name: str, values: np.ndarray, config: Config) -> Tensors:
    if name.endswith("e_score_correction_bias"):
        return _corrected(name, values, config)
    if ".mixer.experts." in name:
        return {name.replace("backbone.", "model.").replace(".mixer.experts.", ".mlp.experts."): values}
    return _mamba2(name, values, config)


def _gemma(name: str, values: np.ndarray, config: Config) -> Tensors:
    """Of Gemma 3n and 4: names without the end that all others have, and the scales of a mixture."""
    if ".router." in name and name.endswith("scale"):
        place, _, part = name.rpartition(".router.")
        return {f"{place}.{'router.proj' if part == 'scale' else 'experts.down_proj'}.scale": values}
    if ".experts." in name:
        return {f"{name}.weight": values}
    return {f"{name}.weight" if name.endswith(("_scale", "layer_scalar")) else name: values}


CHANGES: Mapping[str, Callable[[str, np.ndarray, Config], Tensors]] = {
    "gpt-oss": _gpt_oss,
    "granitemoe": _granite_moe,
    "granitehybrid": _granite_hybrid,
    "falcon-h1": _falcon_h1,
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _nemotron_h),
    "gpt2": _gpt2,
    "internlm2": _internlm2,
    **dict.fromkeys(("gemma3n", "gemma4"), _gemma),
    "deepseek2": _deepseek,
    "llama4": _llama4,
    "qwen3next": _qwen3_next,
    **dict.fromkeys(("qwen35", "qwen35moe"), _qwen35),
    **dict.fromkeys(("lfm2", "lfm2moe"), _convolved),
    **dict.fromkeys(("glm4moe", "dots1", "exaone-moe", "ernie4_5-moe", "minimax-m2"), _corrected),
}


def said_of_parts(config: Config, name: str) -> dict[str, Any]:
    """What converters of some architectures say, of experts and of how they scale a rotation."""
    rope = config.get("rope_parameters") or {}
    if name == "mistral3":
        return {"rope.scaling.yarn_log_multiplier": rope.get("mscale_all_dim"),
                "attention.temperature_scale": rope.get("llama_4_scaling_beta")}  # fmt: skip
    if name == "llama4":
        whole = all(kind == "full_attention" for kind in config["layer_types"])
        return {"expert_feed_forward_length": config["intermediate_size"],
                "feed_forward_length": config["intermediate_size_mlp"],
                "interleave_moe_layer_step": config["interleave_moe_layer_step"],
                "attention.sliding_window": 0 if whole else None}  # fmt: skip
    if name == "gpt-oss":
        return {"expert_feed_forward_length": config["intermediate_size"]}
    if name == "hunyuan-moe":
        return {"expert_used_count": config["moe_topk"][0], "expert_shared_count": 1}
    if name == "granitemoe":
        return {"expert_shared_feed_forward_length": config.get("shared_intermediate_size")}
    if name in ("granitehybrid", "falcon-h1", "nemotron_h", "nemotron_h_moe"):
        return _of_states(config, name)
    if name in ("qwen3next", "qwen35", "qwen35moe"):
        heads, every = config["linear_num_value_heads"], config["layer_types"].index("full_attention") + 1
        pairs = int(config["head_dim"] * rope["partial_rotary_factor"]) // 2
        return {"ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": config["linear_key_head_dim"],
                "ssm.group_count": config["linear_num_key_heads"], "ssm.time_step_rank": heads,
                "ssm.inner_size": heads * config["linear_value_head_dim"], "full_attention_interval": every,
                "attention.recurrent_layers": [kind == "linear_attention" for kind in config["layer_types"]],
                "rope.dimension_sections": None if name == "qwen3next" else [pairs, 0, 0, 0]}  # fmt: skip
    if name == "minimax-m2":
        return {"expert_feed_forward_length": config["intermediate_size"], "expert_gating_func": SIGMOID}
    if name in ("gemma3n", "gemma4"):
        return _of_gemma(config, name)
    if name == "lfm2":
        return _of_convolutions(config)
    if name not in ROUTED:
        return {}
    shared = config.get("n_shared_experts", config.get("num_shared_experts", config.get("moe_num_shared_experts")))
    found = {
        "expert_count": config.get("n_routed_experts", config.get("num_experts", config.get("moe_num_experts"))),
        "expert_used_count": config.get("num_experts_per_tok", config.get("moe_k")),
        "expert_shared_count": shared,
        "leading_dense_block_count": config.get("first_k_dense_replace", config.get("moe_layer_start_index")),
        "interleave_moe_layer_step": config.get("moe_layer_interval"),
        "expert_weights_scale": config.get("routed_scaling_factor"),
        "expert_weights_norm": config.get("norm_topk_prob"),
        "expert_group_count": config.get("n_group"),
        "expert_group_used_count": config.get("topk_group"),
        "expert_gating_func": SIGMOID if name in ("glm4moe", "dots1", "exaone-moe", "lfm2moe") else None,
    }
    if name == "lfm2moe":
        return {**found, **_of_convolutions(config), "leading_dense_block_count": config["num_dense_layers"]}
    return {**found, **_latent(config, rope)} if name == "deepseek2" else found


def _of_gemma(config: Config, name: str) -> dict[str, Any]:
    rope, local, layers = config["rope_parameters"], config["head_dim"], config["num_hidden_layers"]
    found = {
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
    }
    if name == "gemma3n":
        shares = config["activation_sparsity_pattern"]
        scales = [NormalDist().inv_cdf(share) if share else -math.inf for share in shares]
        return {**found, "altup.active_idx": config["altup_active_idx"], "altup.num_inputs": config["altup_num_inputs"],
                "activation_sparsity_scale": scales}  # fmt: skip
    own, each = full_head_dim(config), config["per_layer_config"]
    heads = [each.get(str(index), {}).get("num_key_value_heads") for index in range(layers)]
    if config["use_double_wide_mlp"]:
        first, inner = layers - config["num_kv_shared_layers"], config["intermediate_size"]
        found["feed_forward_length"] = [inner * (1 + (layer >= first)) for layer in range(layers)]
    if any(heads):
        found["attention.head_count_kv"] = [count or config["num_key_value_heads"] for count in heads]
    return {**found, "attention.key_length": own, "attention.value_length": own, "attention.key_length_swa": local,
            "attention.value_length_swa": local, "rope.dimension_count": own,
            "rope.dimension_count_swa": local}  # fmt: skip


def full_head_dim(config: Config) -> int:
    """Of Gemma 4's layers without a window, the last of all among them."""
    return config["per_layer_config"][str(config["num_hidden_layers"] - 1)]["head_dim"]


def _of_states(config: Config, name: str) -> dict[str, Any]:
    """Of Mamba-2, and of blocks that are of one kind each."""
    hidden, heads = config["hidden_size"], config.get("mamba_n_heads", config.get("mamba_num_heads"))
    found = {
        "ssm.conv_kernel": config.get("mamba_d_conv", config.get("conv_kernel")),
        "ssm.state_size": config.get("mamba_d_state", config.get("ssm_state_size")),
        "ssm.group_count": config.get("mamba_n_groups", config.get("n_groups")),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": config.get("mamba_d_ssm", config.get("mamba_expand", 2) * hidden),
    }
    if name == "falcon-h1":
        return {**found, "embedding_scale": None}
    kv_heads, kinds = config["num_key_value_heads"], config.get("layers_block_type") or config["layer_types"]
    found["attention.head_count_kv"] = [kv_heads * (kind in ("attention", "full_attention")) for kind in kinds]
    if name == "granitehybrid":
        found |= {} if config["num_local_experts"] else {"expert_count": None, "expert_used_count": None}
        shared = config["shared_intermediate_size"]
        return {**found, "expert_shared_feed_forward_length": shared, "rope.scaling.finetuned": False}
    inner = config["moe_intermediate_size" if name == "nemotron_h_moe" else "intermediate_size"]
    found |= {
        "block_count": len(kinds),
        "ssm.inner_size": heads * config["mamba_head_dim"],
        "feed_forward_length": [inner * (kind in ("mlp", "moe")) for kind in kinds],
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
    }
    if name == "nemotron_h":
        return {**found, "expert_count": None, "expert_used_count": None, "expert_feed_forward_length": None}
    return {
        **found,
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_group_count": config["n_group"],
    }


def _of_convolutions(config: Config) -> dict[str, Any]:
    inner = config["intermediate_size"]
    if config.get("block_auto_adjust_ff_dim"):
        multiple = config["block_multiple_of"]
        inner = multiple * -(-int(config["block_ffn_dim_multiplier"] * int(2 * inner / 3)) // multiple)
    heads = config["num_key_value_heads"]
    return {
        "feed_forward_length": inner,
        "shortconv.l_cache": config["conv_L_cache"],
        "attention.head_count_kv": [0 if kind == "conv" else heads for kind in config["layer_types"]],
        "attention.layer_norm_rms_epsilon": config["norm_eps"],
        "attention.layer_norm_epsilon": None,
    }


def _latent(config: Config, rope: Mapping[str, Any]) -> dict[str, Any]:
    turned_part, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    all_dim = rope.get("mscale_all_dim")
    return {
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + turned_part,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + turned_part,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": turned_part,
        "rope.scaling.yarn_log_multiplier": None if all_dim is None else 0.1 * all_dim,
    }

"""What GGUF files of recurrent models say, as config.json: short convolutions, Gated DeltaNet, Mamba-2.

Source: conversion/*.py of llama.cpp, and src/models/mamba-base.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures.config import Config
from embedllm.export.gguf.keys import NEXTN_LAYERS

if TYPE_CHECKING:
    from embedllm.export.gguf.reader import Placed

# said of Granite 4 even where no layer has states
STATE_KEYS = ("ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.inner_size", "ssm.time_step_rank")
# tensors tell which layers have attention, whatever of the first two a file has
DELTA_KEYS = (*STATE_KEYS, "full_attention_interval", "attention.recurrent_layers", NEXTN_LAYERS)


def lfm2(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    layers = own.integer("block_count")
    return {
        "num_key_value_heads": _kv_heads(own),
        "layer_types": ["full_attention" if attends else "conv" for attends in _attending(tensors, layers)],
        "norm_eps": own.number("attention.layer_norm_rms_epsilon", above=0),
        "conv_L_cache": _read_size(own, "shortconv.l_cache", tensors, ".shortconv.conv.weight", -1),
        "conv_bias": any(name.endswith(".shortconv.conv.bias") for name in tensors),
        "block_auto_adjust_ff_dim": False,
        "use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in tensors),
    }


def delta_net(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    layers = own.integer("block_count") - own.integer(NEXTN_LAYERS, 0, least=0)
    values = _read_size(own, "ssm.time_step_rank", tensors, ".ssm_a", 0)
    attends = _attending(tensors, layers)
    return {
        "layer_types": ["full_attention" if each else "linear_attention" for each in attends],
        "linear_num_key_heads": own.integer("ssm.group_count"),
        "linear_num_value_heads": values,
        "linear_key_head_dim": own.integer("ssm.state_size"),
        "linear_value_head_dim": max(1, own.integer("ssm.inner_size") // values),
        "linear_conv_kernel_dim": _read_size(own, "ssm.conv_kernel", tensors, ".ssm_conv1d.weight", -1),
        "attention_bias": any(name.endswith(".attn_k.bias") for name in tensors),
    }


def _read_size(own: Config, key: str, tensors: Mapping[str, Placed], end: str, axis: int) -> int:
    """A number of parts, which graphs are made of one by one: what tensors of these names have along an axis."""
    size, sizes = own.integer(key), {tensor.shape[axis] for name, tensor in tensors.items() if name.endswith(end)}
    if sizes - {size}:
        raise ExportError(f"'{key}' is {size}; the tensors '*{end}' have {', '.join(map(str, sorted(sizes)))}.")
    return size


def _attending(tensors: Mapping[str, Placed], layers: int) -> list[bool]:
    """Which layers have attention."""
    return [f"blk.{index}.attn_q.weight" in tensors for index in range(layers)]


def granite_hybrid(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    """What is not in all Granites. The shared expert is all there is in a layer without others."""
    attends = _attending(tensors, own.integer("block_count"))
    return {
        **_mamba2(own, tensors),
        "num_key_value_heads": _kv_heads(own),
        "mamba_expand": max(1, own.integer("ssm.inner_size") // own.integer("embedding_length")),
        "layer_types": ["attention" if each else "mamba" for each in attends],
        "num_local_experts": own.integer("expert_count", 0, least=0),
        "shared_intermediate_size": own.integer("expert_shared_feed_forward_length", own.value("feed_forward_length")),
    }


def falcon_h1(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    """Its multipliers are in the tensors, that of the head in the head's."""
    if "output.weight" not in tensors:
        raise UnsupportedModel(
            "a Falcon-H1 whose head is its embedding: the file has one multiplier in both, and does not say the other. "
            "Take the checkpoint that it was made from."
        )
    has_norm = any(name.endswith(".ssm_norm.weight") for name in tensors)
    inner = own.integer("ssm.inner_size")
    return {**_mamba2(own, tensors), "mamba_d_ssm": inner, "mamba_rms_norm": has_norm, "mamba_norm_before_gate": False}


def _mamba2(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    return {
        "mamba_n_heads": _read_size(own, "ssm.time_step_rank", tensors, ".ssm_a", 0),
        "mamba_n_groups": own.integer("ssm.group_count"),
        "mamba_d_state": own.integer("ssm.state_size"),
        "mamba_d_conv": _read_size(own, "ssm.conv_kernel", tensors, ".ssm_conv1d.weight", -1),
        "mamba_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in tensors),
    }


def nemotron_h(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    """Sizes are 0 in the blocks that have no such part."""
    if own.integer("expert_group_count", 1) > 1 and not own.has("expert_group_used_count"):
        raise UnsupportedModel(
            "a Nemotron-H of experts in groups whose file does not say how many of them take part "
            "('expert_group_used_count'). Take the checkpoint that it was made from."
        )
    heads = _read_size(own, "ssm.time_step_rank", tensors, ".ssm_a", 0)
    blocks = range(own.integer("block_count") - own.integer(NEXTN_LAYERS, 0, least=0))
    inner = own.value("feed_forward_length")
    return {
        "layers_block_type": [_block_type(f"blk.{block}", tensors) for block in blocks],
        "num_key_value_heads": _kv_heads(own),
        "intermediate_size": max(own.integers("feed_forward_length") or [1]) if isinstance(inner, list) else inner,
        "layer_norm_epsilon": own.value("attention.layer_norm_rms_epsilon"),
        "mamba_num_heads": heads,
        "mamba_head_dim": max(1, own.integer("ssm.inner_size") // heads),
        "n_groups": own.integer("ssm.group_count"),
        "ssm_state_size": own.integer("ssm.state_size"),
        "conv_kernel": _read_size(own, "ssm.conv_kernel", tensors, ".ssm_conv1d.weight", -1),
        "use_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in tensors),
        "moe_shared_expert_intermediate_size": own.value("expert_shared_feed_forward_length"),
    }


def _block_type(block: str, tensors: Mapping[str, Placed]) -> str:
    for part, kind in (("ssm_in", "mamba"), ("attn_q", "attention"), ("ffn_gate_inp", "moe")):
        if f"{block}.{part}.weight" in tensors:
            return kind
    return "mlp"


def _kv_heads(own: Config) -> int:
    """Layers without attention have none."""
    if not isinstance(own.value("attention.head_count_kv"), list):
        return own.integer("attention.head_count_kv")
    return max(own.integers("attention.head_count_kv") or [0])

"""What GGUF files of Gemma 2 to 4 and 3n say, as their config.json says it.

Source: conversion/gemma.py, src/models/gemma3n.cpp and src/models/gemma4.cpp of llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures._shared.rope import FULL, SLIDING
from embedllm.export.architectures.config import Config
from embedllm.export.gguf.keys import LOCAL_BASE, WINDOW, windowed_layers

if TYPE_CHECKING:
    from embedllm.export.gguf.reader import Placed

_PLE, _SHARED_KV = "embedding_length_per_layer_input", "attention.shared_kv_layers"
_STREAMS, _ACTIVE, _SPARSITY = "altup.num_inputs", "altup.active_idx", "activation_sparsity_scale"
_KEY, _KEY_LOCAL, _VALUE_LOCAL = ("attention.key_length", "attention.key_length_swa", "attention.value_length_swa")
_ROTATED, _ROTATED_LOCAL = "rope.dimension_count", "rope.dimension_count_swa"
_EXPERTS = ("expert_count", "expert_used_count", "expert_feed_forward_length")
KEYS_3N = (*WINDOW, LOCAL_BASE, _PLE, _SHARED_KV, _STREAMS, _ACTIVE, _SPARSITY, "final_logit_softcapping")
KEYS_4 = (*WINDOW, LOCAL_BASE, _PLE, _SHARED_KV, _KEY_LOCAL, _VALUE_LOCAL, _ROTATED_LOCAL,
          "final_logit_softcapping", *_EXPERTS)  # fmt: skip
_LARGEST = (46, 62)  # layers of Gemma 2 27B and Gemma 3 27B
_NOT_ROTATED = 1e29  # factors of frequencies from here on stand for dimensions without a rotation


def gemma2(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    """The largest ones divide by another root than that of a head's size, which only the layers' number tells."""
    each = own.integer("embedding_length") / own.integer("attention.head_count")
    if own.has("attention.scale"):
        return {"query_pre_attn_scalar": own.number("attention.scale", above=0) ** -2}
    is_largest = own.integer("block_count") in _LARGEST
    return {"query_pre_attn_scalar": each if is_largest else own.number(_KEY, each, above=0)}


def gemma3(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    """Without windows, which some files say by leaving them out, no layer has a local RoPE base."""
    if own.integer(WINDOW[0], 0, least=0):
        return gemma2(own, tensors)
    return {**gemma2(own, tensors), "layer_types": [FULL] * own.integer("block_count")}


def gemma3n(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    """The rank of LAuReL and the tokens with a PLE row are those of the tensors."""
    config = {
        **_ple(own, tensors),
        "altup_num_inputs": own.integer(_STREAMS, 4, least=2),
        "altup_active_idx": own.integer(_ACTIVE, 0, least=0),
    }
    if (rank := tensors.get("blk.0.laurel_l.weight")) is not None:
        config["laurel_rank"] = rank.shape[0]
    if own.has(_SPARSITY):
        config["activation_sparsity_pattern"] = _shares(own.value(_SPARSITY), own.integer("block_count"))
    return config


def _ple(own: Config, tensors: Mapping[str, Placed]) -> dict[str, object]:
    """Of per-layer embeddings, and of layers that read the keys and values of others."""
    table = tensors.get("per_layer_token_embd.weight")
    return {
        "hidden_size_per_layer_input": own.integer(_PLE, 0, least=0),
        "num_kv_shared_layers": own.integer(_SHARED_KV, 0, least=0),
        **({} if table is None else {"vocab_size_per_layer_input": table.shape[0]}),
    }


def _shares(value: object, layers: int) -> list[float]:
    """The share of a gate that is 0 in each layer, of the standard deviations that files have, rounded to float32.

    -infinity is none.
    """
    values: list[Any] = value if isinstance(value, list) else [value] * layers
    if len(values) != layers or not all(isinstance(each, int | float) and not math.isnan(each) for each in values):
        raise ExportError(f"'{_SPARSITY}' is {value!r}; expected {layers} numbers, one a layer.")
    return [0.0 if math.isinf(each) else round(NormalDist().cdf(each), 6) for each in values]


def gemma4(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    """Layers without a window have heads of their own size and number; where they have no values these are the keys."""
    layers = own.integer("block_count")
    windowed = windowed_layers(own, layers)
    if windowed is None or len(windowed) != layers or windowed[-1]:
        raise UnsupportedModel(
            f"a Gemma 4 whose '{WINDOW[1]}' is {own.value(WINDOW[1])!r}; expected {layers} values, of which the last "
            "is false: the last layer has no sliding window."
        )
    size, local = own.integer(_KEY), own.integer(_KEY_LOCAL)
    if own.integer(_VALUE_LOCAL, local) != local or own.integer(_ROTATED, size) != size:
        raise UnsupportedModel(
            f"a Gemma 4 with keys and values of different sizes ('{_VALUE_LOCAL}'), or of whose keys '{_ROTATED}' are "
            "only a part; such models are not described."
        )
    heads = own.one_or_each("attention.head_count_kv", own.integer("attention.head_count"), layers)
    each = {str(index): {"head_dim": local if windowed[index] else size, "num_key_value_heads": heads[index]}
            for index in range(layers)}  # fmt: skip
    config = _ple(own, tensors)
    shared = own.integer(_SHARED_KV, 0, least=0)
    makers = [index for index in range(max(layers - shared, 0)) if not windowed[index]]  # of their keys and values
    without = [index for index in makers if f"blk.{index}.attn_v.weight" not in tensors]
    if without and without != makers:
        raise UnsupportedModel(f"a Gemma 4 of whose layers without a window some have values and others, {without}, "
                               "not; such models are not described.")  # fmt: skip
    experts = own.integer("expert_count", 0, least=0)
    if experts:
        config |= {"enable_moe_block": True, "top_k_experts": own.integer("expert_used_count")}
    return {
        **config,
        **_inner(own.one_or_each("feed_forward_length", 0, layers), shared),
        "head_dim": local,
        "num_key_value_heads": heads[0],
        "per_layer_config": each,
        "attention_k_eq_v": bool(without),
        # no file says whose images are read in both directions: the models without per-layer embeddings
        "use_bidirectional_attention": None if own.integer(_PLE, 0, least=0) else "vision",
    }


def _inner(sizes: list[int], shared: int) -> dict[str, object]:
    """Of the MLPs: twice as wide in the layers that read keys and values of others, or alike in all."""
    is_wide = len(set(sizes)) > 1
    if is_wide and sizes != [sizes[0] * (1 + (index >= len(sizes) - shared)) for index in range(len(sizes))]:
        raise UnsupportedModel(
            f"a Gemma 4 whose 'feed_forward_length' is {sizes}; expected one number, or its double in the last "
            f"{shared} layers ('{_SHARED_KV}')."
        )
    return {"intermediate_size": sizes[0], "use_double_wide_mlp": is_wide}


def gemma4_rope(own: Config, section: Mapping[str, Any]) -> Mapping[str, object]:
    """Of the fastest frequencies alone, where others are divided by what leaves nothing of them."""
    factors = section.get("long_factor")
    if not factors:
        raise ExportError("a Gemma 4 without the tensor 'rope_freqs.weight', which its layers without a window need.")
    rotated = sum(factor == 1 for factor in factors)
    if not all(factor >= _NOT_ROTATED for factor in factors[rotated:]):
        raise UnsupportedModel("a Gemma 4 whose 'rope_freqs.weight' has others than ones and then what exceeds 1e29.")
    local: dict[str, object] = {"rope_type": "default", "rope_theta": own.number(LOCAL_BASE, 10_000.0, above=1)}
    if own.has(_ROTATED_LOCAL):
        local["partial_rotary_factor"] = own.integer(_ROTATED_LOCAL) / own.integer(_KEY_LOCAL)
    full = {"rope_type": "proportional", "rope_theta": own.number("rope.freq_base", 1e6, above=1),
            "partial_rotary_factor": rotated / len(factors)}  # fmt: skip
    return {FULL: full, SLIDING: local}

"""What a GGUF file's metadata says of a model, as the config.json that export/architectures describes.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and what convert_hf_to_gguf.py of llama.cpp writes
(conversion/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures._shared.default_sizes import SIZES
from embedllm.export.architectures.config import Config
from embedllm.export.gguf.encoders import ENCODERS, table_sizes
from embedllm.export.gguf.families import FAMILIES, REFUSED, Family
from embedllm.export.gguf.keys import ATTENTION_FACTOR, GATING, LOCAL_BASE, NEXTN_LAYERS, WINDOW, windowed_layers
from embedllm.export.gguf.rope import rope_scaling
from embedllm.files.nearest import nearest

if TYPE_CHECKING:
    from embedllm.export.gguf.reader import GgufModel


# Keys behind "ARCHITECTURE.", and what config.json calls them in one family or another
_KEYS: Mapping[str, tuple[str, ...]] = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"),
    "block_count": ("n_layer",),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "norm_epsilon", "norm_eps", "layer_norm_epsilon"),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "rope.freq_base": ("rope_theta", "rotary_emb_base"),
    LOCAL_BASE: ("rope_local_base_freq",),
    "use_parallel_residual": ("use_parallel_residual",),
    "expert_count": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "expert_used_count": ("num_experts_per_tok", "moe_k"),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "expert_shared_count": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    NEXTN_LAYERS: ("num_nextn_predict_layers",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "leading_dense_block_count": ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"),
    "interleave_moe_layer_step": ("moe_layer_interval",),
    "residual_scale": ("residual_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
}
_SCALES = ("expert_weights_scale", "residual_scale", "embedding_scale")  # 0 is none, as in llama.cpp
_KNOWN = {**FAMILIES, **ENCODERS}
# What every family takes: those of its sizes, those that are read elsewhere, and those of no consequence
_COMMON = {
    "context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.causal",
    "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "vocab_size", "tensor_data_layout",
    "use_parallel_residual", "rope.freq_base", "rope.dimension_count", "rope.scale_linear", "rope.scaling.type",
    "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
    "rope.scaling.finetuned", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", LOCAL_BASE,
    ATTENTION_FACTOR,
}  # fmt: skip


def config_of(model: GgufModel) -> tuple[dict[str, object], Family]:
    """The config.json that a model's metadata and tensors amount to, and what its family has of its own.

    Raises UnsupportedModel for an architecture, or a key of one, that is not known here; ExportError for what is wrong.
    """
    name = model.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ExportError(f"'{model.path}' does not say what model it is ('general.architecture'); expected a name.")
    family = _KNOWN.get(name)
    if family is None and name in REFUSED:
        raise UnsupportedModel(
            f"'{model.path}' is a model of the architecture '{name}', which is not read: {REFUSED[name]}.",
            model_type=name,
        )
    if family is None:
        raise UnsupportedModel(
            f"'{model.path}' is a model of the architecture '{name}', which is not read from GGUF. "
            f"Known: {', '.join(_KNOWN)}.{nearest(name, _KNOWN)} Try the checkpoint that it was made from.",
            model_type=name,
        )
    prefix = f"{name}."
    metadata = {
        key.removeprefix(prefix): _plain(value) for key, value in model.metadata.items() if key.startswith(prefix)
    }
    if unknown := [key for key, value in metadata.items() if value and key not in _COMMON and key not in family.keys]:
        raise UnsupportedModel(
            f"'{model.path}' says '{prefix}{unknown[0]}', which is not known here for such models and could change "
            "what they compute. Try the checkpoint that it was made from.",
            model_type=name,
        )
    metadata = {key: value for key, value in metadata.items() if value or key not in _SCALES}
    own = Config(metadata, f"'{model.path}', {prefix}*")
    if family.gating is not None and own.integer(GATING, family.gating) != family.gating:
        raise UnsupportedModel(
            f"'{model.path}' chooses experts by '{GATING}' {own.integer(GATING)}; known for such models is "
            f"{family.gating}.",
            model_type=name,
        )
    if LOCAL_BASE not in family.keys:
        base = own.number("rope.freq_base", 10_000.0)
        if (local := own.number(LOCAL_BASE, base)) != base:
            raise UnsupportedModel(
                f"'{model.path}' rotates the layers with a sliding window by another base: '{LOCAL_BASE}' is {local:g} "
                f"and 'rope.freq_base' {base:g}; for such models one base for all layers is known.",
                model_type=name,
            )
    config: dict[str, object] = {"routed_scaling_factor": 1.0}
    config |= {theirs: value for key, value in metadata.items() for theirs in _KEYS.get(key, ())}
    config |= {key: value for key, value in family.values.items() if key not in config}
    config |= _read_off(model, own, _sizes(model, own), family)
    config["model_type"] = family.model_type
    config |= table_sizes(model) if not family.causal else {}
    config |= family.more(own, model.tensors)
    return {**dict.fromkeys(SIZES), **config}, family  # null: not what a configuration class takes for granted


def mtp_blocks(config: Mapping[str, object]) -> range:
    """Of config_of()'s config: the multi-token prediction (MTP, nextn) layers behind the others, no part of a model."""
    layers, mtp = config["num_hidden_layers"], config.get("num_nextn_predict_layers", 0)
    assert isinstance(layers, int)
    assert isinstance(mtp, int)
    return range(layers, layers + mtp)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What others are reckoned from, and loops are counted by: never more than the file has tensors for."""

    hidden: int
    heads: int
    head_dim: int
    layers: int


def _sizes(model: GgufModel, own: Config) -> _Sizes:
    hidden, heads = own.integer("embedding_length"), own.integer("attention.head_count")
    layers, mtp = own.integer("block_count"), own.integer(NEXTN_LAYERS, 0, least=0)
    blocks = {name.split(".")[1] for name in model.tensors if name.startswith("blk.")}
    if mtp >= min(layers, len(blocks) + 1):
        raise ExportError(
            f"'{model.path}' has {layers} layers, of which {mtp} are multi-token prediction (nextn) layers."
        )
    layers -= mtp
    if mtp and "0" not in blocks:
        raise ExportError(
            f"'{model.path}' holds a multi-token prediction head (MTP, nextn) without its model. Give the file of the "
            "whole model, or the checkpoint that both were made from."
        )
    if layers > len(blocks):
        raise ExportError(f"'{model.path}' has tensors of {len(blocks)} layers; its metadata calls for {layers}.")
    experts = own.integer("expert_count", 0, least=0)
    stacks = [tensor.shape[0] for name, tensor in model.tensors.items() if name.endswith("_exps.weight")]
    if experts > max(stacks, default=len(model.tensors)):
        raise ExportError(f"'{model.path}' has fewer experts than {experts}, which its metadata calls for.")
    return _Sizes(hidden=hidden, heads=heads, layers=layers,
                  head_dim=own.integer("attention.key_length", max(1, hidden // heads)))  # fmt: skip


def _plain(value: object) -> object:
    """A list of numbers that are all alike is that number: some writers give one for each layer."""
    values = value.tolist() if hasattr(value, "tolist") else value  # type: ignore[union-attr]  # NumPy's array
    if isinstance(values, list) and values and all(each == values[0] for each in values):
        return values[0]
    return values


def _read_off(model: GgufModel, own: Config, sizes: _Sizes, family: Family) -> dict[str, object]:
    """What follows from the tensors, and from keys that need others."""
    tensors = model.tensors
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ExportError(f"'{model.path}' has no tensor 'token_embd.weight'; expected a whole model, not an adapter.")
    head_dim = sizes.head_dim
    is_uneven = not family.uses_mla and own.integer("attention.value_length", head_dim) != head_dim
    if is_uneven or own.flag("attention.causal", family.causal) != family.causal:
        raise UnsupportedModel(f"'{model.path}' has keys and values of different sizes, or reads texts otherwise than "
                               "its architecture does; such models are not read from GGUF.")  # fmt: skip
    part = own.integer("rope.dimension_count", head_dim) / head_dim
    is_biased = any(f"blk.0.{name}.bias" in tensors for name in ("attn_q", "attn_qkv"))
    config: dict[str, object] = {
        "vocab_size": embedding.shape[0],
        "num_hidden_layers": sizes.layers,
        "tie_word_embeddings": "output.weight" not in tensors,
        "head_dim": head_dim,
        "partial_rotary_factor": part,
        "rotates_parts": True,  # as llama.cpp does, whatever the family
        "rotary_pct": part,
        "attention_bias": is_biased,
        "use_qkv_bias": is_biased,
        "use_bias": is_biased,
        "attention_out_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        **rope_scaling(model, own, own.integer("context_length")),
    }
    section = config.pop("rope_scaling", {"rope_type": "default"})  # not what a family takes for granted
    assert isinstance(section, dict)
    config[family.rope_key] = family.rope(own, section)
    if own.has(WINDOW[0]) and own.integer(WINDOW[0], least=0) == 0:
        config["sliding_window"] = None
    windowed = windowed_layers(own, sizes.layers)
    if windowed is None:
        return config
    return config | {"layer_types": ["sliding_attention" if each else "full_attention" for each in windowed]}

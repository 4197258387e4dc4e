"""The architectures that are read from GGUF, and what config.json says of each that its files say otherwise.

Source: what convert_hf_to_gguf.py of llama.cpp writes (conversion/), and what it takes for granted (src/models/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.rope import FULL
from embedllm.export.architectures.config import Config
from embedllm.export.gguf import gemma, recurrent
from embedllm.export.gguf.keys import (
    GATING,
    LOCAL_BASE,
    LOG_MULTIPLIER,
    NEXTN_LAYERS,
    POOLING,
    WINDOW,
    windowed_layers,
)

if TYPE_CHECKING:
    from embedllm.export.gguf.reader import Placed

_CAPS = ("attn_logit_softcapping", "final_logit_softcapping", "attention.scale")
_EXPERTS = ("expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length")
_ROUTED = (
    *_EXPERTS, GATING, "expert_shared_count", "leading_dense_block_count", "expert_weights_scale",
    "expert_weights_norm", "expert_group_count", "expert_group_used_count", NEXTN_LAYERS,
)  # fmt: skip
_MLA = ("attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla",
           LOG_MULTIPLIER)  # fmt: skip
_MROPE = (
    "rope.dimension_sections",
    "n_deepstack_layers",
)  # M-RoPE of vision-language models; positions of texts are one number
_SOFTMAX, _SIGMOID = 1, 2  # values of GATING
_SCALES = ("attention.scale", "logit_scale", "residual_scale", "embedding_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What general.architecture stands for, where that is not a model_type of the same name with the usual keys."""

    model_type: str
    permuted_qk: bool = False  # q and k rows lie as for interleaved RoPE; checkpoints have the halves of a head apart
    causal: bool = True  # False: bidirectional attention
    keys: tuple[str, ...] = ()  # that it takes besides the common ones; any other key is refused
    values: Mapping[str, object] = field(default_factory=dict)  # what such files leave out
    interleaved_value_heads: bool = False  # of Gated DeltaNet: the value heads of a key head are not neighbours
    separate_mlps: bool = False  # an MLP is a block of its own, behind that of the mixer
    gating: int | None = None  # what experts are chosen by, where the file may say so: the value of GATING
    uses_mla: bool = False  # multi-head latent attention: key and value lengths are those of the latent
    # the section of config.json that is of RoPE, made from what all files say of it; and the section's name
    rope: Callable[[Config, Mapping[str, object]], Mapping[str, object]] = lambda own, section: section
    rope_key: str = "rope_scaling"
    # of the architecture's keys, and the tensors
    more: Callable[[Config, Mapping[str, Placed]], Mapping[str, object]] = lambda own, tensors: {}


def _granite(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    if not own.flag(_USES_ROPE, True):
        raise UnsupportedModel(f"a Granite of NoPE layers only ('{_USES_ROPE}' is false), which is not described.")
    return _granite_scales(own)


def _granite_hybrid(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    uses_rope = own.flag(_USES_ROPE, True)
    return {
        **_granite_scales(own),
        **recurrent.granite_hybrid(own, tensors),
        "position_embedding_type": "rope" if uses_rope else "nope",
    }


def _granite_scales(own: Config) -> Mapping[str, object]:
    each = max(1, own.integer("embedding_length") // own.integer("attention.head_count"))
    usual = own.integer("attention.key_length", each) ** -0.5
    scale = own.number("attention.scale", usual) or usual
    return {"attention_multiplier": scale, "logits_scaling": own.number("logit_scale", 1.0) or 1.0}


_USES_ROPE = "rope.scaling.finetuned"


def _cohere(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    return {"logit_scale": own.number("logit_scale", 1.0) or 1.0}


def _llama(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    if own.integer("expert_count", 0, least=0):
        return {"model_type": "mixtral"}
    return {"model_type": "mistral"} if own.integer("attention.sliding_window", 0, least=0) else {}


def _llama4(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    """Files say neither chunks nor temperature, nor which layers have RoPE: those are the same for all (llama4.cpp).

    The norms of q and k are left out in models of 128 experts.
    """
    if own.has(WINDOW[0]) and not own.integer(WINDOW[0], least=0):
        raise UnsupportedModel(
            f"a Llama 4 whose layers all see the whole context ('{WINDOW[0]}' is 0), as MobileLLM-R1 is. llama.cpp "
            "takes its last layer for a NoPE layer, which the file does not say. Take the checkpoint that it was made "
            "from."
        )
    layers, inner = own.integer("block_count"), own.integer("feed_forward_length")
    windowed = windowed_layers(own, layers) or [(index + 1) % 4 != 0 for index in range(layers)]
    return {
        "intermediate_size_mlp": inner,
        "intermediate_size": own.integer("expert_feed_forward_length", inner),
        "moe_layers": [index for index in range(layers) if f"blk.{index}.ffn_gate_inp.weight" in tensors],
        "use_qk_norm": own.integer("expert_count", 0, least=0) != _MAVERICK,
        "layer_types": ["chunked_attention" if each else FULL for each in windowed],
    }


_MAVERICK = 128  # experts


def _granite_moe(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    has_shared = own.integer("expert_shared_feed_forward_length", 0, least=0)
    return {**_granite(own, tensors), "model_type": "granitemoeshared" if has_shared else "granitemoe"}


def _internlm2(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    return {"bias": "blk.0.attn_q.bias" in tensors}


def _glm4_moe(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    return {"use_qk_norm": "blk.0.attn_q_norm.weight" in tensors}


def _hunyuan_moe(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    return {"moe_topk": own.integer("expert_used_count")}


def _minimax(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    """The weights of experts are always divided by their sum, and by nothing else."""
    if not own.flag("expert_weights_norm", True) or own.number("expert_weights_scale", 1.0) not in (0.0, 1.0):
        raise UnsupportedModel("a MiniMax M2 whose expert weights are scaled otherwise than by their sum.")
    return {"use_qk_norm": "blk.0.attn_q_norm.weight" in tensors}


def _stablelm(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    """Files say that both halves of a layer read the same where config.json says nothing; the norm between tells."""
    return {"use_parallel_residual": "blk.0.ffn_norm.weight" not in tensors}


def _olmo2(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    return {"model_type": "olmo3"} if own.integer(WINDOW[0], 0, least=0) else {}


def _mistral3(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    """Mistral Small's files have no attention temperature."""
    if own.has(_TEMPERATURE):
        return {}
    if own.has(LOG_MULTIPLIER):
        raise UnsupportedModel(
            f"a Mistral whose file says '{LOG_MULTIPLIER}' and no '{_TEMPERATURE}', which are not known apart. Take "
            "the checkpoint that it was made from."
        )
    return {"model_type": "mistral"}


_TEMPERATURE = "attention.temperature_scale"


def _mistral3_rope(own: Config, section: Mapping[str, object]) -> Mapping[str, object]:
    if not own.has(_TEMPERATURE):
        return section
    temperature = {
        "llama_4_scaling_beta": own.number(_TEMPERATURE),
        "rope_theta": own.number("rope.freq_base", above=1),
    }
    return {**section, **temperature, "mscale": 1.0, "mscale_all_dim": own.number(LOG_MULTIPLIER, 0.0)}


def _deepseek(own: Config, tensors: Mapping[str, Placed]) -> Mapping[str, object]:
    """DeepSeek-V3 where experts have a score correction bias, else V2.

    Newer files give the key and value lengths of llama.cpp's KV cache, and the model's own ones under *_mla.
    """
    is_corrected = any(name.endswith(".exp_probs_b.bias") for name in tensors)
    usual = _SIGMOID if is_corrected else _SOFTMAX
    if (gating := own.integer(GATING, usual)) != usual:
        raise UnsupportedModel(
            f"a DeepSeek that chooses experts by '{GATING}' {gating}; known for its tensors is {usual}."
        )
    key = own.integer("attention.key_length_mla", own.integer("attention.key_length"))
    rotary_dim = own.integer("rope.dimension_count")
    groups = own.integer("expert_group_count", 0, least=0)
    if not groups and own.integer("expert_count", 0, least=0) in _GROUPED_BEFORE:
        raise UnsupportedModel(
            f"a DeepSeek of {own.integer('expert_count')} experts whose file does not say in how many groups they are "
            "('expert_group_count'). Take a newer file, or the checkpoint that it was made from."
        )
    return {
        "model_type": "deepseek_v3" if is_corrected else "deepseek_v2",
        "topk_method": "group_limited_greedy" if groups > 1 else "greedy",
        "n_group": max(groups, 1),
        "topk_group": own.integer("expert_group_used_count", 1),
        "head_dim": rotary_dim,
        "partial_rotary_factor": 1.0,
        "qk_rope_head_dim": rotary_dim,
        "qk_nope_head_dim": max(key - rotary_dim, 1),
        "v_head_dim": own.integer("attention.value_length_mla", own.integer("attention.value_length", key)),
        "kv_lora_rank": own.integer("attention.kv_lora_rank"),
        "q_lora_rank": own.integer("attention.q_lora_rank") if own.has("attention.q_lora_rank") else None,
        "num_key_value_heads": own.integer("attention.head_count"),
        "rope_interleave": True,
    }


_GROUPED_BEFORE = (160, 256)  # experts of DeepSeek V2 and V3, of whose groups the first files say nothing


def _deepseek_rope(own: Config, section: Mapping[str, object]) -> Mapping[str, object]:
    """A tenth of the factor's logarithm is what is said, and one number for both scales."""
    times = 10 * own.number(LOG_MULTIPLIER, 0.0)
    return {**section, "mscale": times, "mscale_all_dim": times} if times else section


FAMILIES: Mapping[str, Family] = {
    "llama": Family(model_type="llama", permuted_qk=True, keys=(*_EXPERTS, WINDOW[0]), more=_llama),
    "llama4": Family(
        model_type="llama4_text", keys=(*_EXPERTS[:3], *WINDOW, "interleave_moe_layer_step"), more=_llama4
    ),
    "qwen2": Family(model_type="qwen2"),
    "qwen2moe": Family(model_type="qwen2_moe", keys=_EXPERTS, values={"norm_topk_prob": False}),
    "qwen3": Family(model_type="qwen3", keys=(POOLING,)),
    "qwen3moe": Family(model_type="qwen3_moe", keys=_EXPERTS, values={"norm_topk_prob": True}),
    "gemma": Family(model_type="gemma"),
    "gemma2": Family(model_type="gemma2", keys=(*WINDOW, *_CAPS), more=gemma.gemma2),
    "gemma3": Family(model_type="gemma3_text", keys=(*WINDOW, *_CAPS, LOCAL_BASE), more=gemma.gemma3),
    "gemma3n": Family(model_type="gemma3n_text", keys=gemma.KEYS_3N, more=gemma.gemma3n),
    "gemma4": Family(
        model_type="gemma4_text",
        keys=gemma.KEYS_4,
        more=gemma.gemma4,
        rope=gemma.gemma4_rope,
        rope_key="rope_parameters",
    ),
    "phi2": Family(model_type="phi"),
    "phi3": Family(model_type="phi3", keys=WINDOW[:1], values={"sliding_window": None}),
    "qwen2vl": Family(model_type="qwen2", keys=_MROPE),
    "qwen3vl": Family(model_type="qwen3", keys=_MROPE),
    "qwen3vlmoe": Family(model_type="qwen3_moe", keys=(*_EXPERTS, *_MROPE), values={"norm_topk_prob": True}),
    "gpt-oss": Family(
        model_type="gpt_oss", keys=(*_EXPERTS, *WINDOW), rope=lambda own, section: {**section, "truncate": False}
    ),
    "deepseek2": Family(
        model_type="deepseek_v2",
        uses_mla=True,
        keys=(*_ROUTED, *_MLA),
        more=_deepseek,
        values={"norm_topk_prob": False},
        rope=_deepseek_rope,
    ),
    "mistral3": Family(
        model_type="ministral3",
        permuted_qk=True,
        keys=(WINDOW[0], LOG_MULTIPLIER, _TEMPERATURE),
        values={"sliding_window": None},
        more=_mistral3,
        rope=_mistral3_rope,
        rope_key="rope_parameters",
    ),
    "granite": Family(
        model_type="granite", permuted_qk=True, keys=(*_SCALES, *recurrent.STATE_KEYS, _EXPERTS[3]), more=_granite
    ),
    "granitemoe": Family(
        model_type="granitemoe", permuted_qk=True, keys=(*_SCALES, *_EXPERTS, *recurrent.STATE_KEYS), more=_granite_moe
    ),
    "granitehybrid": Family(
        model_type="granitemoehybrid",
        permuted_qk=True,
        keys=(*_SCALES, *_EXPERTS, *recurrent.STATE_KEYS),
        more=_granite_hybrid,
    ),
    "falcon-h1": Family(model_type="falcon_h1", keys=recurrent.STATE_KEYS, more=recurrent.falcon_h1),
    "nemotron_h": Family(
        model_type="nemotron_h", separate_mlps=True, keys=recurrent.STATE_KEYS, more=recurrent.nemotron_h
    ),
    "nemotron_h_moe": Family(
        model_type="nemotron_h",
        separate_mlps=True,
        keys=(*_ROUTED, *recurrent.STATE_KEYS),
        gating=_SIGMOID,
        more=recurrent.nemotron_h,
    ),
    "olmo": Family(model_type="olmo", permuted_qk=True),
    "olmoe": Family(model_type="olmoe", keys=_EXPERTS, values={"norm_topk_prob": False}),
    "olmo2": Family(model_type="olmo2", keys=WINDOW, more=_olmo2),
    "exaone": Family(model_type="exaone"),
    "exaone4": Family(model_type="exaone4", keys=WINDOW, values={"sliding_window": None}),
    "exaone-moe": Family(
        model_type="exaone_moe",
        keys=(*_ROUTED, *WINDOW),
        gating=_SIGMOID,
        values={"sliding_window": None, "norm_topk_prob": False},
    ),
    "smollm3": Family(model_type="smollm3", permuted_qk=True),
    "arcee": Family(model_type="arcee", permuted_qk=True),
    "ernie4_5": Family(model_type="ernie4_5"),
    "ernie4_5-moe": Family(
        model_type="ernie4_5_moe",
        keys=(*_ROUTED, "interleave_moe_layer_step"),
        gating=_SOFTMAX,
        values={"moe_num_shared_experts": 0},
    ),
    "hunyuan-dense": Family(model_type="hunyuan_v1_dense"),
    "hunyuan-moe": Family(model_type="hunyuan_v1_moe", keys=(*_EXPERTS, "expert_shared_count"), more=_hunyuan_moe),
    "internlm2": Family(model_type="internlm2", permuted_qk=True, more=_internlm2),
    "seed_oss": Family(model_type="seed_oss"),
    "command-r": Family(model_type="cohere", keys=("logit_scale",), more=_cohere),
    "cohere2": Family(model_type="cohere2", keys=("logit_scale", *WINDOW), more=_cohere),
    "glm4": Family(model_type="glm4"),
    "glm4moe": Family(
        model_type="glm4_moe", keys=_ROUTED, gating=_SIGMOID, values={"norm_topk_prob": False}, more=_glm4_moe
    ),
    "chatglm": Family(model_type="glm"),
    "dots1": Family(
        model_type="dots1", keys=_ROUTED, gating=_SIGMOID, values={"sliding_window": None, "norm_topk_prob": False}
    ),
    "minimax-m2": Family(
        model_type="minimax_m2",
        keys=_ROUTED,
        gating=_SIGMOID,
        values={"scoring_func": "sigmoid"},
        more=_minimax,
    ),
    "stablelm": Family(model_type="stablelm", more=_stablelm),
    "starcoder2": Family(model_type="starcoder2", keys=WINDOW[:1], values={"sliding_window": None}),
    "lfm2": Family(model_type="lfm2", keys=("shortconv.l_cache",), more=recurrent.lfm2),
    "lfm2moe": Family(
        model_type="lfm2_moe", keys=(*_ROUTED, "shortconv.l_cache"), gating=_SIGMOID, more=recurrent.lfm2
    ),
    "qwen3next": Family(model_type="qwen3_next", keys=(*_EXPERTS, *recurrent.DELTA_KEYS), more=recurrent.delta_net),
    "qwen35": Family(
        model_type="qwen3_5_text",
        keys=(*recurrent.DELTA_KEYS, "rope.dimension_sections"),
        interleaved_value_heads=True,
        more=recurrent.delta_net,
    ),
    "qwen35moe": Family(
        model_type="qwen3_5_moe_text",
        keys=(*_EXPERTS, *recurrent.DELTA_KEYS, "rope.dimension_sections"),
        interleaved_value_heads=True,
        more=recurrent.delta_net,
    ),
    "gpt2": Family(model_type="gpt2"),
    "jais2": Family(model_type="jais2"),
    "gptneox": Family(model_type="gpt_neox"),
    "nemotron": Family(model_type="nemotron"),
}

# architectures that are not read, and what they have that is not described
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("mamba", "mamba2", "plamo2", "jamba"), "it has layers of a state space model (Mamba)"),
    **dict.fromkeys(("rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7"), "it has layers of RWKV"),
    **dict.fromkeys(("t5", "t5encoder"), "it has relative position biases"),
    "clip": "it is the vision encoder of a model; export the text model's file, with --mmproj and the name of this one",
}  # fmt: skip

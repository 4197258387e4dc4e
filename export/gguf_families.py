"""The architectures that are read from GGUF, and what config.json says of each that its files say otherwise.

Source: what llama.cpp's converters write (conversion/), and what it takes for granted (src/models/).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from embedllm.export.config import Config

PATTERN = "attention.sliding_window_pattern"
WINDOW = ("attention.sliding_window", PATTERN)
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping", "attention.scale")
_EXPERTS = ("expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length")
_SCALES = ("attention.scale", "logit_scale", "residual_scale", "embedding_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What general.architecture stands for, where that is not a model_type of the same name with the usual keys."""

    model_type: str
    turned: bool = False  # of q and k, rows that turn together are neighbours; in checkpoints, in halves of a head
    regrouped: bool = False  # q, k and v are one matrix: all of q, then k, then v; not so for each head
    keys: tuple[str, ...] = ()  # that it takes besides the common ones; any other key is refused
    values: Mapping[str, object] = field(default_factory=dict)  # what such files leave out
    # of the architecture's keys, and the names of the tensors
    more: Callable[[Config, Collection[str]], Mapping[str, object]] = lambda own, names: {}


def _gemma(own: Config, names: Collection[str]) -> Mapping[str, object]:
    """The largest ones divide by another root than that of a head's size, which only the layers' number tells."""
    each = own.integer("embedding_length") / own.integer("attention.head_count")
    if own.has("attention.scale"):
        return {"query_pre_attn_scalar": own.number("attention.scale", above=0) ** -2}
    is_largest = own.integer("block_count") in _LARGEST_GEMMAS
    return {"query_pre_attn_scalar": each if is_largest else own.number("attention.key_length", each, above=0)}


_LARGEST_GEMMAS = (46, 62)  # layers of Gemma 2 27B and Gemma 3 27B


def _granite(own: Config, names: Collection[str]) -> Mapping[str, object]:
    each = max(1, own.integer("embedding_length") // own.integer("attention.head_count"))
    usual = own.integer("attention.key_length", each) ** -0.5
    scale = own.number("attention.scale", usual) or usual
    return {"attention_multiplier": scale, "logits_scaling": own.number("logit_scale", 1.0) or 1.0}


def _cohere(own: Config, names: Collection[str]) -> Mapping[str, object]:
    return {"logit_scale": own.number("logit_scale", 1.0) or 1.0}


def _llama(own: Config, names: Collection[str]) -> Mapping[str, object]:
    if own.integer("expert_count", 0, least=0):
        return {"model_type": "mixtral"}
    return {"model_type": "mistral"} if own.integer("attention.sliding_window", 0, least=0) else {}


FAMILIES: Mapping[str, Family] = {
    "llama": Family(model_type="llama", turned=True, keys=(*_EXPERTS, *WINDOW), more=_llama),
    "qwen2": Family(model_type="qwen2"),
    "qwen2moe": Family(model_type="qwen2_moe", keys=_EXPERTS, values={"norm_topk_prob": False}),
    "qwen3": Family(model_type="qwen3"),
    "qwen3moe": Family(model_type="qwen3_moe", keys=_EXPERTS, values={"norm_topk_prob": True}),
    "gemma": Family(model_type="gemma"),
    "gemma2": Family(model_type="gemma2", keys=(*WINDOW, *_CAPS), more=_gemma),
    "gemma3": Family(model_type="gemma3_text", keys=(*WINDOW, *_CAPS, "rope.freq_base_swa"), more=_gemma),
    "phi2": Family(model_type="phi"),
    "phi3": Family(model_type="phi3", keys=WINDOW, values={"sliding_window": None}),
    "granite": Family(model_type="granite", turned=True, keys=_SCALES, more=_granite),
    "olmo": Family(model_type="olmo", turned=True),
    "olmoe": Family(model_type="olmoe", keys=_EXPERTS, values={"norm_topk_prob": False}),
    "olmo2": Family(model_type="olmo2"),
    "exaone4": Family(model_type="exaone4", keys=WINDOW, values={"sliding_window": None}),
    "smollm3": Family(model_type="smollm3", turned=True),
    "arcee": Family(model_type="arcee", turned=True),
    "ernie4_5": Family(model_type="ernie4_5"),
    "seed_oss": Family(model_type="seed_oss"),
    "command-r": Family(model_type="cohere", keys=("logit_scale",), more=_cohere),
    "cohere2": Family(model_type="cohere2", keys=("logit_scale", *WINDOW), more=_cohere),
    "glm4": Family(model_type="glm4"),
    "stablelm": Family(model_type="stablelm"),
    "starcoder2": Family(model_type="starcoder2", keys=WINDOW, values={"sliding_window": None}),
    "gptneox": Family(model_type="gpt_neox", regrouped=True),
    "nemotron": Family(model_type="nemotron"),
}

"""Multi-head latent attention (MLA), by the keys of DeepSeek-V2's config.json."""

from __future__ import annotations

import math

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.parts import Parts
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention, MultiHeadLatent
from embedllm.package.architecture.weights import Linear, Norm, Origin

_EPSILON = 1e-6  # of the latents' norms, whatever config.json says of the others'


def with_rotary_head_dim(config: Config) -> Config:
    """The config with the rotary part of a head as 'head_dim', which is what a rotation is described by."""
    return config.replaced({"head_dim": config.integer("qk_rope_head_dim", 64)})


def latent_attention(parts: Parts, *, interleaved: bool, q_rank: int | None = 1536) -> Attention:
    """interleaved: of the RoPE (GPT-J style). q_rank: what a config that does not say it means; None: no query latent.

    Raises UnsupportedModel for values longer than keys.
    """
    config, heads, hidden = parts.config, parts.sizes.heads, parts.sizes.hidden
    rope_dim, nope_dim = config.integer("qk_rope_head_dim", 64), config.integer("qk_nope_head_dim", 128)
    value, rank = config.integer("v_head_dim", 128), config.integer("kv_lora_rank", 512)
    of_q, size = config.integer_or_none("q_lora_rank", q_rank), rope_dim + nope_dim
    if value > size:
        raise UnsupportedModel(f"v_head_dim is {value}; expected at most the {size} values of a key.")
    if parts.sizes.kv_heads != heads:
        raise UnsupportedModel(f"num_key_value_heads is {parts.sizes.kv_heads}; expected num_attention_heads, {heads}.")
    pairs, bias = rope_dim if interleaved else 0, config.flag("attention_bias", False)

    def part(name: str, where: str, rows: int, columns: int, *, bias: bool = False, origin: Origin) -> Linear:
        return parts.linear(f"attention.{name}", f"self_attn.{where}", rows, columns, bias=bias, origin=origin)

    q_a = None
    if of_q is not None:
        q_a = parts.linear("attention.q_a", "self_attn.q_a_proj", of_q, hidden, bias=bias)
    together = "kv_a_proj_with_mqa", rank + rope_dim
    mla = MultiHeadLatent(
        q=q_a,
        q_norm=None if of_q is None else _norm(parts, "q", of_q),
        kv=part("kv_a", together[0], rank, hidden, bias=bias, origin=Origin(rows=together[1])),
        kv_norm=_norm(parts, "kv", rank),
        k=part("k_rope", together[0], rope_dim, hidden, bias=bias,
               origin=Origin(rows=together[1], start=rank, head_rows=rope_dim, interleaved=pairs)),
        value_dim=value,
    )  # fmt: skip
    both = heads * (nope_dim + value)
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=size,
        q=part("q", "q_proj" if of_q is None else "q_b_proj", heads * size, hidden if of_q is None else of_q,
               origin=Origin(rows=heads * size, head_rows=size, interleaved=pairs, rope_last=rope_dim)),
        k=part("k", "kv_b_proj", heads * nope_dim, rank,
               origin=Origin(rows=both, block=nope_dim, stride=nope_dim + value)),
        v=part("v", "kv_b_proj", heads * value, rank,
               origin=Origin(rows=both, start=nope_dim, block=value, stride=nope_dim + value)),
        o=parts.linear("attention.o", "self_attn.o_proj", hidden, heads * value, bias=bias),
        scale=_scale(config, size),
        mla=mla,
    )  # fmt: skip


def _norm(parts: Parts, which: str, size: int) -> Norm:
    source = f"{parts.source}.self_attn.{which}_a_layernorm.weight"
    return Norm(name=f"{parts.name}.attention.{which}_a_norm", source=source, size=size, epsilon=_EPSILON)


def _scale(config: Config, size: int) -> float | None:
    """Of the scores, where a rotation for longer texts makes them larger; None: as it is by itself."""
    rope = config.section("rope_parameters") or config.section("rope_scaling")
    if rope is None or rope.text("rope_type", rope.text("type", "default")) == "default":
        return None
    times = rope.number("mscale_all_dim", 0.0)
    if not times:
        return None
    factor = rope.number("factor", above=0)
    return (1.0 if factor <= 1 else 0.1 * times * math.log(factor) + 1.0) ** 2 * size**-0.5

"""Decoders that differ from a plain one by what some family has: one thing a case. For tests of graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention, AttentionTemperature, MultiHeadLatent
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import AltUp, AltUpStreams, Laurel, Layer, PerLayerEmbedding, PerLayerInput
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.rope import ProportionalScaling, Rope
from embedllm.package.architecture.weights import Linear, Norm
from tests.support.tiny import tiny_config

Change = Callable[[Decoder], Decoder]
VOCABULARY, HIDDEN, HEADS, KV_HEADS, SIZE = 307, 80, 5, 1, 16  # a last group of 16 values in rows of 80


@cache
def plain() -> Decoder:
    sizes = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
    return describe(Config(tiny_config("qwen3", **sizes)), None)


def attending(layer: Layer) -> Attention:
    assert isinstance(layer.attention, Attention)
    return layer.attention


def layers(change: Callable[[int, Layer], Layer]) -> Change:
    def changed(decoder: Decoder) -> Decoder:
        return replace(decoder, layers=tuple(change(at, layer) for at, layer in enumerate(decoder.layers)))

    return changed


def attention(**changes: object) -> Change:
    return layers(lambda at, layer: replace(layer, attention=replace(layer.attention, **changes)))  # type: ignore[arg-type]


def norm(name: str, size: int = HIDDEN, **changes: object) -> Norm:
    return replace(Norm(name=name, source=f"{name}.weight", size=size, epsilon=1e-5), **changes)  # type: ignore[arg-type]


def linear(name: str, rows: int, columns: int, *, bias: bool = False) -> Linear:
    return Linear(name=name, source=name, rows=rows, columns=columns, bias=bias)


def layer_norms(decoder: Decoder) -> Decoder:
    def change(found: Norm | None) -> Norm | None:
        return found and replace(found, kind="layer", bias=f"{found.name}.bias")

    def of_layer(at: int, layer: Layer) -> Layer:
        return replace(layer, attention_norm=change(layer.attention_norm), mlp_norm=change(layer.mlp_norm))

    decoder = layers(of_layer)(decoder)
    return replace(decoder, norm=replace(decoder.norm, kind="layer", bias="norm.bias"))


def head_norms(*, groups: bool = False, whole: bool = False, after_rope: bool = False, kind: str = "rms") -> Change:
    """Norms of q and k: each head by weights of its own, all heads together, or after the rotation."""

    def of_layer(at: int, layer: Layer) -> Layer:
        found = attending(layer)

        def made(part: str, heads: int) -> Norm:
            size = heads * SIZE if whole else SIZE
            return norm(f"layers.{at}.{part}_norm", size, groups=heads if groups else 1, kind=kind)

        return replace(layer, attention=replace(found, q_norm=made("q", found.heads), k_norm=made("k", found.kv_heads),
                                                norm_after_rope=after_rope))  # fmt: skip

    return lambda decoder: layers(of_layer)(kv_heads(5)(decoder) if groups or whole else decoder)


def with_gate(at: int, layer: Layer, rows: int) -> Layer:
    gate = linear(f"layers.{at}.attention.gate", rows, HIDDEN)
    return replace(layer, attention=replace(attending(layer), gate=gate))


def kv_heads(count: int) -> Change:
    def of_layer(at: int, layer: Layer) -> Layer:
        found = attending(layer)
        k, v = (replace(one, rows=count * SIZE) for one in (found.k, found.v))
        return replace(layer, attention=replace(found, kv_heads=count, k=k, v=v))

    return layers(of_layer)


def wide_heads(size: int) -> Change:
    def of_layer(at: int, layer: Layer) -> Layer:
        a = attending(layer)
        q, k, v = replace(a.q, rows=HEADS * size), replace(a.k, rows=size), replace(a.v, rows=size)
        o = replace(a.o, columns=HEADS * size)
        return replace(layer, attention=replace(a, head_dim=size, q=q, k=k, v=v, o=o, q_norm=None, k_norm=None))

    return lambda decoder: replace(layers(of_layer)(decoder), rope=Rope(base=1e4, rotary_dim=size))


def mla(*, rope_dim: int, nope_dim: int, value: int, q_rank: int = 0) -> Change:
    """Keys and values made of vectors of 40 values, which all heads share; queries likewise."""

    def of_layer(at: int, layer: Layer) -> Layer:
        name = f"layers.{at}.attention"
        latent = MultiHeadLatent(
            q=linear(f"{name}.q_a", q_rank, HIDDEN) if q_rank else None,
            q_norm=norm(f"{name}.q_a_norm", q_rank) if q_rank else None,
            kv=linear(f"{name}.kv_a", 40, HIDDEN),
            kv_norm=norm(f"{name}.kv_a_norm", 40),
            k=linear(f"{name}.k_rope", rope_dim, HIDDEN),
            value_dim=value,
        )
        size = rope_dim + nope_dim
        q = linear(f"{name}.q", HEADS * size, q_rank or HIDDEN)
        k, v = linear(f"{name}.k", HEADS * nope_dim, 40), linear(f"{name}.v", HEADS * value, 40)
        o = linear(f"{name}.o", HIDDEN, HEADS * value)
        return replace(layer, attention=Attention(heads=HEADS, kv_heads=HEADS, head_dim=size, q=q, k=k, v=v, o=o,
                                                  mla=latent))  # fmt: skip

    return lambda decoder: replace(layers(of_layer)(decoder), rope=Rope(base=1e4, rotary_dim=rope_dim))


def post_norms(*, only: bool = False) -> Change:
    def of_layer(at: int, layer: Layer) -> Layer:
        after = {f"{part}_post_norm": norm(f"layers.{at}.{part}_post_norm") for part in ("attention", "mlp")}
        before = {"attention_norm": None, "mlp_norm": None} if only else {}
        return replace(layer, **after, **before)  # type: ignore[arg-type]

    return layers(of_layer)


def mlps(*, gate: bool = True, activation: str = "silu", bias: bool = False) -> Change:
    def of_layer(at: int, layer: Layer) -> Layer:
        found = layer.mlp
        assert isinstance(found, Mlp)
        up, down = replace(found.up, bias=bias), replace(found.down, bias=bias)
        return replace(layer, mlp=replace(found, gate=found.gate if gate else None, up=up, down=down,
                                          activation=activation))  # fmt: skip

    return layers(of_layer)


def limited(decoder: Decoder) -> Decoder:
    def of_layer(at: int, layer: Layer) -> Layer:
        assert isinstance(layer.mlp, Mlp)
        return replace(layer, mlp=replace(layer.mlp, swiglu_alpha=1.7, swiglu_limit=0.25, up_offset=1.0))

    return layers(of_layer)(decoder)


def mixtures(*, experts: int = 6, used: int = 2, inner: int = 48, shared: bool = False, bias: bool = False,
             gated: bool = False, **changes: object) -> Change:  # fmt: skip
    def of_layer(at: int, layer: Layer) -> Layer:
        def one(name: str) -> Mlp:
            name = f"layers.{at}.mlp.{name}"
            return Mlp(gate=linear(f"{name}.gate", inner, HIDDEN, bias=bias), up=linear(f"{name}.up", inner, HIDDEN,
                       bias=bias), down=linear(f"{name}.down", HIDDEN, inner, bias=bias))  # fmt: skip

        moe = Moe(
            router=linear(f"layers.{at}.mlp.router", experts, HIDDEN, bias=bias),
            experts=tuple(one(f"experts.{number}") for number in range(experts)),
            top_k=used,
            shared=one("shared") if shared else None,
            shared_gate=linear(f"layers.{at}.mlp.shared_gate", 1, HIDDEN) if gated else None,
        )
        corrected = {"correction": f"layers.{at}.{changes['correction']}"} if "correction" in changes else {}
        return replace(layer, mlp=replace(moe, **{**changes, **corrected}))  # type: ignore[arg-type]

    return layers(of_layer)


def per_layer_embeddings(size: int) -> Change:
    """Per-layer embeddings of `size` values; layers multiply their stream in the end."""

    def of_layer(at: int, layer: Layer) -> Layer:
        name = f"layers.{at}.per_layer_input"
        gate, up = linear(f"{name}.gate", size, HIDDEN), linear(f"{name}.up", HIDDEN, size)
        part = PerLayerInput(gate=gate, up=up, norm=norm(f"{name}.norm"), activation="gelu_tanh")
        return replace(layer, per_layer_input=part, scale=f"layers.{at}.scale.norm.weight")

    table, projection = (
        linear("per_layer_embedding.table", VOCABULARY, 2 * size),
        linear("per_layer_embedding.projection", 2 * size, HIDDEN),
    )
    inputs = PerLayerEmbedding(table=table, projection=projection, norm=norm("per_layer_embedding.norm", size),
                               table_multiplier=4.0, multiplier=0.7)  # fmt: skip
    return lambda decoder: replace(layers(of_layer)(decoder), per_layer_embedding=inputs)


def keys_of_first(**changes: object) -> Change:
    """The second layer reads the first one's keys and values. changes: of the attention of both."""

    def of_layer(at: int, layer: Layer) -> Layer:
        if not at:
            return layer
        k, v = (linear(f"layers.0.attention.{part}", one.rows, HIDDEN)
                for part, one in (("k", attending(layer).k), ("v", attending(layer).v)))  # fmt: skip
        return replace(layer, attention=replace(layer.attention, kv_from=0, k=k, v=v, k_norm=None))

    return both(attention(**changes), layers(of_layer))


def altup(count: int = 3) -> Change:
    """AltUp, LAuReL, sparse MLPs; the last tokens have no per-layer embedding."""

    def of_layer(at: int, layer: Layer) -> Layer:
        name, mlp = f"layers.{at}", layer.mlp
        assert isinstance(mlp, Mlp)
        parts = AltUp(norm=norm(f"{name}.altup.norm"), router=linear(f"{name}.altup.router", count, HIDDEN),
                      predict=linear(f"{name}.altup.predict", count**2, count),
                      correct=linear(f"{name}.altup.correct", count, count),
                      scale=f"{name}.altup.scale")  # fmt: skip
        laurel = Laurel(down=linear(f"{name}.laurel.down", 16, HIDDEN), up=linear(f"{name}.laurel.up", HIDDEN, 16),
                        norm=norm(f"{name}.laurel.norm"))  # fmt: skip
        return replace(layer, altup=parts, laurel=laurel, mlp=replace(mlp, sparsity_cutoff=0.5))

    begin, end = (tuple(linear(f"{part}.{at}", HIDDEN, HIDDEN) for at in range(count - 1)) for part in ("begin", "end"))

    def whole_model(decoder: Decoder) -> Decoder:
        inputs = decoder.per_layer_embedding
        assert inputs is not None
        assert inputs.table is not None
        few = replace(inputs, table=replace(inputs.table, rows=VOCABULARY - 100))
        return replace(
            layers(of_layer)(decoder),
            altup_streams=AltUpStreams(projections=begin, unembed_projections=end),
            per_layer_embedding=few,
        )

    return both(per_layer_embeddings(40), whole_model)


def value_norms(at: int, layer: Layer) -> Layer:
    return replace(layer, attention=replace(layer.attention, v_norm=norm(f"layers.{at}.v_norm", SIZE)))


def sinks(decoder: Decoder) -> Decoder:
    return layers(lambda at, layer: replace(layer, attention=replace(layer.attention, sinks=f"sinks.{at}")))(decoder)


def both(*changes: Change) -> Change:
    def changed(decoder: Decoder) -> Decoder:
        for change in changes:
            decoder = change(decoder)
        return decoder

    return changed


def by_layer(first: dict[str, object], second: dict[str, object]) -> Change:
    """Of the attention of the two layers."""
    return layers(lambda at, layer: replace(layer, attention=replace(layer.attention, **(first, second)[at])))  # type: ignore[arg-type]


def whole(**changes: object) -> Change:
    return lambda decoder: replace(decoder, **changes)  # type: ignore[arg-type]


PARALLEL = layers(lambda at, layer: replace(layer, parallel=True, mlp_norm=None))
LEARNED = both(
    attention(rope=None), whole(position_embeddings=linear("positions", 128, HIDDEN), rope=Rope(base=1e4, rotary_dim=0))
)
UNTIED = whole(head=linear("lm_head", VOCABULARY, HIDDEN, bias=True))

CASES: dict[str, Change] = {
    "layer norm": layer_norms,
    "layer norm without bias": whole(norm=norm("norm", kind="layer")),
    "rms norm with bias": whole(norm=norm("norm", bias="norm.bias")),
    "norm of 1 and more": whole(norm=norm("norm", weight_offset=1.0)),
    "norm without weights": whole(norm=norm("norm", source="")),
    "norms of each head": head_norms(groups=True, kind="layer"),
    "norms over all heads": head_norms(whole=True),
    "norms after rope": head_norms(after_rope=True),
    "norms of each head after rope": head_norms(groups=True, after_rope=True),
    "post norms": post_norms(),
    "post norms only": post_norms(only=True),
    "parallel": PARALLEL,
    "parallel, two norms": layers(lambda at, layer: replace(layer, parallel=True)),
    "parallel in the first layer": layers(lambda at, layer: replace(layer, parallel=at == 0)),
    "residual multiplier": layers(lambda at, layer: replace(layer, residual_multiplier=0.3)),
    "partial rotary embedding": whole(rope=Rope(base=1e4, rotary_dim=8)),
    "nope layer": by_layer({}, {"rope": None}),
    "learned position embeddings": LEARNED,
    "two rope bases": both(whole(local_rope=Rope(base=100.0, rotary_dim=16)), by_layer({"rope": 1, "window": 5}, {})),
    "two rope bases, one partial": both(whole(local_rope=Rope(base=100.0, rotary_dim=4)), by_layer({"rope": 1}, {})),
    "heads of 64": wide_heads(64),
    "heads of 24": wide_heads(24),
    "scale": attention(scale=0.1),
    "softcap": attention(softcap=0.5),
    "softcap in a layer, gqa, window": by_layer({"softcap": 0.5, "window": 6}, {}),
    "sinks": sinks,
    "sinks, window, scale": both(sinks, attention(window=6, scale=0.5)),
    "sinks, softcap": both(sinks, attention(softcap=1.0)),
    "attention temperature": attention(temperature=AttentionTemperature(beta=0.5, original_context=7)),
    "attention gate": layers(lambda at, layer: with_gate(at, layer, HEADS * SIZE)),
    "attention gate of a value for each head, window": both(
        attention(window=6), layers(lambda at, layer: with_gate(at, layer, HEADS))
    ),
    "mla": mla(rope_dim=16, nope_dim=16, value=24),
    "mla, query latent": mla(rope_dim=16, nope_dim=32, value=48, q_rank=24),
    "mla, narrow rope": mla(rope_dim=8, nope_dim=16, value=8),
    "no gate": mlps(gate=False, activation="gelu", bias=True),
    "gelu": mlps(activation="gelu"),
    "gelu, tanh": mlps(activation="gelu_tanh"),
    "clamped swiglu": limited,
    "relu": mlps(activation="relu"),
    "squared relu": mlps(gate=False, activation="relu2"),
    "mixture": mixtures(),
    "mixture, normalised, biases": mixtures(norm_topk=True, bias=True),
    "mixture of one": mixtures(top_k=1),
    "mixture of all": mixtures(top_k=6),
    "mixture, sigmoid, groups": mixtures(
        experts=8,
        scoring_func="sigmoid",
        groups=4,
        top_k_groups=2,
        norm_topk=True,
        scale=2.5,
        score_correction_bias="correction",
        shared=True,
    ),
    "mixture, softmax, groups": mixtures(experts=8, groups=2, top_k_groups=1, top_k=3),
    "mixture, softmax of the top k": mixtures(scoring_func="softmax_topk"),
    "mixture, sparsemixer": mixtures(scoring_func="sparsemixer", jitter_eps=0.3, top_k=3),
    "mixture, gated shared expert": mixtures(shared=True, gated=True),
    "mixture, parallel": both(mixtures(), PARALLEL),
    "kv sharing": keys_of_first(),
    "kv sharing, window, rope outside attention": both(
        whole(rope=Rope(base=1e4, rotary_dim=8)), keys_of_first(window=6)
    ),
    "v norm": layers(value_norms),
    "per-layer embeddings": per_layer_embeddings(40),
    "altup": altup(),
    "proportional rope": whole(
        rope=Rope(base=1e4, rotary_dim=8, scaling=ProportionalScaling(head_dim=SIZE, factor=2.0))
    ),
    "embedding multiplier": whole(embedding_multiplier=5.0),
    "embedding norm": whole(embedding_norm=norm("embedding_norm", kind="layer", bias="embedding_norm.bias")),
    "logits multiplier": whole(logits_multiplier=0.2),
    "logits softcap": both(UNTIED, whole(logits_softcap=2.0)),
    "logits multiplier and softcap": whole(logits_multiplier=0.2, logits_softcap=2.0),
    "head with bias": UNTIED,
    "biases of some of q, k and v": layers(
        lambda at, layer: replace(
            layer, attention=replace(attending(layer), k=replace(attending(layer).k, bias=at == 1))
        )
    ),
}

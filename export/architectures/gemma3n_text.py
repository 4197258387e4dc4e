"""Gemma 3n (text only): per-layer embeddings (PLE), AltUp, LAuReL, KV sharing across layers, sparse MLPs."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped, refuse
from embedllm.export.architectures._shared.parts import RMS, Names, Parts, Sizes, activation
from embedllm.export.architectures._shared.per_layer_embeddings import kv_sources, per_layer_embedding, per_layer_input
from embedllm.export.architectures._shared.rope import SLIDING, RopeKeys, describe_rope
from embedllm.export.architectures._shared.sliding_window import all_but_every, sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.gemma2 import NAMES
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import AltUp, AltUpStreams, Laurel, Layer
from embedllm.package.architecture.weights import Linear

_LOCAL = RopeKeys(theta_key="rope_local_base_freq", layers=SLIDING)
_SPARSE, _SPARSITY = 10, 0.95  # sparse layers of models with more layers than that; default of the config


def describe(config: Config) -> Decoder:
    return describe_text(config, "gemma3n_text", "model")


def describe_text(config: Config, model_type: str, place: str) -> Decoder:
    """The decoder of a Gemma 3n whose tensors have names that begin with `place`."""
    config = config.with_defaults({"num_kv_shared_layers": 15})
    refuse(config, "attention_bias", True)
    refuse(config, "altup_correct_scale", False)
    if config.integer("altup_active_idx", 0, least=0):
        raise UnsupportedModel("altup_active_idx is not 0; only a first stream that layers compute is described.")
    names, sliding = replace(NAMES, model=place), sliding_layers(config, all_but_every(5))
    inner = _inner(config, len(sliding))
    shape = Shape(
        model_type=model_type,
        names=names,
        tied=True,
        qk_norm="head",
        activation_key="hidden_activation",
        activation="gelu_pytorch_tanh",
        rope_keys=RopeKeys(theta=1_000_000.0),
        local_rope=describe_rope(config, config.integer("head_dim"), _LOCAL),
        rope=lambda index: int(sliding[index]),
        window=windows(config, 512, sliding),
        scale=1.0,
        logits_softcap=config.number_or_none("final_logit_softcapping", 30.0, above=0) or 0.0,
        embedding_multiplier=math.sqrt(config.integer("hidden_size")),
    )
    decoder = describe_shaped(config.replaced({"intermediate_size": inner[0]}), shape)
    count, size = config.integer("altup_num_inputs", 4, least=2), config.integer("hidden_size_per_layer_input", 256)
    sources, cutoffs = kv_sources(config, sliding), _cutoffs(config, len(sliding))

    def layer(index: int, base: Layer) -> Layer:
        parts = Parts(config=config, sizes=Sizes.of(config), names=names, norm_kind=RMS, transposed=False,
                      name=f"layers.{index}", source=f"{names.in_model(names.layers)}.{index}")  # fmt: skip
        active = activation(config, "hidden_activation", "gelu_pytorch_tanh")
        return replace(
            _with_values(decoder, base, parts, sources[index]),
            mlp=replace(parts.mlp(inner[index], active), sparsity_cutoff=cutoffs[index]),
            per_layer_input=per_layer_input(parts, size, active),
            altup=_altup(parts, count),
            laurel=_laurel(parts, config.integer("laurel_rank", 64)),
        )

    return replace(
        decoder,
        layers=tuple(layer(index, base) for index, base in enumerate(decoder.layers)),
        per_layer_embedding=per_layer_embedding(
            config, names, decoder.embedding, layers=len(sliding), size=size, others=True
        ),
        altup_streams=_streams(names, decoder.hidden, count),
    )


def _with_values(decoder: Decoder, layer: Layer, parts: Parts, source: int | None) -> Layer:
    """The layer with a norm of its values, or with the keys and values of an earlier one."""
    attention, earlier = layer.attention, decoder.layers[source or 0].attention
    assert isinstance(attention, Attention)
    if source is not None:
        assert isinstance(earlier, Attention)
        k, v = earlier.k, earlier.v
        return replace(layer, attention=replace(attention, kv_from=source, k=k, v=v, k_norm=None))
    norm = RMS.named(parts.config, f"{parts.name}.attention.v_norm", "", attention.head_dim)
    return replace(layer, attention=replace(attention, v_norm=replace(norm, source="")))


def _altup(parts: Parts, count: int) -> AltUp:
    hidden = parts.sizes.hidden
    norm = parts.norm("altup.norm", "altup.router_norm")
    assert norm is not None, "it has a name"
    return AltUp(
        norm=norm,
        router=parts.linear("altup.router", "altup.modality_router", count, hidden),
        predict=parts.linear("altup.predict", "altup.prediction_coefs", count * count, count),
        correct=parts.linear("altup.correct", "altup.correction_coefs", count, count),
        scale=f"{parts.source}.altup.correct_output_scale",
    )


def _laurel(parts: Parts, rank: int) -> Laurel:
    hidden, norm = parts.sizes.hidden, parts.norm("laurel.norm", "laurel.post_laurel_norm")
    assert norm is not None, "it has a name"
    down, up = (
        parts.linear(f"laurel.{part}", f"laurel.{where}", rows, columns)
        for part, where, rows, columns in (("down", "linear_left", rank, hidden), ("up", "linear_right", hidden, rank))
    )
    return Laurel(down=down, up=up, norm=norm)


def _streams(names: Names, hidden: int, count: int) -> AltUpStreams:
    def matrices(part: str, where: str) -> tuple[Linear, ...]:
        return tuple(
            Linear(name=f"streams.{part}.{at}", source=f"{names.in_model(where)}.{at}", rows=hidden, columns=hidden)
            for at in range(count - 1)
        )

    return AltUpStreams(
        projections=matrices("begin", "altup_projections"),
        unembed_projections=matrices("end", "altup_unembed_projections"),
    )


def _inner(config: Config, layers: int) -> list[int]:
    """Values inside the mlp of each layer: one number for all, or a list."""
    try:
        sizes = config.integers("intermediate_size")
    except ExportError:
        sizes = None
    sizes = sizes or [config.integer("intermediate_size", 16_384)] * layers
    if len(sizes) != layers or min(sizes) < 1:
        raise ExportError(f"config.json: 'intermediate_size' is {sizes}; expected {layers} numbers >= 1, one a layer.")
    return sizes


def _cutoffs(config: Config, layers: int) -> list[float]:
    """Standard deviations beyond which as many of normal values lie as 'activation_sparsity_pattern' leaves."""
    default = [_SPARSITY if layers > _SPARSE and index < _SPARSE else 0.0 for index in range(layers)]
    key = "activation_sparsity_pattern"
    shares = config.numbers(key, layers) if config.has(key) else default
    if not all(0 <= share < 1 for share in shares):
        raise ExportError(f"config.json: '{key}' is {shares}; expected numbers from 0 to below 1.")
    return [NormalDist().inv_cdf(share) if share else 0.0 for share in shares]

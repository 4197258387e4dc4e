"""Mixtures whose experts ONNX Runtime's QMoE computes."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.weights import Linear
from tests.support.decoder_cases import HIDDEN, VOCABULARY, layers, mixtures
from tests.support.tiny import tiny_config


def mixture(*, experts: int = 6, used: int = 2, inner: int = 64, shared: bool = False, bias: bool = False,
            limit: float = 0.0, **changes: object) -> Decoder:  # fmt: skip
    """Two layers of experts whose rows are whole numbers of groups; with a limit they are clamped as gpt-oss's."""
    decoder = describe(Config(tiny_config("qwen3", hidden_size=64, num_attention_heads=2, num_key_value_heads=1,
                                          head_dim=32, num_hidden_layers=2, vocab_size=VOCABULARY)), None)  # fmt: skip
    mixed = mixtures(experts=experts, used=used, inner=inner, shared=shared, bias=bias)(decoder)

    def linear(found: Linear) -> Linear:
        return replace(found, columns=64) if found.columns == HIDDEN else found

    def mlp(found: Mlp) -> Mlp:
        assert found.gate is not None
        found = replace(found, gate=linear(found.gate), up=linear(found.up), down=replace(found.down, rows=64))
        return replace(found, swiglu_alpha=1.7, swiglu_limit=limit, up_offset=1.0) if limit else found

    def of_layer(at: int, layer: Layer) -> Layer:
        moe = layer.mlp
        assert isinstance(moe, Moe)
        own = tuple(mlp(one) for one in moe.experts)
        every = None if moe.shared is None else mlp(moe.shared)
        moe = replace(moe, experts=own, shared=every, router=linear(moe.router))
        return replace(layer, mlp=replace(moe, **changes))  # type: ignore[arg-type]  # fields of Moe

    return layers(of_layer)(mixed)


DECODERS = {
    "many experts, a shared one": mixture(experts=24, used=3, shared=True),
    "weights that are scaled": mixture(
        inner=128, norm_topk=True, scale=2.5, scoring_func="sigmoid", score_correction_bias="correction", groups=2
    ),
    "clamped gates, biases": mixture(bias=True, limit=0.25),
    "weights of zero": mixture(scale=0.0, scoring_func="sigmoid", shared=True),
    "weights that sum to one": mixture(experts=24, used=3, shared=True, norm_topk=True),
    "a softmax over the chosen": mixture(bias=True, limit=0.25, scoring_func="softmax_topk", router_multiplier=0.7),
    "sparsemixer": mixture(scoring_func="sparsemixer", jitter_eps=0.3),
    "one expert": mixture(experts=1, used=1),
}

"""EuroBERT, Jina Embeddings v5 nano: Llama with bidirectional attention."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Encoder


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", False)
    shape = Shape(
        model_type="eurobert",
        norm=NormKind(epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        tied=True,
        rope_keys=RopeKeys(theta=250_000.0),
    )
    decoder = describe_shaped(config, shape)
    return replace(decoder, head=decoder.embedding, encoder=Encoder(pooling="mean"))

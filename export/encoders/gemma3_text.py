"""EmbeddingGemma: Gemma 3 with bidirectional attention, also within its sliding windows."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures import gemma3_text
from embedllm.export.architectures._shared.decoder_shape import refuse
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Encoder
from embedllm.package.architecture.layer import Layer


def describe(config: Config) -> Decoder:
    decoder = gemma3_text.describe(config.replaced({"use_bidirectional_attention": False}))
    if any(attention.softcap for attention in decoder.attentions):
        raise UnsupportedModel("attn_logit_softcapping is given; an embedding model with it is not described.")
    is_causal = not config.flag("use_bidirectional_attention", False)
    refuse(config, "is_causal", False)  # whose windows transformers makes otherwise than the flag above does
    layers = decoder.layers if is_causal else tuple(_both_sides(layer) for layer in decoder.layers)
    encoder = Encoder(pooling="mean", causal=is_causal)
    return replace(decoder, layers=layers, head=decoder.embedding, logits_softcap=0.0, encoder=encoder)


def _both_sides(layer: Layer) -> Layer:
    """With a window of which half is to each side."""
    attention = layer.attention
    assert isinstance(attention, Attention)  # as Gemma 3 has
    half = None if attention.window is None else attention.window // 2 + 1
    return replace(layer, attention=replace(attention, window=half))

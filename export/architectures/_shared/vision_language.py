"""The text decoders of vision-language checkpoints."""

from __future__ import annotations

from embedllm.export.architectures._shared.default_sizes import with_default_sizes
from embedllm.export.architectures.config import Config

_TIED = "tie_word_embeddings"
_MROPE = "mrope"  # older configs call the kind so; the positions of texts are one number


def text_section(config: Config, text: Config) -> Config:
    """The text model's config with the sizes that it omits; its head is tied as the whole config says, if at all."""
    text = with_default_sizes(text, text.text("model_type", config.text("model_type")))
    return text.replaced({_TIED: config.flag(_TIED)}) if config.has(_TIED) else text


def text_of(config: Config) -> Config:
    """What a Qwen's checkpoint says of its text decoder: under 'text_config', or as the first ones do, beside all else.

    M-RoPE rotates texts as RoPE does: the three positions of a token of text are the same.
    """
    text = text_section(config, config.section("text_config") or config)
    text = text.replaced({"model_type": config.text("model_type")})
    scaling = text.section("rope_scaling")
    if scaling is None or scaling.text("rope_type", scaling.text("type", "default")) not in (_MROPE, "default"):
        return text
    return text.replaced({"rope_scaling": None})

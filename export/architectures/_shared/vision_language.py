"""The text decoders of vision-language checkpoints, shared by Qwen's."""

from __future__ import annotations

from embedllm.export.architectures.config import Config

_MROPE = "mrope"  # older configs call the kind so; the positions of texts are one number


def text_of(config: Config) -> Config:
    """What a checkpoint says of its text decoder: under 'text_config', or as the first ones do, beside all else.

    M-RoPE rotates texts as RoPE does: the three positions of a token of text are the same.
    """
    text = config.section("text_config") or config
    tied = config.flag("tie_word_embeddings", text.flag("tie_word_embeddings", False))
    text = text.replaced({"tie_word_embeddings": tied, "model_type": config.text("model_type")})
    scaling = text.section("rope_scaling")
    if scaling is None or scaling.text("rope_type", scaling.text("type", "default")) not in (_MROPE, "default"):
        return text
    return text.replaced({"rope_scaling": None})

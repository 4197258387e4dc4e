"""What vision-language checkpoints say of their text decoders and of their images' tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures._shared.default_sizes import with_default_sizes
from embedllm.export.architectures._shared.parts import Names
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

DescribeText = Callable[[Config, str, Names], Decoder]  # of a text_config: the model_type, the tensors' names

_TIED = "tie_word_embeddings"
_MROPE = "mrope"  # older configs call the kind so; the positions of texts are one number


def both_sections(config: Config, model: str) -> tuple[Config, Config]:
    """Of the text model and of the vision encoder. model: what messages call it. Raises ExportError."""
    text, vision = config.section("text_config"), config.section("vision_config")
    if text is None or vision is None:
        lacks = "text_config" if text is None else "vision_config"
        raise ExportError(f"config.json has no '{lacks}'; expected there what {model} says of it.")
    return text, vision


def image_token(
    config: Config, decoder: Decoder, usual: int, key: str = "image_token_id", older: str = "image_token_id"
) -> int:
    """The placeholder of an image's rows. older: another key of it. Raises ExportError for no token of the decoder."""
    token = config.integer(key, config.integer(older, usual, least=0), least=0)
    if token >= decoder.vocabulary:
        raise ExportError(f"{key} is {token}; expected a token of the model, 0 to {decoder.vocabulary - 1}.")
    return token


def describe_by_kind(
    config: Config, text: Config, kinds: Mapping[str, DescribeText], *, tied: bool, model_type: str, names: Names
) -> Decoder:
    """The text decoder by the model_type of `text_config`.

    kinds: of the text models that the family has; a config that says none means the first. tied: what one that does not
    say it means. model_type: of the whole. Raises UnsupportedModel for another text model.
    """
    if (kind := text.text("model_type", next(iter(kinds)))) not in kinds:
        raise UnsupportedModel(f"the text model is a '{kind}'; the description knows {', '.join(kinds)}.")
    text = with_default_sizes(text, kind).replaced({_TIED: config.flag(_TIED, tied), "model_type": model_type})
    return kinds[kind](text, model_type, names)


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

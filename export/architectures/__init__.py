"""One file per family, named by its model_type; each has describe(config) -> Decoder.

The first line of a file says which models the family stands for and, behind a colon, what it has that Llama has not.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from functools import cache

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures._shared.default_sizes import with_default_sizes
from embedllm.export.architectures._shared.unsupported import UNSUPPORTED
from embedllm.export.architectures.config import Config
from embedllm.files.nearest import nearest
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.rope import DynamicScaling, LongRopeScaling, YarnScaling

_NO_FAMILIES = {"_shared", "config"}  # modules here that describe none


def families() -> tuple[str, ...]:
    """Every model_type that can be exported."""
    return _families_in(tuple(__path__))


@cache  # reading the folder takes as long as a description
def _families_in(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(name for _, name, _ in pkgutil.iter_modules(folders) if name not in _NO_FAMILIES))


def about(model_type: str) -> tuple[str, str]:
    """The models that a known model_type stands for, and what is particular about them."""
    text = importlib.import_module(f"{__name__}.{model_type}").__doc__ or ""  # none under python -OO
    models, _, has = text.partition("\n")[0].rstrip(".").partition(": ")
    return models, has


def describe(config: Config, context: int | None = None) -> Decoder:
    """The decoder that a config.json stands for.

    context: tokens that the export shall hold; None takes the model's own.
    Raises UnsupportedModel for a model_type, or a variant of one, that is not described here.
    """
    model_type = config.text("model_type")
    names = families()
    if model_type in UNSUPPORTED:
        raise UnsupportedModel(
            f"model_type '{model_type}' is not described here: it has {UNSUPPORTED[model_type]}.", model_type=model_type
        )
    if model_type not in names:
        raise UnsupportedModel(
            f"model_type '{model_type}' is not described here. Known: {', '.join(names)}.{nearest(model_type, names)}",
            model_type=model_type,
        )
    if config.has("quantization_config") and not _is_mxfp4(config):
        raise UnsupportedModel(
            "this checkpoint is already quantized ('quantization_config' in config.json); "
            "expected float weights (bf16, f16 or f32), MXFP4, GPTQ, AWQ, compressed-tensors, MLX, FP8, NVFP4, HQQ or "
            "bitsandbytes. Export from the original checkpoint.",
            model_type=model_type,
        )
    for part in (config, config.section("text_config")):
        if part is not None and not part.flag("is_causal", True):
            raise UnsupportedModel(
                "is_causal is false: attention in both directions, as of an embedding model; expected a model that "
                "generates text.",
                model_type=model_type,
            )
    module = importlib.import_module(f"{__name__}.{model_type}")
    try:
        decoder: Decoder = module.describe(with_default_sizes(config, model_type))
    except UnsupportedModel as error:
        error.model_type = model_type  # the shared parts of a description do not know whose they are
        raise
    if context is None:
        return decoder
    return _with_context(decoder, context)


def _is_mxfp4(config: Config) -> bool:
    """Whether the experts are in MXFP4, which is read as the floats that it stands for."""
    section = config.section("quantization_config")
    return section is not None and section.text("quant_method", "") == "mxfp4"


def _with_context(decoder: Decoder, context: int) -> Decoder:
    longest, scaling = decoder.context, decoder.rope.scaling
    if isinstance(scaling, DynamicScaling | YarnScaling):
        longest = max(longest, int(scaling.factor * scaling.original_context))
    if not 1 <= context <= longest:
        raise ExportError(
            f"context is {context} tokens; expected 1 to {longest}, what the model's config.json says it can hold "
            "('max_position_embeddings' and its rope scaling)."
        )
    if isinstance(scaling, LongRopeScaling):
        return replace(decoder, context=context, rope=replace(decoder.rope, scaling=replace(scaling, context=context)))
    return replace(decoder, context=context)

"""One file per family of models that read whole texts, named by its model_type; each has describe(config) -> Decoder.

A family that is known as a reranker has also scoring(config) -> Encoder. The first line of a file is as those of
export/architectures are.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures import families as decoder_families
from embedllm.export.architectures._shared.default_sizes import with_default_sizes
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.sentence_transformers import SentenceFolder
from embedllm.files.nearest import nearest
from embedllm.package.architecture.decoder import Decoder

TASKS = ("chat", "embed", "rerank")  # what a checkpoint can be exported for
_CHAT = " As a model that generates text it is: export it with task 'chat'."
_SHARED = "common"  # files here whose names begin so are no families
_SPELLED = {"xlm_roberta": "xlm-roberta", "deberta_v2": "deberta-v2"}  # model_types that are no names of files
_CLASSIFIER = "ForSequenceClassification"  # ends the name of transformers' class
# where config.json says by what function sentence-transformers makes a score, newest first; and what they are called
_ACTIVATION_KEYS = ("activation_fn", "sbert_ce_default_activation_function")
_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "identity"}


def families() -> list[str]:
    """Every model_type that can be exported to embed texts."""
    names = (name for _, name, _ in pkgutil.iter_modules(__path__) if not name.startswith(_SHARED))
    return sorted(_SPELLED.get(name, name) for name in names)


def about(model_type: str) -> tuple[str, str]:
    """The models that a known model_type stands for, and what is particular about them."""
    text = _module(model_type).__doc__ or ""  # none under python -OO
    models, _, has = text.partition("\n")[0].rstrip(".").partition(": ")
    return models, has


def reranks(model_type: str) -> bool:
    """Whether a known model_type can be exported as a reranker too."""
    return hasattr(_module(model_type), "scoring")


def _module(model_type: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{model_type.replace('-', '_')}")


def task_of(config: Mapping[str, object], folder: SentenceFolder | None) -> str:
    """What a checkpoint is for, by the class that config.json names and by modules.json."""
    classes, model_type = config.get("architectures"), config.get("model_type")
    if isinstance(classes, list) and any(str(name).endswith(_CLASSIFIER) for name in classes):
        return "rerank"
    if folder is not None:
        return "embed"
    return "embed" if model_type in families() and model_type not in decoder_families() else "chat"


def describe_encoder(
    config: Mapping[str, object], folder: SentenceFolder | None, task: str, context: int | None = None
) -> Decoder:
    """The model that a config.json stands for, and what sentence-transformers' files say is made of its vectors.

    task: "embed" or "rerank". context: tokens of a text at most; None takes the model's own limit.
    Raises UnsupportedModel, ExportError.
    """
    model_type = str(config.get("model_type"))
    names = families()
    if model_type not in names:
        raise UnsupportedModel(
            f"model_type '{model_type}' is not described here as a model that reads whole texts. Known: "
            f"{', '.join(names)}.{nearest(model_type, names)}{_CHAT if model_type in decoder_families() else ''}",
            model_type=model_type,
        )
    if task == "rerank" and not reranks(model_type):
        scoring = ", ".join(name for name in names if reranks(name))
        raise UnsupportedModel(
            f"'{model_type}' is not described here as a reranker; those are: {scoring}.", model_type=model_type
        )
    module = _module(model_type)
    decoder: Decoder = module.describe(with_default_sizes(Config(config), model_type))
    assert decoder.encoder is not None
    limit = decoder.context
    if task == "rerank":
        encoder = module.scoring(Config(config))
        scores = _score(config)
        base = decoder.encoder
        encoder = replace(base, pooling=encoder.pooling, dense=encoder.dense, score_activation=scores)
    elif folder is not None:
        limit = min(limit, folder.tokens or limit)
        encoder = folder.applied(decoder.encoder, decoder.hidden)
    else:
        encoder = decoder.encoder
    if context is not None and not 1 <= context <= decoder.context:
        raise ExportError(
            f"context is {context} tokens; expected 1 to {decoder.context}, what the model's config.json says it can "
            "hold ('max_position_embeddings')."
        )
    return replace(decoder, encoder=encoder, context=context or limit)


def _score(config: Mapping[str, object]) -> str:
    """What becomes of the one value that a reranker gives. Raises UnsupportedModel where it gives several."""
    labels = config.get("id2label")
    count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)  # 2: as transformers has it
    if count != 1:
        raise UnsupportedModel(
            f"config.json has {count} labels ('id2label'): a classifier; expected a reranker, which has one."
        )
    own = config.get("sentence_transformers")
    activation = own.get(_ACTIVATION_KEYS[0]) if isinstance(own, dict) else None
    activation = activation or config.get(_ACTIVATION_KEYS[1]) or "Sigmoid"
    name = str(activation).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(f"a score is made by '{activation}'; known: {', '.join(_ACTIVATIONS)}.")
    return _ACTIVATIONS[name]

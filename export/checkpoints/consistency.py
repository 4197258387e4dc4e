"""What a checkpoint stores against what its config.json says: a head of its own, and vectors that nothing reads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import UnsupportedModel
from embedllm.package.tensors import vectors

if TYPE_CHECKING:
    from embedllm.export.checkpoints.huggingface import HuggingFaceSource
    from embedllm.package.architecture.decoder import Decoder

_ROWS = 4096  # that are compared at a time
_log = logging.getLogger("embedllm")


def with_stored_head(decoder: Decoder, source: HuggingFaceSource, untied: Callable[[], Decoder]) -> Decoder:
    """A decoder that is tied by its config.json, with the head that is stored beside the embedding where they differ.

    So does transformers 5: a head that was trained by itself (`modules_to_save`) leaves the flag as it was.
    untied: describes the same model without the flag.
    """
    if not decoder.tied or decoder.encoder is not None:
        return decoder
    other = untied()
    embedding, head = f"{decoder.embedding.source}.weight", f"{other.head.source}.weight"
    shape = source.shape(embedding)
    if other.tied or shape is None or shape != source.shape(head):
        return decoder
    for start in range(0, shape[0], _ROWS):
        stop = min(start + _ROWS, shape[0])
        if not np.array_equal(source.rows(embedding, start, stop), source.rows(head, start, stop)):
            _log.warning("config.json ties the head to the embedding, but '%s' and '%s' differ: the head is taken as "
                         "it is stored", head, embedding)  # fmt: skip
            return other
    return decoder


def check_vectors(decoder: Decoder, source: HuggingFaceSource) -> None:
    """Raises UnsupportedModel for norms, biases and scales in the model's layers that the description does not read.

    Such a checkpoint is of another family, or variant of it, than its config.json names, and would compute nonsense.
    """
    sources = {vector.source for vector in vectors(decoder) if vector.source}
    name = next(source.other_vectors(sources | {f"{decoder.head.source}.weight"}), None)
    if name is not None:
        raise UnsupportedModel(
            f"'{source.folder}' has a tensor '{name}' that is of no part of a '{decoder.model_type}' as its "
            "config.json describes it. Correct the model_type or the field that it belongs to.",
            model_type=decoder.model_type,
        )

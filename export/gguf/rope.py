"""The rotation of a model in GGUF, as config.json says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.open_files import reading
from embedllm.export.gguf.header import shortest
from embedllm.export.gguf.keys import ATTENTION_FACTOR
from embedllm.export.gguf.types import TYPES, floats

if TYPE_CHECKING:
    from embedllm.export.gguf.reader import GgufModel

_FACTORS, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
ROTATIONS = {_FACTORS, _LONG, _SHORT}  # tensors that are read here
_MOST_FACTORS = 1 << 16
_TRAINED = "original_max_position_embeddings"


def rope_scaling(model: GgufModel, own: Config, context: int) -> dict[str, object]:
    """'rope_scaling' and what it needs. own: the metadata of the model's architecture, without its prefix.

    Factors that are a tensor, as llama.cpp makes them of Llama 3's scaling, are LongRoPE's: alike for every length.
    """
    factor = own.number("rope.scaling.factor", own.number("rope.scale_linear", 0.0))
    kind = own.text("rope.scaling.type", "linear" if factor else "none")
    trained = own.integer("rope.scaling.original_context_length", context)
    attention = own.number_or_none("rope.scaling.attn_factor", None)
    own_factor = own.number_or_none(ATTENTION_FACTOR, None)  # of YaRN, which follows from `factor` where none is said
    if _FACTORS in model.tensors:
        if factor not in (0, 1) and kind != "none":
            raise UnsupportedModel(f"'{model.path}' scales its rotation by '{kind}' with factor {factor:g} and by the "
                                   f"tensor '{_FACTORS}' at once; known is one of both.")  # fmt: skip
        factors = _values(model, _FACTORS)
        return _long(factors, factors, context, 1.0 if attention is None else attention)
    if (_LONG in model.tensors) != (_SHORT in model.tensors):
        raise ExportError(f"'{model.path}' has one of the tensors '{_LONG}' and '{_SHORT}'; expected both, or none.")
    if _LONG in model.tensors:
        return _long(_values(model, _SHORT), _values(model, _LONG), trained, attention)
    is_plain = attention in (None, 1.0)
    if is_plain and (kind == "none" or not factor or (kind == "longrope" and factor == 1)):
        return {} if trained == context else {_TRAINED: trained}
    if is_plain and kind == "linear":
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    if is_plain and kind == "yarn":
        scaling: dict[str, object] = {"rope_type": "yarn", "factor": factor, _TRAINED: trained}
        if own_factor is not None:
            scaling["attention_factor"] = own_factor
        for theirs, ours in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if own.has(f"rope.scaling.{theirs}"):
                scaling[ours] = own.number(f"rope.scaling.{theirs}", above=0)
        return {"rope_scaling": scaling}
    raise UnsupportedModel(
        f"'{model.path}' scales its rotation by '{kind}' with factor {factor:g} and attention factor {attention}; "
        "known are linear and yarn without such a factor, and tensors of factors."
    )


def _long(short: list[float], long: list[float], trained: int, attention_factor: float | None) -> dict[str, object]:
    section: dict[str, object] = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    if attention_factor is not None:
        section["attention_factor"] = attention_factor
    return {_TRAINED: trained, "rope_scaling": section}


def _values(model: GgufModel, name: str) -> list[float]:
    tensor = model.tensors[name]
    kind = TYPES[tensor.type]
    if kind.name != "F32" or tensor.bytes > _MOST_FACTORS:
        raise ExportError(f"'{model.path}': tensor '{name}' is {kind.name} of {tensor.bytes} bytes; expected F32, of "
                          "one value for each pair of a head.")  # fmt: skip
    with reading(tensor.file), tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        raw = bytearray(file.read(tensor.bytes))
    if len(raw) != tensor.bytes:
        raise ExportError(f"'{tensor.file}' ended while it was read; was it changed during the export?")
    values = floats(kind, raw)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ExportError(f"'{model.path}': tensor '{name}' has values that are not above 0. Get the file again.")
    return [shortest(value) for value in values]

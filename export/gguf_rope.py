"""The rotation of a model in GGUF, as config.json says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.gguf_file import shortest
from embedllm.export.gguf_types import TYPES, floats
from embedllm.export.hf import reading

if TYPE_CHECKING:
    from embedllm.export.gguf_model import GgufModel

_FACTORS, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
ROTATIONS = {_FACTORS, _LONG, _SHORT}  # tensors that are read here
_MOST_FACTORS = 1 << 16
_TRAINED = "original_max_position_embeddings"


def rope_scaling(model: GgufModel, own: Mapping[str, object], context: int) -> dict[str, object]:
    """'rope_scaling' and what it needs. own: the metadata of the model's architecture, without its prefix.

    Factors that are a tensor, as llama.cpp makes them of Llama 3's scaling, are LongRoPE's: alike for every length.
    """
    kind = own.get("rope.scaling.type", "linear" if "rope.scaling.factor" in own or "rope.scale_linear" in own else "")
    factor = own.get("rope.scaling.factor") or own.get("rope.scale_linear")
    trained = own.get("rope.scaling.original_context_length", context)
    if _FACTORS in model.tensors:
        factors = _values(model, _FACTORS)
        return _long(factors, factors, context, 1.0)
    if _LONG in model.tensors and _SHORT in model.tensors:
        return _long(_values(model, _SHORT), _values(model, _LONG), trained, own.get("rope.scaling.attn_factor"))
    if kind in ("", "none") or (kind == "longrope" and _LONG not in model.tensors) or not factor:
        return {} if trained == context else {_TRAINED: trained}
    if kind == "linear":
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    if kind == "yarn" and own.get("rope.scaling.attn_factor", 1.0) == 1.0:
        found: dict[str, object] = {"rope_type": "yarn", "factor": factor, _TRAINED: trained}
        for theirs, ours in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if (value := own.get(f"rope.scaling.{theirs}")) is not None:
                found[ours] = value
        return {"rope_scaling": found}
    raise UnsupportedModel(
        f"'{model.path}' scales its rotation by '{kind}' with factor {factor} and attention factor "
        f"{own.get('rope.scaling.attn_factor')}; known are linear, yarn without such a factor, and tensors of factors."
    )


def _long(short: list[float], long: list[float], trained: object, attention_factor: object) -> dict[str, object]:
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

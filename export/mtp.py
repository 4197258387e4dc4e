"""Adds a multi-token prediction head (MTP) to a package folder: a decoder of one layer, in the subfolder `mtp`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.checkpoints.tensor_mapping import check_matrix, read_matrix
from embedllm.export.draft_head import Head, HeadKind, add_head, renamed
from embedllm.export.gguf.tensors import GgufTensors
from embedllm.package.architecture import Decoder, Linear, MultiTokenPrediction
from embedllm.package.graph_variants import HIDDEN, MTP
from embedllm.package.package import Package

# one layer, which has attention in families where others have none
_ONE_LAYER = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "full_attention_interval": 1}
_COMPARED = 1024  # rows at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """How a checkpoint names the tensors of a head."""

    fc: str
    embedding_norm: str
    hidden_norm: str
    layer: str  # what those of its layer begin with
    norm: str
    embedding: str = ""  # a copy of the model's, which every head has or none
    head: str = ""


# Qwen3-Next and Qwen 3.5
_QWEN = _Names(fc="mtp.fc", embedding_norm="mtp.pre_fc_norm_embedding.weight",
               hidden_norm="mtp.pre_fc_norm_hidden.weight", layer="mtp.layers.0.", norm="mtp.norm.weight")  # fmt: skip


def _of_deepseek(decoder: Decoder, number: int) -> _Names:
    """DeepSeek V3 and GLM 4.5: a layer behind the model's."""
    layer = f"{decoder.embedding.source.rpartition('.')[0]}.layers.{number}."
    return _Names(
        fc=f"{layer}eh_proj",
        embedding_norm=f"{layer}enorm.weight",
        hidden_norm=f"{layer}hnorm.weight",
        layer=layer,
        norm=f"{layer}shared_head.norm.weight",
        embedding=f"{layer}embed_tokens",
        head=f"{layer}shared_head.head",
    )


def add_mtp(folder: str | Path, checkpoint: str | Path, *, bits: int = 8, replace: bool = False) -> Path:
    """Adds the multi-token prediction head of a checkpoint to the package folder that was exported from it.

    checkpoint: as convert() has its source. Its head is `mtp.*` (Qwen), or the layer behind the last one, with
    `eh_proj` (DeepSeek V3, GLM 4.5).
    bits: of the head's matrices: 4, 8, 16 or 32. replace: a head that is there is exchanged for the new one.
    Returns the head's folder, which load() takes as draft=. Raises ExportError, UnsupportedModel, PackageError.
    """
    return add_head(_KIND, folder, checkpoint, bits=bits, replace=replace)


def mtp_layers(source: HuggingFaceSource | GgufTensors, decoder: Decoder) -> int:
    """How many layers the multi-token prediction heads of a checkpoint have; 0: it has none, or they are not read."""
    found = 0
    if isinstance(source, GgufTensors):
        return found
    while source.has(f"mtp.layers.{found}.input_layernorm.weight") or source.has(
        _of_deepseek(decoder, len(decoder.layers) + found).hidden_norm
    ):
        found += 1
    return found


def describe_head(package: Package, source: HuggingFaceSource) -> Head:
    """The head that a checkpoint holds, beside a package.

    Raises ExportError where both differ, and where there is no head of one layer.
    """
    target, whole = package.decoder, describe(Config(source.config))
    if (whole.hidden, whole.vocabulary) != (target.hidden, target.vocabulary):
        raise ExportError(
            f"the checkpoint's hidden size and vocabulary are {whole.hidden} and {whole.vocabulary:,}; those "
            f"of '{package.name}' are {target.hidden} and {target.vocabulary:,}. Take the checkpoint that the package "
            "was exported from."
        )
    names = _names(source, whole)
    described = describe(_one_layer(Config(source.config), is_sparse=source.has(f"{names.layer}mlp.gate.weight")))
    norm, (layer,), hidden = described.norm, described.layers, target.hidden
    decoder = dataclasses.replace(
        target,
        embedding=_own(source, whole.embedding, names.embedding, "mtp.embedding") or target.embedding,
        layers=(renamed(layer, names.layer),),
        norm=dataclasses.replace(norm, source=names.norm),
        head=_own(source, whole.head, names.head, "mtp.head") or target.head,
        position_embeddings=None,
        per_layer_embedding=None,
        altup_streams=None,
        vision=None,
        mtp=MultiTokenPrediction(
            embedding_norm=dataclasses.replace(norm, name="mtp.embedding_norm", source=names.embedding_norm),
            hidden_norm=dataclasses.replace(norm, name="mtp.hidden_norm", source=names.hidden_norm),
            fc=Linear(name="mtp.fc", source=names.fc, rows=hidden, columns=2 * hidden),
        ),
    )
    return Head(decoder=decoder)


def _names(source: HuggingFaceSource, whole: Decoder) -> _Names:
    layers, behind = mtp_layers(source, whole), _of_deepseek(whole, len(whole.layers))
    if layers > 1:
        raise ExportError(f"'{source.folder}' has heads of {layers} layers (MTP); those of one layer are read.")
    if layers == 0:
        raise ExportError(
            f"'{source.folder}' has no multi-token prediction head: neither tensors 'mtp.*', as Qwen 3.5 has them, nor "
            f"'{behind.fc}.weight', as DeepSeek V3 and GLM 4.5 have it."
        )
    return behind if source.has(behind.hidden_norm) else _QWEN


def _one_layer(config: Config, *, is_sparse: bool) -> Config:
    """The config of a model of one layer, in the section of the text model where there is one."""
    values = {**_ONE_LAYER, "first_k_dense_replace": 0 if is_sparse else 1,
              "mlp_layer_types": ["sparse" if is_sparse else "dense"]}  # fmt: skip
    text = config.value("text_config")
    if isinstance(text, dict):
        return config.replaced({"text_config": {**text, **values}})
    return config.replaced(values)


def _own(source: HuggingFaceSource, shared: Linear, place: str, name: str) -> Linear | None:
    """The head's own embedding or output matrix; None where it is the model's, or equal to that."""
    own = dataclasses.replace(shared, name=name, source=place)
    if not place or not source.has(f"{place}.weight"):
        return None
    check_matrix(source, own)
    for start in range(0, own.rows, _COMPARED):
        span = start, min(start + _COMPARED, own.rows)
        if not np.array_equal(read_matrix(source, own, *span), read_matrix(source, shared, *span)):
            return own
    return None


_KIND = HeadKind(folder="mtp", graph=MTP, hidden_graph=HIDDEN, describe=describe_head)

"""Adds a multi-token prediction head (MTP) to a package folder: a decoder of one layer, in the subfolder `mtp`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.tensor_mapping import Source, check_matrix, read_matrix
from embedllm.export.draft_head import Head, HeadKind, add_head, renamed
from embedllm.export.gguf.source import GgufSource, unfused
from embedllm.export.open_source import Checkpoint
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.draft_head import MultiTokenPrediction
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.weights import Linear
from embedllm.package.graph_variants import HIDDEN, HIDDEN_FLOAT16, MTP, MTP_FLOAT16, MTP_FOLDER
from embedllm.package.package import Package

# one layer, which has attention in families where others have none
_ONE_LAYER = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "full_attention_interval": 1}
_COMPARED = 1024  # rows at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """How a checkpoint names the tensors of a head."""

    sign: str  # which no checkpoint without a head has
    fc: str
    embedding_norm: str
    hidden_norm: str
    layer: str  # what those of its layer begin with
    router: str  # of its layer, if that has experts
    norm: str
    embedding: str = ""  # its own, often a copy of the model's; empty: there is none
    head: str = ""


def add_mtp(folder: str | Path, checkpoint: str | Path, *, bits: int = 8, replace: bool = False) -> Path:
    """Adds the multi-token prediction head of a checkpoint to the package folder that was exported from it.

    checkpoint: as convert() has its source. Its head is `mtp.*` (Qwen), or the layer behind the last one, with
    `eh_proj` (DeepSeek V3, GLM 4.5); of a GGUF file, the block with `nextn.eh_proj`.
    bits: of the head's matrices: 4, 8, 16 or 32. replace: a head that is there is exchanged for the new one.
    Returns the head's folder, which load() takes as draft=. Raises ExportError, UnsupportedModel, PackageError.
    """
    return add_head(_KIND, folder, checkpoint, bits=bits, replace=replace)


def mtp_layers(checkpoint: Checkpoint, decoder: Decoder) -> int:
    """How many layers the multi-token prediction heads of a checkpoint have; 0: it has none. decoder: its model."""
    count = 0
    while any(checkpoint.has(names.sign) for names in _candidates(checkpoint, decoder, count)):
        count += 1
    return count


def describe_head(package: Package, checkpoint: Checkpoint) -> Head:
    """The head that a checkpoint holds, beside a package.

    Raises ExportError where both differ, and where there is no head of one layer; UnsupportedModel.
    """
    target, config = package.decoder, Config(checkpoint.config)
    whole = describe(config)
    if (whole.hidden, whole.vocabulary) != (target.hidden, target.vocabulary):
        raise ExportError(
            f"the checkpoint's hidden size and vocabulary are {whole.hidden} and {whole.vocabulary:,}; those "
            f"of '{package.name}' are {target.hidden} and {target.vocabulary:,}. Take the checkpoint that the package "
            "was exported from."
        )
    if len({(each.window, each.rope) for each in whole.attentions}) > 1:
        raise UnsupportedModel(
            f"layers of '{whole.model_type}' differ in their windows and rotations; which of them its multi-token "
            "prediction head (MTP) is like is not known here.",
            model_type=whole.model_type,
        )
    names = _names(checkpoint, whole)
    described = describe(_one_layer(config, is_sparse=checkpoint.has(names.router)))
    if isinstance(checkpoint, GgufSource):
        whole, described = unfused(whole), unfused(described)
    norm, layer = described.norm, renamed(described.layers[0], names.layer)
    source = _source(checkpoint, whole, layer)
    decoder = dataclasses.replace(
        target,
        embedding=_own(checkpoint, source, whole.embedding, names.embedding, "mtp.embedding") or target.embedding,
        layers=(layer,),
        norm=dataclasses.replace(norm, source=names.norm),
        head=_own(checkpoint, source, whole.head, names.head, "mtp.head") or target.head,
        position_embeddings=None,
        per_layer_embedding=None,
        altup_streams=None,
        vision=None,
        mtp=MultiTokenPrediction(
            embedding_norm=dataclasses.replace(norm, name="mtp.embedding_norm", source=names.embedding_norm),
            hidden_norm=dataclasses.replace(norm, name="mtp.hidden_norm", source=names.hidden_norm),
            fc=Linear(name="mtp.fc", source=names.fc, rows=target.hidden, columns=2 * target.hidden),
        ),
    )
    return Head(decoder=decoder, source=source)


def _source(checkpoint: Checkpoint, whole: Decoder, layer: Layer) -> Source:
    """What the tensors of a head are read from."""
    if isinstance(checkpoint, GgufSource):
        return checkpoint.head_tensors(whole, layer, checkpoint.mtp_blocks.start)
    return checkpoint


def _names(checkpoint: Checkpoint, whole: Decoder) -> _Names:
    layers, candidates = mtp_layers(checkpoint, whole), _candidates(checkpoint, whole, 0)
    if layers > 1:
        raise ExportError(
            f"'{checkpoint.location.name}' has multi-token prediction heads (MTP) of {layers} layers; those of one "
            "layer are read."
        )
    match = next((names for names in candidates if checkpoint.has(names.sign)), None)
    if match is None:
        expected = " or ".join(f"'{names.sign}'" for names in candidates)
        raise ExportError(
            f"'{checkpoint.location.name}' has no multi-token prediction head (MTP); expected a tensor {expected}."
        )
    return match


def _candidates(checkpoint: Checkpoint, decoder: Decoder, number: int) -> tuple[_Names, ...]:
    """How the tensors of a head's layer may be named. number: among the head's layers."""
    if isinstance(checkpoint, GgufSource):
        return (_of_gguf(checkpoint, decoder, checkpoint.mtp_blocks.start + number),)
    return _of_qwen(number), _of_deepseek(decoder, len(decoder.layers) + number)


def _of_qwen(number: int) -> _Names:
    """Qwen3-Next and Qwen 3.5."""
    layer = f"mtp.layers.{number}."
    return _Names(
        sign=f"{layer}input_layernorm.weight",
        fc="mtp.fc",
        embedding_norm="mtp.pre_fc_norm_embedding.weight",
        hidden_norm="mtp.pre_fc_norm_hidden.weight",
        layer=layer,
        router=f"{layer}mlp.gate.weight",
        norm="mtp.norm.weight",
    )


def _of_deepseek(decoder: Decoder, number: int) -> _Names:
    """DeepSeek V3 and GLM 4.5: a layer behind the model's."""
    layer = f"{decoder.embedding.source.rpartition('.')[0]}.layers.{number}."
    return _Names(
        sign=f"{layer}hnorm.weight",
        fc=f"{layer}eh_proj",
        embedding_norm=f"{layer}enorm.weight",
        hidden_norm=f"{layer}hnorm.weight",
        layer=layer,
        router=f"{layer}mlp.gate.weight",
        norm=f"{layer}shared_head.norm.weight",
        embedding=f"{layer}embed_tokens",
        head=f"{layer}shared_head.head",
    )


def _of_gguf(checkpoint: GgufSource, decoder: Decoder, number: int) -> _Names:
    """A block behind the model's, which may have the model's last norm."""
    layer = f"blk.{number}."
    norm = f"{layer}nextn.shared_head_norm.weight"
    return _Names(
        sign=f"{layer}nextn.hnorm.weight",
        fc=f"{layer}nextn.eh_proj",
        embedding_norm=f"{layer}nextn.enorm.weight",
        hidden_norm=f"{layer}nextn.hnorm.weight",
        layer=layer,
        router=f"{layer}ffn_gate_inp.weight",
        norm=norm if checkpoint.has(norm) else decoder.norm.source,
        embedding=f"{layer}nextn.embed_tokens",
        head=f"{layer}nextn.shared_head_head",
    )


def _one_layer(config: Config, *, is_sparse: bool) -> Config:
    """The config of a model of one layer, in the section of the text model where there is one."""
    values = {**_ONE_LAYER, "first_k_dense_replace": 0 if is_sparse else 1,
              "mlp_layer_types": ["sparse" if is_sparse else "dense"]}  # fmt: skip
    text = config.value("text_config")
    if isinstance(text, dict):
        return config.replaced({"text_config": {**text, **values}})
    return config.replaced(values)


def _own(checkpoint: Checkpoint, source: Source, shared: Linear, place: str, name: str) -> Linear | None:
    """The head's own embedding or output matrix; None where it is the model's, or equal to that."""
    if not checkpoint.has(f"{place}.weight"):
        return None
    own = dataclasses.replace(shared, name=name, source=place)
    check_matrix(source, own)
    for start in range(0, own.rows, _COMPARED):
        span = start, min(start + _COMPARED, own.rows)
        if not np.array_equal(read_matrix(source, own, *span), read_matrix(source, shared, *span)):
            return own
    return None


_KIND = HeadKind(folder=MTP_FOLDER, graphs=(MTP, MTP_FLOAT16), hidden_graphs=(HIDDEN, HIDDEN_FLOAT16),
                 describe=describe_head)  # fmt: skip

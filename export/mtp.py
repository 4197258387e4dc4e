"""Adds a multi-token prediction head (MTP) to a package folder: a decoder of one layer, in the subfolder `mtp`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.draft_head import Head, HeadKind, add_head, renamed
from embedllm.package.architecture import Decoder, Linear, MultiTokenPrediction
from embedllm.package.graph_variants import HIDDEN, MTP
from embedllm.package.package import Package

# How Qwen3-Next's and Qwen 3.5's checkpoints name a head's tensors.
_FC, _EMBEDDING_NORM, _HIDDEN_NORM = "mtp.fc", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"
_LAYER, _NORM = "mtp.layers.0.", "mtp.norm.weight"
# one layer, which has attention in families where others have none
_ONE_LAYER = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "full_attention_interval": 1}


def add_mtp(folder: str | Path, checkpoint: str | Path, *, bits: int = 8, replace: bool = False) -> Path:
    """Adds the multi-token prediction head of a checkpoint to the package folder that was exported from it.

    checkpoint: as convert() has its source; its tensors `mtp.*` are read, and config.json. The head's layer is that of
    the family: `fc`, `pre_fc_norm_embedding`, `pre_fc_norm_hidden`, `layers.0`, `norm`.
    bits: of the head's matrices: 4, 8, 16 or 32. replace: a head that is there is exchanged for the new one.
    Returns the head's folder, which load() takes as draft=. Raises ExportError, UnsupportedModel, PackageError.
    """
    return add_head(_KIND, folder, checkpoint, bits=bits, replace=replace)


def describe_head(package: Package, config: Mapping[str, object]) -> Decoder:
    """The head that a checkpoint's config.json stands for, beside a package. Raises ExportError where both differ."""
    target = package.decoder
    described = describe(_one_layer(Config(config)))
    if (described.hidden, described.vocabulary) != (target.hidden, target.vocabulary):
        raise ExportError(
            f"the checkpoint's hidden size and vocabulary are {described.hidden} and {described.vocabulary:,}; those "
            f"of '{package.name}' are {target.hidden} and {target.vocabulary:,}. Take the checkpoint that the package "
            "was exported from."
        )
    norm, (layer,), hidden = described.norm, described.layers, target.hidden
    return dataclasses.replace(
        target,
        layers=(renamed(layer, _LAYER),),
        norm=dataclasses.replace(norm, source=_NORM),
        position_embeddings=None,
        per_layer_embedding=None,
        altup_streams=None,
        vision=None,
        mtp=MultiTokenPrediction(
            embedding_norm=dataclasses.replace(norm, name="mtp.embedding_norm", source=_EMBEDDING_NORM),
            hidden_norm=dataclasses.replace(norm, name="mtp.hidden_norm", source=_HIDDEN_NORM),
            fc=Linear(name="mtp.fc", source=_FC, rows=hidden, columns=2 * hidden),
        ),
    )


def _one_layer(config: Config) -> Config:
    """The config of a model of one layer, in the section of the text model where there is one."""
    text = config.value("text_config")
    if isinstance(text, dict):
        return config.replaced({"text_config": {**text, **_ONE_LAYER}})
    return config.replaced(_ONE_LAYER)


def _described(package: Package, source: HuggingFaceSource) -> Head:
    return Head(decoder=describe_head(package, source.config))


_KIND = HeadKind(folder="mtp", graph=MTP, hidden_graph=HIDDEN, describe=_described)

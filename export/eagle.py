"""Adds an EAGLE-3 head to a package folder: a decoder of one layer with a vocabulary of its own, in `eagle`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.draft_head import Head, HeadKind, add_head, renamed
from embedllm.export.open_source import Checkpoint
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.draft_head import Eagle
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.weights import Linear
from embedllm.package.graph_variants import EAGLE, EAGLE_FLOAT16, EAGLE_FOLDER, EAGLE_HIDDEN, EAGLE_HIDDEN_FLOAT16
from embedllm.package.package import Package

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LAYER, _LAYER_OF_SPECULATORS = "midlayer.", "layers.0."
_DIFFERENCES = "d2t"  # of each row of the head's matrix: its token less the row's number


def add_eagle(folder: str | Path, checkpoint: str | Path, *, bits: int = 4, replace: bool = False) -> Path:
    """Adds an EAGLE-3 head, which is a checkpoint of its own, to the package folder of its target model.

    checkpoint: as convert() has its source: `fc`, `midlayer` (or `layers.0`, of speculators), `norm`, `lm_head` and
    `d2t`. Embeddings in it are not read: those of the target model take their place.
    bits: of the head's matrices: 4, 8, 16 or 32. replace: a head that is there is exchanged for the new one.
    Returns the head's folder, which load() takes as draft=. Raises ExportError, UnsupportedModel, PackageError.
    Source of the layout: SGLang's llama_eagle3.py and vLLM's speculators (read November 2026).
    """
    return add_head(_KIND, folder, checkpoint, bits=bits, replace=replace)


def describe_head(package: Package, source: Checkpoint) -> Head:
    """The head that a checkpoint holds, beside a package. Raises ExportError where both do not fit."""
    if not isinstance(source, HuggingFaceSource):
        raise ExportError(f"'{source.location.name}' is a GGUF file, of which no EAGLE-3 head is read.")
    target, outer = package.decoder, Config(source.config)
    own = outer.section("transformer_layer_config")
    prefix, config = (_LAYER, outer) if own is None else (_LAYER_OF_SPECULATORS, own)
    described = describe(config.replaced({"tie_word_embeddings": False}))
    _check(package, outer, described)
    (layer,), hidden = described.layers, described.hidden
    layers = _layers_read(outer, target)
    eagle = Eagle(
        layers=layers,
        hidden_norm=dataclasses.replace(described.norm, name="eagle.hidden_norm", source=f"{prefix}hidden_norm.weight"),
        fc=Linear(name="eagle.fc", source="fc", rows=hidden, columns=len(layers) * hidden),
        normed_residual=outer.flag("norm_before_residual", False),
    )
    rows = outer.integer("draft_vocab_size", target.vocabulary)
    shared = dataclasses.replace(target.rope, mrope=None)
    decoder = dataclasses.replace(
        described,
        context=target.context,
        embedding=target.embedding,
        layers=(_reading_both(renamed(layer, prefix)),),
        norm=dataclasses.replace(described.norm, source="norm.weight"),
        head=Linear(name="eagle.head", source="lm_head", rows=rows, columns=hidden),
        rope=target.rope if described.rope == shared else described.rope,
        eagle=eagle,
    )
    return Head(decoder=decoder, source=source, tokens=_tokens(source, rows, target.vocabulary))


def _check(package: Package, outer: Config, described: Decoder) -> None:
    target = package.decoder
    size = outer.integer("target_hidden_size", described.hidden)
    if (described.hidden, described.vocabulary, size) != (target.hidden, target.vocabulary, target.hidden):
        raise ExportError(
            f"the head's hidden size and vocabulary are {described.hidden} and {described.vocabulary:,}, of a target "
            f"model with hidden size {size}; those of '{package.name}' are {target.hidden} and {target.vocabulary:,}. "
            "Take a head that was trained for this model."
        )
    if len(described.layers) != 1:
        raise ExportError(f"the head has {len(described.layers)} layers; heads of one layer are read.")
    attention = described.layers[0].attention
    if not isinstance(attention, Attention) or attention.mla is not None or described.layers[0].attention_norm is None:
        raise ExportError(f"the head's layer is that of '{described.model_type}'; expected one as Llama has it.")
    if outer.flag("norm_before_fc", False):
        raise ExportError("the head has norms in front of 'fc' ('norm_before_fc'), which are not read.")
    if target.altup_streams is not None:
        raise ExportError(f"'{package.name}' has several streams (AltUp), of which a head reads none.")


def _layers_read(config: Config, target: Decoder) -> tuple[int, ...]:
    """Of the target model: how many layers lie before each hidden state that the head reads.

    speculators and vLLM count so; what is in `eagle_config` (ModelOpt, SGLang) are numbers of layers, whose output is
    read. Without either they are those of the EAGLE-3 paper's code.
    """
    count, key = len(target.layers), "eagle_aux_hidden_state_layer_ids"
    section = config.section("eagle_config")
    counted = config.integers(key)
    if counted is None and section is not None:
        counted = [layer + 1 for layer in section.integers(key) or ()]
    depths = tuple(counted or (2, count // 2, count - 3))
    if not all(0 <= layer < count for layer in depths):
        raise ExportError(
            f"the head reads hidden states behind {', '.join(map(str, depths))} layers; expected numbers from 0 to "
            f"{count - 1}: the target model has {count} layers, and what its last one gives is not read."
        )
    return depths


def _reading_both(layer: Layer) -> Layer:
    """A layer whose attention reads an embedding and a hidden state side by side."""
    attention = layer.attention
    assert isinstance(attention, Attention)  # as _check found
    q, k, v = (dataclasses.replace(each, columns=2 * each.columns) for each in (attention.q, attention.k, attention.v))
    return dataclasses.replace(layer, attention=dataclasses.replace(attention, q=q, k=k, v=v))


def _tokens(source: HuggingFaceSource, rows: int, vocabulary: int) -> NDArray[np.int32] | None:
    """The token of each row of the head's matrix; None where it has one for every token."""
    differences = source.integers(_DIFFERENCES)
    if differences is None and rows == vocabulary:
        return None
    if differences is None or len(differences) != rows:
        count = "none" if differences is None else f"{len(differences):,} values"
        raise ExportError(
            f"'{_DIFFERENCES}' of the head has {count}; expected {rows:,}, one for each row of 'lm_head'."
        )
    tokens = differences + np.arange(rows)
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise ExportError(f"the head guesses token {tokens.max():,}; the target model has {vocabulary:,} tokens.")
    return tokens.astype("<i4")


_KIND = HeadKind(folder=EAGLE_FOLDER, graphs=(EAGLE, EAGLE_FLOAT16),
                 hidden_graphs=(EAGLE_HIDDEN, EAGLE_HIDDEN_FLOAT16), describe=describe_head)  # fmt: skip

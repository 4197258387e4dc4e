"""Where a decoder's tensors lie in a GGUF file: by the part that each plays, not by its name in the checkpoint.

Source: MODEL_TENSORS and TENSOR_NAMES in constants.py of the Python package gguf 0.19.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from embedllm.export.gguf.families import Family
from embedllm.export.gguf.tensor_location import (
    ALL_ROWS,
    PermutedRows,
    RowRange,
    SingleRow,
    TensorLocation,
    Transposed,
    has_rows,
    interleaved_rows,
    matrix,
    norm_weights,
    permuted,
)
from embedllm.export.gguf.tensor_names_per_layer import layer_parts, streams
from embedllm.export.gguf.tensor_names_recurrent import delta_net, mamba2, short_convolution
from embedllm.package.architecture.attention import Attention, MultiHeadLatent
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Encoder
from embedllm.package.architecture.layer import Layer, Mixer
from embedllm.package.architecture.mlp import Mlp, Moe, MoeNorms
from embedllm.package.architecture.recurrent import DeltaNet, Mamba2, ShortConv
from embedllm.package.architecture.weights import Linear, Norm

if TYPE_CHECKING:
    from embedllm.export.gguf.reader import Placed


def tensor_locations(decoder: Decoder, family: Family, tensors: Mapping[str, Placed]) -> dict[str, TensorLocation]:
    """The location of every tensor that a decoder names, which is unfused() already."""
    locations = dict(matrix(decoder.embedding, "token_embd"))
    encoder, last = decoder.encoder, f"blk.{len(decoder.layers) - 1}"
    is_behind = encoder is not None and encoder.post_norm  # then the last layer's norm is the model's
    locations |= norm_weights(decoder.norm, f"{last}.layer_output_norm" if is_behind else _last_norm(decoder, tensors))
    locations |= norm_weights(decoder.embedding_norm, "token_embd_norm") | _encoder(encoder)
    locations |= streams(decoder)
    if not decoder.tied:
        locations |= matrix(decoder.head, "output")
    if decoder.position_embeddings is not None:
        locations |= matrix(decoder.position_embeddings, "position_embd")
    for layer, block, mlp_block in _blocks(decoder, family):
        if is_behind:
            norms = _norms_behind(layer, block)
        else:
            norms = _norms_apart(layer, block, mlp_block) if family.separate_mlps else _norms(layer, block, tensors)
        locations |= _of_layer(layer, norms, block, mlp_block, family, tensors)
    return locations


def layer_locations(
    layer: Layer, block: str, family: Family, tensors: Mapping[str, Placed]
) -> dict[str, TensorLocation]:
    """The same of one layer, which may be no part of a model."""
    return _of_layer(layer, _norms(layer, block, tensors), block, block, family, tensors)


def _of_layer(
    layer: Layer,
    norms: Iterator[tuple[Norm | None, str]],
    block: str,
    mlp_block: str,
    family: Family,
    tensors: Mapping[str, Placed],
) -> dict[str, TensorLocation]:
    locations: dict[str, TensorLocation] = {}
    for part, where in norms:
        locations |= norm_weights(part, where)
    locations |= _mixer(layer.attention, block, family, tensors) | layer_parts(layer, block)
    if layer.ssm is not None:
        locations |= mamba2(layer.ssm, block)
    if layer.mlp is not None:
        locations |= _mlp(layer.mlp, mlp_block, tensors)
    if layer.mlp_norm is not None and (bare := f"{block}.ffn_norm") in tensors:  # Falcon-H1's has no ".weight"
        locations[layer.mlp_norm.source] = TensorLocation(tensor=bare)
    return locations


def _blocks(decoder: Decoder, family: Family) -> Iterator[tuple[Layer, str, str]]:
    """Each layer, the block of its mixer and that of its MLP."""
    number = 0
    for layer in decoder.layers:
        mixer = number
        number += family.separate_mlps and layer.mlp is not None
        yield layer, f"blk.{mixer}", f"blk.{number}"
        number += 1


def _mixer(mixer: Mixer, block: str, family: Family, tensors: Mapping[str, Placed]) -> dict[str, TensorLocation]:
    if isinstance(mixer, ShortConv):
        return short_convolution(mixer, block)
    if isinstance(mixer, Mamba2):
        return mamba2(mixer, block)
    if isinstance(mixer, DeltaNet):
        return delta_net(mixer, block, tensors, interleaved_value_heads=family.interleaved_value_heads)
    return _attention(mixer, block, family, tensors)


def _last_norm(decoder: Decoder, tensors: Mapping[str, Placed]) -> str:
    """LFM2's is called as if it were the embedding's, of which it has none."""
    is_renamed = "output_norm.weight" not in tensors and decoder.embedding_norm is None
    return "token_embd_norm" if is_renamed and "token_embd_norm.weight" in tensors else "output_norm"


def _encoder(encoder: Encoder | None) -> dict[str, TensorLocation]:
    """What encoders have besides: token type embeddings, and the dense layers after pooling."""
    locations: dict[str, TensorLocation] = {}
    if encoder is not None and encoder.token_types is not None:
        locations |= matrix(
            encoder.token_types, "token_types", SingleRow() if encoder.token_types.rows == 1 else ALL_ROWS
        )
    if encoder is not None and encoder.score_activation:
        first, last = encoder.dense
        locations |= (
            matrix(first.linear, "cls") | norm_weights(first.norm, "cls.norm") | matrix(last.linear, "cls.output")
        )
        locations[f"{last.linear.source}.weight"] = TensorLocation(tensor="cls.output.weight", order=SingleRow())
    elif encoder is not None:
        for step in encoder.dense:
            locations |= matrix(step.linear, step.linear.source)
    return locations


def _attention(
    attention: Attention, block: str, family: Family, tensors: Mapping[str, Placed]
) -> dict[str, TensorLocation]:
    locations = norm_weights(attention.q_norm, f"{block}.attn_q_norm") | norm_weights(
        attention.k_norm, f"{block}.attn_k_norm"
    )
    locations |= matrix(attention.o, f"{block}.attn_output")
    if attention.sinks:
        locations[attention.sinks] = TensorLocation(tensor=f"{block}.attn_sinks.weight")
    if attention.mla is not None:
        return locations | _mla(attention, attention.mla, block, tensors)
    if attention.gate is not None:
        return locations | _gated(attention, attention.gate, block, tensors)
    parts = {"q": attention.q}
    if attention.kv_from is None:
        parts |= {"k": attention.k, "v": attention.v}
    together, start = f"{block}.attn_qkv", 0
    is_fused = has_rows(tensors, together, sum(linear.rows for linear in parts.values()))
    for part, linear in parts.items():
        if f"{linear.source}.weight" in locations:  # keys are the values, too
            continue
        name = together if is_fused else f"{block}.attn_{part}"
        if family.permuted_qk and part != "v" and (is_fused or has_rows(tensors, name, linear.rows)):
            locations |= matrix(linear, name, PermutedRows(start + interleaved_rows(linear, attention.head_dim)))
        else:
            locations |= matrix(linear, name, RowRange(start, linear.rows if is_fused else None))
        start += linear.rows if is_fused else 0
    return locations


def _gated(attention: Attention, gate: Linear, block: str, tensors: Mapping[str, Placed]) -> dict[str, TensorLocation]:
    """The rows of q and of the gate take turns, head by head."""
    together, rows = f"{block}.attn_q", None
    if has_rows(tensors, together, 2 * attention.q.rows):
        rows = np.arange(2 * attention.q.rows).reshape(attention.heads, 2, -1)
    locations = matrix(attention.k, f"{block}.attn_k") | matrix(attention.v, f"{block}.attn_v")
    for at, linear in enumerate((attention.q, gate)):
        locations |= matrix(linear, together, permuted(None if rows is None else rows[:, at].reshape(-1)))
    return locations


def _mla(
    attention: Attention, mla: MultiHeadLatent, block: str, tensors: Mapping[str, Placed]
) -> dict[str, TensorLocation]:
    """Newer files have the up-projections of keys and of values as two tensors, the keys' transposed for each head."""
    locations = matrix(attention.q, f"{block}.attn_q" if mla.q is None else f"{block}.attn_q_b")
    if mla.q is not None:
        locations |= matrix(mla.q, f"{block}.attn_q_a")
    locations |= norm_weights(mla.q_norm, f"{block}.attn_q_a_norm") | norm_weights(
        mla.kv_norm, f"{block}.attn_kv_a_norm"
    )
    compressed, rank = f"{block}.attn_kv_a_mqa", mla.kv.rows
    locations |= matrix(mla.kv, compressed, RowRange(0, rank)) | matrix(mla.k, compressed, RowRange(rank, mla.k.rows))
    heads, together = attention.heads, f"{block}.attn_kv_b"
    if not has_rows(tensors, together, attention.k.rows + attention.v.rows):
        locations |= matrix(attention.k, f"{block}.attn_k_b", Transposed(heads))
        return locations | matrix(attention.v, f"{block}.attn_v_b")
    rows = np.arange(attention.k.rows + attention.v.rows).reshape(heads, -1)
    keys = attention.k.rows // heads
    locations |= matrix(attention.k, together, PermutedRows(rows[:, :keys].reshape(-1)))
    return locations | matrix(attention.v, together, PermutedRows(rows[:, keys:].reshape(-1)))


def _norms(layer: Layer, block: str, tensors: Mapping[str, Placed]) -> Iterator[tuple[Norm | None, str]]:
    """The norm before the MLP has the name of attention's post-norm where there is none.

    Where parallel attention and MLP blocks have a norm each, attention's is the second one.
    """
    first, second = f"{block}.attn_norm", f"{block}.attn_norm_2"
    before = "ffn_norm" if f"{block}.ffn_norm.weight" in tensors or layer.attention_post_norm else "post_attention_norm"
    has_two = layer.parallel and f"{second}.weight" in tensors
    yield layer.attention_norm, second if has_two else first
    yield layer.attention_post_norm, f"{block}.post_attention_norm"
    yield layer.mlp_norm, first if has_two else f"{block}.{before}"
    yield layer.mlp_post_norm, f"{block}.post_ffw_norm"


def _norms_apart(layer: Layer, block: str, mlp_block: str) -> Iterator[tuple[Norm | None, str]]:
    """Of layers whose MLP is a block of its own, with a norm as any block has."""
    yield layer.attention_norm, f"{block}.attn_norm"
    yield layer.mlp_norm, f"{mlp_block}.attn_norm"


def _norms_behind(layer: Layer, block: str) -> Iterator[tuple[Norm | None, str]]:
    """Of post-norm layers."""
    yield layer.attention_norm, f"{block}.attn_output_norm"
    yield layer.mlp_norm, f"{block}.layer_output_norm"


def _mlp(mlp: Mlp | Moe, block: str, tensors: Mapping[str, Placed]) -> dict[str, TensorLocation]:
    if isinstance(mlp, Mlp):
        return _one(mlp, block, "", tensors)
    locations = matrix(mlp.router, f"{block}.ffn_gate_inp")
    if mlp.score_correction_bias:
        locations[mlp.score_correction_bias] = TensorLocation(
            tensor=f"{block}.exp_probs_b.bias", order=SingleRow() if mlp.score_correction_bias_is_row else ALL_ROWS
        )
    for number, expert in enumerate(mlp.experts):
        locations |= _expert(expert, number, block, tensors)
    if mlp.norms is not None:
        locations |= _norms_of_parts(mlp.norms, block)
    if mlp.expert_scales:
        locations[mlp.expert_scales] = TensorLocation(tensor=f"{block}.ffn_down_exps.scale")
    if mlp.shared is not None:
        locations |= _one(mlp.shared, block, "_shexp" if mlp.norms is None else "", tensors)
    if mlp.shared_gate is not None:
        locations |= matrix(mlp.shared_gate, f"{block}.ffn_gate_inp_shexp", SingleRow())
    return locations


def _norms_of_parts(norms: MoeNorms, block: str) -> dict[str, TensorLocation]:
    """Gemma 4's. The MLP beside the experts has the names of one that is alone."""
    locations = norm_weights(norms.experts, f"{block}.pre_ffw_norm_2") | norm_weights(norms.shared, f"{block}.ffn_norm")
    locations |= norm_weights(norms.experts_post, f"{block}.post_ffw_norm_2")
    locations |= norm_weights(norms.shared_post, f"{block}.post_ffw_norm_1")
    return locations | {norms.router.source: TensorLocation(tensor=f"{block}.ffn_gate_inp.scale")}


def _one(mlp: Mlp, block: str, end: str, tensors: Mapping[str, Placed]) -> dict[str, TensorLocation]:
    """Of a layer, or of every token. Where gate and up are one tensor, that is called up."""
    gate, up, rows = f"{block}.ffn_gate{end}", f"{block}.ffn_up{end}", mlp.up.rows
    locations = matrix(mlp.down, f"{block}.ffn_down{end}")
    if mlp.gate is None:
        return locations | matrix(mlp.up, up)
    if f"{gate}.weight" not in tensors and has_rows(tensors, up, 2 * rows):
        return locations | matrix(mlp.gate, up, RowRange(0, rows)) | matrix(mlp.up, up, RowRange(rows, rows))
    return locations | matrix(mlp.gate, gate) | matrix(mlp.up, up)


def _expert(mlp: Mlp, number: int, block: str, tensors: Mapping[str, Placed]) -> dict[str, TensorLocation]:
    """Experts lie in one tensor; in the first files each was one, and in some newer ones gate and up are together."""
    locations: dict[str, TensorLocation] = {}
    parts = {"up": mlp.up, "down": mlp.down} | ({} if mlp.gate is None else {"gate": mlp.gate})
    for part, linear in parts.items():
        alone, together, rows = f"{block}.ffn_{part}.{number}", f"{block}.ffn_gate_up_exps", linear.rows
        if f"{alone}.weight" in tensors:
            locations |= matrix(linear, alone)
        elif part != "down" and f"{together}.weight" in tensors:
            locations |= matrix(linear, together, RowRange((2 * number + (part == "up")) * rows, rows))
        else:
            locations |= matrix(linear, f"{block}.ffn_{part}_exps", RowRange(number * rows, rows))
    return locations

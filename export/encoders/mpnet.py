"""MPNet, all-mpnet-base-v2, multi-qa-mpnet: BERT with relative position bias, and positions as RoBERTa counts them."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures.config import Config
from embedllm.export.encoders.common import BERT, NAMES, describe_behind
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Encoder
from embedllm.package.architecture.position_bias import RelativePositionBias
from embedllm.package.architecture.weights import Linear

_NAMES = replace(
    NAMES, model="mpnet", attention_norm="attention.LayerNorm", q="attention.attn.q", k="attention.attn.k",
    v="attention.attn.v", o="attention.attn.o",
)  # fmt: skip
_FIRST = 2  # the row of the first position, whatever config.json says of padding
_MAX_DISTANCE = 128  # tokens; config.json does not say it


def describe(config: Config) -> Decoder:
    decoder = describe_behind(config, replace(BERT, model_type="mpnet", names=_NAMES, positions_start=_FIRST))
    buckets = config.integer("relative_attention_num_buckets", 32)
    if not 4 <= buckets < 4 * _MAX_DISTANCE:
        raise UnsupportedModel(
            f"relative_attention_num_buckets is {buckets}; expected 4 to {4 * _MAX_DISTANCE - 1}, some of which "
            f"grow up to a distance of {_MAX_DISTANCE} tokens."
        )
    table = Linear(
        name="position_bias",
        source=_NAMES.in_model("encoder.relative_attention_bias"),
        rows=buckets,
        columns=config.integer("num_attention_heads"),
    )
    bias = RelativePositionBias(table=table, max_distance=_MAX_DISTANCE)
    return replace(decoder, encoder=Encoder(pooling="mean", post_norm=True, position_bias=bias))

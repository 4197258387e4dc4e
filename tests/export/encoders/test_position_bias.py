"""Variants of encoders with position biases that are refused, and a Jina that calls itself BERT."""

from __future__ import annotations

from typing import Any

import pytest

from embedllm.errors import UnsupportedModel
from embedllm.export.encoders import describe_encoder
from embedllm.package.architecture.position_bias import Alibi

BERT: dict[str, Any] = {
    "model_type": "bert", "vocab_size": 30, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96,
    "num_hidden_layers": 2, "max_position_embeddings": 130, "type_vocab_size": 2,
}  # fmt: skip
JINA = {**BERT, "position_embedding_type": "alibi", "feed_forward_type": "geglu"}
DEBERTA = {**BERT, "model_type": "deberta-v2", "relative_attention": True, "share_att_key": True,
           "pos_att_type": "p2c|c2p", "position_biased_input": False, "type_vocab_size": 0}  # fmt: skip


def test_a_bert_with_alibi_is_jinas() -> None:
    decoder = describe_encoder(JINA, None, "embed")
    assert decoder.model_type == "jina_bert_v2"
    assert decoder.position_embeddings is None
    assert decoder.encoder is not None
    assert decoder.encoder.position_bias == Alibi()


@pytest.mark.parametrize(("config", "message"), [
    ({**BERT, "position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ({**JINA, "feed_forward_type": "original"}, "feed_forward_type is 'original'; expected geglu or reglu"),
    ({**JINA, "_name_or_path": "jinaai/jina-bert-v2-qk-post-norm"}, "norms of queries and keys"),
    ({**DEBERTA, "relative_attention": False}, "relative_attention is false"),
    ({**DEBERTA, "share_att_key": False}, "share_att_key is false"),
    ({**DEBERTA, "position_biased_input": True}, "position_biased_input is true"),
    ({**DEBERTA, "conv_kernel_size": 3}, "conv_kernel_size is 3"),
    ({**DEBERTA, "embedding_size": 32}, "embedding_size is 32; expected hidden_size, 64"),
    ({**DEBERTA, "position_buckets": 1}, "position_buckets is 1; expected 2 to 257"),
    ({**DEBERTA, "position_buckets": 258}, "position_buckets is 258; expected 2 to 257"),
    ({**BERT, "model_type": "mpnet", "relative_attention_num_buckets": 512},
     "relative_attention_num_buckets is 512; expected 4 to 511"),
    ({**DEBERTA, "pos_att_type": ["c2p"]}, r"pos_att_type is \['c2p'\]; expected 'p2c|c2p'"),
])  # fmt: skip
def test_other_variants_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        describe_encoder(config, None, "embed")

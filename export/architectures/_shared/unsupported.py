"""Families of transformers 5.24 that no field describes: what each has that embedllm cannot compute.

A row goes when the family gets a file of its own.
"""

from __future__ import annotations

_HYPER_CONNECTIONS = "hyper-connections (several residual streams, mixed by gates for each block)"
_INDEXER = "sparse attention to tokens that an indexer chooses"
_HY_V4 = f"{_HYPER_CONNECTIONS} and {_INDEXER} (DSA)"
_QWEN4 = f"{_HYPER_CONNECTIONS}, embeddings of hashed n-grams of tokens, and {_INDEXER} (QSA)"
_INKLING2 = "attention over the sums of earlier layers in place of residuals, and relative positions made of each query"
_INKLING2_LOOP = f"{_INKLING2}; and layers that run several times, with messages from one pass to the next"

UNSUPPORTED = {
    "dory": "layers that run several times, and residuals on the unit sphere with a rate for each channel (nGPT)",
    "hy_v4": _HY_V4,
    "hy_v4_vl": _HY_V4,
    "hy_v4_vl_text": _HY_V4,
    "inkling2": _INKLING2,
    "inkling2_text": _INKLING2,
    "inkling2_loop": _INKLING2_LOOP,
    "inkling2_loop_text": _INKLING2_LOOP,
    "qwen4_exp": _QWEN4,
    "qwen4_exp_text": _QWEN4,
}

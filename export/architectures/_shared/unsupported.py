"""Families of transformers 5.24 that no field describes: what each has that embedllm cannot compute.

A row goes when the family gets a file of its own.
"""

from __future__ import annotations

_HYPER_CONNECTIONS = "hyper-connections (several residual streams, mixed by gates for each block)"
_INDEXER = "sparse attention to tokens that an indexer chooses"
_DSA = f"multi-head latent attention (MLA) with {_INDEXER} (DSA)"
_MAMBA = "Mamba layers, whose state decays by a rate for each of its values, where Mamba-2 has one for each head"
_HY_V4 = f"{_HYPER_CONNECTIONS} and {_INDEXER} (DSA)"
_QWEN4 = f"{_HYPER_CONNECTIONS}, embeddings of hashed n-grams of tokens, and {_INDEXER} (QSA)"
_INKLING2 = "attention over the sums of earlier layers in place of residuals, and relative positions made of each query"
_INKLING2_LOOP = f"{_INKLING2}; and layers that run several times, with messages from one pass to the next"

UNSUPPORTED = {
    "bitnet": "ternary weights with activations of 8 bits, and norms before the output matrices of attention and MLP",
    "deepseek_v32": _DSA,
    "deepseek_v4": f"{_HYPER_CONNECTIONS}, and attention to compressed keys, which an indexer chooses among (CSA, HCA)",
    "dory": "layers that run several times, and residuals on the unit sphere with a rate for each channel (nGPT)",
    "falcon_mamba": f"{_MAMBA}, and no layer with attention",
    "glm_moe_dsa": _DSA,
    "granite_docling": "a projector with a coarse and a fine path, and features of earlier layers of tiles (DeepStack)",
    "hy_v4": _HY_V4,
    "hy_v4_vl": _HY_V4,
    "hy_v4_vl_text": _HY_V4,
    "inkling2": _INKLING2,
    "inkling2_text": _INKLING2,
    "inkling2_loop": _INKLING2_LOOP,
    "inkling2_loop_text": _INKLING2_LOOP,
    "jamba": _MAMBA,
    "kimi_linear": "Kimi Delta Attention (KDA), whose state decays by a rate for each channel, not for each head",
    "kolibri1": "experts chosen by the router's logits with a correction bias, and weighed by sigmoids of these",
    "mamba": f"{_MAMBA}, and no layer with attention",
    "mamba2": "no layer with attention, whose keys are as many as the tokens",
    "qwen4_exp": _QWEN4,
    "qwen4_exp_text": _QWEN4,
}

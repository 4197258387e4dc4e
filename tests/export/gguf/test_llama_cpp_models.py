"""GGUF files that the tests write, computed by llama.cpp: what transformers computes of their checkpoints.

So the files are such as llama.cpp's converters write.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.export.gguf.test_encoders import CASES as ENCODERS
from tests.export.gguf.test_encoders import POOLINGS
from tests.export.gguf.test_source import CASES
from tests.support import encoders
from tests.support.families import FAMILIES, make_checkpoint
from tests.support.gguf_encoders import write_encoder
from tests.support.gguf_files import Tensors, write_gguf
from tests.support.llama_cpp_server import LlamaCpp

pytestmark = [pytest.mark.peer, pytest.mark.slow]
HALF = 0.02  # of log-probabilities: llama.cpp's KV cache is float16
# llama.cpp's sparse MLPs divide the sum of n squares by n - 1, transformers' by n: 0.04 of 4,096; and 22 layers add up
SPARSE = 0.25
# llama.cpp's Gated DeltaNet differs by that, with float32 keys, too: docs/guide-gguf.md
RECURRENT = 0.12
LIMITS = {"gemma3n_text": SPARSE, "qwen3_5_moe_text": RECURRENT}
# what src/models/gemma3n.cpp takes for granted: 20 layers with a KV cache, 10 of all with sparse MLPs
SIZES: dict[str, dict[str, object]] = {
    "qwen3_5_moe_text": {"linear_value_head_dim": 16, "num_experts_per_tok": 4},  # the size of keys; no near ties
    # src/models/mamba-base.cpp: values of all heads a multiple of groups times hidden size, and a bias of convolutions
    "granitemoehybrid dense": {"mamba_conv_bias": True, "shared_intermediate_size": 96},  # that of the other MLPs, too
    "nemotron_h": {"mamba_num_heads": 8},
    "nemotron_h experts": {"mamba_num_heads": 8},
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_d_head": 32, "embedding_multiplier": 2.0, "lm_head_multiplier": 0.5},
    "falcon_h1 norm": {"mamba_conv_bias": True, "mamba_d_ssm": 128, "mamba_d_head": 32, "embedding_multiplier": 2.0},
    "gemma3n_text": {
        "num_hidden_layers": 22,
        "layer_types": [*(["sliding_attention"] * 4 + ["full_attention"]) * 4, *["sliding_attention"] * 2],
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 307,
        "laurel_rank": 64,
        "intermediate_size": 4096,
        "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 12,
    },
}


def with_unused_keys(tensors: Tensors) -> Tensors:
    """Published files have keys and values of layers that read those of others, too."""
    parts = ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
    return {**{f"blk.{layer}.{part}": tensors[f"blk.0.{part}"] for layer in (20, 21) for part in parts}, **tensors}


@pytest.mark.parametrize(
    "name",
    [
        "qwen3_5_moe_text",
        "gemma4_text",
        "gemma4_text keys as values",
        "gemma4_text experts",
        "minimax_m2",
        "llama4_text",
        "gemma3n_text",
        "granitemoehybrid",
        "granitemoehybrid dense",
        "nemotron_h",
        "nemotron_h experts",
        "falcon_h1",
        "falcon_h1 norm",
    ],
)
def test_probabilities_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    case = FAMILIES.get(name) or FAMILIES[name.partition(" ")[0]]
    model = make_checkpoint(
        tmp_path, dataclasses.replace(case, values={**case.values, **CASES[name], **SIZES.get(name, {})})
    )
    more = {"tokenizer.ggml.bos_token_id": 1}
    change = with_unused_keys if name == "gemma3n_text" else lambda tensors: tensors
    server = LlamaCpp(write_gguf(tmp_path / "m.gguf", tmp_path, more=more, change=change))
    tokens = np.random.default_rng(3).integers(3, 290, 40).tolist()
    compared, limit = 0, LIMITS.get(name, HALF)
    for length in range(20, 40, 1 if limit == HALF else 3):
        asked = {"n_predict": 1, "n_probs": 8, "temperature": 1.0, "samplers": [], "cache_prompt": False}
        answer = server.post("completion", prompt=tokens[:length], **asked)
        if "completion_probabilities" not in answer:  # the token is only the beginning of a letter
            continue
        with torch.no_grad():
            logits = model(torch.tensor([tokens[:length]])).logits[0, -1]
        expected = torch.log_softmax(logits.double(), -1)
        found = answer["completion_probabilities"][0]["top_logprobs"]
        assert max(abs(each["logprob"] - expected[each["id"]].item()) for each in found) < limit
        compared += 1
    assert compared, "no answer had a token that is a whole letter"


@pytest.mark.parametrize("name", ["nomic_bert", "nomic_bert-moe", "jina_bert_v2", "jina_embeddings_v3", "eurobert"])
def test_vectors_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """As near as its GELU by the tanh form is."""
    torch = pytest.importorskip("torch")
    case = ENCODERS[name]
    model = encoders.make_checkpoint(tmp_path, case)
    if name == "nomic_bert-moe":
        encoders.zero_experts_bias(model)
        model.save_pretrained(tmp_path)
    rows = {"tokenizer.ggml.token_type_count": getattr(model.config, "type_vocab_size", 0)}
    file = write_encoder(tmp_path / "m.gguf", tmp_path, pooling=POOLINGS[case.pooling], more=rows)
    server = LlamaCpp(file, pooling={"mean": "MEAN", "lasttoken": "LAST"}[case.pooling])
    tokens = [0, 7, 30, 31, 12, 9, 40, 2]
    found = np.array(server.post("embedding", content=tokens)[0]["embedding"][0])
    with torch.no_grad():
        states = model(input_ids=torch.tensor([tokens]))[0][0]
    expected = (states.mean(0) if case.pooling == "mean" else states[-1]).numpy()
    assert np.abs(found / np.linalg.norm(found) - expected / np.linalg.norm(expected)).max() < 1e-2

"""Exports against transformers on random tiny checkpoints of every family, in float and in INT4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedllm.backends.devices.registry import devices, open_engine
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe, convert
from embedllm.export.verify import compare
from embedllm.package.package import open_package
from tests.support.tiny import tiny_checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

# Of logits up to 5. Checkpoints are bf16, as published ones are: float16 holds those weights exactly but for the tiny
# ones (below 6e-5), which it rounds by 3e-8 at most. A float32 checkpoint wants 32 bits for this tolerance.
FLOAT_ATOL = 1e-3
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama multi-head": ("llama", {"num_key_value_heads": 4}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3.1 rope": ("llama", {"rope_scaling": LLAMA3}),
    "llama linear rope": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "llama dynamic rope": ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "llama new rope keys": ("llama", {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, **LLAMA3}}),
    "mistral": ("mistral", {}),
    "mistral window": ("mistral", {"sliding_window": 8}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 window": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen2 yarn": ("qwen2", {"rope_scaling": YARN}),
    "qwen3": ("qwen3", {}),
    "qwen3 untied, biases": ("qwen3", {"tie_word_embeddings": False, "attention_bias": True}),
    "qwen3 yarn": ("qwen3", {"rope_scaling": {**YARN, "beta_fast": 16, "beta_slow": 2}}),
    "columns no multiple of a group": ("qwen3", {"hidden_size": 56, "intermediate_size": 88}),
}


def expected_logits(checkpoint: Path, tokens: list[int]) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float().numpy()


def cpu_logits(package: Path, tokens: list[int]) -> np.ndarray:
    opened = open_package(package)
    engine = open_engine(opened, next(d for d in devices() if d.name == "cpu"))
    return engine.open().feed_all(tokens)  # type: ignore[attr-defined]  # the CPU session has it


@pytest.fixture(scope="module", params=CASES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[int], np.ndarray]:
    family, overrides = CASES[request.param]
    checkpoint = tiny_checkpoint(tmp_path_factory.mktemp("peer") / "checkpoint", family, dtype="BF16", **overrides)
    tokens = np.random.default_rng(1).integers(0, 300, 60).tolist()
    return checkpoint, tokens, expected_logits(checkpoint, tokens)


@pytest.mark.parametrize("bits", [16, 32])
def test_float_logits_follow_transformers(case: tuple[Path, list[int], np.ndarray], bits: int, tmp_path: Path) -> None:
    checkpoint, tokens, expected = case
    package = convert(checkpoint, tmp_path / "package", Recipe(bits=bits))
    found = compare(expected, cpu_logits(package, tokens))
    assert found.max_difference <= FLOAT_ATOL, found
    reference = ReferenceEngine(open_package(package)).open().feed_all(tokens)
    assert compare(expected, reference).max_difference <= FLOAT_ATOL


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(exact=True, method="nearest"),
        Recipe(bits=8, exact=True),
        Recipe(symmetric=False, exact=True, method="nearest"),
    ],
)
def test_exact_logits_follow_transformers_on_the_dequantized_weights(
    case: tuple[Path, list[int], np.ndarray], recipe: Recipe, tmp_path: Path
) -> None:
    """transformers with its weights replaced by what the quantized file stands for, against our graph of that file."""
    checkpoint, tokens, _ = case
    package = convert(checkpoint, tmp_path / "package", recipe)
    engine = ReferenceEngine(open_package(package))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    decoder = engine.decoder
    matrices = [m for layer in decoder.layers for m in _matrices(layer)] + [decoder.embedding, decoder.head]
    state = model.state_dict()
    with torch.no_grad():
        for matrix in matrices:
            state[f"{matrix.source}.weight"].copy_(torch.from_numpy(engine.matrix(matrix)))
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    assert compare(expected, cpu_logits(package, tokens)).max_difference <= 1e-4


def _matrices(layer: object) -> list:
    from embedllm.package.tensors import linears

    return list(linears(layer))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_half_precision_checkpoints_are_read_exactly(dtype: str, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama", dtype=dtype)
    tokens = list(range(3, 40))
    package = convert(checkpoint, tmp_path / "package", Recipe(bits=32))
    found = compare(expected_logits(checkpoint, tokens), cpu_logits(package, tokens))
    assert found.max_difference <= 1e-4, found


def test_shards_are_read_as_one_model(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "qwen2", shards=3)
    tokens = list(range(3, 40))
    package = convert(checkpoint, tmp_path / "package", Recipe(bits=32))
    assert compare(expected_logits(checkpoint, tokens), cpu_logits(package, tokens)).max_difference <= 1e-4


def test_dynamic_rope_beyond_the_trained_length_equals_transformers_token_by_token(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(
        tmp_path / "checkpoint", "llama", max_position_embeddings=16, rope_scaling={"type": "dynamic", "factor": 2.0}
    )
    tokens = np.random.default_rng(2).integers(3, 300, 30).tolist()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    cache, rows = None, []
    with torch.no_grad():
        for token in tokens:
            out = model(torch.tensor([[token]]), cache=cache, use_cache=True)
            cache = out.cache
            rows.append(out.logits[0, -1].numpy())
    package = convert(checkpoint, tmp_path / "package", Recipe(bits=32, context=32))
    assert compare(np.stack(rows), cpu_logits(package, tokens)).max_difference <= 1e-4

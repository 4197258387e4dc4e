"""What Llama 4 has that tests of all families do not reach: chunks beside other requests, and where there are none."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from embedllm import Sampling, load
from embedllm.errors import DeviceUnavailable
from embedllm.export import Recipe, convert
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.graph_variants import FLOAT32, VARIANTS
from tests.support.families import FAMILIES, LLAMA4, WINDOW, make_checkpoint
from tests.support.tiny import tiny_config

VALUES = {**tiny_config("llama"), "model_type": "llama4_text", **LLAMA4}


def described(values: dict[str, object], context: int | None = None) -> Decoder:
    return describe(Config({**VALUES, **values}), context)


def test_a_context_that_exceeds_its_chunks_has_a_graph_of_the_cpu_alone() -> None:
    beyond, within = described({}, WINDOW + 1), described({}, WINDOW)
    assert [variant for variant in VARIANTS if not variant.unsupported(beyond)] == [FLOAT32]
    assert FLOAT32 in (gpus := [variant for variant in VARIANTS if not variant.unsupported(within)])
    assert len(gpus) > 2
    assert (beyond.chunk, within.chunk) == (WINDOW, None)
    reason = next(variant.unsupported(beyond) for variant in VARIANTS if variant != FLOAT32)
    assert "attend in chunks of 8 tokens, fewer than the context of 9" in reason


@pytest.mark.parametrize(("values", "sparse"), [
    ({"moe_layers": None}, [1]), ({"moe_layers": [0]}, [0]), ({"interleave_moe_layer_step": 0}, []),
    ({"interleave_moe_layer_step": 1}, [0, 1]),
])  # fmt: skip
def test_which_layers_have_experts(values: dict[str, object], sparse: list[int]) -> None:
    decoder = described(values)
    assert [at for at, layer in enumerate(decoder.layers) if hasattr(layer.mlp, "experts")] == sparse


def test_temperature_is_of_layers_without_rope() -> None:
    """In the first checkpoints 4 stands for true, and an empty list of layers for every fourth one."""
    first, second = described({"attn_temperature_tuning": 4}).attentions
    assert (first.temperature, first.rope, second.rope) == (None, 0, None)
    assert second.temperature is not None
    assert (second.q_norm, second.norm_after_rope) == (None, False)
    rotated = described({"no_rope_layers": [], "num_hidden_layers": 8, "attn_temperature_tuning": False}).attentions
    assert [each.rope for each in rotated] == [0, 0, 0, None] * 2
    assert {each.temperature for each in rotated} == {None}


@pytest.mark.peer
def test_replies_beside_others_keep_to_their_chunks(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    case = FAMILIES["llama4_text"]
    model = make_checkpoint(tmp_path / "hf", dataclasses.replace(case, values={**case.values, "eos_token_id": None}))
    package = convert(tmp_path / "hf", tmp_path / "package", Recipe(bits=32, context=64))
    tokens = np.random.default_rng(2).integers(0, 300, 30).tolist()
    prompts = [tokens[:21], tokens[5:11], tokens[:30]]

    def expected(prompt: list[int]) -> list[int]:
        found = list(prompt)
        for _ in range(20):
            with torch.no_grad():
                found.append(int(model(torch.tensor([found])).logits[0, -1].argmax()))
        return found[len(prompt) :]

    with load(package, device="cpu", prefix_cache=0) as llm, ThreadPoolExecutor(3) as pool:

        def reply(prompt: list[int]) -> list[int]:
            chunks = llm.stream(prompt, Sampling(temperature=0), max_tokens=20, stop_tokens=[])
            return [chunk.token for chunk in chunks if chunk.token is not None]

        assert list(pool.map(reply, prompts)) == [expected(prompt) for prompt in prompts]
    with pytest.raises(DeviceUnavailable, match="attend in chunks of 8 tokens"):
        load(package, device="cpu", kv="int8")


@pytest.mark.peer
def test_the_multimodal_model_of_transformers_cannot_compute(tmp_path: Path) -> None:
    """Of 5.24: it asks its text model for 'image_outputs'. Where this fails, make_checkpoint() needs no exception."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    make_checkpoint(tmp_path, FAMILIES["llama4"])
    model = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path)
    with pytest.raises(AttributeError, match="no attribute 'image_outputs'"), torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))

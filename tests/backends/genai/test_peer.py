"""The same folder in onnxruntime-genai: the same greedy tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import embedllm
from embedllm.export import Recipe

og = pytest.importorskip("onnxruntime_genai")
pytestmark = pytest.mark.peer
CASES = [
    ("llama", {}),
    ("mistral", {"sliding_window": 16}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {}),
    ("qwen3", {"tie_word_embeddings": False}),
]


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(bits=8, group_size=64), Recipe(bits=16)], ids=["4", "8", "16"])
@pytest.mark.parametrize(("family", "config"), CASES)
def test_genai_gives_the_same_greedy_tokens(
    family: str, config: dict[str, object], recipe: Recipe, tiny_package: Callable[..., Path]
) -> None:
    folder = tiny_package(family, recipe, **config)
    prompt = [5, 9, 40, 41, 42, 77]
    with embedllm.load(folder) as llm:
        # neither has a stop token before, as min_length below says
        ours = llm.generate(prompt, embedllm.Sampling(temperature=0), max_tokens=40, min_tokens=40).tokens
    assert list(ours) == genai_tokens(folder, prompt, 40)


def genai_tokens(folder: Path, prompt: list[int], count: int) -> list[int]:
    model = og.Model(str(folder))
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, min_length=len(prompt) + count, max_length=len(prompt) + count)
    generator = og.Generator(model, parameters)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)][len(prompt) :]


def test_genai_tokenizes_as_we_do(tiny_package: Callable[..., Path]) -> None:
    folder = tiny_package("qwen3")
    tokenizer = og.Tokenizer(og.Model(str(folder)))
    with embedllm.load(folder) as llm:
        for text in ("Hello, world", "naïve café", "  two  spaces"):
            assert list(tokenizer.encode(text)) == llm.tokenizer.encode(text, special=True)

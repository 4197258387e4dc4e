"""The same folder in onnxruntime-genai: the same greedy tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import embedllm
from embedllm.export import Recipe, convert
from tests.support.families import FAMILIES, make_checkpoint
from tests.support.tiny_recurrent import tiny_lfm2

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


@pytest.mark.parametrize(
    "family", ["granitemoehybrid", "falcon_h1", "nemotron_h experts", "qwen3_next", "qwen3_5_text", "qwen3_5_moe"]
)
def test_genai_keeps_the_states_of_recurrent_models(family: str, tmp_path: Path) -> None:
    """Of a prompt in two parts, too."""
    make_checkpoint(tmp_path / "checkpoint", FAMILIES[family])
    folder = convert(tmp_path / "checkpoint", tmp_path / "package", Recipe(method="nearest"))
    prompt = [5, 9, 40, 41, 42, 77]
    with embedllm.load(folder, device="cpu") as llm:
        ours = llm.generate(prompt, embedllm.Sampling(temperature=0), max_tokens=30, min_tokens=30).tokens
    assert list(ours) == genai_tokens(folder, prompt, 30) == genai_tokens(folder, prompt, 30, first=4)


def test_folders_that_genai_does_not_run_have_no_configuration_for_it(tmp_path: Path) -> None:
    """It takes the states of short convolutions (LFM2) by other numbers of layers."""
    folder = convert(tiny_lfm2(tmp_path / "checkpoint"), tmp_path / "package", Recipe(method="nearest"))
    assert not (folder / "genai_config.json").exists()


def genai_tokens(folder: Path, prompt: list[int], count: int, *, first: int = 0) -> list[int]:
    """first: of the prompt's tokens that are fed before the others."""
    model = og.Model(str(folder))
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, min_length=len(prompt) + count, max_length=len(prompt) + count)
    generator = og.Generator(model, parameters)
    if first:
        generator.append_tokens(prompt[:first])
    generator.append_tokens(prompt[first:])
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)][len(prompt) :]


def test_genai_tokenizes_as_we_do(tiny_package: Callable[..., Path]) -> None:
    folder = tiny_package("qwen3")
    tokenizer = og.Tokenizer(og.Model(str(folder)))
    with embedllm.load(folder) as llm:
        for text in ("Hello, world", "naïve café", "  two  spaces"):
            assert list(tokenizer.encode(text)) == llm.tokenizer.encode(text, special=True)

"""A prompt and the reply that continues it are the text of all tokens, for every kind of tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tokenizers

from embedllm.cancel import Cancel
from embedllm.export.gguf.metadata_files import write_texts
from embedllm.export.gguf.reader import read_model
from embedllm.generation.runner import Request, Runner
from embedllm.sampling.options import Sampling
from embedllm.text.stream import text_after
from embedllm.text.tokenizer import Tokenizer
from tests.support.fakes import FakeEngine
from tests.support.real import GEMMA3_PARTS, SMOLLM2, joined_file, published_file
from tests.web.support.tokenizer_kinds import KINDS, strings

REAL = {
    "smollm2": lambda: published_file(SMOLLM2, "**/*.gguf"),
    "gemma3": lambda: joined_file(GEMMA3_PARTS, "**/*.gguf.part*", "gemma-3-270m-q4_k_m.gguf"),
}
Split = tuple[list[int], list[int]]  # a prompt and its reply


def splits(tokenizer: Tokenizer, count: int, length: int) -> list[Split]:
    """Texts of all kinds cut between any two tokens, and tokens by chance; no prompt that ends within a character."""
    chance = random.Random(5)
    found: list[Split] = []
    for text in strings(3, count):
        tokens = tokenizer.encode(text[:400], special=chance.random() < 0.5)[:length]
        found += [(tokens[:at], tokens[at:]) for at in chance.sample(range(len(tokens) + 1), min(3, len(tokens) + 1))]
    drawn = ([chance.randrange(tokenizer.size) for _ in range(min(length, 30))] for _ in range(count))
    found += [(tokens[:10], tokens[10:]) for tokens in drawn]
    return [(prompt, reply) for prompt, reply in found if prompt and is_whole(tokenizer, prompt, reply)]


def is_whole(tokenizer: Tokenizer, prompt: Sequence[int], reply: Sequence[int]) -> bool:
    """Whether no character begins in the prompt and ends in the reply, which then changes the text of the prompt."""
    before = tokenizer.decode(prompt)
    return not before.endswith("\ufffd") and tokenizer.decode([*prompt, *reply]).startswith(before)


def check_generated(tokenizer: Tokenizer, cases: Sequence[Split], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each reply through a runner whose model gives just these tokens."""
    monkeypatch.setattr("tests.support.fakes.VOCABULARY", tokenizer.size)
    for prompt, reply in cases:
        whole = [*prompt, *reply, 0]
        engine = FakeEngine(lambda held, whole=whole: whole[len(held)], context=len(whole) + 1)
        runner = Runner(engine, tokenizer, is_direct=True)
        request = Request(prompt=prompt, sampling=Sampling(temperature=0), max_tokens=len(reply), stop=(),
                          stop_tokens=frozenset(), top_count=0, is_continuation=True)  # fmt: skip
        streamed = "".join(chunk.text for chunk in runner.stream(request, Cancel()))
        runner.close()
        assert tokenizer.decode(prompt) + streamed == tokenizer.decode([*prompt, *reply]), (prompt, reply)


@pytest.mark.parametrize("build", KINDS)
def test_every_kind_streams_what_goes_on_from_the_prompt(
    build: Callable[[], tokenizers.Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer(build(), named={})
    cases = [case for case in splits(tokenizer, 30, 14) if case[1]]
    assert len(cases) > 40
    check_generated(tokenizer, random.Random(1).sample(cases, 20), monkeypatch)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_published_tokenizers_go_on_from_the_prompt(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(read_model(REAL[name]()), tmp_path)
    tokenizer = Tokenizer.open(tmp_path)
    cases = splits(tokenizer, 450, 200)
    assert len(cases) > 1200
    for prompt, reply in cases:
        assert tokenizer.decode(prompt) + text_after(tokenizer, prompt, reply) == tokenizer.decode([*prompt, *reply])
    short = [case for case in splits(tokenizer, 30, 8) if case[1]]
    check_generated(tokenizer, short[:2], monkeypatch)

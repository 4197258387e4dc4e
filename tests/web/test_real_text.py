"""Published tokenizers, rebuilt from GGUF: a page's tokens are Python's, and a reply goes on from its prompt."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedllm.export.gguf.metadata_files import write_texts
from embedllm.export.gguf.reader import read_model
from embedllm.text.stream import text_after
from embedllm.text.tokenizer import Tokenizer
from tests.support.real import GEMMA3_PARTS, SMOLLM2, joined_file, published_file
from tests.web.support.tokenizer_kinds import strings
from tests.web.test_text import run_node, vectors_of

pytestmark = [pytest.mark.real, pytest.mark.slow]

SOURCES = {
    "smollm2": lambda: published_file(SMOLLM2, "**/*.gguf"),
    "gemma3": lambda: joined_file(GEMMA3_PARTS, "**/*.gguf.part*", "gemma-3-270m-q4_k_m.gguf"),
}


@pytest.fixture(scope="module", params=SOURCES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp(request.param)
    write_texts(read_model(SOURCES[request.param]()), made)
    return made


def test_a_page_tokenizes_as_python_does(folder: Path, tmp_path: Path, node: str, node_modules: Path) -> None:
    vectors = {"kinds": [vectors_of(folder.name, folder, 700)], "damaged": [], "refused": []}
    run_node(node, node_modules, "tokenizer.test.mjs", vectors, tmp_path)


def splits(tokenizer: Tokenizer, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Prompts and replies: texts of all kinds cut between any two tokens, and tokens by chance."""
    chance = random.Random(5)
    for text in strings(3, count):
        tokens = tokenizer.encode(text[:400], special=chance.random() < 0.5)
        for at in sorted(chance.sample(range(len(tokens) + 1), min(3, len(tokens) + 1))):
            yield tokens[:at], tokens[at:]
    for _ in range(count):
        tokens = [chance.randrange(tokenizer.size) for _ in range(30)]
        yield tokens[:10], tokens[10:]


def test_a_prompt_and_its_reply_are_the_text_of_all_tokens(folder: Path) -> None:
    tokenizer = Tokenizer.open(folder)
    seen = 0
    for prompt, reply in splits(tokenizer, 1500):
        before, whole = tokenizer.decode(prompt), tokenizer.decode([*prompt, *reply])
        if before.endswith("\ufffd") or not whole.startswith(before):
            continue  # the prompt ends within a character
        seen += 1
        assert before + text_after(tokenizer, prompt, reply) == whole, (prompt, reply)
    assert seen > 3000

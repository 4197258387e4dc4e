"""Tokenizers made again from GGUF metadata: they give the tokens of those that the files were made from."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from embedllm.errors import ExportError
from embedllm.export.gguf.tokenizers.bpe import tokenizer_json
from embedllm.export.gguf.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from embedllm.export.gguf.tokenizers.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, read_vocabulary
from tests.support.gguf_files import tokens
from tests.support.gguf_tokenizers import gemma4_metadata, lines, train_gemma4

DEMO = Path(__file__).parents[3] / "embedllm" / "demo"
DEMO_TOKENS = tokens(DEMO, "qwen2")
TEXTS = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("test_*.py"))]
ODD = ["", " ", "\r\n\r\n  x", "don't DON'T 'S", "12345 3.14 \uff14\uff12", "naïve café cafe\u0301", "東京 한국어",
       "😀👩‍👩‍👧",
       "<|im_start|>user\nhi<|im_end|>", "a<think>b</think>", "\ttab\t\t", "e\u0301\u0323"]  # fmt: skip


def rebuilt(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_json(read_vocabulary(metadata, "m.gguf"))))


def test_the_demo_models_tokenizer_gives_the_tokens_of_the_original() -> None:
    original, ours = Tokenizer.from_file(str(DEMO / "tokenizer.json")), rebuilt(DEMO_TOKENS)
    lines = [*ODD, *(line for text in TEXTS for line in text.splitlines(keepends=True))]
    rng = random.Random(0)
    letters = [chr(code) for code in (*range(32, 127), *range(0xC0, 0x250), *range(0x3040, 0x3100), 10, 13, 9)]
    lines += ["".join(rng.choices(letters, k=rng.randint(1, 60))) for _ in range(500)]
    for line in lines:
        found = ours.encode(line)
        assert found.ids == original.encode(line).ids, line
        assert ours.decode(found.ids) == original.decode(found.ids)


def test_special_tokens_are_those_of_the_original() -> None:
    original, ours = Tokenizer.from_file(str(DEMO / "tokenizer.json")), rebuilt(DEMO_TOKENS)
    said = {at: (token.content, token.special) for at, token in original.get_added_tokens_decoder().items()}
    assert {at: (token.content, token.special) for at, token in ours.get_added_tokens_decoder().items()} == said


# by hand, from the regexes' meanings
@pytest.mark.parametrize(("pre", "text", "pieces"), [
    ("llama-bpe", "It's 12345!\n", ["It", "'s", "Ġ", "123", "45", "!Ċ"]),
    ("qwen2", "It'S 123", ["It", "'S", "Ġ", "1", "2", "3"]),
    ("gpt-2", "It's 123\n\nx", ["It", "'s", "Ġ123", "Ċ", "Ċ", "x"]),
    ("smollm", "a 12", ["a", "Ġ", "1", "2"]),
    ("tekken", "HelloWorld it's", ["Hello", "World", "Ġit", "'s"]),
    ("gpt-4o", "HelloWorld don't", ["Hello", "World", "Ġdon't"]),
    ("deepseek-v3", "x12345 y", ["x", "123", "45", "Ġy"]),
    ("deepseek-coder", "ab 12\n", ["ab", "Ġ", "1", "2", "Ċ"]),
    ("seed-coder", "a+\n", ["a", "+", "Ċ"]),
    ("qwen35", "e\u0301a", ["eÌģa"]),
    ("deepseek-llm", "Don't 12!\nƻ", ["Don", "'", "t", "Ġ", "12", "!", "Ċ", "Æ»"]),  # the last is a letter without case
    ("kimi-k2", "Hi中文x1234", ["Hi", "ä\u00b8Ńæĸĩ", "x", "123", "4"]),
    ("tiny_aya", "a 1234567", ["a", "Ġ", "1", "234", "567"]),
    ("bailingmoe", "it's a\n\nb", ["it", "'s", "Ġa", "ĊĊ", "b"]),
    ("exaone-moe", "the old man 12", ["theĠoldĠman", "Ġ", "1", "2"]),
    ("jais-2", "a" + " " * 7 + "b", ["a", "ĠĠĠĠ", "ĠĠ", "Ġb"]),
    ("minicpm5", "x12345", ["x", "123", "45"]),
    ("laguna", "a\n\n b", ["a", "ĊĊ", "Ġb"]),
    ("viking", "see, 12", ["see", ",", "Ġ", "1", "2"]),
    ("bloom", "one, two", ["one", ",", "Ġtwo"]),
    ("falcon", "a, b 12345 $x", ["a", ",", "Ġb", "Ġ", "123", "45", "Ġ", "$", "x"]),
    ("superbpe", "the old 1234567 x", ["theĠoldĠ", "1", "234", "567", "Ġx"]),
    ("afmoe", "ab1234567 中文x", ["ab", "1", "234", "567", "Ġ", "ä\u00b8Ńæĸĩ", "x"]),
    ("spark2_5", "x 1234 a\n\nb", ["x", "Ġ", "1", "2", "3", "4", "Ġa", "Ċ", "Ċ", "b"]),
    ("youtu", "한글中 HelloWorld 12", ["íķľê\u00b8Ģ", "ä\u00b8Ń", "ĠHello", "World", "Ġ", "1", "2"]),
    ("ufakzeka", "Ankara'dan 12", ["Ankara", "'dan", "Ġ", "1", "2"]),
    ("granite-embed-multi-97m", "HelloWorld don't", ["Hello", "World", "Ġdon't"]),
])  # fmt: skip
def test_texts_are_cut_as_the_name_says(pre: str, text: str, pieces: list[str]) -> None:
    cut = rebuilt({**DEMO_TOKENS, "tokenizer.ggml.pre": pre}).pre_tokenizer
    assert [piece for piece, _ in cut.pre_tokenize_str(text)] == pieces


@pytest.mark.slow
@pytest.mark.parametrize("pre", [name for name, each in PRE_TOKENIZERS.items() if not each.as_gemma4])
def test_every_known_name_loses_nothing_of_a_text(pre: str) -> None:
    ours = rebuilt({**DEMO_TOKENS, "tokenizer.ggml.pre": pre})
    for line in (*ODD, *TEXTS[0].splitlines()):
        text = line if ours.normalizer is None else ours.normalizer.normalize_str(line)
        assert ours.decode(ours.encode(line).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(("changes", "message"), [
    ({"tokenizer.ggml.pre": "no-such"}, "unknown pre-tokenizer 'no-such' \\(tokenizer.ggml.pre\\); known: llama-bpe"),
    ({"tokenizer.ggml.pre": "llama-bpee"}, "The nearest is 'llama-bpe'"),
    ({"tokenizer.ggml.pre": None}, "no pre-tokenizer \\(tokenizer.ggml.pre\\)"),
    ({"tokenizer.ggml.model": "rwkv"}, "of the kind 'rwkv', which is not read; known: gpt2, llama, gemma4"),
    ({"tokenizer.ggml.model": None}, "has no vocabulary"),
    ({"tokenizer.ggml.merges": None}, "has no 'tokenizer.ggml.merges'"),
    ({"tokenizer.ggml.merges": [1, 2]}, "is no list of texts"),
    ({"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": None}, "has some twice; expected 2 that"),
    ({"tokenizer.ggml.token_type": np.ones(3, np.int32)}, "'tokenizer.ggml.token_type' has 3 entries; expected 16384"),
    ({"tokenizer.ggml.add_bos_token": 1}, "expected true or false"),
    ({"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": None}, "has no 'tokenizer.ggml.merges'"),
    ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.merges": None}, "nor scores that tell its tokens apart"),
])  # fmt: skip
def test_a_tokenizer_that_would_have_to_be_guessed_is_refused(changes: dict[str, object], message: str) -> None:
    said = {key: value for key, value in {**DEMO_TOKENS, **changes}.items() if value is not None}
    with pytest.raises(ExportError, match=message):
        rebuilt(said)


@pytest.mark.parametrize(("changes", "ids"), [
    ({}, []),
    ({"tokenizer.ggml.add_bos_token": True}, []),  # there is none
    ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 16375}, [16375]),
    ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 1 << 20}, []),
])  # fmt: skip
def test_a_bos_comes_first_where_the_file_says_so(changes: dict[str, object], ids: list[int]) -> None:
    ours = rebuilt({**DEMO_TOKENS, **changes})
    plain = ours.encode("some text", add_special_tokens=False).ids
    assert ours.encode("some text").ids == [*ids, *plain]


@pytest.mark.parametrize(("pre", "pair"), [
    ("roberta-bpe", [1, "a", 2, 2, "b", 2]),
    ("modern-bert", [1, "a", 2, "b", 2]),
    ("gpt-2", [1, "a", 2, 1, "b", 2]),
])  # fmt: skip
def test_pairs_are_put_together_as_rerankers_read_them(pre: str, pair: list[int | str]) -> None:
    roles = {"bos_token_id": 1, "eos_token_id": 2, "add_bos_token": True, "add_eos_token": True}
    ours = rebuilt(
        {**DEMO_TOKENS, "tokenizer.ggml.pre": pre, **{f"tokenizer.ggml.{key}": at for key, at in roles.items()}}
    )
    assert ours.encode("a", "b").ids == [ours.token_to_id(at) if isinstance(at, str) else at for at in pair]


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "[PAD]"]
WORDS = [
    "▁",
    *"abcdeé",
    "▁a",
    "ab",
    "bc",
    "abc",
    "▁ab",
    "cd",
    "de",
    "cde",
    "aa",
    "aaa",
    "▁▁",
    "b▁",
    "ea",
    "eab",
    "▁aaa",
]
SENTENCE = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": PIECES + WORDS,
    "tokenizer.ggml.token_type": np.array([UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [UNUSED]
                                          + [NORMAL] * len(WORDS), np.int32),
    "tokenizer.ggml.scores": np.array([0.0] * 260 + [-float((7 * at) % 31 + at / 100) for at in range(len(WORDS))],
                                      np.float32),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}  # fmt: skip


def joined(text: str) -> list[str]:
    """What SentencePiece does: the neighbours that give the best token are joined, the first of them, until none do."""
    scores = dict(zip(PIECES + WORDS, SENTENCE["tokenizer.ggml.scores"].tolist(), strict=True))
    pieces = list(text)
    while True:
        pairs = [(scores[a + b], -at) for at, (a, b) in enumerate(pairwise(pieces))
                 if a + b in WORDS]  # fmt: skip
        if not pairs:
            return pieces
        at = -max(pairs)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@given(st.text("abcdeé ", max_size=12))
def test_scores_join_as_sentencepiece_does(text: str) -> None:
    spaced = text.replace(" ", "▁")
    ours = rebuilt(SENTENCE)
    assert ours.encode(text, add_special_tokens=False).tokens == (joined("▁" + spaced) if text else [])
    unspaced = rebuilt({**SENTENCE, "tokenizer.ggml.add_space_prefix": False})
    assert unspaced.encode(text, add_special_tokens=False).tokens == joined(spaced)
    for each in (ours, unspaced):
        assert each.decode(each.encode(text).ids) == text


@pytest.mark.parametrize(("name", "pieces"), [("Phi 3", ["▁▁", "b"]), ("Phi-3-mini", ["▁", "b"])])
def test_marks_of_phi_3_take_the_spaces_behind_them(name: str, pieces: list[str]) -> None:
    ours = rebuilt({**SENTENCE, "general.name": name})

    def tokens_of(text: str) -> list[str | None]:
        return [ours.id_to_token(token) for token in ours.encode(text, add_special_tokens=False).ids]

    assert tokens_of("a</s> b") == ["▁a", "</s>", *pieces]
    assert tokens_of("<s> b") == ["<s>", "▁▁", "b"], "but for some"


def test_sentencepiece_begins_with_its_bos_and_falls_back_on_bytes() -> None:
    ours = rebuilt(SENTENCE)
    assert ours.encode("aé").tokens == ["<s>", "▁a", "é"]
    assert ours.encode("ü").tokens == ["<s>", "▁", "<0xC3>", "<0xBC>"]
    assert ours.decode(ours.encode("ü 東").ids) == "ü 東"
    ended = rebuilt({**SENTENCE, "tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.add_bos_token": False})
    assert ended.encode("a").tokens == ["▁a", "</s>"]


def test_gemma_4s_kind_gives_the_tokens_of_the_original() -> None:
    original = train_gemma4()
    ours = rebuilt(gemma4_metadata(original))
    said = {
        **gemma4_metadata(original),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "granite-embed-multi-311m",
    }
    assert rebuilt(said).to_str() == ours.to_str(), "what some files say in other words"
    for line in (*lines(), "a\n\n\nb  c", " leading", "x\n y", "<|tool_call>call<tool_call|>"):
        found, expected = ours.encode(line), original.encode(line)
        assert found.ids == expected.ids, line
        assert ours.decode(found.ids, skip_special_tokens=False) == original.decode(
            found.ids, skip_special_tokens=False
        )
    assert ours.encode("a").tokens[0] == "<bos>"
    assert [text for text in ours.encode("\U0001f989").tokens if text.startswith("<0x")], "falls back on bytes"


def test_a_token_of_a_hostile_length_is_refused_before_it_is_cut_everywhere() -> None:
    long = [*SENTENCE["tokenizer.ggml.tokens"][:-1], "a" * 200_000]  # type: ignore[index]  # a list
    with pytest.raises(ExportError, match="has 200,000 characters; expected 1,024 at most"):
        rebuilt({**SENTENCE, "tokenizer.ggml.tokens": long})

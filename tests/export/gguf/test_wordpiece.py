"""WordPiece made again from GGUF metadata: it gives the tokens of the tokenizers that the files were made from."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from embedllm.errors import ExportError
from embedllm.export.gguf.tokenizers.bpe import tokenizer_json
from embedllm.export.gguf.tokenizers.vocabulary import CONTROL, NORMAL, read_vocabulary
from tests.support.gguf_tokenizers import check_same, train_word_piece, word_piece_metadata

KINDS = {
    "uncased": {"lowercase": True},
    "cased": {"lowercase": False},
    "uncased with accents": {"lowercase": True, "strip_accents": False},
}


def rebuilt(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_json(read_vocabulary(metadata, "m.gguf"))))


@cache
def pair(kind: str) -> tuple[Tokenizer, Tokenizer]:
    """An original, and what comes back of it."""
    original = train_word_piece(**KINDS[kind])
    return original, rebuilt(word_piece_metadata(original))


@pytest.mark.parametrize("kind", KINDS)
def test_texts_give_the_tokens_of_the_original(kind: str) -> None:
    original, ours = pair(kind)
    check_same(ours, original)


@given(text=st.text(max_size=30), kind=st.sampled_from(sorted(KINDS)))
def test_any_text_gives_the_tokens_of_the_original(text: str, kind: str) -> None:
    original, ours = pair(kind)
    assert ours.encode(text).ids == original.encode(text).ids


def test_the_kinds_differ() -> None:
    """Else nothing would be proved by them."""
    found = {tuple(pair(kind)[1].normalizer.normalize_str("É") for kind in KINDS)}
    assert found == {("e", "É", "é")}


@pytest.mark.parametrize(("said", "text"), [
    ({}, "E\u00e9"),
    ({"lowercase": True}, "ee"),
    ({"lowercase": True, "strip_accents": False}, "e\u00e9"),
    ({"lowercase": False, "strip_accents": True}, "Ee"),
])  # fmt: skip
def test_what_newer_files_say_goes_before_what_the_words_tell(said: dict[str, bool], text: str) -> None:
    metadata = word_piece_metadata(pair("cased")[0])
    metadata |= {f"tokenizer.ggml.normalizer.{key}": value for key, value in said.items()}
    assert rebuilt(metadata).normalizer.normalize_str("E\u00e9") == text


HAND = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "▁a", "b", "▁#", "▁b"]
WRITTEN = {
    "tokenizer.ggml.model": "bert",
    "tokenizer.ggml.tokens": HAND,
    "tokenizer.ggml.token_type": np.array([NORMAL] * len(HAND), np.int32),
}


def test_older_files_have_marks_in_brackets_and_do_not_say_which_is_which() -> None:
    ours = rebuilt(WRITTEN)
    assert ours.encode("Ab# ba c").tokens == ["[CLS]", "a", "##b", "#", "[UNK]", "[UNK]", "[SEP]"]
    assert ours.encode("a", "b").type_ids == [0, 0, 0, 1, 1]


def test_roles_that_the_file_gives_go_before_names() -> None:
    said = {"tokenizer.ggml.cls_token_id": 0, "tokenizer.ggml.seperator_token_id": 1}
    assert rebuilt(WRITTEN | said).encode("a").tokens == ["[PAD]", "a", "[unused1]"]
    said = {"tokenizer.ggml.bos_token_id": 4, "tokenizer.ggml.eos_token_id": 3}
    assert rebuilt(WRITTEN | said).encode("a").tokens == ["[SEP]", "a", "[CLS]"]


@pytest.mark.parametrize(("tokens", "message"), [
    (["[UNK]", "[CLS]", "▁a"], r"which token is '\[SEP\]' \('tokenizer.ggml.sep_token_id'\)"),
    (["[UNK]", "[CLS]", "[SEP]", "▁[SEP]"], "has words twice"),
])  # fmt: skip
def test_a_vocabulary_that_lacks_something_is_refused(tokens: list[str], message: str) -> None:
    types = np.array([CONTROL] * 2 + [NORMAL] * (len(tokens) - 2), np.int32)
    with pytest.raises(ExportError, match=message):
        rebuilt({**WRITTEN, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types})

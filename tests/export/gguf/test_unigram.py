"""Unigram models made again from GGUF metadata: they give the tokens of those that the files were made from."""

from __future__ import annotations

import io
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
from embedllm.export.gguf.tokenizers.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    read_vocabulary,
)
from tests.support.gguf_tokenizers import CHARSMAP, ODD, TEXTS, check_same, train_unigram, unigram_metadata

MAP, SCORES = "tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.scores"


def rebuilt(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_json(read_vocabulary(metadata, "m.gguf"))))


@cache
def pair() -> tuple[Tokenizer, Tokenizer]:
    """An original, and what comes back of it."""
    original = train_unigram()
    return original, rebuilt(unigram_metadata(original))


def test_texts_give_the_tokens_of_the_original() -> None:
    original, ours = pair()
    check_same(ours, original)


@given(st.text(max_size=30))
def test_any_text_gives_the_tokens_of_the_original(text: str) -> None:
    original, ours = pair()
    assert ours.encode(text).ids == original.encode(text).ids


HAND = {"<unk>": (UNKNOWN, 0), "<s>": (CONTROL, 0), "</s>": (CONTROL, 0), "▁": (NORMAL, -3), "▁a": (NORMAL, -2),
        "a": (NORMAL, -4), "b": (NORMAL, -4), "ab": (NORMAL, -5), "[PAD0]": (UNUSED, -10000),
        "<x>": (USER_DEFINED, 0)}  # fmt: skip
BYTES = {f"<0x{byte:02X}>": (BYTE, 0) for byte in range(256)}


def metadata(pieces: dict[str, tuple[int, int]], **said: object) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": list(pieces),
        "tokenizer.ggml.token_type": np.array([kind for kind, _ in pieces.values()], np.int32),
        SCORES: np.array([score for _, score in pieces.values()], np.float32),
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{key}": value for key, value in said.items()},
    }


# by hand, of the scores
@pytest.mark.parametrize(("said", "text", "tokens"), [
    ({}, "ab  a ", ["ab", "▁", "▁a", "▁", "</s>"]),
    ({"add_space_prefix": True}, "ab", ["▁a", "b", "</s>"]),
    ({"add_space_prefix": True}, " a", ["▁", "▁a", "</s>"]),
    ({"add_space_prefix": True, "remove_extra_whitespaces": True}, "  b  a ", ["▁", "b", "▁a", "</s>"]),
    ({"add_space_prefix": True, "remove_extra_whitespaces": True}, "   ", ["</s>"]),
    ({"add_eos_token": False}, "xyb", ["<unk>", "b"]),
    ({"add_bos_token": True, "bos_token_id": 1}, "b", ["<s>", "b", "</s>"]),
    ({"add_eos_token": False}, "[PAD0]", ["<unk>", "<unk>"]),  # of no text
    ({"add_eos_token": False}, "b<x>b", ["b", "<x>", "b"]),
])  # fmt: skip
def test_flags_of_the_file_are_followed(said: dict[str, object], text: str, tokens: list[str]) -> None:
    ours = rebuilt(metadata(HAND, **said))
    spelled = [ours.id_to_token(token) for token in ours.encode(text).ids]
    assert spelled == (["<unk>"] if text == "[PAD0]" else tokens)


def test_what_is_unknown_becomes_bytes_where_there_are_some() -> None:
    ours = rebuilt(metadata(HAND | BYTES, add_space_prefix=True, remove_extra_whitespaces=True))
    assert ours.encode("aé").tokens == ["▁a", "<0xC3>", "<0xA9>", "</s>"]
    assert ours.decode(ours.encode("é 東b").ids) == "é 東b"


def spoiled(place: int, value: int) -> np.ndarray:
    found = np.frombuffer(CHARSMAP, np.uint8).copy()
    found[place : place + 4] = np.array([value], "<u4").view(np.uint8)
    return found


@pytest.mark.parametrize("values", [
    np.frombuffer(CHARSMAP, np.uint8)[:3],
    np.frombuffer(CHARSMAP, np.uint8)[:-1000],
    np.frombuffer(CHARSMAP[:-1] + b"\xff", np.uint8),
    np.frombuffer(CHARSMAP, np.uint8).astype(np.int32),
    spoiled(0, 0),
    spoiled(0, 1 << 30),
    spoiled(4, 0x7FFFFC00),  # the first node leads far away
    spoiled(4, 0xFFFFFFFF),  # and to a text that is not there
    "text",
])  # fmt: skip
def test_a_damaged_map_of_characters_is_refused(values: object) -> None:
    with pytest.raises(ExportError, match="is no map of characters as SentencePiece has it"):
        rebuilt(metadata(HAND) | {MAP: values})


@given(st.integers(0, len(CHARSMAP) - 1), st.integers(0, 255), st.sampled_from([*ODD, *TEXTS[-8:]]))
def test_a_map_with_another_byte_is_refused_or_reads_any_text(place: int, value: int, text: str) -> None:
    values = np.frombuffer(CHARSMAP, np.uint8).copy()
    values[place] = value
    try:
        ours = rebuilt(metadata(HAND) | {MAP: values})
    except ExportError:
        return
    ours.encode(text)


def test_a_file_without_scores_is_refused() -> None:
    said = metadata(HAND)
    del said[SCORES]
    with pytest.raises(ExportError, match=r"has no 'tokenizer\.ggml\.scores'"):
        rebuilt(said)


@pytest.mark.peer
@pytest.mark.parametrize("spaced", [True, False])
@pytest.mark.parametrize("removed", [True, False])
def test_sentencepiece_itself_gives_these_tokens(*, spaced: bool, removed: bool) -> None:
    """With its own map of characters, and bytes; sums of scores that are the same may be of other tokens."""
    sentencepiece = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for text in TEXTS if text]), model_writer=written, vocab_size=900,
        hard_vocab_limit=False, model_type="unigram", byte_fallback=True, add_dummy_prefix=spaced,
        remove_extra_whitespaces=removed, character_coverage=0.99, minloglevel=2,
    )  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]  # made as it is loaded
    model.ParseFromString(written.getvalue())
    pieces = {piece.piece: (piece.type, piece.score) for piece in model.pieces}
    charsmap = np.frombuffer(model.normalizer_spec.precompiled_charsmap, np.uint8)
    said = {"add_space_prefix": spaced, "remove_extra_whitespaces": removed, "add_eos_token": False}
    ours = rebuilt(metadata(pieces, **said) | {MAP: charsmap})
    # tokenizers knows marks in texts, and maps some runs of code points whole; SentencePiece does neither
    others = ("<s>", "\r\n", "\u0323", "\u200d")
    whole = [line for line in [*ODD, *TEXTS] if not any(each in line for each in others)]
    scores = [score for _, score in pieces.values()]
    apart = [line for line in whole if ours.encode(line).ids != theirs.encode(line)]
    assert len(apart) < len(whole) / 50
    for line in apart:
        sums = [sum(scores[token] for token in found) for found in (ours.encode(line).ids, theirs.encode(line))]
        assert sums[0] == pytest.approx(sums[1], abs=1e-3), line

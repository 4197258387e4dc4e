"""The tokenizer.json that a GGUF file's WordPiece amounts to, as BERT has it.

Tokens that begin a word have U+2581 in front, those within one have nothing in the place of BERT's "##", and marks are
as they are. Source: conversion/bert.py and llama-vocab.cpp of llama.cpp.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

from embedllm.errors import ExportError
from embedllm.export.gguf.tokenizers.components import Piece, template, whole_json
from embedllm.export.gguf.tokenizers.vocabulary import CONTROL, NORMAL, PREFIX, Vocabulary

_START, _INSIDE = "\u2581", "##"
_LONGEST = 100  # characters of a word; longer ones are unknown, as transformers has it
_LOWERCASE, _STRIP = "normalizer.lowercase", "normalizer.strip_accents"  # newer files have these
# Of others the words say how texts are changed before they are cut: those of bert-base-uncased and -chinese have no
# capitals and no accents. A few may be somebody's additions
_FEW = 0.01


def word_piece(vocabulary: Vocabulary) -> dict[str, object]:
    """Raises ExportError where tokens are missing that mark the ends of a text, or what is unknown."""
    tokens = tuple(_spell(text, kind) for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True))
    if len(set(tokens)) != len(tokens):
        raise ExportError(
            f"'{vocabulary.place}': '{PREFIX}tokens' has words twice, with U+2581 in front and in brackets. Try the "
            "checkpoint that the file was made from."
        )
    words = [text for text, kind in zip(tokens, vocabulary.types, strict=True) if kind == NORMAL and not _is_mark(text)]
    is_said = _LOWERCASE in vocabulary.values
    lowers = vocabulary.flag(_LOWERCASE, _mostly_kept(words, str.lower))
    strips = vocabulary.flag(_STRIP, lowers and (is_said or _mostly_kept(words, _without_accents)))
    first, last, unknown = (_mark(vocabulary, roles, text) for roles, text in
                            ((("cls", "bos"), "[CLS]"), (("sep", "eos"), "[SEP]"), (("unk",), "[UNK]")))  # fmt: skip
    single: list[Piece] = [(first, 0), ("A", 0), (last, 0)]
    model = {
        "type": "WordPiece",
        "unk_token": tokens[unknown],
        "continuing_subword_prefix": _INSIDE,
        "max_input_chars_per_word": _LONGEST,
        "vocab": {text: at for at, text in enumerate(tokens)},
    }
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                  "strip_accents": strips, "lowercase": lowers}  # fmt: skip
    return whole_json(
        vocabulary,
        model,
        normalizer=normalizer,
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": _INSIDE, "cleanup": True},
        post_processor=template(vocabulary, single, [*single, ("B", 1), (last, 1)]),
    )


def _spell(text: str, kind: int) -> str:
    """As BERT's vocabulary has it; older files have all in brackets as it is, and do not say what is a mark."""
    if kind == CONTROL:
        return text
    if text.startswith(_START):
        return text.removeprefix(_START)
    return text if _is_mark(text) else _INSIDE + text


def _is_mark(text: str) -> bool:
    return len(text) > 2 and text.startswith("[") and text.endswith("]")


def _mark(vocabulary: Vocabulary, roles: Sequence[str], text: str) -> int:
    """The token of the first of some roles that the file has, or that is spelled so."""
    tokens = [at for role in roles if (at := vocabulary.special(role)) is not None]
    if tokens:
        return tokens[0]
    if text in vocabulary.tokens:
        return vocabulary.tokens.index(text)
    raise ExportError(
        f"'{vocabulary.place}' does not say which token is '{text}' ('{PREFIX}{roles[0]}_token_id'), and has none of "
        "that name. Try the checkpoint that the file was made from."
    )


def _mostly_kept(words: Sequence[str], change: Callable[[str], str]) -> bool:
    """Whether words stay what they are: a text that is changed so can still be made of them."""
    return sum(change(word) != word for word in words) <= _FEW * len(words)


def _without_accents(text: str) -> str:
    return "".join(each for each in unicodedata.normalize("NFD", text) if unicodedata.category(each) != "Mn")

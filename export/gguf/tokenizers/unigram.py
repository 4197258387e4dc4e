"""The tokenizer.json that a GGUF file's unigram model amounts to: SentencePiece's, as T5 and XLM-RoBERTa have it.

Source: llama-vocab.cpp of llama.cpp for the keys; normalizer.cc of SentencePiece for what they mean.
"""

from __future__ import annotations

import base64

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.gguf.tokenizers.components import around, whole_json
from embedllm.export.gguf.tokenizers.vocabulary import BYTE, NORMAL, PREFIX, UNKNOWN, UNUSED, Vocabulary

_SPACE = "\u2581"
_PAIR_EOS = 2  # EOS between the texts of a pair, as XLM-RoBERTa has it
_CHARSMAP, _LENGTH = "precompiled_charsmap", 4  # bytes in front of it: the trie's length


def unigram(vocabulary: Vocabulary) -> dict[str, object]:
    """Raises ExportError for a file without scores, or with a map of characters that is damaged."""
    unknown = next((at for at, kind in enumerate(vocabulary.types) if kind == UNKNOWN), vocabulary.special("unk"))
    model = {
        "type": "Unigram",
        "unk_id": unknown,
        "vocab": _pieces(vocabulary),
        "byte_fallback": BYTE in vocabulary.types,
    }
    spaced = vocabulary.flag("add_space_prefix", False)
    back: list[object] = [{"type": "ByteFallback"}, {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                          {"type": "Fuse"}]  # fmt: skip
    if spaced:
        back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return whole_json(
        vocabulary,
        model,
        normalizer={"type": "Sequence", "normalizers": _steps(vocabulary, spaced=spaced)},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": back},
        post_processor=around(vocabulary, adds_bos=False, adds_eos=True, pair_eos=_PAIR_EOS),
    )


def _pieces(vocabulary: Vocabulary) -> list[list[object]]:
    """Tokens with their scores. Those that stand for no text get a space behind, which texts here have none of."""
    scores = vocabulary.scores
    if scores is None or NORMAL not in vocabulary.types:
        raise ExportError(
            f"'{vocabulary.place}' has no '{PREFIX}scores', or no tokens of words ('{PREFIX}token_type'), which a "
            "tokenizer of this kind is made of. Try the checkpoint that the file was made from."
        )
    lowest = min(score for score, kind in zip(scores, vocabulary.types, strict=True) if kind == NORMAL)
    return [
        [f"{text} ", lowest] if kind == UNUSED else [text, max(score, lowest)]
        for text, kind, score in zip(vocabulary.tokens, vocabulary.types, scores, strict=True)
    ]


def _steps(vocabulary: Vocabulary, *, spaced: bool) -> list[object]:
    """What SentencePiece does to a text, in its order: characters are mapped, spaces are removed, one is put first."""

    def replace(pattern: dict[str, str], content: str) -> dict[str, object]:
        return {"type": "Replace", "pattern": pattern, "content": content}

    steps: list[object] = []
    if (charsmap := _charsmap(vocabulary)) is not None:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode("ascii")})
    if vocabulary.flag("remove_extra_whitespaces", False):
        steps += [replace({"Regex": rf"\A +|[ {_SPACE}]+\z"}, ""), replace({"Regex": " {2,}"}, " ")]
    if spaced:
        steps.append({"type": "Prepend", "prepend": _SPACE})
    return [*steps, replace({"String": " "}, _SPACE)]


def _charsmap(vocabulary: Vocabulary) -> bytes | None:
    """Which characters become which, as SentencePiece compiles it: a trie in an array, and the texts it leads to.

    Raises ExportError for one that leads outside of these, which would be found out in the middle of a text.
    """
    charsmap = vocabulary.values.get(_CHARSMAP)
    if charsmap is None:
        return None
    data = charsmap.tobytes() if isinstance(charsmap, np.ndarray) and charsmap.dtype in (np.uint8, np.int8) else b""
    size = int.from_bytes(data[:_LENGTH], "little")
    if size % 4 or not 0 < size <= len(data) - _LENGTH or not _is_closed(data[_LENGTH:][:size], data[_LENGTH + size :]):
        raise ExportError(
            f"'{vocabulary.place}': '{PREFIX}{_CHARSMAP}' is no map of characters as SentencePiece has it. Get the "
            "file again, or try the checkpoint that it was made from."
        )
    return data


def _is_closed(trie: bytes, texts: bytes) -> bool:
    """Whether each node leads to nodes of the trie, or to the beginning of a character of the texts.

    A node is a value if its highest bit is set; else bits 10 to 30 are how far it leads, in steps of 256 if bit 9 is
    set, and there is a value if bit 8 is set. Source: https://github.com/s-yata/darts-clone, include/darts.h.
    """
    try:
        texts.decode("utf-8")
    except UnicodeDecodeError:
        return False
    nodes = np.frombuffer(trie, "<u4").astype(np.int64)
    is_value = nodes >> 31 == 1
    leads = np.arange(nodes.size) ^ (nodes >> 10 << (nodes >> 6 & 8))
    values = nodes[is_value] & 0x7FFFFFFF
    if ((leads[~is_value] | 255) >= nodes.size).any() or (values >= len(texts)).any():
        return False
    ends = leads[~is_value & (nodes >> 8 & 1 == 1)]
    return bool(is_value[ends].all() and (np.frombuffer(texts, np.uint8)[values] & 0xC0 != 0x80).all())

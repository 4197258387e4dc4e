"""Tokenizers that are trained here, and what llama.cpp's converters write of them.

Source: conversion/bert.py of llama.cpp (set_vocab, _xlmroberta_set_vocab), and SpecialVocab of the Python package gguf.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from embedllm.export.gguf.tokenizers.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

CHARSMAP = base64.b64decode(json.loads((Path(__file__).parents[1] / "golden" / "charsmap.json").read_text()))
_SPACE = "\u2581"
_WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
_FOREIGN = [
    "Naïve cafés über Straße, façade déjà vu", "東京は日本の首都です。がぎぐげご", "한국어 문장입니다",
    "Привет, мир ёлка",
    "नमस्ते हिन्दी", "Việt Nam tiếng", "¿Qué? ½ kg…", "ﬁne " + "Full width 123".translate(_WIDE),
]  # fmt: skip
_LICENSE = Path(__file__).parents[2] / "LICENSE"
TEXTS = [*_LICENSE.read_text(encoding="utf-8").splitlines(), *_FOREIGN * 3]
ODD = [
    "", " ", "  a  b ", "\t\r\n x", "don't DON'T", "a\u0000b\u0007c\ufffd", "e\u0301\u0323 E\u0301", "😀👩‍👩‍👧",
    "[MASK] [mask]", "<s> a</s>", "▁ a▁b ▁▁", "x" * 120, "\u00a0\u3000\u2028\u0085",
]  # fmt: skip


def lines(count: int = 300) -> list[str]:
    """Texts of all kinds: those of the training, odd ones, and random letters of many scripts."""
    rng = random.Random(0)
    codes = [range(32, 127), range(0xC0, 0x250), range(0x300, 0x310), range(0x3040, 0x3100), range(0x4E00, 0x4E40),
             range(0xAC00, 0xAC40), (9, 10, 13, 0, 0xFB01)]  # fmt: skip
    letters = [chr(code) for each in codes for code in each] + [" "] * 99
    return [*ODD, *TEXTS, *("".join(rng.choices(letters, k=rng.randint(1, 50))) for _ in range(count))]


def train_word_piece(*, lowercase: bool, strip_accents: bool | None = None) -> Tokenizer:
    """As BERT has it."""
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)  # type: ignore[assignment]
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    made.decoder = decoders.WordPiece()  # type: ignore[assignment]
    made.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=1500, special_tokens=marks, show_progress=False)
    )
    made.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def train_unigram() -> Tokenizer:
    """As transformers makes XLM-RoBERTa's; scores are those that 32 bits hold."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Precompiled(CHARSMAP)  # type: ignore[assignment]
    cuts = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    made.pre_tokenizer = pre_tokenizers.Sequence(cuts)  # type: ignore[assignment]
    marks = ["<s>", "<pad>", "</s>", "<unk>"]
    made.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=800, special_tokens=marks, unk_token="<unk>", show_progress=False)
    )
    written = json.loads(made.to_str())
    written["model"]["vocab"] = [[text, float(np.float32(score))] for text, score in written["model"]["vocab"]]
    made = Tokenizer.from_str(json.dumps(written))
    made.decoder = decoders.Metaspace(prepend_scheme="always")  # type: ignore[assignment]
    made.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return made


def train_gemma4() -> Tokenizer:
    """As transformers has Gemma 4's: SentencePiece's BPE with byte fallback, which puts no space in front."""
    marks = ["<pad>", "<eos>", "<bos>", "<unk>", "<|tool_call>", "<tool_call|>"]
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", _SPACE)  # type: ignore[assignment]
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")  # type: ignore[assignment]
    made.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=900, special_tokens=marks + pieces, show_progress=False)
    )
    written = json.loads(made.to_str())
    written["added_tokens"] = [token for token in written["added_tokens"] if token["content"] in marks]
    made = Tokenizer.from_str(json.dumps(written))
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(parts)  # type: ignore[assignment]
    made.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
    )
    return made


def gemma4_metadata(tokenizer: Tokenizer) -> dict[str, Any]:
    """Gemma4Model.set_vocab: what a chat parser looks for is defined by the user, not a control token."""
    texts, kinds = _tokens(tokenizer)
    kinds = [BYTE if text.startswith("<0x") else USER_DEFINED if "tool_call" in text else kind
             for text, kind in zip(texts, kinds, strict=True)]  # fmt: skip
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": np.full(len(texts), -1000.0, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]],
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
    }


def word_piece_metadata(tokenizer: Tokenizer, count: int = 0) -> dict[str, Any]:
    """BertModel.set_vocab: what begins a word gets a space, what does not loses its mark.

    count: tokens of the model, where it has more than the tokenizer.
    """
    texts, kinds = _tokens(tokenizer)
    more = range(len(texts), count)
    texts, kinds = texts + [f"[PAD{at}]" for at in more], kinds + [UNUSED] * len(more)
    spelled = [text if kind == CONTROL else text[2:] if text.startswith("##") else f"▁{text}"
               for text, kind in zip(texts, kinds, strict=True)]  # fmt: skip
    roles = {
        "unknown": "[UNK]",
        "padding": "[PAD]",
        "bos": "[CLS]",
        "eos": "[SEP]",
        "seperator": "[SEP]",
        "mask": "[MASK]",
    }
    ids = {f"tokenizer.ggml.{role}_token_id": tokenizer.token_to_id(text) for role, text in roles.items()}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "jina-v2-en",
        "tokenizer.ggml.tokens": spelled,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.token_type_count": 2,
        **ids,
    }


def unigram_metadata(tokenizer: Tokenizer) -> dict[str, Any]:
    """XLMRobertaModel.set_vocab."""
    texts, kinds = _tokens(tokenizer)
    unknown = texts.index("<unk>")
    kinds[unknown] = UNKNOWN
    scores = [score for _, score in json.loads(tokenizer.to_str())["model"]["vocab"]]
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.token_type_count": 1,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.precompiled_charsmap": np.frombuffer(CHARSMAP, np.uint8),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": unknown,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }


def _tokens(tokenizer: Tokenizer) -> tuple[list[str], list[int]]:
    marks = tokenizer.get_added_tokens_decoder()
    texts: Sequence[str | None] = [tokenizer.id_to_token(at) for at in range(tokenizer.get_vocab_size())]
    assert all(text is not None for text in texts)
    return [str(text) for text in texts], [CONTROL if at in marks else NORMAL for at in range(len(texts))]


def check_same(ours: Tokenizer, original: Tokenizer) -> None:
    """That both give the same for the lines, alone and in pairs, and back."""
    assert ours.get_vocab() == original.get_vocab()
    for line in lines():
        found, expected = ours.encode(line), original.encode(line)
        assert found.ids == expected.ids, line
        assert ours.decode(found.ids) == original.decode(expected.ids)
        found, expected = ours.encode(line, "b c"), original.encode(line, "b c")
        assert (found.ids, found.type_ids) == (expected.ids, expected.type_ids)

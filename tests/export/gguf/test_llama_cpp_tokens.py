"""Pre-tokenizers by their names, against llama.cpp: the same tokens of random texts."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from embedllm.export.gguf.tokenizers.bpe import tokenizer_json
from embedllm.export.gguf.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from embedllm.export.gguf.tokenizers.vocabulary import read_vocabulary
from tests.support.gguf_files import tokens, write_file
from tests.support.llama_cpp_server import LlamaCpp

DEMO = Path(__file__).parents[3] / "embedllm" / "demo"
HIDDEN, INNER = 32, 32
LETTERS = [
    chr(code)
    for code in (*range(32, 127), *range(0xC0, 0x250), *range(0x391, 0x3AA), *range(0x3040, 0x3100),
                 *range(0x4E00, 0x4E40), *range(0xAC00, 0xAC40), *range(0xE40, 0xE50), 10, 13, 9, 0x2019, 0xB2)
] + list("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGH" * 3) + [" "] * 60  # fmt: skip
UNLIKE = {"afmoe", "tiny_aya"}  # runs of spaces in front of digits, which llama.cpp splits


def texts(pre: str) -> Iterator[str]:
    """In NFC, which llama.cpp leaves out."""
    rng = random.Random(0)
    for _ in range(100):
        text = "".join(rng.choices(LETTERS, k=rng.randint(1, 40))).replace("<", "")
        text = unicodedata.normalize("NFC", text)
        yield " ".join(text.split()) if pre in UNLIKE else text
    yield from ("I've been 'told he's there, 'RE you sure?", "3 33 333 3333 33333 333333", "нещо на Български =---=")


def distinct() -> list[str]:
    """One name of each rule."""
    first = {rules: name for name, rules in reversed(list(PRE_TOKENIZERS.items())) if not rules.as_gemma4}
    return sorted(first.values())


def metadata(pre: str) -> dict[str, Any]:
    said = tokens(DEMO, pre)
    sizes = {"context_length": 512, "embedding_length": HIDDEN, "block_count": 1, "feed_forward_length": INNER,
             "attention.head_count": 2, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
             "rope.dimension_count": 16, "vocab_size": len(said["tokenizer.ggml.tokens"])}  # fmt: skip
    ids = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0}
    return {**{f"llama.{key}": value for key, value in sizes.items()}, **said, **ids}


def tensors(vocabulary: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (HIDDEN, HIDDEN), "attn_v": (HIDDEN, HIDDEN),
              "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN),
              "ffn_down": (HIDDEN, INNER)}  # fmt: skip
    matrices = {f"blk.0.{name}": shape for name, shape in shapes.items()} | {"token_embd": (vocabulary, HIDDEN)}
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    found = {f"{name}.weight": rng.standard_normal(shape).astype(np.float32) for name, shape in matrices.items()}
    return found | {f"{name}.weight": np.ones(HIDDEN, np.float32) for name in norms}


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("pre", distinct())
def test_llama_cpp_gives_the_same_tokens(pre: str, tmp_path: Path) -> None:
    said = metadata(pre)
    file = write_file(tmp_path / "m.gguf", "llama", said, tensors(len(said["tokenizer.ggml.tokens"])), kind="F16")
    server = LlamaCpp(file)
    ours = Tokenizer.from_str(json.dumps(tokenizer_json(read_vocabulary(said, "m.gguf"))))
    for text in texts(pre):
        theirs = server.post("tokenize", content=text, add_special=False, parse_special=False)["tokens"]
        assert ours.encode(text, add_special_tokens=False).ids == theirs, text

"""The small files that are written of a GGUF file's metadata."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedllm.export.gguf.metadata_files import write_texts
from embedllm.export.gguf.reader import GgufModel
from embedllm.export.gguf.tokenizers.vocabulary import CONTROL, NORMAL, USER_DEFINED
from embedllm.generation.defaults import read_defaults
from embedllm.sampling.options import Sampling


def test_how_tokens_are_drawn_is_what_the_file_says(tmp_path: Path) -> None:
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.token_type": [NORMAL, NORMAL], "tokenizer.ggml.merges": [],
        "general.sampling.temp": 0.5, "general.sampling.top_k": 20, "general.sampling.penalty_repeat": 1.25,
    }  # fmt: skip
    write_texts(GgufModel(path=tmp_path / "m.gguf", files=(), metadata=metadata, tensors={}), tmp_path)
    assert read_defaults(tmp_path).sampling == Sampling(temperature=0.5, top_k=20, repetition_penalty=1.25)


@pytest.mark.parametrize(("marks", "ends"), [
    ({"<|end|>": CONTROL, "<|user|>": CONTROL}, ["<|end|>"]),
    ({"<|end|>": CONTROL, "<|return|>": CONTROL, "<|call|>": CONTROL}, ["<|return|>", "<|call|>"]),
    ({"<|end|>": CONTROL, "<|flush|>": CONTROL, "<|calls|>": CONTROL}, ["<|flush|>", "<|calls|>"]),
    ({"<turn|>": CONTROL, "<|tool_response>": USER_DEFINED, "<|tool_call>": USER_DEFINED},
     ["<turn|>", "<|tool_response>"]),
    ({"<|im_end|>": NORMAL}, []),
])  # fmt: skip
def test_a_turn_ends_where_its_marks_say_so(marks: dict[str, int], ends: list[str], tmp_path: Path) -> None:
    tokens = ["a", "b", *marks]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL, NORMAL, *marks.values()], "tokenizer.ggml.merges": [],
    }  # fmt: skip
    write_texts(GgufModel(path=tmp_path / "m.gguf", files=(), metadata=metadata, tensors={}), tmp_path)
    found = json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"]
    assert found == [tokens.index(text) for text in ends]

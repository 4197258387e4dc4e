"""The small files that are written of a GGUF file's metadata."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedllm.export.gguf.metadata_files import write_texts
from embedllm.export.gguf.reader import GgufModel
from embedllm.export.gguf.tokenizers.vocabulary import CONTROL, NORMAL, USER_DEFINED


@pytest.mark.parametrize(("marks", "ends"), [
    ({"<|end|>": CONTROL, "<|user|>": CONTROL}, ["<|end|>"]),
    ({"<|end|>": CONTROL, "<|return|>": CONTROL, "<|call|>": CONTROL}, ["<|return|>", "<|call|>"]),
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

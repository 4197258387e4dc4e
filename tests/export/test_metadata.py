"""What a manifest says of special tokens."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from embedllm.export.writing.metadata import special_tokens


def test_a_vocabulary_of_any_size_is_not_counted_through(tmp_path: Path) -> None:
    """A range compares None with each of its numbers, which took minutes for 2^31 of them; here it would never end."""
    reader = cast("Any", SimpleNamespace(folder=tmp_path, config={"eos_token_id": 7, "pad_token_id": -1}))
    assert special_tokens(reader, 2**62) == {"bos": None, "pad": None, "stop": [7]}


def test_what_the_tokenizer_knows_comes_behind_and_without_tokens_that_the_model_has_not(tmp_path: Path) -> None:
    reader = cast("Any", SimpleNamespace(folder=tmp_path, config={"eos_token_id": [7, 5]}))
    assert special_tokens(reader, 9, (5, 2, 9))["stop"] == [7, 5, 2]

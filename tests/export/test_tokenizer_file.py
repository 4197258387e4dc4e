"""What a package's tokenizer has of the files beside tokenizer.json, and what is said of one that lacks something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedllm.errors import ExportError
from embedllm.export import Recipe, convert
from embedllm.export.writing.tokenizer_file import read_tokenizer
from embedllm.package.package import open_package
from tests.support.tiny import tiny_checkpoint

NEAREST = Recipe(method="nearest")


def edit(path: Path, **changed: object) -> None:
    """Sets keys of a JSON file; None removes one."""
    found = {**(json.loads(path.read_text()) if path.exists() else {}), **changed}
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))


def ending_by(checkpoint: Path, eos: object = None) -> Path:
    """The checkpoint with this eos_token_id in config.json, and without generation_config.json."""
    (checkpoint / "generation_config.json").unlink(missing_ok=True)
    edit(checkpoint / "config.json", eos_token_id=eos)
    return checkpoint


# Stop tokens


@pytest.mark.parametrize(
    ("config", "eos", "stop"),
    [
        (None, "<|im_end|>", (2, 0)),
        (1, "<|im_end|>", (1, 2, 0)),
        ([2, 5], "<|im_end|>", (2, 5, 0)),
        (None, {"content": "a", "lstrip": False}, (67, 0, 2)),
        (None, None, (0, 2)),
    ],
)
def test_a_reply_ends_at_the_tokens_of_the_config_of_the_tokenizer_and_of_known_texts(
    config: object, eos: object, stop: tuple[int, ...], tmp_path: Path
) -> None:
    checkpoint = ending_by(tiny_checkpoint(tmp_path / "checkpoint"), config)
    edit(checkpoint / "tokenizer_config.json", eos_token=eos)
    assert open_package(convert(checkpoint, tmp_path / "package", NEAREST)).stop_tokens == stop


def renamed(checkpoint: Path, **texts: str) -> None:
    """Gives tokens of tokenizer.json other texts."""
    path = checkpoint / "tokenizer.json"
    written = path.read_text()
    for old, new in texts.items():
        written = written.replace(f"<|{old}|>", f"<|{new}|>")
    path.write_text(written)


def test_a_model_whose_replies_have_messages_goes_on_at_their_ends(tmp_path: Path) -> None:
    """gpt-oss thinks in one message and answers in the next, even where its tokenizer calls "<|end|>" the EOS token."""
    checkpoint = ending_by(tiny_checkpoint(tmp_path / "checkpoint"))
    renamed(checkpoint, endoftext="return", im_start="end", im_end="call")
    edit(checkpoint / "tokenizer_config.json", eos_token="<|end|>", pad_token=None)
    assert read_tokenizer(checkpoint).ends == [0, 2]


def test_an_export_says_that_no_stop_token_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = ending_by(tiny_checkpoint(tmp_path / "checkpoint"))
    renamed(checkpoint, endoftext="pad", im_end="im_stop")
    edit(checkpoint / "tokenizer_config.json", eos_token=None, pad_token=None)
    assert open_package(convert(checkpoint, tmp_path / "package", NEAREST)).stop_tokens == ()
    assert "no stop token is known: a reply goes on up to max_tokens" in caplog.text


def test_a_tokenizer_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint")
    (checkpoint / "tokenizer.json").write_text("{}")
    with pytest.raises(ExportError, match=f"the tokenizer of '{checkpoint}' cannot be used"):
        convert(checkpoint, tmp_path / "package", NEAREST)

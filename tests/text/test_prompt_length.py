"""A text that is far too long is refused before it is tokenized, and one with tokens that the model does not have."""

from __future__ import annotations

import pytest

from embedllm.errors import ContextFull
from embedllm.text.prompt_length import check_known, check_length, message_text
from tests.support.fakes import Bytes


class Words(Bytes):
    """A token for each run of spaces, and one a character elsewhere."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        return super().encode(" ".join(text.split()), special=special)


@pytest.mark.parametrize(
    ("text", "refused"), [("a" * 100_000, True), (" " * 900_000 + "a", False), ("a" * 9000, False)]
)
def test_only_tokens_count(text: str, *, refused: bool) -> None:
    if not refused:
        check_length(text, Words(), 1000)  # raises nothing
        return
    with pytest.raises(ContextFull, match="100,000 characters, more than 32768 tokens; 1000 can") as caught:
        check_length(text, Words(), 1000)
    assert (caught.value.tokens, caught.value.limit) == (32768, 1000)


def test_a_token_that_the_model_has_not_is_named_by_its_text() -> None:
    check_known([0, 98, 97], Bytes(), 99)
    check_known([], Bytes(), 99)
    check_known([0, 99], Bytes(), 99, image_token=99)
    with pytest.raises(ValueError, match=r"the prompt has 'byte 99', token 99 of the tokenizer; the model has 99 "):
        check_known([0, 99, 120], Bytes(), 99)


def test_the_text_of_a_message_is_that_of_all_its_parts() -> None:
    assert message_text({"role": "user", "content": "a"}) == "a"
    assert message_text({"role": "user", "content": [{"text": "a"}, {"image": "b"}, "c"]}) == "a\nc"
    assert message_text({"role": "assistant"}) == ""

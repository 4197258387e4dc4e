"""What generation needs of a tokenizer, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from embedllm.text.content_marks import RenderedPrompt


class TextCodec(Protocol):
    """What the engine asks of a tokenizer; `Tokenizer` is one, in a browser another object can be."""

    @property
    def special_tokens(self) -> frozenset[int]:
        """Tokens that stand for no text, such as the marks of a turn."""
        ...

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text.

        special: with the BOS or EOS that the tokenizer itself puts around a text. A prompt made by a chat template
        holds its own, so there it is False.
        """
        ...

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; special tokens are left out unless `special`, unknown ones always."""
        ...

    def token_text(self, token: int) -> str | None:
        """The vocabulary's own spelling of a token ("Ġhello", "▁hello", "<0x0A>"), None when it is unknown."""
        ...

    def appended_text(self, token: int) -> str | None:
        """What a token adds in `decode` to any text of whole characters; None when others decide, or that is unknown.

        It saves decoding the tokens before it again at each step.
        """
        ...


class ModelCodec(TextCodec, Protocol):
    """What a Model asks of its tokenizer besides.

    named: the special tokens that have a role, by its name: {"eos_token": "</s>", ...}.
    """

    @property
    def named(self) -> Mapping[str, str]: ...

    def encode_prompt(self, prompt: RenderedPrompt) -> list[int]:
        """The tokens of what a chat template wrote, where texts of special tokens that are literal are plain text."""
        ...

    def token_id(self, text: str) -> int | None:
        """The token that the vocabulary spells exactly like this, such as "<|im_end|>"."""
        ...


def special_texts(codec: TextCodec) -> list[str]:
    """The texts of the special tokens."""
    texts = (codec.token_text(token) for token in codec.special_tokens)
    return [text for text in texts if text]

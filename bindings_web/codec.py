"""The tokenizer of a browser: JavaScript's, as a Model asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from embedllm.backends.browser.javascript import Buffer, JsValue, call, integers, options, text_or_none, whole_numbers
from embedllm.text.content_marks import RenderedPrompt
from embedllm.text.lone_surrogates import check_text


class JsSet(Protocol):
    """A Set of token ids of JavaScript's."""

    def to_py(self) -> Iterable[int]: ...


class JsObject(Protocol):
    """An object of JavaScript's that has texts only."""

    def to_py(self) -> Mapping[str, str]: ...


class JsCodec(Protocol):
    """A tokenizer, as JavaScript has it: bindings_web/src/tokenizer/tokenizer.js."""

    specialTokens: JsSet  # noqa: N815  # JavaScript's
    named: JsObject

    def encode(self, text: str, options: JsValue) -> Buffer: ...
    def encodePrompt(self, prompt: JsValue) -> Buffer: ...  # noqa: N802
    def decode(self, tokens: JsValue, options: JsValue) -> str: ...
    def tokenText(self, token: int) -> JsValue: ...  # noqa: N802
    def tokenId(self, text: str) -> JsValue: ...  # noqa: N802


class WebCodec:
    """The `ModelCodec` over a tokenizer in JavaScript."""

    def __init__(self, codec: JsCodec) -> None:
        self.special_tokens = frozenset(int(token) for token in codec.specialTokens.to_py())
        self.named: dict[str, str] = dict(codec.named.to_py())
        self._codec = codec
        self._spellings: dict[int, str | None] = {}  # of tokens that came; asked for at every step
        self._options = {special: options({"special": special}) for special in (False, True)}

    def encode(self, text: str, *, special: bool) -> list[int]:
        """See TextCodec. Raises ValueError for what check_text() refuses."""
        check_text(text)
        return integers(call(self._codec.encode, text, self._options[special]))

    def encode_prompt(self, prompt: RenderedPrompt) -> list[int]:
        """See ModelCodec."""
        check_text(prompt.text)
        return integers(call(self._codec.encodePrompt, options({"text": prompt.text, "marked": prompt.marked})))

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return call(self._codec.decode, whole_numbers(tokens), self._options[special])

    def token_text(self, token: int) -> str | None:
        if token not in self._spellings:
            self._spellings[token] = text_or_none(call(self._codec.tokenText, token))
        return self._spellings[token]

    def appended_text(self, token: int) -> str | None:
        return None

    def token_id(self, text: str) -> int | None:
        token = call(self._codec.tokenId, text)
        return int(token) if isinstance(token, int | float) else None

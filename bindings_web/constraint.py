"""A grammar that JavaScript runs, as the rule asks for it: the mask stays in JavaScript, with the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from embedllm.backends.browser.javascript import JsValue, call

if TYPE_CHECKING:
    from embedllm.types import Logits, TokenBits


class JsMatcher(Protocol):
    """How far a reply has come in a grammar: bindings_web/src/grammar/grammar.js."""

    isDone: bool  # noqa: N815  # JavaScript's
    isStopAllowed: bool  # noqa: N815
    bits: TokenBits

    def note(self, token: int) -> None: ...


class MakeMatcher(Protocol):
    """A function of JavaScript's that makes one, for an array of the tokens that may end the reply."""

    def __call__(self, stop_tokens: JsValue, /) -> JsMatcher: ...


class WebConstraint:
    """The `Constraint` over a grammar in JavaScript."""

    def __init__(self, matcher: JsMatcher) -> None:
        self._matcher = matcher

    @property
    def is_done(self) -> bool:
        return self._matcher.isDone

    @property
    def is_stop_allowed(self) -> bool:
        return self._matcher.isStopAllowed

    def prepare(self) -> None: ...

    def allowed(self, logits: Logits) -> Logits:
        return logits.masked(call(lambda: self._matcher.bits))

    def note(self, token: int) -> None:
        call(self._matcher.note, token)

"""Grammars by llguidance: the vocabulary made ready once for a model, each source compiled once, a mask for every step.

Neither is done before the first request that wants it: at 152,000 tokens the vocabulary takes a second
(docs/performance.md#structured-output).
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from embedllm.files.native_calls import native_call
from embedllm.sampling.structured.json_schema import followed
from embedllm.sampling.structured.lark import followed_lark
from embedllm.sampling.structured.response_format import Source
from embedllm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from embedllm.text.chat_template import JSON
    from embedllm.types import Logits

_NOTHING = (
    "no token is allowed: the grammar wants bytes here that no token of the vocabulary begins with, or cannot be met. "
    "Loosen it."
)
_KEPT = 8  # compiled grammars; as in bindings_web/src/grammar/cache.js
# One space at most between two parts of a value, so that no reply runs on in white space
_SPACING = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}


class TokenGrammars:
    """The `Grammars` of a model whose tokenizer is in this process. May be used from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[Source, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def constraint(self, source: Source, stop_tokens: frozenset[int]) -> GrammarConstraint:
        """The constraint of one reply.

        Raises ValueError for a source that cannot be followed, PackageError when the tokens' bytes are not known.
        """
        with native_call(), self._lock:
            if self._vocabulary is None:
                self._vocabulary = _vocabulary(self._tokenizer)
            matcher = self._compiled.pop(source, None) or _compile(source, self._vocabulary)
            self._compiled[source] = matcher  # behind the others, so that the first is the one not used for longest
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
            return GrammarConstraint(matcher.deep_copy(), self._vocabulary.eos_token, stop_tokens)


class GrammarConstraint:
    """The `Constraint` over a matcher of llguidance.

    end: a token of the matcher's alone, past the model's vocabulary, which it allows where the reply may end; so the
    stop tokens of a request need not be known to it, nor the same for each.
    """

    def __init__(self, matcher: LLMatcher, end: int, stop_tokens: frozenset[int]) -> None:
        self._matcher = matcher
        self._end = end
        self._stop_tokens = stop_tokens
        self._is_ended = False  # by a stop token
        self._bits: bytearray | None = None  # of this step, without end and stop tokens

    @property
    def is_done(self) -> bool:
        # not by the next mask, which prepare() computes while the device works
        return self._is_ended or (self.is_stop_allowed and self._matcher.is_stopped())

    @property
    def is_stop_allowed(self) -> bool:
        return self._is_ended or self._matcher.is_accepting()

    def prepare(self) -> None:
        if not self._is_ended:
            self._others()

    def allowed(self, logits: Logits) -> Logits:
        bits = self._others()
        stops = self._stop_tokens if self.is_stop_allowed else ()
        if not stops and _is_empty(bits):
            raise ValueError(_NOTHING)
        if stops:
            bits = bits + bytes(max(0, max(stops) // 8 + 1 - len(bits)))
            for token in stops:
                bits[token // 8] |= 1 << token % 8
        return logits.masked(bytes(bits))

    def note(self, token: int) -> None:
        self._bits = None
        if token in self._stop_tokens:
            if not self.is_stop_allowed:
                raise ValueError(f"stop token {token} is not allowed by the grammar here: the reply is not whole.")
            self._is_ended = True
        elif self._is_ended or not 0 <= token < self._end or not self._matcher.consume_token(token):
            raise ValueError(f"token {token} is not allowed by the grammar here. {_first_line(self._matcher)}".rstrip())

    def _others(self) -> bytearray:
        """A bit for each token that may come, stop tokens aside."""
        if self._bits is None:
            bits = bytearray(self._matcher.compute_bitmask())
            if self._matcher.is_error():
                problem = _first_line(self._matcher)
                is_dead = problem.startswith("NoExtension")
                raise ValueError(_NOTHING if is_dead else f"the grammar became too complex to follow: {problem}")
            for token in (self._end, *self._stop_tokens):
                if token // 8 < len(bits):
                    bits[token // 8] &= ~(1 << token % 8)
            self._bits = bits
        return self._bits


class _TokenizerWrapper:
    """A vocabulary as llguidance reads it: llguidance/_tokenizer.py."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokens = [*tokenizer.token_bytes(), b"<end>"]
        self.eos_token_id = len(self.tokens) - 1
        self.special_token_ids = [*tokenizer.special_tokens, self.eos_token_id]
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """The tokens of what the grammar forces, which masks are made by."""
        tokens = self._tokenizer.encode(text, special=False)
        spelled = text.encode()
        return tokens if b"".join(self.tokens[token] for token in tokens) == spelled else self._longest(spelled)

    def _longest(self, text: bytes) -> list[int]:
        """The longest token, again and again: for a tokenizer that puts a space before a text, or changes it."""
        tokens: list[int] = []
        at = 0
        while at < len(text):
            ends = range(min(len(text), at + self._most_bytes), at, -1)
            end = next((end for end in ends if text[at:end] in self._token_of), None)
            if end is None:
                break  # llguidance goes on by itself where a text ends early
            tokens.append(self._token_of[text[at:end]])
            at = end
        return tokens

    @cached_property
    def _token_of(self) -> dict[bytes, int]:
        special = set(self.special_token_ids)
        return {spelled: token for token, spelled in enumerate(self.tokens) if spelled and token not in special}

    @cached_property
    def _most_bytes(self) -> int:
        return max(map(len, self._token_of))


def _vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer(_TokenizerWrapper(tokenizer))  # pyright: ignore[reportArgumentType]  # no subclass is asked for


def _compile(source: Source, vocabulary: LLTokenizer) -> LLMatcher:
    """Raises ValueError for a source that cannot be followed."""
    from llguidance import LLMatcher

    try:
        grammar = _grammar(source)
    except RecursionError:
        raise ValueError(
            f"the {source.kind} cannot be followed: it is nested too deeply, or too many of its parts refer to the "
            "next one. Make it flatter."
        ) from None
    matcher = LLMatcher(vocabulary, grammar, log_level=0)
    problem = _first_line(matcher) or "; ".join(matcher.get_grammar_warnings())
    if not problem:
        return matcher
    if source.kind == "json_schema":
        for keyword, value, path in _string_keywords(json.loads(source.text), "#"):
            alone = _grammar(Source(kind="json_schema", text=json.dumps({keyword: value})))
            if refusal := _first_line(LLMatcher(vocabulary, alone, log_level=0)):
                raise ValueError(
                    f"JSON schema: '{keyword}' at {path} is {value!r}: {_of_regex(refusal) or refusal}. "
                    "Leave it out and check the reply yourself, or say it otherwise."
                )
    raise ValueError(f"the {source.kind} cannot be followed: {_reason(source, problem)}")


def _reason(source: Source, problem: str) -> str:
    """What is wrong, on one line: of a regex, what the parser of regexes says, without the grammar around it."""
    of_regex = _of_regex(problem) if source.kind == "regex" else None
    return f"{of_regex}: {source.text!r}. The syntax is that of Rust's regex crate." if of_regex else problem


def _of_regex(problem: str) -> str | None:
    """What the parser of regexes says, without the picture of the place before it."""
    match = re.search(r"^error: (.+)$", problem, re.MULTILINE)
    return match and match[1].rstrip(".")


def _string_keywords(schema: JSON, path: str) -> Iterator[tuple[str, str, str]]:
    """The formats and patterns of a schema, each with the path of the schema that has it."""
    if isinstance(schema, list):
        for at, part in enumerate(schema):
            yield from _string_keywords(part, f"{path}/{at}")
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword in ("format", "pattern") and isinstance(value, str):
            yield keyword, value, path
        elif keyword not in ("enum", "const", "default", "examples"):  # which have values, no schemas
            yield from _string_keywords(value, f"{path}/{keyword}")


def _grammar(source: Source) -> str:
    """The source in llguidance's words."""
    from llguidance import LLMatcher

    if source.kind == "json_schema":
        schema = followed(json.loads(source.text))
        options = {"x-guidance": _SPACING}
        return LLMatcher.grammar_from_json_schema(options if schema is True else {**schema, **options})
    if source.kind == "regex":
        return LLMatcher.grammar_from_regex(source.text)
    if source.kind == "choices":
        texts = [json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") for text in json.loads(source.text)]
        return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(texts))
    return LLMatcher.grammar_from_lark(followed_lark(source.text, options=_SPACING))


def _is_empty(bits: bytearray) -> bool:
    return bits == bytes(len(bits))  # any() takes 100 times as long


def _first_line(matcher: LLMatcher) -> str:
    """What is wrong, without the state of the parser that follows it; empty when nothing is."""
    return re.split("<state>|<backtrace>", matcher.get_error(), maxsplit=1)[0].strip()

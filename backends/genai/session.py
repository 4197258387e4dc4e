"""A sequence in onnxruntime-genai.

A generator of a model in several graphs cannot be rewound (0.18 refuses a pipeline, and forgets nothing of a model with
pictures), and what it takes memory for is fixed when it is made: a sequence that was rewound, or has outgrown its
generator, is read again by a new one with its next tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.base import Interrupted
from embedllm.backends.checks import check_rewind, check_tokens
from embedllm.backends.ort.runtime import first_line
from embedllm.errors import DeviceError
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F32

_NEVER = np.float32(-1e9)  # a logit that is never the largest
_STEP = 256  # tokens; room is a multiple of it
_GROWTH = 2  # each growth reads all tokens again, so that a token is read a constant number of times on average


class Generator(Protocol):
    """What is used of onnxruntime_genai.Generator, which has no types of its own."""

    def append_tokens(self, tokens: Sequence[int]) -> None: ...
    def get_logits(self) -> F32: ...  # [1, 1, V], of the last token
    def get_output(self, name: str) -> NDArray[np.floating]: ...
    def set_logits(self, logits: F32) -> None: ...
    def generate_next_token(self) -> None: ...
    def token_count(self) -> int: ...


class _Engine(Protocol):
    """What a session asks of its engine."""

    context: int
    largest: int  # room that a generator can have
    remedy: str
    vocabulary: int
    output: str  # the name of its logits
    is_shared: bool  # a generator takes the memory of all that it has room for at once
    appends: bool  # tokens behind others are appended; else it is made to choose them, one by one
    gives_all: bool  # logits of every token that is appended
    chunk: int  # tokens of a prompt that are appended at once
    filler: int | None  # the token that fills up what is appended, and so cannot be

    def generator(self, room: int) -> Generator: ...


class GenaiSession:
    """One sequence."""

    def __init__(self, engine: _Engine, capacity: int) -> None:
        self.position = 0
        self._engine: _Engine | None = engine
        self._tokens: list[int] = []
        self._generator: Generator | None = None
        self._generator_tokens: list[int] = []  # what the generator holds: the tokens, and more of them after a rewind
        self._capacity = capacity
        self._room = 0  # of the generator
        self._is_stopping = False

    @property
    def capacity(self) -> int:
        """What is held, where every token takes memory of its own."""
        return self._room if self._engine is not None and self._engine.is_shared else self.position

    def feed(self, tokens: Sequence[int]) -> NumpyLogits:
        return NumpyLogits(self.logits(tokens, each=False)[-1])

    def feed_all(self, tokens: Sequence[int]) -> F32:
        return self.logits(tokens, each=True)

    def logits(self, tokens: Sequence[int], *, each: bool) -> F32:
        """The logits behind the last of these tokens, or behind each: [1 or T, V]. What fails appends nothing."""
        engine = self._opened()
        check_tokens(tokens, self.position, vocabulary=engine.vocabulary, limit=engine.context, remedy=engine.remedy)
        if engine.filler is not None:
            _check_filler([*self._tokens, *tokens], engine.filler, last=engine.vocabulary - 1)
        try:
            self._begin(len(tokens), each=each)
            again = self._tokens[len(self._generator_tokens) :]
            if each and again:
                self._run(again, each=False)
            rows = self._run(tokens if each else [*again, *tokens], each=each)
        except BaseException:
            self._generator = None  # what it holds nobody knows
            raise
        if each and len(rows) != len(tokens):  # it gives the last token's only, or those of padding
            engine.gives_all, self._generator = False, None
            return self.logits(tokens, each=True)
        self._tokens += tokens
        self.position = len(self._tokens)
        return rows

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        del self._tokens[position:]
        self.position = position

    def interrupt(self, stop: bool = True) -> None:
        """Between pieces of a prompt: Python's lock is not given away while onnxruntime-genai computes (0.18)."""
        self._is_stopping = stop

    def close(self) -> None:
        self._engine = self._generator = None
        self._tokens, self.position = [], 0

    def _begin(self, count: int, *, each: bool) -> None:
        """Takes a new generator where there is none, or its capacity is too small for that many tokens."""
        engine, end = self._opened(), self.position + count
        is_whole = self._generator is not None and len(self._generator_tokens) == self.position and end <= self._room
        if is_whole and (engine.appends or each or count == 1):  # else it takes many tokens at its beginning only
            return
        if end > self._room:
            capacity = max(end, self._capacity, _GROWTH * self._room)
            self._room = min(-(-capacity // _STEP) * _STEP, engine.largest) if engine.is_shared else engine.largest
        self._renew()

    def _renew(self) -> Generator:
        self._generator = None  # its memory is free before more is taken
        self._generator_tokens = []
        engine = self._opened()
        try:
            self._generator = engine.generator(self._room)
        except Exception as error:
            raise DeviceError(f"onnxruntime-genai has no room for {self._room} tokens: {first_line(error)}") from error
        return self._generator

    def _run(self, tokens: Sequence[int], *, each: bool) -> F32:
        """Gives tokens to the generator, piece by piece."""
        engine, rows, at = self._opened(), [], 0
        while at < len(tokens):
            if self._is_stopping:
                raise Interrupted
            is_alone = (self._generator_tokens and not engine.appends) or (each and not engine.gives_all)
            piece = list(tokens[at : at + (1 if is_alone else engine.chunk)])
            if engine.filler in piece and not self._generator_tokens:
                piece = piece[: piece.index(engine.filler)]
            logits = self._step(piece, each=each)
            rows = [*rows, logits] if each else [logits]
            at += len(piece)
        return np.concatenate(rows)

    def _step(self, piece: list[int], *, each: bool) -> F32:
        engine, generator, past = self._opened(), self._generator, self._generator_tokens
        assert generator is not None  # there is one since _begin()
        is_each = each and len(piece) > 1
        try:
            if past and not engine.appends and not _chosen(generator, piece[0], engine.vocabulary):
                generator, piece = self._renew(), [*past, *piece]  # it stops there, but not where all is appended
            if not self._generator_tokens or engine.appends:
                generator.append_tokens(piece)
            logits = generator.get_output(engine.output) if is_each else generator.get_logits()
        except Exception as error:
            raise DeviceError(f"onnxruntime-genai failed behind {len(past)} tokens: {first_line(error)}") from error
        self._generator_tokens += piece
        return logits[0].astype(np.float32)

    def _opened(self) -> _Engine:
        if self._engine is None:
            raise ValueError("this session was closed")
        return self._engine


def _check_filler(text: Sequence[int], filler: int, *, last: int) -> None:
    """Raises ValueError for what can neither be appended, as it would count as filled up, nor chosen."""
    if text[0] == filler:
        raise ValueError(f"the first token, {filler}, is what fills windows up in this model; begin with another one.")
    if filler in text and last in text:  # behind which it would stop
        raise ValueError(f"the tokens {filler} and {last} cannot be in one text of this model; leave one out.")


def _chosen(generator: Generator, token: int, vocabulary: int) -> bool:
    """Makes it take a token by leaving it no other; whether it did."""
    count = generator.token_count()
    only = np.full((1, 1, vocabulary), _NEVER)
    only[..., token] = 0
    generator.set_logits(only)
    generator.generate_next_token()
    return generator.token_count() > count

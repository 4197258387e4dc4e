"""The model of tests/web/support/formula.js in Python: an engine of one formula, and its tokenizer of bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedllm.backends.base import Device
from embedllm.backends.checks import check_rewind, check_tokens
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.text.content_marks import RenderedPrompt
from tests.support.fakes import END, Bytes


def logits_after(vocabulary: int, tokens: Sequence[int]) -> NumpyLogits:
    """Multiples of 2^-20 below 8."""
    seed = np.uint32(((tokens[-1] + 1) * 0x9E3779B1 + len(tokens) * 0x85EBCA6B) % 2**32)
    places = np.arange(1, vocabulary + 1, dtype=np.uint32)
    mixed = (seed ^ (places * np.uint32(0xC2B2AE35))) * np.uint32(0x27D4EB2F)
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x2C1B3C6D)
    return NumpyLogits(((mixed >> np.uint32(8)) / 2**20 - 8).astype(np.float32))


class FormulaSession:
    """A sequence of a FormulaEngine."""

    def __init__(self, engine: FormulaEngine) -> None:
        self.capacity = engine.context
        self.position = 0
        self._engine = engine
        self._tokens: list[int] = []

    def feed(self, tokens: Sequence[int]) -> NumpyLogits:
        engine = self._engine
        check_tokens(tokens, self.position, vocabulary=engine.vocabulary, limit=engine.context, remedy=engine.remedy)
        self._tokens += tokens
        self.position = len(self._tokens)
        return logits_after(engine.vocabulary, self._tokens)

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        del self._tokens[position:]
        self.position = position

    def close(self) -> None:
        self._tokens.clear()


class FormulaEngine:
    """Logits of one formula, on the desktop."""

    device = Device(name="formula", backend="made up 1", description="", available=True)
    chunk = 16
    remedy = "export with a larger --context"

    def __init__(self, vocabulary: int, context: int) -> None:
        self.vocabulary = vocabulary
        self.context = context

    def open(self, capacity: int = 0) -> FormulaSession:
        return FormulaSession(self)

    def close(self) -> None:
        pass


class ByteCodec(Bytes):
    """The tokenizer of tests/web/support/formula.js: bytes and an end; other tokens are nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.named = {"eos_token": "<end>"}

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return super().decode([token for token in tokens if token <= END], special=special)

    def encode_prompt(self, prompt: RenderedPrompt) -> list[int]:
        return self.encode(prompt.text, special=False)

    def token_id(self, text: str) -> int | None:
        return END if text == "<end>" else None

"""Calls of a random model that a grammar holds: random schemas, random choices among the tokens that are allowed."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np

from embedllm.generation.chunk import Statistics
from embedllm.generation.generation import Generation
from embedllm.sampling.constraint import Constraint
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler
from embedllm.sampling.structured.llguidance import TokenGrammars
from embedllm.text.stream import StopStrings, TextStream
from embedllm.text.tokenizer import Tokenizer
from embedllm.tools.calls import Parts
from embedllm.tools.formats import ToolFormat
from embedllm.tools.reply_parser import ReplyFormat, reply_reader
from embedllm.tools.tool_choice import call_grammar
from tests.support.tiny import write_tokenizer
from tests.support.tool_templates import joined

END = 2
_CLOSING = ("}", "]", '"', ">", ")", "<", "/")
_NAMES = ("city", "days", "unit", "note", "level", "tags", "where", "size")


@cache
def tokenizer() -> Tokenizer:
    """307 tokens of bytes and their pairs; the token 2 is "<|im_end|>"."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), 307)
        return Tokenizer.open(folder)


@cache
def grammars() -> TokenGrammars:
    return TokenGrammars(tokenizer())


def random_parameters(numbers: random.Random) -> dict[str, Any]:
    """The schema of a tool's arguments."""
    names = numbers.sample(_NAMES, numbers.randint(0, 4))
    required = [name for name in names if numbers.random() < 0.6]
    return {
        "type": "object",
        "properties": {name: random_schema(numbers, 2) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def random_schema(numbers: random.Random, depth: int) -> dict[str, Any]:
    """The schema of a value."""
    plain: list[dict[str, Any]] = [
        {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"},
        {"type": "string", "enum": ["red", "green light", 'a "b"']}, {"enum": [1, "two", None]},
        {"type": "integer", "minimum": -3, "maximum": 12}, {"type": "string", "minLength": 1, "maxLength": 5},
        {"type": "string", "pattern": "^[a-c]{2,4}$"}, {"type": ["string", "null"]}, {"type": ["integer", "boolean"]},
        {"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"const": "only"}, {"type": "string", "format": "date"},
    ]  # fmt: skip
    kind = numbers.random()
    if depth == 0 or kind < 0.6:
        return numbers.choice(plain)
    if kind < 0.8:
        low = numbers.randint(0, 2)
        return {"type": "array", "items": random_schema(numbers, depth - 1), "minItems": low, "maxItems": low + 1}
    names = numbers.sample(_NAMES, numbers.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: random_schema(numbers, depth - 1) for name in names},
        "required": names[: numbers.randint(0, len(names))],
        "additionalProperties": False,
    }


def guided_call(
    written: ToolFormat, tools: dict[str, Any], choice: str, seed: int, limit: int = 1500
) -> tuple[str, Parts, str]:
    """What a random model writes when it must call a tool, how it is read, and why it ended."""
    codec = tokenizer()
    format = ReplyFormat(calls=written, reasoning=None)
    source = call_grammar(choice, format, tools, lambda _: None, stop_tokens=frozenset({END}))
    generation = Generation(
        sampler=Sampler(Sampling(seed=seed), constraint=grammars().constraint(source, frozenset({END}))),
        text=TextStream(codec),
        stops=StopStrings(()),
        stop_tokens=frozenset({END}),
        limit=limit,
        limit_reason="length",
        top_count=0,
        statistics=Statistics(prompt_tokens=1, cached_tokens=0),
    )
    numbers = np.random.default_rng(seed)
    closing = [token for text in _CLOSING if (token := codec.token_id(text)) is not None] + [END]
    reader = reply_reader(format, "", tools)
    assert reader is not None
    text = ""
    pieces: list[Parts] = []
    while True:
        logits = (4 * numbers.standard_normal(codec.size)).astype(np.float32)
        logits[closing] += 6
        logits[END] += 20
        if generation.statistics.tokens >= 80:
            logits[[numbers.choice(closing)]] += 60
        chunk = generation.accept(NumpyLogits(logits))
        text += chunk.text
        pieces.append(reader.push(chunk.text, chunk.finish_reason))
        if chunk.finish_reason:
            return text, joined(pieces), chunk.finish_reason


def allows(constraint: Constraint, text: str) -> bool:
    """Whether a text may be a whole reply."""
    try:
        for token in [*tokenizer().encode(text, special=False), END]:
            constraint.note(token)
    except ValueError:
        return False
    return True

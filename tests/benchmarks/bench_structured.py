"""What a grammar costs: the vocabulary once for a model, a grammar once for a source, and microseconds for each token.

    pip download --no-deps dashscope && unzip dashscope-*.whl dashscope/resources/qwen.tiktoken
    python tests/benchmarks/bench_structured.py dashscope/resources/qwen.tiktoken [--model FOLDER]

The vocabulary is Qwen's, 151,643 tokens. Each row is the choice of all tokens of a reply, greedy, with and without the
constraint in turn; the logits are peaked at the next token of the text. --model: of 151,936 tokens, such as the shape
of 0.6B; then the same replies are fed through it, with and without in turn, which gives the share of a real step.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers

import embedllm
from embedllm.sampling.constraint import Constraint
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler
from embedllm.sampling.structured.llguidance import GrammarConstraint, TokenGrammars
from embedllm.sampling.structured.response_format import ResponseFormat, grammar_source
from embedllm.text.token_bytes import _BYTE_OF
from embedllm.text.tokenizer import Tokenizer

VOCABULARY = 151936
GREEDY = Sampling(temperature=0)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}},
        "mail": {"type": "string", "format": "email"},
        "bio": {"type": "string", "maxLength": 200},
    },
    "required": ["name", "age", "tags", "mail", "bio"],
    "additionalProperties": False,
}
ADA = {
    "name": "Ada Lovelace",
    "age": 36,
    "tags": ["mathematics", "poetry and engines"],
    "mail": "ada@example.org",
    "bio": "She wrote the first program for a machine that was never built, and saw further than its maker.",
}
CASES: dict[str, tuple[ResponseFormat, str]] = {
    "schema of five properties": ({"type": "json_schema", "json_schema": {"schema": PERSON}}, json.dumps(ADA)),
    "any object": ({"type": "json_object"}, json.dumps(ADA)),
    "regex of any text": ({"type": "regex", "regex": "(?s).*"}, ADA["bio"] * 2),
    "list of 100 choices": ([f"choice number {n}" for n in range(100)], "choice number 77"),
}


def tokenizer_of(path: Path) -> Tokenizer:
    """A file of ranks, each line the bytes in base64 and the rank, as a tokenizer."""
    lines = path.read_bytes().splitlines()
    ranks = {base64.b64decode(piece): int(rank) for piece, rank in (line.split() for line in lines)}
    letter = {byte: character for character, byte in _BYTE_OF.items()}
    spelled = {piece: "".join(letter[byte] for byte in piece) for piece in ranks}
    merges = [parts for piece in sorted(ranks, key=ranks.__getitem__) if len(parts := split(piece, ranks)) == 2]
    vocabulary = {spelled[piece]: rank for piece, rank in ranks.items()}
    engine = Engine(models.BPE(vocabulary, [(spelled[one], spelled[other]) for one, other in merges]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    engine.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    engine.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return Tokenizer(engine, named={})


def split(piece: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """What a token was merged of: its bytes, joined by all earlier merges."""
    parts = [bytes([byte]) for byte in piece]
    while True:
        pairs = [(ranks.get(one + other, len(ranks)), at) for at, (one, other) in enumerate(pairwise(parts))]
        rank, at = min(pairs, default=(len(ranks), 0))
        if rank >= ranks[piece]:
            return parts
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def choices_s(tokens: list[int], constraint: Constraint | None) -> list[float]:
    """Seconds of each choice."""
    sampler = Sampler(GREEDY, constraint=constraint)
    base = np.random.default_rng(7).standard_normal(VOCABULARY).astype(np.float32)
    times: list[float] = []
    for token in tokens:
        logits = base.copy()
        logits[token] = 30
        row = NumpyLogits(logits)
        start = time.perf_counter()
        picked = sampler.pick(row)
        sampler.note(picked.token)
        sampler.is_done  # noqa: B018  # as the rule asks after each
        times.append(time.perf_counter() - start)
        assert picked.token == token
    return times


def masks_s(tokens: list[int], constraint: Constraint) -> list[float]:
    """Seconds of each mask alone, without applying it."""
    assert isinstance(constraint, GrammarConstraint)
    times: list[float] = []
    for token in tokens:
        start = time.perf_counter()
        constraint._others()
        times.append(time.perf_counter() - start)
        constraint.note(token)
    return times


def steps_s(llm: embedllm.Model, tokens: list[int], constraint: Constraint | None) -> list[float]:
    """Seconds of each step of a model that is made to say these tokens."""
    sampler = Sampler(GREEDY, constraint=constraint)
    times: list[float] = []
    session = llm.runner.engine.open(1024)
    row = session.feed([1] * 64)
    for token in tokens:
        start = time.perf_counter()
        picked = sampler.pick(row.penalized([token], biases=[1000.0], divisors=[1.0], subtracted=[0.0]))
        sampler.note(picked.token)
        sampler.is_done  # noqa: B018
        row = session.feed([picked.token])
        times.append(time.perf_counter() - start)
    session.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tiktoken", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    tokenizer = tokenizer_of(options.tiktoken)
    stops = frozenset({tokenizer.size - 1})
    grammars = TokenGrammars(tokenizer)
    start = time.perf_counter()
    grammars.constraint(_source(["a"]), stops)
    print(f"vocabulary of {tokenizer.size} tokens, once for a model: {time.perf_counter() - start:.2f} s")
    llm = embedllm.load(options.model) if options.model else None
    for name, (response_format, text) in CASES.items():
        source = _source(response_format)
        start = time.perf_counter()
        grammars.constraint(source, stops)
        compiled = time.perf_counter() - start
        tokens = tokenizer.encode(text, special=False)
        constraints = [grammars.constraint(source, stops) for _ in range(2 * options.rounds)]
        plain, held = _least((choices_s(tokens, None), choices_s(tokens, one)) for one in constraints[::2])
        extra = [(one - other) * 1e6 for one, other in zip(held, plain, strict=True)]
        print(
            f"{name}: compiled in {compiled * 1e3:.1f} ms; {len(tokens)} tokens; a token costs "
            f"{statistics.mean(extra):.0f} us more (median {statistics.median(extra):.0f}, most {max(extra):.0f})"
        )
        rounds = [masks_s(tokens, grammars.constraint(source, stops)) for _ in range(options.rounds)]
        masks = [min(times) * 1e6 for times in zip(*rounds, strict=True)]
        print(f"    the mask alone {statistics.mean(masks):.0f} us (most {max(masks):.0f})")
        if llm is not None:
            plain, held = _least((steps_s(llm, tokens, None), steps_s(llm, tokens, one)) for one in constraints[1::2])
            ratio = statistics.mean(held) / statistics.mean(plain)
            print(f"    a step of the model: {statistics.mean(plain) * 1e3:.2f} ms; with the grammar {ratio:.4f} of it")


def _source(response_format: ResponseFormat):  # noqa: ANN202  # never None here
    source = grammar_source(response_format)
    assert source is not None
    return source


def _least(rounds: Iterable[tuple[list[float], list[float]]]) -> tuple[list[float], list[float]]:
    """Of each token the least time of all rounds, without and with the constraint."""
    without, held = zip(*rounds, strict=True)
    return [min(times) for times in zip(*without, strict=True)], [min(times) for times in zip(*held, strict=True)]


if __name__ == "__main__":
    main()

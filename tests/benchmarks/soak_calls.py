"""Calls of a random model that grammars hold: every one must be readable and valid.

    python -m tests.benchmarks.soak_calls [--calls 100000] [--schemas 1000]

Each schema goes with one of the formats in turn. A call that takes more than 1000 tokens is counted apart: a random
model does not know when to end a text.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from embedllm.sampling.constraint import Constraint
from embedllm.tools.arguments import check_arguments
from embedllm.tools.families import FORMATS
from embedllm.tools.reply_parser import ReplyFormat, reply_reader
from embedllm.tools.tool_choice import call_grammar
from embedllm.types import Logits
from tests.support.guided_calls import END, grammars, random_parameters, tokenizer

LIMIT = 1000
PATIENCE = 40


class _Mask:
    """Takes the place of logits: keeps which tokens are allowed."""

    def masked(self, bits: bytes) -> Any:  # noqa: ANN401 # not logits
        return np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little"))


def one_call(
    constraint: Constraint, numbers: random.Random, closing: np.ndarray, mark: Sequence[int]
) -> list[int] | None:
    """The tokens of a call; None for one that goes on too long.

    closing: whether a token may close a value. mark: the tokens of what closes a text, which is written now and then.
    """
    tokens: list[int] = []
    plan: list[int] = []
    while not constraint.is_done:
        allowed = cast("np.ndarray", constraint.allowed(cast("Logits", _Mask())))
        ends = allowed[closing[allowed]]
        is_late = len(tokens) > PATIENCE
        if not plan and numbers.random() < (0.5 if is_late else 0.1):
            plan = list(mark)
        if plan and plan[0] in allowed:
            token = plan.pop(0)
        else:
            plan = []
            choices = ends if len(ends) and numbers.random() < (0.9 if is_late else 0.3) else allowed
            token = int(choices[numbers.randrange(len(choices))])
        token = END if END in ends else token
        constraint.note(token)
        if token == END:
            break
        tokens.append(token)
        if len(tokens) > LIMIT:
            return None
    return tokens


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--calls", type=int, default=100_000)
    arguments.add_argument("--schemas", type=int, default=1_000)
    options = arguments.parse_args()
    codec = tokenizer()
    closing = np.zeros(codec.size + 8, bool)
    for token in range(codec.size):
        text = codec.decode([token])
        closing[token] = token == END or (bool(text) and (text[-1] in '"}]>)<' or text[0] in "<\n"))
    found: Counter[str] = Counter()
    started = time.perf_counter()
    for seed in range(options.schemas):
        numbers = random.Random(seed)
        written = ReplyFormat(calls=FORMATS[seed % len(FORMATS)], reasoning=None)
        tools = {"get_thing": random_parameters(numbers), "other_one": random_parameters(numbers)}
        source = call_grammar("required", written, tools, lambda _: None, stop_tokens=frozenset({END}))
        mark = codec.encode(written.calls.pair.partition("$value")[2], special=False)
        for _ in range(options.calls // options.schemas):
            tokens = one_call(grammars().constraint(source, frozenset({END})), numbers, closing, mark)
            if tokens is None:
                found["too long"] += 1
                continue
            text = codec.decode(tokens)
            reader = reply_reader(written, "", tools)
            assert reader is not None
            parts = reader.push(text, "stop")
            try:
                (call,) = parts.tool_calls
                if call.problem or parts.text.strip():
                    raise ValueError(call.problem or f"text: {parts.text}")
                check_arguments(call.arguments, tools[call.name])
                found["well-formed"] += 1
            except ValueError as error:
                found["malformed"] += 1
                print(f"{written.calls.name}, schema {seed}: {error}\n  {text!r}", flush=True)
        if seed % 50 == 49:
            print(f"{seed + 1} schemas: {dict(found)}", flush=True)
    print(f"{dict(found)} in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()

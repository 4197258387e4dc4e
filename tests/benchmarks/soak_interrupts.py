"""KeyboardInterrupts at random moments of every kind of call: the model answers rightly after each.

    python -m tests.benchmarks.soak_interrupts --device cpu --interrupts 2000

POSIX only: the interrupts come from a timer's signal.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable

import embedllm
from tests.support.interrupts import Interrupts

GREEDY = embedllm.Sampling(temperature=0)
PROMPT, TOKENS = "list files", 12
LONGEST_S = 0.12  # until an interrupt


def calls(llm: embedllm.Model, expected: tuple[int, ...]) -> list[Callable[[], None]]:
    """What is interrupted; each checks what it got."""

    def check(found: tuple[int | None, ...]) -> None:
        if found != expected:
            raise AssertionError(f"found {found}; expected {expected}")

    def stream() -> None:
        check(tuple(chunk.token for chunk in llm.stream(PROMPT, GREEDY, max_tokens=TOKENS, stop_tokens=())))

    def generate() -> None:
        check(llm.generate(PROMPT, GREEDY, max_tokens=TOKENS, stop_tokens=()).tokens)

    def batch() -> None:
        for reply in llm.generate_batch([PROMPT] * 3, GREEDY, max_tokens=TOKENS, stop_tokens=()):
            check(reply.tokens)

    def converse() -> None:
        with llm.conversation() as talk:
            talk.say("list files", GREEDY, max_tokens=6)
            talk.say("by size", GREEDY, max_tokens=4)

    return [stream, generate, batch, converse]


def main() -> None:
    parser = argparse.ArgumentParser(description="KeyboardInterrupts at random moments.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--interrupts", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)

    with embedllm.load("demo", device=options.device) as llm, Interrupts() as interrupts:
        expected = llm.generate(PROMPT, GREEDY, max_tokens=TOKENS, stop_tokens=()).tokens
        kinds = calls(llm, expected)
        count = whole = 0
        started = time.perf_counter()
        while count < options.interrupts:
            if interrupts.during(random.choice(kinds), random.uniform(0.0005, LONGEST_S)):
                count += 1
            else:
                whole += 1
            if count % 50 == 0:
                for call in kinds:  # it still answers, and rightly
                    call()
        llm.generate(PROMPT, GREEDY, max_tokens=1)
        held = len(llm.runner.sequences.sequences)
        print(f"{options.device}: {count} interrupts, {whole} calls in between, {time.perf_counter() - started:.0f} s, "
              f"{held} sequences held at the end")  # fmt: skip
        if held > 4 or llm.runner.scheduler.running or llm.runner.scheduler.waiting:
            sys.exit("requests or sequences are left, though no call is")


if __name__ == "__main__":
    main()

"""What is measured: a workload, the cases that it consists of, and the prompts that are drawn for them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

SEED = 20261121
ENDING = 16  # tokens: a new ending of a shared prefix; also the prompts of concurrent replies and of JSON
_LEAST_DECODED = 2  # tokens: the first one is the prefill's

REPLY, SHARED, STRUCTURED, CONCURRENT = "reply", "shared-prefix", "structured", "concurrency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Numbers are tokens, where nothing else is said. Raises ValueError for one that makes no sense."""

    prompts: tuple[int, ...] = (128, 512)
    depths: tuple[int, ...] = (0,)  # read before, so that the KV holds them when a prompt begins
    tokens: int = 64  # of each reply
    rounds: int = 5
    concurrency: tuple[int, ...] = ()  # concurrent replies
    shared_prefix: bool = False
    structured: bool = False
    cold: bool = False  # rounds in fresh processes besides

    def __post_init__(self) -> None:
        for name, values, least in (
            ("--prompt", self.prompts, 1),
            ("--depth", self.depths, 0),
            ("--concurrency", self.concurrency, 1),
            ("--tokens", (self.tokens,), _LEAST_DECODED),
            ("--rounds", (self.rounds,), 1),
        ):
            if wrong := [value for value in values if value < least]:
                raise ValueError(f"{name} has {wrong[0]}; expected {least} or more.")
            if len(set(values)) < len(values):
                raise ValueError(f"{name} names a number twice: {','.join(map(str, values))}. Leave one out.")
        if not self.prompts or not self.depths:
            raise ValueError("no prompt or no depth is given; expected at least one of each, such as --prompt 128.")

    @property
    def cases(self) -> tuple[Case, ...]:
        """All that is timed in a round, in order."""
        cases = [
            Case(kind=REPLY, prompt=prompt, depth=depth, tokens=self.tokens)
            for depth in self.depths
            for prompt in self.prompts
        ]
        if self.shared_prefix:
            cases.append(Case(kind=SHARED, prompt=ENDING, depth=max(self.prompts), tokens=self.tokens))
        if self.structured:
            cases.append(Case(kind=STRUCTURED, prompt=ENDING, tokens=self.tokens))
        cases += [
            Case(kind=CONCURRENT, prompt=ENDING, tokens=self.tokens, streams=streams) for streams in self.concurrency
        ]
        return tuple(cases)

    @property
    def capacity(self) -> int:
        """The longest sequence, prompt and reply: engines that allocate KV memory up front do so for this length."""
        return max(case.depth + case.prompt + case.tokens for case in self.cases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing that is timed once a round."""

    kind: str  # REPLY, SHARED, STRUCTURED or CONCURRENT
    prompt: int
    depth: int = 0  # of the sequence, before the prompt; a shared prefix's own length
    tokens: int
    streams: int = 1  # concurrent replies, each with a prompt of its own

    @property
    def title(self) -> str:
        depth_text = f", behind {self.depth}" if self.depth else ""
        times = f"{self.streams} x " if self.kind == CONCURRENT else ""
        return f"{self.kind}: {times}prompt {self.prompt}{depth_text}, {self.tokens} new"


class Prompts:
    """Random token ids, the same for the same seed; no two prompts in a row of `vocabulary` begin with the same one.

    A cache of prompts is thereby of no use, but where a workload shares them on purpose.
    """

    def __init__(self, vocabulary: int, seed: int = SEED) -> None:
        self._random = random.Random(seed)
        self._vocabulary = vocabulary
        self._first = self._firsts()

    def fresh(self, length: int) -> list[int]:
        """A prompt of `count` tokens; at least one."""
        return [next(self._first), *self.more(length - 1)]

    def more(self, length: int) -> list[int]:
        """What a prompt that was begun goes on with."""
        return [self._random.randrange(self._vocabulary) for _ in range(length)]

    def _firsts(self) -> Iterator[int]:
        order = random.Random(self._random.random()).sample(range(self._vocabulary), self._vocabulary)
        while True:
            yield from order

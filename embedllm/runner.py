"""What stands behind a Model's calls: complete requests, and the two loops that run them on sequences."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from embedllm.async_stream import AsyncStream, Feeder
from embedllm.backends.base import Engine
from embedllm.constraint import Constraint
from embedllm.decode import Cancel, Chunk, Generation, Statistics, run
from embedllm.errors import ContextFull
from embedllm.sampling import Sampler, Sampling
from embedllm.sequences import HeldSequence, Sequences
from embedllm.text import StopStrings, TextCodec, TextStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation to run."""

    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int | None  # None: what is left of the context
    min_tokens: int = 0  # before which no stop token comes
    stop: tuple[str, ...]
    stop_tokens: frozenset[int]
    top_count: int  # of the most probable tokens to report for each step
    special: bool = False  # special tokens are part of the text
    constraint: Constraint | None = None  # of this one reply


class Runner:
    """Runs requests on an engine. May be used from several threads: each running request has its own sequence."""

    def __init__(self, engine: Engine, text: TextCodec) -> None:
        self.sequences = Sequences(engine)
        self._text = text
        self._context = engine.context
        self._remedy = engine.remedy
        self._feeder = Feeder()

    @property
    def engine(self) -> Engine:
        """Raises ValueError once it was closed."""
        return self.sequences.engine

    def check(self, request: Request) -> None:
        """Raises ValueError for a request that makes no sense, ContextFull for one that leaves no room for a token."""
        if not request.prompt:
            raise ValueError("the prompt is empty; give at least one token.")
        if len(request.prompt) >= self._context:
            raise ContextFull(
                f"the prompt has {len(request.prompt)} tokens; {self._context} can be held together with the reply. "
                f"Shorten the prompt, or {self._remedy}.",
                tokens=len(request.prompt),
                limit=self._context,
            )
        if request.max_tokens is not None and request.max_tokens < 1:
            raise ValueError(f"max_tokens is {request.max_tokens}; expected at least 1.")
        if not 0 <= request.min_tokens <= (request.max_tokens or self._context):
            raise ValueError(f"min_tokens is {request.min_tokens}; expected 0 to max_tokens.")
        if request.top_count < 0:
            raise ValueError(f"logprobs is {request.top_count}; expected how many tokens to report, 0 or more.")
        StopStrings(request.stop)

    def stream(
        self, request: Request, cancel: Cancel, sequence: HeldSequence | None = None
    ) -> Generator[Chunk, None, None]:
        """Runs a request on the given sequence, or on one from the pool."""
        with self._running(request, cancel, sequence) as (used, pieces, generation):
            yield from run(generation, used.feed, pieces, cancel)

    def astream(
        self,
        request: Request,
        cancel: Cancel,
        sequence: HeldSequence | None = None,
        *,
        noting: AbstractContextManager[Callable[[Chunk], None]] | None = None,
    ) -> AsyncStream:
        """As stream(), with every feed awaited: by the session itself where it can, else in a worker thread.

        noting: entered at the start, gives what is told of each chunk, and learns how it ended.
        """
        return AsyncStream(self._running(request, cancel, sequence), cancel, self._feeder.feed, noting)

    def close(self) -> None:
        """Frees the engine and every sequence that waits; a request that runs ends as cancelled at its next step."""
        self._feeder.close()
        self.sequences.close()

    @contextmanager
    def _running(
        self, request: Request, cancel: Cancel, sequence: HeldSequence | None = None
    ) -> Iterator[tuple[HeldSequence, list[Sequence[int]], Generation]]:
        """Within the block, a sequence is the request's: it, the pieces to feed, and the rule."""
        needed = len(request.prompt) + (request.max_tokens or 0)
        used = self.sequences.take(needed, sequence) or self.sequences.new(len(request.prompt), is_running=True)
        try:
            with used.interruptible(cancel):
                yield used, *self._begin(used, request)
        finally:
            self.sequences.give_back(used, to_pool=sequence is None)

    def _begin(self, sequence: HeldSequence, request: Request) -> tuple[list[Sequence[int]], Generation]:
        """Rewinds to what the sequence shares with the prompt; the pieces that are left, and the rule."""
        step = self.engine.chunk
        held = sequence.keep(request.prompt)
        room = self._context - len(request.prompt)
        wanted = room + 1 if request.max_tokens is None else request.max_tokens
        generation = Generation(
            sampler=Sampler(
                request.sampling,
                request.prompt,
                constraint=request.constraint,
                stop_tokens=request.stop_tokens,
                min_tokens=request.min_tokens,
                decode=self._text.decode,
            ),
            text=TextStream(self._text, special=request.special),
            stops=StopStrings(request.stop),
            stop_tokens=request.stop_tokens,
            limit=min(room, wanted),
            limit_reason="context" if wanted > room else "length",
            top_count=request.top_count,
            statistics=Statistics(prompt_tokens=len(request.prompt), cached_tokens=held),
        )
        return [request.prompt[at : at + step] for at in range(held, len(request.prompt), step)], generation

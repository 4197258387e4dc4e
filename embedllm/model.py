"""load() and Model: joins package, device, tokenizer, template and the decoder into what an application calls."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias, cast

from embedllm.backends.base import Device, Engine, Interruptible, Session
from embedllm.chat import ChatTemplate, Message, Tool
from embedllm.decode import Cancel, Chunk, Generation, Statistics, arun, run
from embedllm.errors import ContextFull, PackageError, TemplateError
from embedllm.package import Package, open_package
from embedllm.sampling import Picked, Sampler, Sampling
from embedllm.settings import Defaults, read_defaults
from embedllm.text import StopStrings, TextStream, Tokenizer
from embedllm.types import Logits

if TYPE_CHECKING:
    from embedllm.chat import JSON

Prompt: TypeAlias = "str | Sequence[int] | Sequence[Message]"
_log = logging.getLogger("embedllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole reply."""

    text: str
    tokens: tuple[int, ...]  # generated, the stop token among them
    logprobs: tuple[float, ...]  # of each token, natural log, in the model's own distribution
    top_logprobs: tuple[tuple[Picked, ...], ...]  # per token, when asked for
    finish_reason: str  # "stop", "length", "context" or "cancelled"
    stopped_by: str | int | None  # the stop string or stop token
    statistics: Statistics

    @property
    def message(self) -> dict[str, JSON]:
        """The reply as a message to append to a conversation."""
        return {"role": "assistant", "content": self.text}


def load(
    path: str | os.PathLike[str] = "demo",
    *,
    device: str | Sequence[str] | None = None,
    threads: int = 0,
    exact: bool = False,
) -> Model:
    """Opens a package folder on a device.

    path: a folder written by `embedllm export`, or "demo", the model that ships with this library.
    device: a name from `devices()`, "auto", or a list of names that are tried in order; None takes the environment
    variable EMBEDLLM_DEVICE, or else "auto". An explicit device never falls back to another.
    threads: for the CPU; 0 takes one a physical core.
    exact: float activations in every product; slower to decode (docs/numerics.md).
    Raises PackageError, DeviceUnavailable, DeviceError.
    """
    from embedllm.backends import registry, select

    package = open_package(_demo() if os.fspath(path) == "demo" and not Path(path).exists() else path)
    if exact:
        _check_exact(package)
    wish = device if device is not None else os.environ.get("EMBEDLLM_DEVICE") or select.AUTO
    choice = select.choose(registry.devices(), wish)
    passed = "".join(f"; not {name}: {reason}" for name, reason in choice.passed_over)
    _log.info("running '%s' on %s (%s)%s", package.name, choice.device.name, choice.device.backend, passed)
    return Model(package, registry.open_engine(package, choice.device, threads=threads, exact=exact))


def devices() -> list[Device]:
    """What this machine offers, and why the rest is not available."""
    from embedllm.backends import registry

    return registry.devices()


class Model:
    """A loaded model. May be used from several threads; each running generation has a KV cache of its own.

    A context manager; close() frees the memory.
    """

    def __init__(self, package: Package, engine: Engine) -> None:
        self.package = package
        self.tokenizer = Tokenizer.open(package.folder)
        self.sampling = read_defaults(package.folder).sampling
        self._defaults: Defaults = read_defaults(package.folder)
        self._engine: Engine | None = engine
        self._template: ChatTemplate | None = None
        self._idle: list[_Sequence] = []
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.package.name

    @property
    def device(self) -> Device:
        return self._opened.device

    @property
    def context(self) -> int:
        """The most tokens that prompt and reply can have together."""
        return self.package.context

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
    ) -> str:
        """The text that the model's own chat template makes of a conversation.

        tools: functions, or JSON schemas as they are. variables: for the template, such as {"enable_thinking": False}.
        Raises TemplateError when the model has no template or its template refuses.
        """
        if self._template is None:
            self._template = ChatTemplate.open(self.package.folder)
        return self._template.render(messages, tools=tools, variables=variables)

    @property
    def can_chat(self) -> bool:
        """Whether the model has a chat template."""
        try:
            self.prompt([])
        except TemplateError:
            return bool(self._template)
        return True

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        cancel: Cancel | None = None,
    ) -> Completion:
        """The model's continuation of a prompt.

        prompt: text, which is continued as it stands; messages, which go through the chat template; or token ids.
        sampling: None takes the model's own defaults (`self.sampling`).
        max_tokens: None takes the model's default, or what is left of the context.
        stop: strings that end the reply, and are not part of it. stop_tokens: None takes the model's own.
        logprobs: how many of the most probable tokens to report for each step.
        Raises ContextFull when the prompt leaves no room for a token; nothing is cut off.
        """
        return _collect(self.stream(prompt, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                                    logprobs=logprobs, tools=tools, variables=variables, cancel=cancel))  # fmt: skip

    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        cancel: Cancel | None = None,
    ) -> Completion:
        """The reply to a conversation; generate() with messages."""
        return self.generate(messages, sampling, max_tokens=max_tokens, stop=stop, tools=tools, variables=variables,
                             cancel=cancel)  # fmt: skip

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        cancel: Cancel | None = None,
    ) -> Iterator[Chunk]:
        """As generate(), token by token. Leaving the loop early frees what it used."""
        tokens = self._tokens(prompt, tools, variables)
        request = self._request(tokens, sampling, max_tokens, stop, stop_tokens, logprobs)
        return self._stream(request, None, cancel or Cancel())

    async def agenerate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        cancel: Cancel | None = None,
    ) -> Completion:
        """As generate(), without blocking the event loop."""
        chunks = self.astream(prompt, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                              logprobs=logprobs, tools=tools, variables=variables, cancel=cancel)  # fmt: skip
        return _collect([chunk async for chunk in chunks])

    async def astream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        cancel: Cancel | None = None,
    ) -> AsyncIterator[Chunk]:
        """As stream(), for `async for`: the model computes in a thread. Cancelling the task interrupts it."""
        tokens = self._tokens(prompt, tools, variables)
        request = self._request(tokens, sampling, max_tokens, stop, stop_tokens, logprobs)
        cancel = cancel or Cancel()
        sequence = self._take(request.prompt)
        try:
            with _interrupting(cancel, sequence.session):
                pieces, generation = self._begin(sequence, request)
                chunks = arun(generation, lambda piece: _in_thread(sequence, piece), pieces, cancel)
                async for chunk in chunks:
                    yield chunk
        finally:
            self._give_back(sequence)

    def conversation(
        self,
        system: str | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
    ) -> Conversation:
        """A chat that remembers: its history, and the KV cache of it, so that each turn computes only what is new."""
        from embedllm.conversation import Conversation

        return Conversation(self, system, tools=tools, variables=variables)

    def close(self) -> None:
        """Frees weights and KV caches. Generations that still run must be cancelled before. Twice is fine."""
        with self._lock:
            idle, self._idle = self._idle, []
            engine, self._engine = self._engine, None
        for sequence in idle:
            sequence.session.close()
        if engine is not None:
            engine.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self._engine.device.name if self._engine else "closed"
        return f"<embedllm.Model '{self.name}' on {where}, context {self.context}>"

    @property
    def _opened(self) -> Engine:
        if self._engine is None:
            raise ValueError("this model was closed")
        return self._engine

    def _tokens(
        self, prompt: Prompt, tools: Sequence[Tool] | None, variables: Mapping[str, JSON] | None
    ) -> list[int]:
        """The prompt as token ids. A template writes the special tokens itself; plain text gets the tokenizer's."""
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            messages = cast("Sequence[Message]", prompt)
            return self.tokenizer.encode(self.prompt(messages, tools=tools, variables=variables), special=False)
        if tools is not None or variables is not None:
            raise ValueError("tools and variables go through the chat template; give the prompt as messages.")
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, special=True)
        return [int(token) for token in cast("Sequence[int]", prompt)]

    def _request(
        self,
        tokens: list[int],
        sampling: Sampling | None,
        max_tokens: int | None,
        stop: str | Sequence[str],
        stop_tokens: Sequence[int] | None,
        logprobs: int,
    ) -> _Request:
        room = self.context - len(tokens)
        if not tokens:
            raise ValueError("the prompt is empty; give at least one token.")
        if room < 1:
            raise ContextFull(
                f"the prompt has {len(tokens)} tokens; this package holds {self.context} together with the reply. "
                "Shorten the prompt, or export with a larger --context."
            )
        wanted = self._defaults.max_tokens if max_tokens is None else max_tokens
        if wanted is not None and wanted < 1:
            raise ValueError(f"max_tokens is {wanted}; expected at least 1.")
        if logprobs < 0:
            raise ValueError(f"logprobs is {logprobs}; expected how many tokens to report, 0 or more.")
        return _Request(
            prompt=tokens,
            sampling=sampling or self.sampling,
            limit=room if wanted is None else min(room, wanted),
            limit_reason="context" if wanted is None or wanted > room else "length",
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_tokens=frozenset(self.package.stop_tokens if stop_tokens is None else stop_tokens),
            top_count=logprobs,
        )

    def _stream(self, request: _Request, sequence: _Sequence | None, cancel: Cancel) -> Iterator[Chunk]:
        """Runs a request on the given sequence, or on one from the pool."""
        used = sequence or self._take(request.prompt)
        try:
            with _interrupting(cancel, used.session):
                pieces, generation = self._begin(used, request)
                yield from run(generation, used.feed, pieces, cancel)
        finally:
            if sequence is None:
                self._give_back(used)

    def _begin(self, sequence: _Sequence, request: _Request) -> tuple[list[list[int]], Generation]:
        """Rewinds to what the sequence shares with the prompt; the pieces that are left, and the rule."""
        held = sequence.keep(request.prompt)
        fresh, chunk = request.prompt[held:], self._opened.chunk
        generation = Generation(
            sampler=Sampler(request.sampling, request.prompt),
            text=TextStream(self.tokenizer),
            stops=StopStrings(request.stop),
            stop_tokens=request.stop_tokens,
            limit=request.limit,
            limit_reason=request.limit_reason,
            top_count=request.top_count,
            statistics=Statistics(prompt_tokens=len(request.prompt), cached_tokens=held),
        )
        return [fresh[start : start + chunk] for start in range(0, len(fresh), chunk)], generation

    def _take(self, prompt: Sequence[int]) -> _Sequence:
        """The idle sequence that shares most with the prompt, or a new one."""
        with self._lock:
            if self._idle:
                best = max(self._idle, key=lambda sequence: sequence.shared(prompt))
                self._idle.remove(best)
                return best
        return self._new_sequence(len(prompt))

    def _new_sequence(self, capacity: int = 0) -> _Sequence:
        return _Sequence(self._opened.open(capacity))

    def _give_back(self, sequence: _Sequence) -> None:
        """Keeps one sequence for the next call, whose prompt often begins as the last one did."""
        with self._lock:
            if self._engine is not None and not self._idle:
                self._idle.append(sequence)
                return
        sequence.session.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """One call, with every default filled in."""

    prompt: list[int]
    sampling: Sampling
    limit: int
    limit_reason: str
    stop: tuple[str, ...]
    stop_tokens: frozenset[int]
    top_count: int


class _Sequence:
    """A session and the tokens that it holds."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.tokens: list[int] = []

    def feed(self, tokens: Sequence[int]) -> Logits:
        logits = self.session.feed(tokens)
        self.tokens += tokens
        return logits

    def shared(self, prompt: Sequence[int]) -> int:
        """How many tokens the sequence and the prompt have in common at their start."""
        pairs = enumerate(zip(self.tokens, prompt, strict=False))
        return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(self.tokens), len(prompt)))

    def keep(self, prompt: Sequence[int]) -> int:
        """Forgets all that the prompt does not begin with; how many of its tokens are held then.

        The last one is always fed again, for its logits.
        """
        held = min(self.shared(prompt), len(prompt) - 1)
        self.session.rewind(held)
        del self.tokens[held:]
        return held


async def _in_thread(sequence: _Sequence, piece: Sequence[int]) -> Logits:
    """feed() in a worker thread; when the task is cancelled meanwhile, the feed is stopped and waited for."""
    feeding = asyncio.ensure_future(asyncio.to_thread(sequence.feed, piece))
    try:
        return await asyncio.shield(feeding)
    except asyncio.CancelledError:
        if isinstance(sequence.session, Interruptible):
            sequence.session.interrupt()
        await asyncio.wait([feeding])
        feeding.exception()  # it was asked for: Interrupted is no news
        raise


def _interrupting(cancel: Cancel, session: Session) -> AbstractContextManager[None]:
    return cancel.watching(session.interrupt) if isinstance(session, Interruptible) else nullcontext()


def _collect(chunks: Iterator[Chunk] | Sequence[Chunk]) -> Completion:
    kept = list(chunks)
    steps = [chunk for chunk in kept if chunk.token is not None]
    return Completion(
        text="".join(chunk.text for chunk in kept),
        tokens=tuple(chunk.token for chunk in steps if chunk.token is not None),
        logprobs=tuple(chunk.logprob for chunk in steps if chunk.logprob is not None),
        top_logprobs=tuple(chunk.top_logprobs for chunk in steps if chunk.top_logprobs),
        finish_reason=kept[-1].finish_reason or "cancelled",
        stopped_by=kept[-1].stopped_by,
        statistics=kept[-1].statistics,
    )


def _demo() -> Path:
    folder = Path(__file__).parent / "demo"
    if not folder.is_dir():
        raise PackageError("the demo model is not part of this installation; give the path of an exported folder.")
    return folder


def _check_exact(package: Package) -> None:
    recipe, packings = package.manifest.get("recipe"), package.manifest.get("quantization")
    was_exact = isinstance(recipe, dict) and recipe.get("exact") is True
    bits = {entry.get("bits") for entry in packings.values() if isinstance(entry, dict)} if isinstance(packings, dict) else set()
    if 8 in bits and not was_exact:
        raise PackageError(
            f"'{package.name}' has 8-bit matrices, whose products round their activations unless the graph says "
            "otherwise. Export it again with --exact, or load it without exact=True."
        )

"""load() and Model: joins package, device, tokenizer and template into what an application calls."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from embedllm.backends.base import Device, Engine
from embedllm.chat import ChatTemplate, Message, Tool
from embedllm.decode import Cancel, Chunk, Statistics
from embedllm.errors import PackageError, TemplateError
from embedllm.package import Package, open_package
from embedllm.runner import Request, Runner
from embedllm.sampling import Picked, Sampling
from embedllm.settings import read_defaults
from embedllm.text import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embedllm.chat import JSON
    from embedllm.conversation import Conversation

Prompt: TypeAlias = "str | Sequence[int] | NDArray[np.integer] | Sequence[Message]"
_log = logging.getLogger("embedllm")
_MOST_THREADS = 1024  # ONNX Runtime takes any number, and a million of them until the machine gives up


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
    variable EMBEDLLM_DEVICE (names with commas between them), or else "auto". A device that was asked for never falls
    back to another.
    threads: for the CPU; 0 takes one a physical core.
    exact: float activations in every product; slower to decode (docs/numerics.md). The reference has no others.
    Raises PackageError, DeviceUnavailable, DeviceError.
    """
    from embedllm.backends import registry, select

    if not 0 <= threads <= _MOST_THREADS:
        raise ValueError(f"threads is {threads}; expected 0 (one a physical core) to {_MOST_THREADS}.")
    package = open_package(package_folder(path))
    wish = device if device is not None else _wish_of_the_environment() or select.AUTO
    choice = select.choose(registry.devices_for(package), wish)
    if exact and registry.runs_graphs(choice.device):
        _check_exact(package)
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
        defaults = read_defaults(package.folder)
        self.package = package
        self.tokenizer = Tokenizer.open(package.folder)
        self.sampling = defaults.sampling
        self.runner = Runner(engine, self.tokenizer, package.context)
        self._max_tokens = defaults.max_tokens
        self._template: ChatTemplate | None = None

    @property
    def name(self) -> str:
        return self.package.name

    @property
    def device(self) -> Device:
        return self.runner.engine.device

    @property
    def context(self) -> int:
        """The most tokens that prompt and reply can have together."""
        return self.package.context

    @property
    def can_chat(self) -> bool:
        """Whether the model has a chat template."""
        try:
            return bool(self._chat_template())
        except TemplateError:
            return False

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
        return self._chat_template().render(messages, tools=tools, variables=variables)

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
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
        return collect(self.stream(prompt, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                                    logprobs=logprobs, tools=tools, variables=variables, cancel=cancel))  # fmt: skip

    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        cancel: Cancel | None = None,
    ) -> Completion:
        """The reply to a conversation; generate() with messages.

        Raises ValueError for anything else; for text there is generate().
        """
        _check_messages(messages)
        return self.generate(messages, sampling, max_tokens=max_tokens, stop=stop, tools=tools, variables=variables,
                             cancel=cancel)  # fmt: skip

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        cancel: Cancel | None = None,
    ) -> Iterator[Chunk]:
        """As generate(), token by token. Leaving the loop early frees what it used."""
        request = self.request(prompt, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                               logprobs=logprobs, tools=tools, variables=variables)  # fmt: skip
        return self.runner.stream(request, cancel or Cancel())

    async def agenerate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        cancel: Cancel | None = None,
    ) -> Completion:
        """As generate(), without blocking the event loop."""
        chunks = self.astream(prompt, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                              logprobs=logprobs, tools=tools, variables=variables, cancel=cancel)  # fmt: skip
        return collect([chunk async for chunk in chunks])

    def astream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        cancel: Cancel | None = None,
    ) -> AsyncIterator[Chunk]:
        """As stream(), for `async for`: the model computes in a thread. Cancelling the task interrupts it."""
        request = self.request(prompt, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                               logprobs=logprobs, tools=tools, variables=variables)  # fmt: skip
        return self.runner.astream(request, cancel or Cancel())

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

    def request(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
    ) -> Request:
        """What generate() would run: the prompt as token ids, every default filled in, checked."""
        request = Request(
            prompt=self._tokens(prompt, tools, variables),
            sampling=sampling or self.sampling,
            max_tokens=self._max_tokens if max_tokens is None else max_tokens,
            stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
            stop_tokens=frozenset(self.package.stop_tokens if stop_tokens is None else stop_tokens),
            top_count=logprobs,
        )
        self.runner.check(request)
        return request

    def close(self) -> None:
        """Frees weights and KV caches. Generations that still run must be cancelled before. Twice is fine."""
        self.runner.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self.runner.is_closed else f"on {self.device.name}"
        return f"<embedllm.Model '{self.name}' {where}, context {self.context}>"

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            self._template = ChatTemplate.open(self.package.folder)
        return self._template

    def _tokens(self, prompt: Prompt, tools: Sequence[Tool] | None, variables: Mapping[str, JSON] | None) -> list[int]:
        """The prompt as token ids. A template writes the special tokens itself; plain text gets the tokenizer's."""
        if isinstance(prompt, Mapping) or _are_messages(prompt):
            _check_messages(prompt)
            messages = cast("Sequence[Message]", prompt)
            return self.tokenizer.encode(self.prompt(messages, tools=tools, variables=variables), special=False)
        if tools is not None or variables is not None:
            raise ValueError("tools and variables go through the chat template; give the prompt as messages.")
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, special=True)
        return _token_ids(prompt)


def _are_messages(prompt: object) -> bool:
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Mapping)


def _check_messages(messages: object) -> None:
    if isinstance(messages, str):
        raise ValueError("chat takes a list of messages, found a text; give messages, or use generate to continue it.")
    if not _are_messages(messages):
        raise ValueError(f"messages must be a list of at least one message, found {messages!r}.")


def _token_ids(prompt: object) -> list[int]:
    """Token ids out of anything that holds whole numbers, an array too."""
    try:
        if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Iterable):
            raise TypeError(f"found {type(prompt).__name__}")
        return [operator.index(token) for token in prompt]
    except TypeError as error:
        raise ValueError(f"the prompt must be a text, a list of messages or a list of token ids: {error}.") from error


def collect(chunks: Iterable[Chunk]) -> Completion:
    """A whole reply from its chunks."""
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


def _wish_of_the_environment() -> list[str]:
    return [name for part in os.environ.get("EMBEDLLM_DEVICE", "").split(",") if (name := part.strip())]


def package_folder(path: str | os.PathLike[str]) -> Path:
    """The folder that is meant: "demo" is the model that ships with this library, unless ./demo is a package itself.

    Raises PackageError when the demo is meant and not installed.
    """
    given = Path(path)
    if os.fspath(path) != "demo" or (given / "embedllm.json").is_file():
        return given
    folder = Path(__file__).parent / "demo"
    if not folder.is_dir():
        raise PackageError("the demo model is not part of this installation; give the path of an exported folder.")
    return folder


def _check_exact(package: Package) -> None:
    """Raises PackageError when the graph has products of 8-bit matrices, which round their activations."""
    recipe, packings = (package.manifest.get(key) for key in ("recipe", "quantization"))
    if not isinstance(recipe, dict) or not isinstance(packings, dict) or recipe.get("exact"):
        return
    decoder = package.decoder
    looked_up = {decoder.embedding.name} - {decoder.head.name}  # an embedding alone is no product
    if any(
        isinstance(entry, dict) and entry.get("bits") == 8 for name, entry in packings.items() if name not in looked_up
    ):
        raise PackageError(
            f"'{package.name}' cannot be loaded with exact=True: it has 8-bit matrices, whose products round their "
            "activations unless the folder was exported with --exact. Load it without exact; or on the device "
            "'reference', which rounds nothing and is slow; or, with its checkpoint at hand, export it so."
        )

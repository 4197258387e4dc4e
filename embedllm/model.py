"""load() and Model: joins package, device, tokenizer and template into what an application calls."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from embedllm.backends.base import Device, Engine
from embedllm.chat import ChatTemplate, Message, Tool
from embedllm.decode import Cancel, Chunk, Statistics
from embedllm.errors import PackageError, TemplateError
from embedllm.package import Package, open_package
from embedllm.prompt import ForTemplate, Prompt, are_messages, check_messages, token_ids
from embedllm.runner import AsyncStream, Request, Runner
from embedllm.sampling import Picked, Sampling
from embedllm.settings import Defaults, read_defaults
from embedllm.text import Tokenizer

if TYPE_CHECKING:
    from embedllm.chat import JSON
    from embedllm.conversation import Conversation

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
    chat_template: str | None = None,
) -> Model:
    """Opens a package folder on a device.

    path: a folder written by `embedllm export`, or "demo", the model that ships with this library.
    device: a name from `devices()`, "auto", or a list of names that are tried in order; None takes the environment
    variable EMBEDLLM_DEVICE (names with commas between them), or else "auto". A device that was asked for never falls
    back to another.
    threads: for the CPU; 0 takes one a physical core.
    exact: float activations in every product; slower to decode (docs/numerics.md). The reference has no others.
    chat_template: Jinja text, in place of the folder's own template or for a model without one.
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
    defaults, tokenizer = read_defaults(package.folder), Tokenizer.open(package.folder)  # before the weights
    engine = registry.open_engine(package, choice.device, threads=threads, exact=exact)
    template = None if chat_template is None else ChatTemplate(chat_template, tokens=tokenizer.named)
    return Model(package, engine, tokenizer=tokenizer, defaults=defaults, template=template)


def devices() -> list[Device]:
    """What this machine offers, and why the rest is not available."""
    from embedllm.backends import registry

    return registry.devices()


class Model:
    """A loaded model. May be used from several threads; each running generation has a KV cache of its own.

    A context manager; close() frees the memory.
    """

    def __init__(
        self,
        package: Package,
        engine: Engine,
        *,
        tokenizer: Tokenizer,
        defaults: Defaults,
        template: ChatTemplate | None = None,  # None: the folder's own
    ) -> None:
        self.package = package
        self.tokenizer = tokenizer
        self.sampling = defaults.sampling
        self.runner = Runner(engine, self.tokenizer, package.context)
        self._max_tokens = defaults.max_tokens
        self._template = template

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
        documents: Sequence[Mapping[str, JSON]] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """The text that the model's own chat template makes of a conversation.

        tools: functions, or JSON schemas as they are. variables: for the template, such as {"enable_thinking": False}.
        documents: each with a "text", for templates that know them.
        continue_final_message: leave the last message open, so that the model goes on with it.
        Raises TemplateError when the model has no template or its template refuses.
        """
        return self._chat_template().render(messages, tools=tools, documents=documents, variables=variables,
                                            continue_final_message=continue_final_message)  # fmt: skip

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
        documents: Sequence[Mapping[str, JSON]] | None = None,
        continue_final_message: bool = False,
        special: bool = False,
        cancel: Cancel | None = None,
    ) -> Completion:
        """The model's continuation of a prompt.

        prompt: text, which is continued as it stands; messages, which go through the chat template; or token ids.
        sampling: None takes the model's own defaults (`self.sampling`).
        max_tokens: None takes the model's default, or what is left of the context.
        stop: strings that end the reply, and are not part of it. stop_tokens: None takes the model's own.
        A stop string that is one special token, such as "<|im_end|>", stands for that token.
        logprobs: how many of the most probable tokens to report for each step.
        tools, variables, documents, continue_final_message: for the chat template; see prompt().
        special: write special tokens, such as the marks of a tool call, into the text.
        Raises ContextFull when the prompt leaves no room for a token; nothing is cut off.
        """
        return collect(self.stream(prompt, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                                    logprobs=logprobs, tools=tools, variables=variables, documents=documents,
                                    continue_final_message=continue_final_message, special=special,
                                    cancel=cancel))  # fmt: skip

    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        documents: Sequence[Mapping[str, JSON]] | None = None,
        continue_final_message: bool = False,
        special: bool = False,
        cancel: Cancel | None = None,
    ) -> Completion:
        """The reply to a conversation; generate() with messages.

        Raises ValueError for anything else; for text there is generate().
        """
        check_messages(messages)
        return self.generate(messages, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                             logprobs=logprobs, tools=tools, variables=variables, documents=documents,
                             continue_final_message=continue_final_message, special=special, cancel=cancel)  # fmt: skip

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
        documents: Sequence[Mapping[str, JSON]] | None = None,
        continue_final_message: bool = False,
        special: bool = False,
        cancel: Cancel | None = None,
    ) -> Generator[Chunk, None, None]:
        """As generate(), token by token. Leaving the loop early frees what it used."""
        request = self.request(prompt, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                               logprobs=logprobs, tools=tools, variables=variables, documents=documents,
                               continue_final_message=continue_final_message, special=special)  # fmt: skip
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
        documents: Sequence[Mapping[str, JSON]] | None = None,
        continue_final_message: bool = False,
        special: bool = False,
        cancel: Cancel | None = None,
    ) -> Completion:
        """As generate(), without blocking the event loop."""
        chunks = self.astream(prompt, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                              logprobs=logprobs, tools=tools, variables=variables, documents=documents,
                              continue_final_message=continue_final_message, special=special,
                              cancel=cancel)  # fmt: skip
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
        documents: Sequence[Mapping[str, JSON]] | None = None,
        continue_final_message: bool = False,
        special: bool = False,
        cancel: Cancel | None = None,
    ) -> AsyncStream:
        """As stream(), for `async for`: the model computes in a thread. Cancelling the task interrupts it."""
        request = self.request(prompt, sampling, max_tokens=max_tokens, stop=stop, stop_tokens=stop_tokens,
                               logprobs=logprobs, tools=tools, variables=variables, documents=documents,
                               continue_final_message=continue_final_message, special=special)  # fmt: skip
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
        documents: Sequence[Mapping[str, JSON]] | None = None,
        continue_final_message: bool = False,
        special: bool = False,
    ) -> Request:
        """What generate() would run: the prompt as token ids, every default filled in, checked."""
        template = ForTemplate(tools, variables, documents, continue_final_message)
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        request = Request(
            prompt=self._tokens(prompt, template),
            sampling=sampling or self.sampling,
            max_tokens=self._max_tokens if max_tokens is None else max_tokens,
            stop=stops,
            stop_tokens=frozenset(self.package.stop_tokens if stop_tokens is None else stop_tokens)
            | self._special_tokens(stops),
            top_count=logprobs,
            special=special,
        )
        self.runner.check(request)
        return request

    def release(self) -> None:
        """Frees the KV cache that waits for the next call; that one computes its whole prompt again."""
        self.runner.release()

    def close(self) -> None:
        """Frees weights and KV caches. A generation that still runs ends as cancelled, at its next step.

        Twice is fine.
        """
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

    def _special_tokens(self, stops: Sequence[str]) -> set[int]:
        """The special tokens among the stop strings: their text never comes."""
        found = {self.tokenizer.token_id(string) for string in stops if isinstance(string, str)}
        return {token for token in found if token in self.tokenizer.special_tokens and token is not None}

    def _tokens(self, prompt: Prompt, template: ForTemplate) -> list[int]:
        """The prompt as token ids. A template writes the special tokens itself; plain text gets the tokenizer's."""
        if isinstance(prompt, Mapping) or are_messages(prompt):
            check_messages(prompt)
            messages = cast("Sequence[Message]", prompt)
            text = self.prompt(messages, tools=template.tools, variables=template.variables,
                               documents=template.documents,
                               continue_final_message=template.continue_final_message)  # fmt: skip
            return self.tokenizer.encode(text, special=False)
        if template != ForTemplate():
            raise ValueError(
                "tools, variables, documents and continue_final_message go through the chat template; give the prompt "
                "as messages."
            )
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, special=True)
        return token_ids(prompt)


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

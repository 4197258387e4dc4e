"""Model: joins package, engine, tokenizer and template into what an application calls."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NoReturn, Unpack

from embedllm.backends.base import Device, Engine
from embedllm.cancel import Cancel, given_or_own
from embedllm.errors import EmbedError
from embedllm.generation.async_stream import AsyncStream
from embedllm.generation.beam_runner import BEAMLESS
from embedllm.generation.chunk import Chunk
from embedllm.generation.completion import Completion, collect
from embedllm.generation.defaults import Defaults
from embedllm.generation.options import SAMPLING, PromptOptions, WhenFull, lists_options, take_sampling
from embedllm.generation.request import Request, reject_first_only
from embedllm.generation.request_builder import RequestBuilder
from embedllm.generation.run_in_thread import run_in_thread
from embedllm.generation.runner import Runner
from embedllm.generation.scheduler import MAX_RUNNING, MAX_WAITING
from embedllm.kv_cache.fingerprint import model_fingerprint
from embedllm.kv_cache.prefix_cache import PrefixCache
from embedllm.model.conversation import Conversation
from embedllm.model.embeddings import Encoding, Ranked, listed_texts
from embedllm.model.embeddings import present as encoding_of
from embedllm.package.file_state import LoadedFiles
from embedllm.package.lora.adapter import Adapters, present
from embedllm.package.package import Package
from embedllm.sampling.options import Sampling
from embedllm.sampling.structured.response_format import Grammars
from embedllm.text.chat_template import ChatTemplate, Message, Tool
from embedllm.text.prompt import Prompt, TemplateOptions, check_messages
from embedllm.text.protocols import ModelCodec
from embedllm.text.stream import text_after

if TYPE_CHECKING:
    from embedllm.backends.needed_memory import MemoryEstimate
    from embedllm.generation.speculation.draft_head import HeadDrafter
    from embedllm.text.chat_template import JSON
    from embedllm.types import F32


class Model:
    """A loaded model. May be used from several threads; each running generation has a KV cache of its own.

    A context manager, with `async with` too; close() frees the memory.
    """

    def __init__(
        self,
        package: Package,
        engine: Engine,
        *,
        tokenizer: ModelCodec,
        defaults: Defaults,
        template: ChatTemplate | None = None,  # None: the folder's own
        grammars: Grammars | None = None,  # None: no response_format
        draft: Model | HeadDrafter | None = None,
        owns_draft: bool = False,
        memory: MemoryEstimate | None = None,
        prefix_cache: PrefixCache | None = None,  # None: no prefix cache
        max_running: int = MAX_RUNNING,  # requests
        max_waiting: int = MAX_WAITING,  # requests
        kv_tokens: int | None = None,  # for whose KV there is memory; None: that is not known
        is_direct: bool = False,  # without a thread: whoever calls computes
        speculates: bool = False,  # by default
        settings: str = "",  # what else the numbers depend on, of what load() was given
        adapters: Adapters | None = None,  # None: the engine takes none
        tuned: str = "",
        encoding: Encoding | None = None,  # None: it generates text
        parse_special: bool = False,
        loaded: LoadedFiles | None = None,  # None: the device has copied them
    ) -> None:
        """draft: for speculative decoding, a model with the same vocabulary or a head of this one. owns_draft: it is
        closed with this one.

        parse_special: see load().
        """
        self.package = package
        """The folder: manifest, architecture and files."""
        self.tokenizer = tokenizer
        """Its encode() and decode() are between text and token ids."""
        self.sampling = defaults.sampling
        """The model's own defaults, which a call without `sampling` takes."""
        self.context = engine.context
        """The most tokens that prompt and reply can have together."""
        self.memory = memory
        """What it was expected to need and what was free, before it was loaded; None: in a browser."""
        self.tuned = tuned
        """What tune() measured of how it runs, or why that was not used; empty: in a browser."""
        draft_runner = draft.runner if isinstance(draft, Model) else draft
        self.runner = Runner(engine, self.tokenizer, draft=draft_runner, prefix_cache=prefix_cache, adapters=adapters,
                             max_running=max_running, max_waiting=max_waiting, kv_tokens=kv_tokens,
                             is_direct=is_direct, speculates=speculates, loaded=loaded)  # fmt: skip
        self._builder = RequestBuilder(package, tokenizer, defaults.max_tokens, template=template, grammars=grammars,
                                       adapters=adapters, parse_special=parse_special)  # fmt: skip
        self._kind_of = package, engine.device, settings
        self._own_draft = draft if owns_draft else None
        self._encoding = encoding

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Model cannot be pickled or copied: its memory is this process'. Load it where it is used.")

    @property
    def name(self) -> str:
        """As the folder's manifest has it."""
        return self.package.name

    @property
    def device(self) -> Device:
        """The device that it was loaded on."""
        return self.runner.engine.device

    @property
    def kind(self) -> dict[str, str]:
        """What a saved KV has to be of, to be used by this model."""
        return self._kind

    @cached_property
    def _kind(self) -> dict[str, str]:
        return model_fingerprint(*self._kind_of)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the adapters that a call may choose."""
        adapters = self.runner.adapters
        return () if adapters is None else adapters.names

    def add_adapter(self, name: str, path: str | os.PathLike[str]) -> None:
        """Reads a LoRA adapter as PEFT saves it; from now on a call may choose it by its name. See load().

        Raises ValueError for a name that is taken, and when the model was loaded without adapters.
        """
        from embedllm.package.lora.peft import read_adapters

        adapters = present(self.runner.adapters)
        if name in adapters.names:  # before it is read
            raise ValueError(f"there is an adapter '{name}' already; remove it first, or choose another name.")
        paths, package = {name: path}, self.package
        for adapter in read_adapters(paths, package.decoder, is_rotated=package.is_rotated):
            adapters.add(adapter)

    def remove_adapter(self, name: str) -> None:
        """Frees an adapter, once the calls that run with it are done. Raises ValueError when there is none."""
        present(self.runner.adapters).remove(name)

    @property
    def can_chat(self) -> bool:
        """Whether the model has a chat template."""
        return self._builder.can_chat

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
        options = TemplateOptions(tools, variables, documents, continue_final_message)
        return self._builder.prompt(messages, options).text

    def prompt_tokens(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        documents: Sequence[Mapping[str, JSON]] | None = None,
        continue_final_message: bool = False,
    ) -> list[int]:
        """The token ids of prompt(), as chat() feeds them: special tokens' texts in messages are plain text."""
        options = TemplateOptions(tools, variables, documents, continue_final_message)
        return self._builder.prompt_tokens(messages, options)

    def count_tokens(
        self, texts: Sequence[str], *, kind: str | None = None, query: str | None = None, truncate: bool = False
    ) -> int:
        """How many tokens texts have, all together, with the special tokens that the tokenizer adds to each.

        Of an embedding model or a reranker: how many embed() or rerank() reads. kind: the prompt of this kind counts
        with each text. query: it counts with each document. truncate: without the ends that are left out.
        """
        if self._encoding is not None:
            return self._encoding.count_tokens(texts, kind=kind, query=query, truncate=truncate)
        return sum(len(self.tokenizer.encode(text, special=True)) for text in listed_texts(texts, "texts"))

    @lists_options(PromptOptions)
    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> Completion:
        """The model's continuation of a prompt.

        prompt: text, which is continued as it stands; messages, which go through the chat template; or token ids.
        sampling: None takes the model's own defaults (`self.sampling`). Each field may be given by name, too, as in
        temperature=0.2, and takes the place of what is there.
        cancel: a switch that ends it from another thread.
        The options, by name:
        max_tokens: None takes the model's default, or what is left of the context.
        min_tokens: no stop token is generated before; a stop string or a grammar still ends the reply.
        stop: strings that end the reply, and are not part of it. stop_tokens: None takes the model's own.
        A stop string that is one special token, such as "<|im_end|>", stands for that token.
        logprobs: how many of the most probable tokens to report for each step.
        response_format: what the reply shall be: a JSON schema, as it is or in OpenAI's object; a pydantic class, a
        dataclass, a TypedDict, an Enum, another type such as list[int]; a compiled regex, a list of texts to choose
        from, a grammar (docs/guide-python.md#structured-output). The text fulfils it when finish_reason is "stop" and
        no stop string ended it.
        speculate: speculative decoding, which verifies several tokens per step: "lookup" (prompt lookup),
        "draft" (the draft model), "off" or None; "auto" is both where there is a draft model, else "lookup" for replies
        that are sampled without a seed, on devices where it was measured to pay. The reply follows the same rule, but
        steps of several tokens round otherwise (docs/numerics.md).
        tools, variables, documents, continue_final_message: for the chat template; see prompt().
        tool_choice: "auto"; "none", as if there were no tools; "required" or a tool's name, when the reply is one call;
        a tool as OpenAI's object, too.
        priority: among the calls that wait (load(max_sequences=...)) lower ones are served earlier, as in vLLM; a step
        is worth 10 seconds of waiting, so that none waits for ever.
        timeout: seconds after which the reply ends with what there is, and with the finish_reason "timeout"; in the
        queue, too.
        adapter: the name of the adapter that computes the reply; None: the bare model. See load().
        special: the reply as it is written, special tokens and all: reasoning and tool calls are not parsed; they never
        are for a prompt that is not messages.
        Raises ContextFull when the prompt leaves no room for a token; nothing is cut off. Busy when too many calls wait
        already. ValueError for a response_format that cannot be followed exactly. TypeError for an option that there
        is not, with the nearest one.
        """
        (chunks,) = self.runner.run_all([self.request(prompt, sampling, **options)], given_or_own(cancel))
        return collect(chunks)

    @lists_options(PromptOptions)
    def generate_batch(
        self,
        prompts: Iterable[Prompt],
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> list[Completion]:
        """As generate() for each of several prompts, in their order, batched where the device gains by it.

        The steps of up to 16 replies on `cpu` and `openvino`, of up to 64 on `cuda`, are one run, which reads the
        weights once (docs/performance.md): so are those of any calls from several threads or tasks. When one fails the
        others are ended and its error is raised.
        """
        if not isinstance(prompts, Iterable) or isinstance(prompts, str | Mapping):
            found = "one text" if isinstance(prompts, str) else f"a {type(prompts).__name__}"
            raise ValueError(f"generate_batch takes a list of prompts, found {found}; use generate for one.")
        requests = [self._numbered(place, prompt, sampling, options) for place, prompt in enumerate(prompts)]
        replies = self.runner.run_all(reject_first_only(requests), given_or_own(cancel))
        return [collect(chunks) for chunks in replies]

    def _numbered(self, place: int, prompt: Prompt, sampling: Sampling | None, options: PromptOptions) -> Request:
        """One of several requests; what is wrong with its prompt says which it is."""
        try:
            request = self.request(prompt, sampling, **options)
            self.runner.check_prompt(request)
        except (ValueError, EmbedError) as error:
            error.args = (f"prompts[{place}]: {error}",)
            raise
        return request

    @lists_options(PromptOptions)
    def generate_n(
        self,
        prompt: Prompt,
        n: int,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> list[Completion]:
        """`n` continuations of one prompt, which is prefilled once; see generate().

        Those after the first have the seeds that follow on the given one.
        """
        replies = self.runner.run_all(self.requests(prompt, n, sampling, **options), given_or_own(cancel))
        return [collect(chunks) for chunks in replies]

    @lists_options(PromptOptions, without=SAMPLING | BEAMLESS)
    def beam_search(
        self,
        prompt: Prompt,
        beams: int,
        *,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> list[Completion]:
        """Beam search: the most probable continuations of a prompt, best first.

        length_penalty: a reply's score is its log probability over its length to this power.
        early_stopping: True ends it when `beams` replies are found, False when none that runs scores higher as it is,
        "never" when none can at any length. options: as of generate(), but for those that choose or cut single tokens.
        """
        if idle := [name for name in options if name in BEAMLESS or name in SAMPLING]:
            raise ValueError(f"beam_search has no '{idle[0]}'; leave it out, or use generate.")
        request = self.request(prompt, Sampling(), **options)
        return [
            Completion(
                text=text_after(self.tokenizer, request.prompt if request.is_continuation else (), reply.text_tokens,
                                special=request.special),
                tokens=reply.tokens,
                logprobs=reply.logprobs,
                top_logprobs=(),
                finish_reason=reply.finish_reason,
                stopped_by=reply.stopped_by,
                statistics=reply.statistics,
            )
            for reply in self.runner.beam_search(request, given_or_own(cancel), beams=beams,
                                                 length_penalty=length_penalty,
                                                early_stopping=early_stopping)
        ]  # fmt: skip

    @lists_options(PromptOptions)
    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> Completion:
        """The reply to a conversation; generate() with messages.

        Raises ValueError for anything else; for text there is generate().
        """
        check_messages(messages)
        return self.generate(messages, sampling, cancel=cancel, **options)

    @lists_options(PromptOptions)
    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> Generator[Chunk, None, None]:
        """As generate(), token by token. Leaving the loop early frees what it used."""
        request = self.request(prompt, sampling, **options)
        return self.runner.stream(request, given_or_own(cancel))

    @lists_options(PromptOptions)
    def stream_n(
        self,
        prompt: Prompt,
        n: int,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> Generator[tuple[int, Chunk], None, None]:
        """As generate_n(), token by token, each with the index of its continuation, 0 to n - 1."""
        return self.runner.stream_all(self.requests(prompt, n, sampling, **options), given_or_own(cancel))

    @lists_options(PromptOptions)
    async def agenerate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> Completion:
        """As generate(), without blocking the event loop."""
        chunks = await self.aopen_stream(prompt, sampling, cancel=cancel, **options)
        return collect([chunk async for chunk in chunks])

    @lists_options(PromptOptions)
    async def achat(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> Completion:
        """As chat(), without blocking the event loop."""
        check_messages(messages)
        return await self.agenerate(messages, sampling, cancel=cancel, **options)

    @lists_options(PromptOptions)
    def astream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> AsyncStream:
        """As stream(), for `async for`: the model computes in a thread. Cancelling the task interrupts it.

        The prompt is tokenized before this returns, so that it raises what is wrong with it, which blocks the event
        loop: for prompts of thousands of characters there is aopen_stream().
        """
        request = self.request(prompt, sampling, **options)
        return self.runner.astream(request, given_or_own(cancel))

    @lists_options(PromptOptions)
    async def aopen_stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> AsyncStream:
        """As astream(), whose prompt is tokenized in a thread: `async for chunk in await llm.aopen_stream(prompt)`.

        What is wrong with the prompt or the options is raised where this is awaited.
        """
        used_cancel = given_or_own(cancel)
        given: Prompt = copy(prompt) if isinstance(prompt, list) else prompt  # which may be changed meanwhile
        request = await self.runner.make(lambda: self.request(given, sampling, **options))
        return self.runner.astream(request, used_cancel)

    @lists_options(PromptOptions)
    def astream_n(
        self,
        prompt: Prompt,
        n: int,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> AsyncGenerator[tuple[int, Chunk], None]:
        """As stream_n(), for `async for`."""
        return self.runner.astream_all(self.requests(prompt, n, sampling, **options), given_or_own(cancel))

    @lists_options(PromptOptions)
    async def agenerate_batch(
        self,
        prompts: Iterable[Prompt],
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> list[Completion]:
        """As generate_batch(), without blocking the event loop. Cancelling the task ends all of them."""
        return await run_in_thread(lambda own: self.generate_batch(prompts, sampling, cancel=own, **options), cancel)

    @lists_options(PromptOptions)
    async def agenerate_n(
        self,
        prompt: Prompt,
        n: int,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> list[Completion]:
        """As generate_n(), without blocking the event loop. Cancelling the task ends it."""
        return await run_in_thread(lambda own: self.generate_n(prompt, n, sampling, cancel=own, **options), cancel)

    @lists_options(PromptOptions, without=SAMPLING | BEAMLESS)
    async def abeam_search(
        self,
        prompt: Prompt,
        beams: int,
        *,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> list[Completion]:
        """As beam_search(), without blocking the event loop. Cancelling the task ends it."""

        def search(own: Cancel) -> list[Completion]:
            return self.beam_search(prompt, beams, length_penalty=length_penalty, early_stopping=early_stopping,
                                    cancel=own, **options)  # fmt: skip

        return await run_in_thread(search, cancel)

    def embed(
        self,
        texts: Sequence[str],
        *,
        kind: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: bool = False,
    ) -> F32:
        """The vectors of texts by an embedding model, a row each: an array of float32, [texts, dimensions].

        kind: "query" or "document" for what is looked for and what is looked through, or another of the prompts that
        the model was published with, which comes in front of each text; None: its usual one, mostly none.
        dimensions: truncate the vectors to this number of values, for Matryoshka models.
        normalize: give vectors of the length 1, or as they are; None: as the model was published.
        truncate: leave out the end of a text of too many tokens; False: raise ContextFull, which names it.
        Raises ValueError for a model that is no embedding model.
        """
        encoder = self._encoder("an embedding model")
        return encoder.embed(texts, kind=kind, dimensions=dimensions, normalize=normalize, truncate=truncate)

    async def aembed(
        self,
        texts: Sequence[str],
        *,
        kind: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: bool = False,
    ) -> F32:
        """As embed(), without blocking the event loop. Cancelling the task ends it."""
        encoder = self._encoder("an embedding model")
        return await run_in_thread(
            lambda own: encoder.embed(texts, kind=kind, dimensions=dimensions, normalize=normalize, truncate=truncate,
                                    is_cancelled=lambda: own.cancelled)
        )  # fmt: skip

    def rerank(
        self, query: str, documents: Sequence[str], *, top: int | None = None, truncate: bool = False
    ) -> list[Ranked]:
        """How well documents fit a query by a reranker: their places and scores, the best first.

        top: only the best `top`. truncate: as embed() has it, for a query and a document together.
        Raises ValueError for a model that is no reranker.
        """
        return self._encoder("a reranker").rerank(query, documents, top=top, truncate=truncate)

    async def arerank(
        self, query: str, documents: Sequence[str], *, top: int | None = None, truncate: bool = False
    ) -> list[Ranked]:
        """As rerank(), without blocking the event loop. Cancelling the task ends it."""
        encoder = self._encoder("a reranker")
        return await run_in_thread(
            lambda own: encoder.rerank(query, documents, top=top, truncate=truncate, is_cancelled=lambda: own.cancelled)
        )

    def conversation(
        self,
        system: str | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        when_full: WhenFull = "error",
        adapter: str | None = None,
    ) -> Conversation:
        """A multi-turn chat: its history and KV cache, so that each turn computes only the new tokens.

        when_full: what is done when a turn does not fit any more (docs/guide-python.md#endless-chats). "error" raises
        ContextFull. "drop-oldest" leaves whole turns out of what the model sees. "shift" drops tokens, in the middle of
        a reply too, and keeps the KV of the others, which is approximate. The history stays whole; the tokens that the
        model sees no more are in Statistics.dropped_tokens.
        adapter: of every turn that names no other.
        Raises ValueError for "shift" where KV cannot be moved.
        """
        return Conversation(self, system, tools=tools, variables=variables, when_full=when_full, adapter=adapter)

    def open_conversation(self, path: str | os.PathLike[str], *, when_full: WhenFull | None = None) -> Conversation:
        """One that Conversation.save() wrote, tools as JSON schemas. when_full: None leaves it as it was.

        Its KV cache is ready when this model, device and version of the runtime have computed it. Otherwise a line is
        logged at INFO, and the next turn computes it. Raises PackageError for a damaged file, FileNotFoundError.
        """
        return Conversation.open(self, path, when_full=when_full)

    async def aopen_conversation(
        self, path: str | os.PathLike[str], *, when_full: WhenFull | None = None
    ) -> Conversation:
        """As open_conversation(), without blocking the event loop. Cancelling the task ends it."""
        return await run_in_thread(lambda own: Conversation.open(self, path, when_full=when_full, cancel=own))

    def _encoder(self, kind: str) -> Encoding:
        """Raises ValueError for a model of another kind, PackageError where its weights were changed on disk."""
        self.runner.check_files()
        return encoding_of(self._encoding, self.name, kind)

    @lists_options(PromptOptions)
    def request(self, prompt: Prompt, sampling: Sampling | None = None, **options: Unpack[PromptOptions]) -> Request:
        """What generate() would run: the prompt as token ids, every default filled in, checked."""
        request = self.build_request(prompt, sampling, self.context, **options)
        self.runner.check(request)
        return request

    @lists_options(PromptOptions)
    def requests(
        self, prompt: Prompt, n: int, sampling: Sampling | None = None, **options: Unpack[PromptOptions]
    ) -> list[Request]:
        """What generate_n() would run, as request() has it for generate()."""
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"n is {n!r}; expected a whole number, 1 or more.")
        used, rest = take_sampling(sampling, self.sampling, options)
        seeds = [None if used.seed is None else used.seed + place for place in range(n)]
        return reject_first_only([self.request(prompt, replace(used, seed=seed), **rest) for seed in seeds])

    @lists_options(PromptOptions)
    def build_request(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        limit: int | None = None,
        **options: Unpack[PromptOptions],
    ) -> Request:
        """As request(), without the checks: the prompt may still be shortened.

        limit: raises ContextFull for a text of more than twice as many tokens; None: it is tokenized whatever it has.
        """
        if self._encoding is not None:
            raise ValueError(f"'{self.name}' {self._encoding.can_do}; it generates no text.")
        used, rest = take_sampling(sampling, self.sampling, options)
        return self._builder.request(prompt, used, limit, **rest)

    def release(self) -> None:
        """Frees the KV cache that waits for the next call, and the prefix cache in memory."""
        self.runner.call(self.runner.sequences.release)

    def close(self) -> None:
        """Frees weights and KV caches. A generation that still runs ends as cancelled, at its next step.

        Twice is fine.
        """
        self.runner.close()
        if self._own_draft is not None:
            self._own_draft.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Model:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self.runner.sequences.is_closed else f"on {self.device.name}"
        return f"<embedllm.Model '{self.name}' {where}, context {self.context}>"

"""Model: joins package, engine, tokenizer and template into what an application calls."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, Unpack, cast

from embedllm.async_stream import AsyncStream
from embedllm.backends.base import Device, Engine
from embedllm.batch import run_batch
from embedllm.beam_runner import BEAMLESS
from embedllm.chat import ChatTemplate, Message, Tool, tool_schemas
from embedllm.constraint import Constraint
from embedllm.decode import Cancel, Chunk, Statistics
from embedllm.errors import TemplateError
from embedllm.forbidden import spelled
from embedllm.options import PromptOptions, Speculate
from embedllm.package import Package
from embedllm.prefixes import Prefixes
from embedllm.prompt import ForTemplate, Prompt, are_messages, check_messages, token_ids
from embedllm.runner import Request, Runner
from embedllm.sampling import Picked, Sampling
from embedllm.settings import Defaults
from embedllm.state_kind import model_kind
from embedllm.structured import Grammars, ResponseFormat, grammar_source
from embedllm.text import ModelCodec
from embedllm.tool_calls import ToolCall, assistant_message, for_template, tool_parameters
from embedllm.tool_calls_formats import ToolFormat, format_of
from embedllm.tool_calls_reply import reply_marks, reply_reader
from embedllm.tool_choice import call_grammar, is_forced

if TYPE_CHECKING:
    from embedllm.chat import JSON
    from embedllm.conversation import Conversation
    from embedllm.fit import Fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole reply."""

    text: str  # the answer
    tokens: tuple[int, ...]  # generated, the stop token among them
    logprobs: tuple[float, ...]  # of each token, natural log, in the model's own distribution
    top_logprobs: tuple[tuple[Picked, ...], ...]  # per token, when asked for
    finish_reason: str  # "stop", "length", "context" or "cancelled"
    stopped_by: str | int | None  # the stop string or stop token
    statistics: Statistics
    reasoning: str = ""  # what the model thought before it
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def message(self) -> dict[str, JSON]:
        """The reply as a message to append to a conversation, with its reasoning and tool calls."""
        return assistant_message(self.text, self.reasoning, self.tool_calls)


class Model:
    """A loaded model. May be used from several threads; each running generation has a KV cache of its own.

    A context manager; close() frees the memory.
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
        draft: Model | None = None,
        owns_draft: bool = False,
        memory: Fit | None = None,
        prefixes: Prefixes | None = None,  # None: no prefix cache
        settings: str = "",  # what else the numbers depend on, of what load() was given
    ) -> None:
        """draft: guesses for this one, with the same vocabulary. owns_draft: this one closes it."""
        self.package = package
        self.tokenizer = tokenizer
        self.sampling = defaults.sampling
        self.context = engine.context  # the most tokens that prompt and reply can have together
        self.memory = memory  # what it was expected to need and what was free, before it was loaded; None: in a browser
        guessing = None if draft is None else draft.runner
        self.runner = Runner(engine, self.tokenizer, draft=guessing, prefixes=prefixes)
        self._max_tokens = defaults.max_tokens
        self._template = template
        self._grammars = grammars
        self._kind_of = package, engine.device, settings
        self._tool_format: ToolFormat | None = None
        self._own_draft = draft if owns_draft else None

    @property
    def name(self) -> str:
        return self.package.name

    @property
    def device(self) -> Device:
        return self.runner.engine.device

    @cached_property
    def kind(self) -> dict[str, str]:
        """What a saved KV has to be of, to be used by this model."""
        return model_kind(*self._kind_of)

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
        template, written = self._chat_template(), self._written()
        shown = for_template(messages, arguments_as_text=written.arguments_as_text, one_call=written.one_call)
        return template.render(shown, tools=tools, documents=documents, variables=variables,
                               continue_final_message=continue_final_message)  # fmt: skip

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
        sampling: None takes the model's own defaults (`self.sampling`).
        cancel: a switch that ends it from another thread.
        The options, by name:
        max_tokens: None takes the model's default, or what is left of the context.
        min_tokens: before so many no stop token comes; a stop string or a grammar still ends the reply.
        stop: strings that end the reply, and are not part of it. stop_tokens: None takes the model's own.
        A stop string that is one special token, such as "<|im_end|>", stands for that token.
        logprobs: how many of the most probable tokens to report for each step.
        response_format: what the reply shall be: OpenAI's object, or a pydantic class, a compiled regex, a list of
        texts to choose from, a grammar (docs/guide-python.md#structured-output). The text fulfils it when finish_reason
        is "stop" and no stop string ended it.
        speculate: what guesses the next tokens, so that several are computed at once: "lookup" (the text so far),
        "draft" (the draft model), "off" or None; "auto" is both where there is a draft model, else "lookup" for replies
        that are drawn without a seed, on devices where it was measured to pay. The reply follows the same rule, but
        steps of several tokens round otherwise (docs/numerics.md).
        tools, variables, documents, continue_final_message: for the chat template; see prompt().
        tool_choice: "auto"; "none", as if there were no tools; "required" or a tool's name, when the reply is one call.
        special: the reply as it is written, special tokens and all: neither reasoning nor tool calls are parted from
        the text then, nor are they from the reply to a prompt that is no messages.
        Raises ContextFull when the prompt leaves no room for a token; nothing is cut off. ValueError for a
        response_format that cannot be followed exactly.
        """
        return collect(self.stream(prompt, sampling, cancel=cancel, **options))

    def generate_batch(
        self,
        prompts: Iterable[Prompt],
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> list[Completion]:
        """As generate() for each of several prompts, in their order, several at once where the device gains by it.

        On `cpu` the steps of up to 16 replies are one run, which reads the weights once (docs/performance.md): so are
        those of any calls from several threads or tasks. When one fails the others are ended and its error is raised.
        """
        if isinstance(prompts, str):
            raise ValueError("generate_batch takes a list of prompts, found one text; use generate for it.")
        requests = [self.request(prompt, sampling, **options) for prompt in prompts]

        def run(request: Request, switch: Cancel) -> Completion:
            return collect(self.runner.stream(request, switch))

        return run_batch(requests, run, cancel or Cancel(), parallel=self.runner.parallel)

    def generate_n(
        self,
        prompt: Prompt,
        n: int,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> list[Completion]:
        """So many continuations of one prompt, which is computed once; see generate().

        Those after the first have the seeds that follow on the given one.
        """
        if n < 1:
            raise ValueError(f"n is {n}; expected 1 or more.")
        used, cancel = sampling or self.sampling, cancel or Cancel()
        seeds = [None if used.seed is None else used.seed + place for place in range(n)]
        return [self.generate(prompt, replace(used, seed=seed), cancel=cancel, **options) for seed in seeds]

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
        """The most probable continuations of a prompt that following so many at once finds, best first.

        length_penalty: a reply's score is its log probability over its length to this power.
        early_stopping: True ends it when so many replies are found, False when none that runs scores higher as it is,
        "never" when none can at any length. options: as of generate(), but for those that choose or cut single tokens.
        """
        if idle := [name for name in options if name in BEAMLESS]:
            raise ValueError(f"beam_search has no '{idle[0]}'; leave it out, or use generate.")
        request = self.request(prompt, Sampling(), **options)
        return [
            Completion(
                text=self.tokenizer.decode(told.text_tokens, special=request.special),
                tokens=told.tokens,
                logprobs=told.logprobs,
                top_logprobs=(),
                finish_reason=told.finish_reason,
                stopped_by=told.stopped_by,
                statistics=told.statistics,
            )
            for told in self.runner.beam_search(request, cancel or Cancel(), beams=beams, length_penalty=length_penalty,
                                                early_stopping=early_stopping)
        ]  # fmt: skip

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
        return self.runner.stream(request, cancel or Cancel())

    async def agenerate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> Completion:
        """As generate(), without blocking the event loop."""
        chunks = self.astream(prompt, sampling, cancel=cancel, **options)
        return collect([chunk async for chunk in chunks])

    def astream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[PromptOptions],
    ) -> AsyncStream:
        """As stream(), for `async for`: the model computes beside the event loop. Cancelling the task interrupts it."""
        request = self.request(prompt, sampling, **options)
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

    def open_conversation(self, path: str | os.PathLike[str]) -> Conversation:
        """One that Conversation.save() wrote, tools as JSON schemas.

        Its KV cache is ready when this model, device and version of the runtime have computed it. Otherwise a line is
        logged at INFO, and the next turn computes it. Raises PackageError for a damaged file, FileNotFoundError.
        """
        from embedllm.conversation import Conversation

        return Conversation.open(self, path)

    def request(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        min_tokens: int = 0,
        stop: str | Sequence[str] | None = (),
        stop_tokens: Sequence[int] | None = None,
        logprobs: int = 0,
        speculate: Speculate | None = "auto",
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        documents: Sequence[Mapping[str, JSON]] | None = None,
        continue_final_message: bool = False,
        special: bool = False,
        response_format: ResponseFormat | None = None,
        tool_choice: str = "auto",
    ) -> Request:
        """What generate() would run: the prompt as token ids, every default filled in, checked."""
        used = None if tool_choice == "none" else tools
        template = ForTemplate(used, variables, documents, continue_final_message)
        tokens, written = self._tokens(prompt, template)
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        ends = frozenset(self.package.stop_tokens if stop_tokens is None else stop_tokens) | self._special_tokens(stops)
        request = Request(
            prompt=tokens,
            sampling=spelled(sampling or self.sampling, partial(self.tokenizer.encode, special=False)),
            max_tokens=self._max_tokens if max_tokens is None else max_tokens,
            min_tokens=min_tokens,
            stop=stops,
            stop_tokens=ends,
            constraint=self._constraint(response_format, tool_choice, used, ends),
            top_count=logprobs,
            special=special,
            speculate=speculate or "off",
        )
        if written is not None and not special and response_format is None:
            request = self._reading(request, written, used)
        self.runner.check(request)
        return request

    def release(self) -> None:
        """Frees the KV cache that waits for the next call, and the prefix cache in memory."""
        self.runner.sequences.release()

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

    def __repr__(self) -> str:
        where = "closed" if self.runner.sequences.is_closed else f"on {self.device.name}"
        return f"<embedllm.Model '{self.name}' {where}, context {self.context}>"

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            self._template = ChatTemplate.open(self.package.folder)
        return self._template

    def _written(self) -> ToolFormat:
        """How the model writes tool calls."""
        if self._tool_format is None:
            self._tool_format = format_of(self._chat_template().templates.values())
        return self._tool_format

    def _reading(self, request: Request, written: str, tools: Sequence[Tool] | None) -> Request:
        """The request with what parts its reply. written: the prompt."""
        templates = list(self._chat_template().templates.values())
        parameters = tool_parameters(tool_schemas(tools)) if tools else None
        marks = reply_marks(self._written(), templates, has_tools=parameters is not None)
        reader = reply_reader(self._written(), templates, written if request.constraint is None else "", parameters)
        return replace(request, reader=reader, kept=frozenset(self._special_tokens(marks)))

    def _constraint(
        self,
        response_format: ResponseFormat | None,
        tool_choice: str,
        tools: Sequence[Tool] | None,
        stop_tokens: frozenset[int],
    ) -> Constraint | None:
        source = grammar_source(response_format)
        if is_forced(tool_choice):
            if source is not None:
                raise ValueError(
                    f"tool_choice {tool_choice!r} and response_format cannot both be followed; leave one out."
                )
            parameters = tool_parameters(tool_schemas(tools)) if tools else None
            source = call_grammar(tool_choice, self._written(), parameters, self._special_token)
        if source is None:
            return None
        if self._grammars is None:
            raise ValueError("response_format is not followed here yet; in a browser, EmbedLLM of JavaScript does.")
        return self._grammars.constraint(source, stop_tokens)

    def _special_token(self, text: str) -> int | None:
        token = self.tokenizer.token_id(text)
        return token if token in self.tokenizer.special_tokens else None

    def _special_tokens(self, strings: Sequence[str]) -> set[int]:
        """The special tokens among stop strings or marks: their text never comes by itself."""
        found = {self._special_token(string) for string in strings if isinstance(string, str)}
        return {token for token in found if token is not None}

    def _tokens(self, prompt: Prompt, template: ForTemplate) -> tuple[list[int], str | None]:
        """The prompt as token ids, and what the template wrote.

        A template writes the special tokens itself; plain text gets the tokenizer's.
        """
        if isinstance(prompt, Mapping) or are_messages(prompt):
            check_messages(prompt)
            messages = cast("Sequence[Message]", prompt)
            text = self.prompt(messages, tools=template.tools, variables=template.variables,
                               documents=template.documents,
                               continue_final_message=template.continue_final_message)  # fmt: skip
            return self.tokenizer.encode(text, special=False), text
        if template != ForTemplate():
            raise ValueError(
                "tools, variables, documents and continue_final_message go through the chat template; give the prompt "
                "as messages."
            )
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, special=True), None
        return token_ids(prompt), None


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
        reasoning="".join(chunk.reasoning for chunk in kept),
        tool_calls=tuple(call for chunk in kept for call in chunk.tool_calls),
    )

"""From what an application asks to a Request: templates, tokens, grammars, and how the reply is read."""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from embedllm.backends.images import place_images
from embedllm.errors import TemplateError
from embedllm.generation.options import Speculate
from embedllm.generation.request import Request
from embedllm.images.parts import has_images
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.vision import DynamicVision, Vision
from embedllm.package.lora.adapter import Adapters, present
from embedllm.package.package import Package
from embedllm.sampling.bans import spelled
from embedllm.sampling.constraint import Constraint
from embedllm.sampling.options import Sampling
from embedllm.sampling.structured.response_format import Grammars, ResponseFormat, grammar_source
from embedllm.text.chat_template import ChatTemplate, Message, Tool, tool_schemas
from embedllm.text.content_marks import ContentMarks, RenderedPrompt
from embedllm.text.prompt import (
    Prompt,
    TemplateOptions,
    are_messages,
    check_messages,
    check_roles,
    plain_content,
    texts_as_parts,
    token_ids,
)
from embedllm.text.prompt_length import check_known, check_length
from embedllm.text.protocols import ModelCodec, special_texts
from embedllm.text.stream import StopStrings
from embedllm.tools.calls import for_template, tool_parameters
from embedllm.tools.optional_calls import OptionalCalls
from embedllm.tools.reply_parser import ReplyFormat, reply_marks, reply_reader
from embedllm.tools.selection import reply_format
from embedllm.tools.tool_choice import call_grammar, choice_name, is_forced

if TYPE_CHECKING:
    from embedllm.images.processors import Processor
    from embedllm.images.prompt import PreparedImage
    from embedllm.images.sources import ImageSource
    from embedllm.text.chat_template import JSON

_log = logging.getLogger("embedllm")


class RequestBuilder:
    """Makes requests of one model."""

    def __init__(
        self,
        package: Package,
        tokenizer: ModelCodec,
        max_tokens: int | None,
        *,
        template: ChatTemplate | None,
        grammars: Grammars | None,
        adapters: Adapters | None = None,
        parse_special: bool = False,
    ) -> None:
        self._package = package
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._template = template
        self._grammars = grammars
        self._adapters = adapters
        self._marks = None if parse_special else ContentMarks(special_texts(tokenizer))
        self._reply_format: ReplyFormat | None = None
        self._optional_calls: OptionalCalls | None = None
        self._processor: Processor | None = None
        self._warned: set[str] = set()

    @property
    def can_chat(self) -> bool:
        """Whether the model has a chat template."""
        try:
            return bool(self._chat_template())
        except TemplateError:
            return False

    def prompt(self, messages: Sequence[Message], options: TemplateOptions) -> RenderedPrompt:
        """See Model.prompt()."""
        return self._render(messages, options)[0]

    def _render(
        self, messages: Sequence[Message], options: TemplateOptions
    ) -> tuple[RenderedPrompt, list[ImageSource]]:
        """What the chat template writes, with a placeholder for each image, and the images."""
        check_messages(messages)
        template, written = self._chat_template(), self._format()
        messages, sources = self._split_images(messages)
        tools = options.tools
        described: Sequence[Mapping[str, JSON]] = ()
        if tools and written.gaps.hide_tools_of(messages):
            described, tools = tool_schemas(tools), None
            self._warn_once("the chat template of '%s' does not show tools: they are described in the %s message%s",
                            "system" if written.gaps.has_system else "first user",
                            ", and calls are plain JSON" if written.gaps.hides_calls else "")  # fmt: skip
        if options.documents and not template.takes_documents:
            self._warn_once("the chat template of '%s' does not show documents: the model does not see them; put them "
                            "into a message")  # fmt: skip
        form = template.content_form(with_tools=tools is not None)
        messages = plain_content(messages, joins_parts=form == "text" and not sources)
        messages = written.gaps.filled(messages, described)
        if form == "parts":
            messages = texts_as_parts(messages)
        shown = for_template(messages, arguments_as_text=written.arguments_as_text, one_call=written.one_call)
        rendered = template.render_marked(shown, self._marks, tools=tools, documents=options.documents,
                                          variables=options.variables,
                                          continue_final_message=options.continue_final_message)  # fmt: skip
        check_roles(messages, rendered.text, template)
        return rendered, sources

    def _split_images(self, messages: Sequence[Message]) -> tuple[Sequence[Message], list[ImageSource]]:
        """The messages with placeholders for templates, and their images. Raises ValueError if the model takes none."""
        if not has_images(messages):
            return messages, []
        if self._vision is None:
            raise ValueError(
                f"'{self._package.name}' reads text only: it takes no images. Leave them out, or load a "
                "vision-language model; export it again where its folder was written as a text decoder "
                "(docs/guide-images.md)."
            )
        from embedllm.images.prompt import split_images  # loaded for prompts with images only

        return split_images(messages)

    def prompt_tokens(self, messages: Sequence[Message], options: TemplateOptions) -> list[int]:
        """The token ids of prompt()."""
        return self._encode(*self._render(messages, options), None)[0]

    def request(
        self,
        prompt: Prompt,
        sampling: Sampling,
        limit: int | None = None,
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
        tool_choice: str | Mapping[str, JSON] = "auto",
        priority: int = 0,
        timeout: float | None = None,
        adapter: str | None = None,
    ) -> Request:
        """See Model.generate(). limit: raises ContextFull for a text of far more tokens, without tokenizing all."""
        choice = choice_name(tool_choice)
        used = None if choice == "none" else tools
        template = TemplateOptions(used, variables, documents, continue_final_message)
        tokens, written, images = self._tokens(prompt, template, limit)
        stops = _texts(stop)
        StopStrings(stops)  # raises for what is none
        ends = frozenset(self._package.stop_tokens if stop_tokens is None else self._tokens_of(stop_tokens))
        ends |= self._special_tokens(stops)
        request = Request(
            prompt=tokens,
            images=images,
            sampling=spelled(sampling, partial(self._tokenizer.encode, special=False)),
            max_tokens=self._max_tokens if max_tokens is None else max_tokens,
            min_tokens=min_tokens,
            stop=stops,
            stop_tokens=ends,
            constraint=self._constraint(
                response_format,
                choice,
                used,
                ends,
                written or "",
                is_free=special or continue_final_message or written is None,
            ),
            top_count=logprobs,
            special=special,
            is_continuation=written is None or continue_final_message,
            speculate=speculate or "off",
            priority=priority,
            timeout_s=math.inf if timeout is None else timeout,
            adapter=None if adapter is None else present(self._adapters).named(adapter),
        )
        if written is not None and not special and response_format is None:
            request = self._reading(request, written, used)
        return request

    def _tokens_of(self, stop_tokens: Iterable[int]) -> list[int]:
        """Stop tokens of a caller. Raises ValueError for one that the vocabulary does not have."""
        size = self._package.architecture.vocabulary
        try:
            tokens = [operator.index(token) for token in stop_tokens]
        except TypeError:
            tokens = [-1]
        if any(not 0 <= token < size for token in tokens):
            raise ValueError(f"stop_tokens is {stop_tokens!r}; expected a list of token ids, 0 to {size - 1}.")
        return tokens

    @property
    def _vision(self) -> Vision | DynamicVision | None:
        architecture = self._package.architecture
        return architecture.vision if isinstance(architecture, Decoder) else None

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            self._template = ChatTemplate.open(self._package.folder)
        return self._template

    def _format(self) -> ReplyFormat:
        """How the model writes tool calls and reasoning."""
        if self._reply_format is None:
            self._reply_format = reply_format(self._chat_template())
        return self._reply_format

    def _warn_once(self, message: str, *details: str) -> None:
        """Says what the chat template leaves out. message: begins with the place of the model's name."""
        if message not in self._warned:
            self._warned.add(message)
            _log.warning(message, self._package.name, *details)

    def _reading(self, request: Request, written: str, tools: Sequence[Tool] | None) -> Request:
        """The request with what parts its reply. written: the prompt."""
        parameters = tool_parameters(tool_schemas(tools)) if tools else None
        marks = reply_marks(self._format(), has_tools=parameters is not None)
        reader = reply_reader(self._format(), written, parameters)
        return replace(request, reader=reader, mark_tokens=frozenset(self._special_tokens(marks)))

    def _constraint(
        self,
        response_format: ResponseFormat | None,
        tool_choice: str,
        tools: Sequence[Tool] | None,
        stop_tokens: frozenset[int],
        prompt: str,
        *,
        is_free: bool,
    ) -> Constraint | None:
        """is_free: the reply may begin with anything, a part of a call too."""
        source = grammar_source(response_format)
        if is_forced(tool_choice):
            if source is not None:
                raise ValueError(
                    f"tool_choice {tool_choice!r} and response_format cannot both be followed; leave one out."
                )
            parameters = tool_parameters(tool_schemas(tools)) if tools else None
            source = call_grammar(
                tool_choice, self._format(), parameters, self._special_token, prompt=prompt, stop_tokens=stop_tokens
            )
        elif source is None and tools and not is_free and self._grammars is not None:
            if self._optional_calls is None:
                self._optional_calls = OptionalCalls(
                    self._package.name, self._format(), self._special_token, self._grammars
                )
            return self._optional_calls.constraint(tool_parameters(tool_schemas(tools)), stop_tokens)
        if source is None:
            return None
        if self._grammars is None:
            raise ValueError("response_format is not followed here yet; in a browser, EmbedLLM of JavaScript does.")
        return self._grammars.constraint(source, stop_tokens)

    def _special_token(self, text: str) -> int | None:
        token = self._tokenizer.token_id(text)
        return token if token in self._tokenizer.special_tokens else None

    def _special_tokens(self, strings: Sequence[str]) -> set[int]:
        """The special tokens among stop strings or marks: their text never comes by itself."""
        tokens = {self._special_token(string) for string in strings}
        return {token for token in tokens if token is not None}

    def _tokens(
        self, prompt: Prompt, template: TemplateOptions, limit: int | None
    ) -> tuple[list[int], str | None, tuple[PreparedImage, ...]]:
        """The prompt as token ids, what the template wrote, and the images.

        A template writes the special tokens itself, and those in messages are text; plain text gets the tokenizer's.
        """
        if isinstance(prompt, Mapping) or are_messages(prompt):
            written, sources = self._render(cast("Sequence[Message]", prompt), template)
            self._check_length(written.text, limit)
            tokens, images = self._encode(written, sources, limit)
            return tokens, written.text, images
        if template != TemplateOptions():
            raise ValueError(
                "tools, variables, documents and continue_final_message go through the chat template; give the prompt "
                "as messages."
            )
        if isinstance(prompt, str):
            self._check_length(prompt, limit)
            tokens = self._tokenizer.encode(prompt, special=True)
            self._check_known(tokens)
            return tokens, None, ()
        return token_ids(prompt), None, ()

    def _encode(
        self, written: RenderedPrompt, sources: Sequence[ImageSource], limit: int | None
    ) -> tuple[list[int], tuple[PreparedImage, ...]]:
        """The tokens of what the template wrote, with the ids of its images, and these."""
        if not sources or (vision := self._vision) is None:
            tokens = self._tokenizer.encode_prompt(written)
            self._check_known(tokens)
            return tokens, ()
        from embedllm.images.processors import open_processor
        from embedllm.images.prompt import PreparedImage, check_count, expand

        if self._processor is None:
            self._processor = open_processor(self._package.folder, vision, self._tokenizer.named)
        images = tuple(PreparedImage(source, self._processor) for source in sources)
        check_count(images, limit)
        tokens = self._tokenizer.encode_prompt(expand(written, self._processor, sources))
        self._check_known(tokens, vision.image_token)
        return place_images(tokens, images, vision.image_token), images

    def _check_known(self, tokens: Sequence[int], image_token: int | None = None) -> None:
        check_known(tokens, self._tokenizer, self._package.architecture.vocabulary, image_token=image_token)

    def _check_length(self, text: str, limit: int | None) -> None:
        if limit is not None:
            check_length(text, self._tokenizer, limit)


def _texts(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple."""
    if isinstance(stop, str):
        return (stop,)
    if not isinstance(stop, Iterable | None):
        raise ValueError(f"stop is {stop!r}; expected a text, a list of texts or None.")
    return tuple(stop or ())

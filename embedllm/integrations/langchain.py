"""A chat model and embeddings for LangChain.

from embedllm.integrations.langchain import ChatEmbedLLM

chat = ChatEmbedLLM(model="demo", temperature=0)
print(chat.invoke("list files by size").text)
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.embeddings import Embeddings
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel, ConfigDict, Field

from embedllm.generation.chunk import Chunk, Statistics
from embedllm.integrations.shared_models import drop_none, in_thread, json_format, shared_model
from embedllm.model.model import Model
from embedllm.tools.calls import ToolCall

_ELSEWHERE = ("tool_call", "invalid_tool_call", "reasoning")  # parts of a reply that its message has in other fields


class ChatEmbedLLM(BaseChatModel):
    """A model that runs in this process. Streams, calls tools, follows schemas, and counts tokens.

    Any other option of Model.generate() goes into `options`, or by name into a call: chat.invoke(text, min_p=0.1).
    Raises what load() and Model.generate() raise.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: str = "demo"  # as load() takes it: a folder, a GGUF file, "org/name"
    device: str | None = None
    loaded: Model | None = Field(default=None, exclude=True, repr=False)  # a model of yours, in place of `model`
    temperature: float | None = None  # None, here and below: the model's own
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def _llm_type(self) -> str:
        return "embedllm"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "device": self.device, **self._defaults()}

    def _defaults(self) -> dict[str, Any]:
        named = drop_none(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, seed=self.seed,
                          max_tokens=self.max_tokens, stop=self.stop)  # fmt: skip
        return {**self.options, **named}

    def _loaded_model(self) -> Model:
        if self.loaded is None:
            self.loaded = shared_model(self.model, self.device)
        return self.loaded

    def _options(self, stop: list[str] | None, options: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._defaults(), **drop_none(stop=stop), **options}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        model = self._loaded_model()
        reply = model.chat(_messages(messages), **self._options(stop, kwargs))
        return _result(reply.text, reply.reasoning, reply.tool_calls, reply.statistics, reply.finish_reason, model)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        model = await in_thread(self._loaded_model)
        reply = await model.agenerate(_messages(messages), **self._options(stop, kwargs))
        return _result(reply.text, reply.reasoning, reply.tool_calls, reply.statistics, reply.finish_reason, model)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        model = self._loaded_model()
        begun: set[int] = set()
        for chunk in model.stream(_messages(messages), **self._options(stop, kwargs)):
            piece = _chunk(chunk, model, begun)
            if run_manager is not None:
                run_manager.on_llm_new_token(piece.text, chunk=piece)
            yield piece

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        model = await in_thread(self._loaded_model)
        begun: set[int] = set()
        async for chunk in await model.aopen_stream(_messages(messages), **self._options(stop, kwargs)):
            piece = _chunk(chunk, model, begun)
            if run_manager is not None:
                await run_manager.on_llm_new_token(piece.text, chunk=piece)
            yield piece

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | dict[str, Any] | bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """A model that may call these tools. tool_choice: as Model.generate() has it; "any" and True: "required"."""
        choice = "required" if tool_choice in ("any", True) else tool_choice or None
        shown = [convert_to_openai_tool(tool) for tool in tools]
        return cast("Runnable[LanguageModelInput, AIMessage]",
                    self.bind(tools=shown, **drop_none(tool_choice=choice), **kwargs))  # fmt: skip

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """A model whose every reply follows the schema, token by token: a pydantic class, TypedDict or JSON schema.

        method: "json_schema", which it always is, and strict; other methods are refused. A reply that max_tokens or the
        context has cut off raises OutputParserException.
        """
        method, _ = kwargs.pop("method", "json_schema"), kwargs.pop("strict", None)
        if method != "json_schema":
            raise ValueError(f"method is {method!r}; expected 'json_schema', which every model here follows exactly.")
        if kwargs:
            raise ValueError(f"with_structured_output has no '{next(iter(kwargs))}'.")
        shape = convert_to_json_schema(schema)
        is_class = isinstance(schema, type) and is_basemodel_subclass(schema)
        parser: Any = PydanticOutputParser(pydantic_object=cast("type", schema)) if is_class else _WholeJson()
        response_format = schema if hasattr(schema, "model_json_schema") else json_format(shape)
        traced = {"kwargs": {"method": method, "strict": True}, "schema": shape}
        model = self.bind(response_format=response_format, ls_structured_output_format=traced)
        if not include_raw:
            return model | parser
        parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")


class _WholeJson(JsonOutputParser):
    """Takes a reply that is whole; LangChain's own parser closes what was cut off."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        if partial:
            return super().parse_result(result, partial=True)
        try:
            return json.loads(result[0].text)
        except ValueError as error:
            raise OutputParserException(
                f"the reply is no whole JSON value ({error}): max_tokens or the context has cut it off. Raise "
                "max_tokens, or bound the lengths in the schema.",
                llm_output=result[0].text,
            ) from error


class EmbedLLMEmbeddings(BaseModel, Embeddings):
    """Vectors of an embedding model that runs in this process. Documents and queries get the model's own prompts."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: str  # as load() takes it
    device: str | None = None
    loaded: Model | None = Field(default=None, exclude=True, repr=False)  # a model of yours, in place of `model`
    dimensions: int | None = None  # None: all
    truncate: bool = False  # of a text that is too long: leave its end out, in place of ContextFull

    def _loaded_model(self) -> Model:
        if self.loaded is None:
            self.loaded = shared_model(self.model, self.device)
        return self.loaded

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._embed(texts, "document")

    def embed_query(self, text: str) -> list[float]:
        return self._embed([text], "query")[0]

    def _embed(self, texts: list[str], kind: str) -> list[list[float]]:
        if not texts:
            return []
        model = self._loaded_model()
        return model.embed(texts, kind=kind, dimensions=self.dimensions, truncate=self.truncate).tolist()


def _messages(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """LangChain's messages in OpenAI's form, with the reasoning of earlier replies."""
    shown = cast("list[dict[str, Any]]", convert_to_openai_messages(list(messages)))
    for message, entry in zip(messages, shown, strict=True):
        if isinstance(message, AIMessage) and isinstance(entry.get("content"), list):
            entry["content"] = [part for part in entry["content"] if part["type"] not in _ELSEWHERE]
        if isinstance(message, AIMessage) and "reasoning_content" in message.additional_kwargs:
            entry["reasoning_content"] = message.additional_kwargs["reasoning_content"]
    return shown


def _result(
    text: str,
    reasoning: str,
    calls: Sequence[ToolCall],
    statistics: Statistics,
    finish_reason: str,
    model: Model,
) -> ChatResult:
    message = AIMessage(
        content=text,
        additional_kwargs={"reasoning_content": reasoning} if reasoning else {},
        tool_calls=[
            tool_call(name=call.name, args=dict(call.arguments), id=call.id) for call in calls if not call.problem
        ],
        invalid_tool_calls=[
            invalid_tool_call(name=call.name, args=call.text, id=call.id, error=call.problem)
            for call in calls
            if call.problem
        ],
        usage_metadata=_usage(statistics),
        response_metadata=_metadata(finish_reason, model),
    )
    return ChatResult(generations=[ChatGeneration(message=message)])


def _chunk(chunk: Chunk, model: Model, begun: set[int]) -> ChatGenerationChunk:
    """begun: the calls whose names were sent; LangChain joins the names of all pieces."""
    is_last = chunk.finish_reason is not None
    pieces = []
    for delta in chunk.call_deltas:
        name = None if delta.index in begun else delta.name
        begun.add(delta.index)
        pieces.append(tool_call_chunk(name=name, args=delta.arguments, id=delta.id, index=delta.index))
    message = AIMessageChunk(
        content=chunk.text,
        additional_kwargs={"reasoning_content": chunk.reasoning} if chunk.reasoning else {},
        tool_call_chunks=pieces,
        usage_metadata=_usage(chunk.statistics) if is_last else None,
        response_metadata=_metadata(chunk.finish_reason, model) if is_last else {},
        chunk_position="last" if is_last else None,
    )
    return ChatGenerationChunk(message=message)


def _usage(statistics: Statistics) -> UsageMetadata:
    prompt, reply = statistics.prompt_tokens, statistics.tokens
    return UsageMetadata(input_tokens=prompt, output_tokens=reply, total_tokens=prompt + reply,
                         input_token_details={"cache_read": statistics.cached_tokens})  # fmt: skip


def _metadata(finish_reason: str | None, model: Model) -> dict[str, Any]:
    return {"finish_reason": finish_reason, "model_name": model.name, "device": model.device.name}

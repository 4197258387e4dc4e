"""A language model and embeddings for LlamaIndex.

from embedllm.integrations.llama_index import EmbedLLM

llm = EmbedLLM(model="demo", temperature=0)
print(llm.complete("list files by size").text)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import BaseModel, Field, PrivateAttr
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools.types import BaseTool

from embedllm.generation.chunk import Chunk
from embedllm.integrations.shared_models import check_calls, drop_none, function_call, in_thread, shared_model, usage
from embedllm.model.model import Model
from embedllm.text.prompt import Prompt
from embedllm.tools.calls import ToolCall

T = TypeVar("T", bound=BaseModel)


class EmbedLLM(FunctionCallingLLM):
    """A model that runs in this process. Streams, calls tools, and follows pydantic classes exactly.

    Any other option of Model.generate() goes into `options`, or by name into a call.
    complete() sends the prompt as a user's message, if the model has a chat template.
    Raises what load() and Model.generate() raise.
    """

    model: str = Field(default="demo", description="As load() takes it: a folder, a GGUF file, org/name.")
    device: str | None = Field(default=None, description="None: the best one.")
    temperature: float | None = Field(default=None, description="None, here and below: the model's own.")
    top_p: float | None = Field(default=None)
    seed: int | None = Field(default=None)
    max_tokens: int | None = Field(default=None)
    options: dict[str, Any] = Field(default_factory=dict)

    _loaded: Model | None = PrivateAttr(default=None)

    def __init__(self, model: str = "demo", *, loaded: Model | None = None, **data: Any) -> None:
        """loaded: a model of yours, in place of `model`."""
        super().__init__(model=model, **data)
        self._loaded = loaded

    @classmethod
    def class_name(cls) -> str:
        return "EmbedLLM"

    @property
    def metadata(self) -> LLMMetadata:
        model = self._loaded_model()
        return LLMMetadata(
            context_window=model.context,
            num_output=self.max_tokens or -1,
            is_chat_model=model.can_chat,
            is_function_calling_model=model.can_chat,
            model_name=model.name,
        )

    def _loaded_model(self) -> Model:
        if self._loaded is None:
            self._loaded = shared_model(self.model, self.device)
        return self._loaded

    def _options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        named = drop_none(temperature=self.temperature, top_p=self.top_p, seed=self.seed, max_tokens=self.max_tokens)
        return {**self.options, **named, **options}

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        reply = _Reply()
        chunks = self._loaded_model().stream(_messages(messages), **self._options(kwargs))
        return [reply.chat(chunk) for chunk in chunks][-1]

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        model = await in_thread(self._loaded_model)
        reply = _Reply()
        chunks = await model.aopen_stream(_messages(messages), **self._options(kwargs))
        return [reply.chat(chunk) async for chunk in chunks][-1]

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        chunks = self._loaded_model().stream(_messages(messages), **self._options(kwargs))

        def replies() -> ChatResponseGen:
            reply = _Reply()
            for chunk in chunks:
                yield reply.chat(chunk)

        return replies()

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        model = await in_thread(self._loaded_model)
        chunks = await model.aopen_stream(_messages(messages), **self._options(kwargs))

        async def replies() -> ChatResponseAsyncGen:
            reply = _Reply()
            async for chunk in chunks:
                yield reply.chat(chunk)

        return replies()

    def _prompt(self, text: str, formatted: bool, model: Model) -> Prompt:
        return text if formatted or not model.can_chat else [{"role": "user", "content": text}]

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        model = self._loaded_model()
        reply = _Reply()
        chunks = model.stream(self._prompt(prompt, formatted, model), **self._options(kwargs))
        return [reply.completion(chunk) for chunk in chunks][-1]

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        model = await in_thread(self._loaded_model)
        chunks = await model.aopen_stream(self._prompt(prompt, formatted, model), **self._options(kwargs))
        reply = _Reply()
        return [reply.completion(chunk) async for chunk in chunks][-1]

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        model = self._loaded_model()
        chunks = model.stream(self._prompt(prompt, formatted, model), **self._options(kwargs))

        def replies() -> CompletionResponseGen:
            reply = _Reply()
            for chunk in chunks:
                yield reply.completion(chunk)

        return replies()

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:  # fmt: skip
        model = await in_thread(self._loaded_model)
        chunks = await model.aopen_stream(self._prompt(prompt, formatted, model), **self._options(kwargs))

        async def replies() -> CompletionResponseAsyncGen:
            reply = _Reply()
            async for chunk in chunks:
                yield reply.completion(chunk)

        return replies()

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        user_messages = (
            [ChatMessage(role=MessageRole.USER, content=user_msg)] if isinstance(user_msg, str) else [user_msg]
        )
        messages = [*(chat_history or []), *(message for message in user_messages if message is not None)]
        shown = [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools]
        choice = {"tool_choice": "required"} if tool_required else {}
        return {"messages": messages, **({"tools": shown} if shown else {}), **choice, **kwargs}

    def get_tool_calls_from_response(
        self,
        response: ChatResponse,
        error_on_no_tool_call: bool = True,
        **kwargs: Any,
    ) -> list[ToolSelection]:
        """Raises ValueError for a reply without a call, unless that is allowed."""
        blocks = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not blocks and error_on_no_tool_call:
            raise ValueError(f"the reply has no tool call; it says: {response.message.content!r}")
        return [
            ToolSelection(
                tool_id=block.tool_call_id or "",
                tool_name=block.tool_name,
                tool_kwargs=block.tool_kwargs if isinstance(block.tool_kwargs, dict) else {},
            )
            for block in blocks
        ]

    def structured_predict(
        self,
        output_cls: type[T],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> T:
        """An object of the class; the reply follows its schema token by token."""
        reply = self.chat(prompt.format_messages(**prompt_args), **self._structured(output_cls, llm_kwargs))
        return output_cls.model_validate_json(reply.message.content or "")

    async def astructured_predict(
        self,
        output_cls: type[T],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> T:
        """As structured_predict(), without blocking the event loop."""
        reply = await self.achat(prompt.format_messages(**prompt_args), **self._structured(output_cls, llm_kwargs))
        return output_cls.model_validate_json(reply.message.content or "")

    @staticmethod
    def _structured(output_cls: type[BaseModel], options: Mapping[str, Any] | None) -> dict[str, Any]:
        return {**(options or {}), "response_format": output_cls}


class EmbedLLMEmbedding(BaseEmbedding):
    """Vectors of an embedding model that runs in this process. Texts and queries get the model's own prompts."""

    model_name: str = Field(default="", description="As load() takes it.")
    device: str | None = Field(default=None, description="None: the best one.")
    dimensions: int | None = Field(default=None, description="None: all.")
    truncate: bool = Field(default=False, description="Of a text that is too long, leave the end out.")

    _loaded: Model | None = PrivateAttr(default=None)

    def __init__(self, model_name: str, *, loaded: Model | None = None, **data: Any) -> None:
        """loaded: a model of yours, in place of `model_name`."""
        super().__init__(model_name=model_name, **data)
        self._loaded = loaded

    @classmethod
    def class_name(cls) -> str:
        return "EmbedLLMEmbedding"

    def _loaded_model(self) -> Model:
        if self._loaded is None:
            self._loaded = shared_model(self.model_name, self.device)
        return self._loaded

    def _embed(self, texts: list[str], kind: str) -> list[list[float]]:
        model = self._loaded_model()
        return model.embed(texts, kind=kind, dimensions=self.dimensions, truncate=self.truncate).tolist()

    async def _aembed(self, texts: list[str], kind: str) -> list[list[float]]:
        model = await in_thread(self._loaded_model)
        return (await model.aembed(texts, kind=kind, dimensions=self.dimensions, truncate=self.truncate)).tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embed([query], "query")[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return (await self._aembed([query], "query"))[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embed([text], "document")[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aembed([text], "document"))[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._embed(texts, "document")

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await self._aembed(texts, "document")


def _messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    return [_message(message) for message in messages]


def _message(message: ChatMessage) -> dict[str, Any]:
    """OpenAI's form. Raises ValueError for a block that no model here takes."""
    shown: dict[str, Any] = {"role": str(message.role.value), "content": ""}
    for block in message.blocks:
        if isinstance(block, TextBlock):
            shown["content"] += block.text
        elif isinstance(block, ThinkingBlock):
            shown["reasoning_content"] = block.content
        elif isinstance(block, ToolCallBlock) and isinstance(block.tool_kwargs, dict):
            call = function_call(block.tool_call_id or "", block.tool_name, block.tool_kwargs)
            shown.setdefault("tool_calls", []).append(call)
        else:
            raise ValueError(f"a message has a {type(block).__name__}; models here take texts and tool calls only.")
    for name in ("tool_call_id", "name"):  # of a tool's result
        if name in message.additional_kwargs:
            shown[name] = message.additional_kwargs[name]
    return shown


@dataclass
class _Reply:
    """A reply as it comes: LlamaIndex wants all that there is of it with every piece."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def chat(self, chunk: Chunk) -> ChatResponse:
        """Raises ValueError for a tool call that cannot be run: LlamaIndex has no place for it."""
        self._add(chunk)
        check_calls(chunk.tool_calls)
        blocks: list[Any] = [ThinkingBlock(content=self.reasoning)] if self.reasoning else []
        blocks += [TextBlock(text=self.text)] if self.text else []
        blocks += [
            ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=dict(call.arguments))
            for call in self.calls
        ]
        message = ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks)
        return ChatResponse(message=message, delta=chunk.text, raw=_raw(chunk))

    def completion(self, chunk: Chunk) -> CompletionResponse:
        self._add(chunk)
        return CompletionResponse(text=self.text, delta=chunk.text, raw=_raw(chunk))

    def _add(self, chunk: Chunk) -> None:
        self.text += chunk.text
        self.reasoning += chunk.reasoning
        self.calls += chunk.tool_calls


def _raw(chunk: Chunk) -> dict[str, Any]:
    return {"finish_reason": chunk.finish_reason, "usage": usage(chunk.statistics)}

"""The classes for LlamaIndex, with the real library."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import embedllm
from embedllm.generation.chunk import Chunk, Statistics
from embedllm.tools.calls import ToolCall

pytest.importorskip("llama_index.core")
ours = import_module("embedllm.integrations.llama_index")

from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole, ToolCallBlock  # noqa: E402
from llama_index.core.prompts import PromptTemplate  # noqa: E402
from llama_index.core.tools import FunctionTool  # noqa: E402
from pydantic import BaseModel  # noqa: E402

ASK = "list files by size"


class Answer(BaseModel):
    safe: bool


def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


@pytest.fixture
def llm(demo: embedllm.Model) -> Any:
    return ours.EmbedLLM(loaded=demo, temperature=0, max_tokens=60)


def test_all_ways_to_ask_give_the_models_reply(llm: Any, demo: embedllm.Model) -> None:
    expected = demo.chat([{"role": "user", "content": ASK}], temperature=0, max_tokens=60).text
    said = [ChatMessage(content=ASK)]

    async def later() -> list[str]:
        streamed = [piece async for piece in await llm.astream_chat(said)]
        completed = [piece async for piece in await llm.astream_complete(ASK)]
        texts = [streamed[-1].message.content, completed[-1].text, "".join(piece.delta for piece in completed)]
        return [*texts, (await llm.achat(said)).message.content, (await llm.acomplete(ASK)).text]

    streamed, completed = list(llm.stream_chat(said)), list(llm.stream_complete(ASK))
    texts = [llm.chat(said).message.content, llm.complete(ASK).text, streamed[-1].message.content, completed[-1].text]
    assert {*texts, "".join(piece.delta for piece in streamed), *asyncio.run(later())} == {expected}
    assert streamed[-1].raw["finish_reason"] == "stop"


def test_a_formatted_prompt_is_continued_as_it_is(llm: Any, demo: embedllm.Model) -> None:
    assert llm.complete("Once", formatted=True, max_tokens=4).text == demo.generate(
        "Once", temperature=0, max_tokens=4
    ).text  # fmt: skip


def test_metadata_tells_the_context_and_that_it_chats(llm: Any, demo: embedllm.Model) -> None:
    assert (llm.metadata.context_window, llm.metadata.num_output) == (demo.context, 60)
    assert llm.metadata.is_chat_model
    assert llm.metadata.is_function_calling_model


def test_a_required_call_is_selected(llm: Any) -> None:
    tool = FunctionTool.from_defaults(weather)
    response = llm.chat_with_tools([tool], "How is Paris?", tool_required=True)
    (selection,) = llm.get_tool_calls_from_response(response)
    assert (selection.tool_name, list(selection.tool_kwargs)) == ("weather", ["city"])
    plain = llm.chat([ChatMessage(content=ASK)])
    assert llm.get_tool_calls_from_response(plain, error_on_no_tool_call=False) == []
    with pytest.raises(ValueError, match="no tool call"):
        llm.get_tool_calls_from_response(plain)


def test_calls_and_results_go_back_as_the_template_has_them() -> None:
    call = ToolCallBlock(tool_call_id="c1", tool_name="weather", tool_kwargs={"city": "Paris"})
    asked = ChatMessage(role=MessageRole.ASSISTANT, blocks=[call])
    answer = ChatMessage(role=MessageRole.TOOL, content="rain", additional_kwargs={"tool_call_id": "c1"})
    assert ours._messages([asked, answer]) == [
        {"role": "assistant", "content": "",
         "tool_calls": [{"id": "c1", "type": "function",
                         "function": {"name": "weather", "arguments": {"city": "Paris"}}}]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
    ]  # fmt: skip
    with pytest.raises(ValueError, match="ImageBlock"):
        ours._messages([ChatMessage(blocks=[ImageBlock(image=b"x")])])


def test_a_call_that_cannot_be_run_is_an_error_and_a_good_one_a_block() -> None:
    def chunk(problem: str = "") -> Chunk:
        return Chunk(text="", token=1, logprob=0.0, statistics=Statistics(prompt_tokens=1, cached_tokens=0),
                     tool_calls=(ToolCall(id="c1", name="x", problem=problem),))  # fmt: skip

    (block,) = ours._Reply().chat(chunk()).message.blocks
    assert (block.tool_name, block.tool_kwargs) == ("x", {})
    with pytest.raises(ValueError, match="no such tool"):
        ours._Reply().chat(chunk(problem="no such tool"))


def test_structured_predict_gives_an_object_of_the_class(llm: Any) -> None:
    prompt = PromptTemplate("Is {command} safe?")
    found = llm.structured_predict(Answer, prompt, command="ls")
    assert isinstance(found, Answer)
    assert asyncio.run(llm.astructured_predict(Answer, prompt, command="ls")) == found


def test_embeddings_are_the_models(embedder: Path, vectors_of: Callable[..., list[list[float]]]) -> None:
    embedding = ours.EmbedLLMEmbedding(str(embedder))
    assert embedding.get_text_embedding_batch(["one", "two"]) == vectors_of(["one", "two"], "document")
    assert embedding.get_query_embedding("one") == vectors_of(["one"], "query")[0]
    assert asyncio.run(embedding.aget_text_embedding("two")) == vectors_of(["two"], "document")[0]

"""The classes for LangChain, with the real library."""

from __future__ import annotations

import asyncio
import functools
import operator
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import embedllm
from embedllm.generation.chunk import Statistics
from embedllm.tools.calls import ToolCall

pytest.importorskip("langchain_core")
ours = import_module("embedllm.integrations.langchain")

from langchain_core.exceptions import OutputParserException  # noqa: E402
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage  # noqa: E402
from pydantic import BaseModel  # noqa: E402

ASK = "list files by size"


class Answer(BaseModel):
    safe: bool


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    return f"rain in {city}"


@pytest.fixture
def chat(demo: embedllm.Model) -> Any:
    return ours.ChatEmbedLLM(loaded=demo, temperature=0, max_tokens=60)


def joined(chunks: Any) -> Any:
    return functools.reduce(operator.add, chunks)


def test_invoke_gives_the_models_reply_and_its_usage(chat: Any, demo: embedllm.Model) -> None:
    said = [{"role": "system", "content": "Be short."}, {"role": "user", "content": ASK}]
    expected = demo.chat(said, temperature=0, max_tokens=60)
    reply = chat.invoke([SystemMessage("Be short."), HumanMessage(ASK)])
    assert reply.text == expected.text
    assert reply.usage_metadata["output_tokens"] == expected.statistics.tokens
    assert reply.response_metadata["finish_reason"] == "stop"


def test_a_stream_adds_up_to_the_reply_with_and_without_asyncio(chat: Any) -> None:
    async def pieces() -> list[AIMessageChunk]:
        return [chunk async for chunk in chat.astream(ASK)]

    whole = chat.invoke(ASK)
    for chunks in (list(chat.stream(ASK)), asyncio.run(pieces())):
        assert len(chunks) > 3
        assert (joined(chunks).text, joined(chunks).usage_metadata["output_tokens"]) == (
            whole.text,
            whole.usage_metadata["output_tokens"],
        )
    assert asyncio.run(chat.ainvoke(ASK)).text == whole.text


def test_options_of_a_call_take_the_place_of_the_objects(chat: Any) -> None:
    assert chat.invoke(ASK, max_tokens=2).usage_metadata["output_tokens"] == 2
    assert chat.invoke(ASK, stop=["ls"]).text == chat.invoke(ASK).text.partition("ls")[0]
    with pytest.raises(TypeError, match="top_p"):
        chat.invoke(ASK, topp=1)


def test_a_forced_call_is_the_same_streamed_and_whole(chat: Any) -> None:
    bound = chat.bind_tools([weather], tool_choice="any")
    whole, streamed = bound.invoke("How is Paris?"), joined(bound.stream("How is Paris?"))
    (call,) = whole.tool_calls
    assert call["name"] == "weather"
    assert list(call["args"]) == ["city"]
    assert [(one["name"], one["args"]) for one in streamed.tool_calls] == [(call["name"], call["args"])]


def test_calls_and_results_go_back_as_the_template_has_them() -> None:
    said = {"type": "text", "text": "Hm."}
    made = {"name": "weather", "args": {"city": "Paris"}, "id": "c1"}
    asked = AIMessage([said, {"type": "tool_call", **made}], tool_calls=[made],
                      additional_kwargs={"reasoning_content": "Look."})  # fmt: skip
    call, result = ours._messages([asked, ToolMessage("rain", tool_call_id="c1", name="weather")])
    assert call["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}
    assert (call["content"], call["reasoning_content"]) == ([said], "Look.")
    assert {name: result[name] for name in ("role", "tool_call_id", "content")} == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "rain",
    }


def test_a_call_that_cannot_be_run_is_an_invalid_one(demo: embedllm.Model) -> None:
    call = ToolCall(id="c1", name="x", problem="no such tool", text="<x>")
    made = ours._result("", "Look.", [call], Statistics(prompt_tokens=1, cached_tokens=0), "stop", demo)
    message = made.generations[0].message
    assert message.tool_calls == []
    assert message.invalid_tool_calls[0]["error"] == "no such tool"
    assert message.additional_kwargs == {"reasoning_content": "Look."}


@pytest.mark.parametrize("schema", [Answer, Answer.model_json_schema()], ids=["class", "schema"])
def test_structured_output_follows_its_schema(chat: Any, schema: Any) -> None:
    found = chat.with_structured_output(schema).invoke("Is ls safe?")
    assert isinstance(found, Answer) if schema is Answer else isinstance(found["safe"], bool)
    raw = chat.with_structured_output(schema, include_raw=True).invoke("Is ls safe?")
    assert (raw["parsed"], raw["parsing_error"]) == (found, None)
    with pytest.raises(ValueError, match="json_schema"):
        chat.with_structured_output(schema, method="json_mode")


def test_a_structured_reply_that_was_cut_off_is_an_error(chat: Any) -> None:
    text = {"type": "string", "minLength": 400}
    shape = {"title": "Answer", "type": "object", "properties": {"text": text}, "required": ["text"]}
    cut = chat.with_structured_output(shape)
    with pytest.raises(OutputParserException, match="max_tokens"):
        cut.invoke(ASK)


def test_embeddings_are_the_models(embedder: Path, vectors_of: Callable[..., list[list[float]]]) -> None:
    embeddings = ours.EmbedLLMEmbeddings(model=str(embedder))
    assert embeddings.embed_documents(["one", "two"]) == vectors_of(["one", "two"], "document")
    assert embeddings.embed_query("one") == vectors_of(["one"], "query")[0]
    assert embeddings.embed_documents([]) == []

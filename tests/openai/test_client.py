"""chat.completions.create(): OpenAI's requests over the demo model and over one that says what the test wrote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import embedllm
from embedllm.openai import AsyncOpenAI, OpenAI
from embedllm.openai.types import ChatCompletion, ChatCompletionChunk
from tests.model.test_agent import add
from tests.support.scripted import call, scripted

ASK: Any = [{"role": "user", "content": "list files by size"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def model() -> Iterator[embedllm.Model]:
    with embedllm.load("demo", device="cpu") as loaded:
        yield loaded


@pytest.fixture
def client(model: embedllm.Model) -> OpenAI:
    return OpenAI(model)


def streamed(chunks: list[ChatCompletionChunk]) -> tuple[str, list[str | None]]:
    """The text of a stream, and its finish reasons."""
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return "".join(choice.delta.content or "" for choice in choices), [choice.finish_reason for choice in choices]


def check_shapes(replies: list[ChatCompletion | ChatCompletionChunk]) -> None:
    """Holds replies to OpenAI's own types, in strict mode, where the package is installed."""
    openai_types: Any = pytest.importorskip("openai.types.chat", reason="the package openai is not installed")
    for reply in replies:
        named = type(reply).__name__
        shape = getattr(openai_types, named)
        found = shape.model_validate_json(reply.to_json(), strict=True)
        assert shape.model_validate(found).to_json(exclude_none=True)
        _no_extras(found)


def _no_extras(found: Any) -> None:  # noqa: ANN401 # any of pydantic's models
    """Nothing that OpenAI has no field for, but the reasoning."""
    if isinstance(found, list):
        for item in found:
            _no_extras(item)
    elif hasattr(found, "model_fields_set"):
        assert set(found.model_extra or {}) <= {"reasoning_content"}, found
        for name in found.model_fields_set:
            _no_extras(getattr(found, name))


def replies_of_each_kind(client: OpenAI) -> list[ChatCompletion | ChatCompletionChunk]:
    options: Any = {"temperature": 0, "max_tokens": 6}
    plain = client.chat.completions.create(messages=ASK, **options)
    probable = client.chat.completions.create(messages=ASK, logprobs=True, top_logprobs=2, **options)
    chunks = client.chat.completions.create(
        messages=ASK, stream=True, stream_options={"include_usage": True}, logprobs=True, **options
    )
    scripted_model, _ = scripted(call("add", '{"a": 1}'), "<think>Hm</think>" + call("add", '{"a": 1}'))
    calling = OpenAI(scripted_model).chat.completions
    called = calling.create(messages=ASK, tools=[add])
    calls = calling.create(messages=ASK, tools=[add], stream=True)
    return [plain, probable, *chunks, called, *calls]


def test_replies_have_the_shapes_of_the_package_openai(client: OpenAI) -> None:
    check_shapes(replies_of_each_kind(client))


def test_a_reply_is_that_of_chat(model: embedllm.Model, client: OpenAI) -> None:
    own = model.chat(ASK, temperature=0.0, max_tokens=8)
    found = client.chat.completions.create(model="gpt-4o", messages=ASK, temperature=0, max_completion_tokens=8)
    (choice,) = found.choices
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", own.text)
    assert (choice.finish_reason, choice.logprobs, choice.message.tool_calls) == ("length", None, None)
    assert (found.object, found.model) == ("chat.completion", model.name)
    assert found.id.startswith("chatcmpl-")
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (own.statistics.prompt_tokens, 8)
    assert found.usage.total_tokens == own.statistics.prompt_tokens + 8
    assert found.usage.prompt_tokens_details.cached_tokens > 0  # of the call before
    assert found.model_dump()["choices"][0]["message"]["content"] == own.text  # type: ignore[index] # JSON


def test_a_stream_is_the_whole_reply_in_pieces_and_ends_with_the_usage(client: OpenAI) -> None:
    whole = client.chat.completions.create(messages=ASK, temperature=0)
    with client.chat.completions.create(
        messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    text, reasons = streamed(chunks)
    assert text == whole.choices[0].message.content
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_stream_that_is_left_ends(model: embedllm.Model, client: OpenAI) -> None:
    stream = client.chat.completions.create(messages=ASK, stream=True, max_tokens=600, extra_body={"min_tokens": 500})
    next(stream)
    next(stream)
    stream.close()
    assert list(stream) == []
    assert model.chat(ASK, max_tokens=1).tokens  # it is free again


def test_asyncio(model: embedllm.Model, client: OpenAI) -> None:
    async def both() -> tuple[ChatCompletion, str, int]:
        create = AsyncOpenAI(model).chat.completions.create
        whole = await create(messages=ASK, temperature=0)
        async with await create(messages=ASK, temperature=0, stream=True) as stream:
            chunks = [chunk async for chunk in stream]
        several = await create(messages=ASK, n=2, max_tokens=2)
        return whole, streamed(chunks)[0], len(several.choices)

    whole, text, count = asyncio.run(both())
    expected = client.chat.completions.create(messages=ASK, temperature=0).choices[0].message.content
    assert whole.choices[0].message.content == text == expected
    assert count == 2


def test_structured_output_stop_seed_and_n(client: OpenAI) -> None:
    create = client.chat.completions.create
    held = create(messages=ASK, response_format=FORMAT, temperature=1, seed=3, max_tokens=100).choices[0]
    assert (held.finish_reason, list(json.loads(held.message.content or ""))) == ("stop", ["a"])
    # one token: rows that step together may round otherwise than one alone, and a seed then goes on with another text
    several = create(messages=ASK, n=3, seed=5, temperature=3, max_tokens=1)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in several.choices}) > 1
    assert several.usage.completion_tokens == 3
    again = create(messages=ASK, seed=5, temperature=3, max_tokens=1)
    assert again.choices[0].message.content == several.choices[0].message.content
    stopped = create(messages=ASK, temperature=0, stop=["-"]).choices[0]
    assert stopped.finish_reason == "stop"
    assert "-" not in (stopped.message.content or "")


def test_log_probabilities_are_of_the_tokens_of_the_text(client: OpenAI) -> None:
    create = client.chat.completions.create
    found = create(messages=ASK, temperature=0, logprobs=True, top_logprobs=3).choices[0]
    assert found.logprobs is not None
    tokens = found.logprobs.content
    spelled = b"".join(bytes(token.bytes or []) for token in tokens).decode()
    assert spelled == "".join(token.token for token in tokens) == found.message.content  # without the stop token
    assert all(len(token.top_logprobs) == 3 for token in tokens)
    assert all(token.top_logprobs[0].logprob >= token.logprob for token in tokens)
    chunks = create(messages=ASK, temperature=0, logprobs=True, stream=True)
    pieces = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs]
    assert "".join(token.token for piece in pieces for token in piece.content) == spelled
    assert all(token.top_logprobs == [] for piece in pieces for token in piece.content)


def test_tools_are_called_and_answered_with_messages_of_either_form() -> None:
    model, prompts = scripted("<think>Add.</think>" + call("add", '{"a": 1}'), "It is 2.")
    create = OpenAI(model).chat.completions.create
    first = create(messages=ASK, tools=[add]).choices[0]
    assert (first.finish_reason, first.message.content, first.message.reasoning_content) == ("tool_calls", None, "Add.")
    assert first.message.tool_calls is not None
    (made,) = first.message.tool_calls
    assert (made.function.name, json.loads(made.function.arguments or "")) == ("add", {"a": 1})
    result = {"role": "tool", "tool_call_id": made.id, "content": "2"}
    assert create(messages=[*ASK, first.message, result], tools=[add]).choices[0].message.content == "It is 2."
    assert '{"name": "add", "arguments": {"a": 1}}' in prompts[1]


def test_calls_are_streamed_in_pieces_and_one_that_cannot_be_read_is_not_dropped() -> None:
    broken = '<tool_call>\n{"name": 5, "x": \n</tool_call>'
    model, _ = scripted(call("add", '{"a": 1, "b": 22}'), broken, broken)
    create = OpenAI(model).chat.completions.create
    chunks = list(create(messages=ASK, tools=[add], stream=True))
    pieces = [piece for chunk in chunks for choice in chunk.choices for piece in choice.delta.tool_calls or []]
    assert (pieces[0].function.name, pieces[0].type, bool(pieces[0].id)) == ("add", "function", True)
    assert all((piece.function.name, piece.id, piece.index) == (None, None, 0) for piece in pieces[1:])
    assert json.loads("".join(piece.function.arguments or "" for piece in pieces)) == {"a": 1, "b": 22}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    (made,) = create(messages=ASK, tools=[add]).choices[0].message.tool_calls or []
    assert '"x":' in (made.function.arguments or "")
    chunks = list(create(messages=ASK, tools=[add], stream=True))
    (piece,) = [piece for chunk in chunks for choice in chunk.choices for piece in choice.delta.tool_calls or []]
    assert piece.function.arguments == made.function.arguments


def test_more_of_openai_s_ways(client: OpenAI) -> None:
    class NotGiven:  # as the package openai has it
        pass

    create: Any = client.chat.completions.create
    same = [
        create(messages=ASK, temperature=0, max_tokens=4, top_p=NotGiven(), user="me", stream=False, tools=None),
        create(messages=ASK, max_tokens=4, extra_body={"temperature": 0, "top_k": 5, "chat_template_kwargs": {"x": 1}}),
        create(messages=ASK, max_tokens=4, temperature=0, reasoning_effort="low"),
    ]
    assert len({reply.choices[0].message.content for reply in same}) == 1
    dumped = SimpleNamespace(model_dump=lambda **_: {"role": "user", "content": "list files by size"})
    reply = create(messages=[dumped], max_tokens=4, temperature=0)
    assert reply.choices[0].message.content == same[0].choices[0].message.content
    token = client.chat.completions.create(messages=ASK, max_tokens=1, temperature=0, logit_bias={"65": 100})
    assert token.usage.completion_tokens == 1


def test_a_developers_message_is_a_system_message() -> None:
    model, prompts = scripted("yes")
    OpenAI(model).chat.completions.create(messages=[{"role": "developer", "content": "Be brief."}, *ASK])
    assert "<|im_start|>system\nBe brief." in prompts[0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"temprature": 1}, TypeError, "there is no parameter 'temprature'.*temperature"),
        ({"functions": []}, TypeError, "Use tools"),
        ({"n": 0}, ValueError, "n is 0"),
        ({"top_logprobs": 2}, ValueError, "goes with logprobs=True"),
        ({"top_logprobs": 21, "logprobs": True}, ValueError, "0 to 20"),
        ({"logprobs": 5}, ValueError, "logprobs is 5"),
        ({"stream_options": {"include_usage": True}}, ValueError, "goes with stream=True"),
        ({"stream_options": {"a": 1}, "stream": True}, ValueError, "'a'"),
        ({"parallel_tool_calls": False}, ValueError, "is not done here"),
        ({"logit_bias": {"x": 1}}, ValueError, "token ids"),
        ({"extra_body": {"seed": 1}, "seed": 2}, ValueError, "twice"),
        ({"extra_body": 5}, ValueError, "extra_body is 5"),
        ({"messages": "hello"}, ValueError, "expected a list"),
        ({"messages": [5]}, ValueError, "expected a mapping"),
        ({"temperature": -1}, ValueError, "temperature"),
        ({"timeout": 1e-9}, TimeoutError, "timeout"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    client: OpenAI, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    create: Any = client.chat.completions.create
    with pytest.raises(error, match=message):
        create(**{"messages": ASK, **options})

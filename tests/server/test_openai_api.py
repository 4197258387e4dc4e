"""OpenAI's dialect over a real connection: by plain HTTP, and by the package openai where it is installed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

import embedllm
from embedllm.openai import OpenAI
from embedllm.server.model_pool import ServedModel
from tests.model.test_embeddings import embedder, reranker  # noqa: F401  # fixtures
from tests.server.serving import Served, client, serving
from tests.support.scripted import call, scripted

ASK = [{"role": "user", "content": "list files by size"}]
GREEDY = {"messages": ASK, "temperature": 0}
# of so few values that no reply goes on without end, as an integer may
SCHEMA = {"type": "object", "properties": {"a": {"enum": [7, 42]}}, "required": ["a"], "additionalProperties": False}


def chat(http: httpx.Client, **body: object) -> Any:  # noqa: ANN401  # JSON
    response = http.post("/v1/chat/completions", json={**GREEDY, **body})
    assert response.status_code == 200, response.text
    return response.json()


def events(http: httpx.Client, path: str = "/v1/chat/completions", **body: object) -> list[Any]:
    """The data of a stream's events, [DONE] among them."""
    given = {**(GREEDY if "chat" in path else {}), **body, "stream": True}
    with http.stream("POST", path, json=given) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_reply_is_the_librarys(served: Served, http: httpx.Client) -> None:
    own = served.model.chat(ASK, temperature=0.0)
    found = chat(http, model="demo")
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": own.text, "refusal": None}
    assert (choice["finish_reason"], found["model"], found["object"]) == ("stop", "demo", "chat.completion")
    assert found["usage"]["completion_tokens"] == own.statistics.tokens
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] > 0  # of the call before


def test_a_stream_is_the_reply_in_pieces_and_ends_with_usage_and_done(http: httpx.Client) -> None:
    whole = chat(http)["choices"][0]["message"]["content"]
    found = events(http, stream_options={"include_usage": True})
    assert found[-1] == "[DONE]"
    deltas = [piece["choices"][0]["delta"] for piece in found[:-2]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all(set(delta) == {"content"} for delta in deltas[1:-1])
    assert "".join(delta.get("content", "") for delta in deltas) == whole
    assert (found[-2]["choices"], found[-2]["usage"]["completion_tokens"] > 0) == ([], True)
    assert all(piece["usage"] is None for piece in found[:-2])
    assert "usage" not in events(http)[0]


def test_several_choices_are_streamed_side_by_side() -> None:
    # on the CPU, activations that are rounded to int8 round otherwise in another batch, and a sampled token with them
    with embedllm.load("demo", device="reference") as model, serving(model=model) as served, client(served) as http:
        whole = chat(http, n=3, seed=5, temperature=2, max_tokens=6)["choices"]
        found = events(http, n=3, seed=5, temperature=2, max_tokens=6, stream_options={"include_usage": True})
    texts = ["", "", ""]
    for piece in found[:-2]:
        texts[piece["choices"][0]["index"]] += piece["choices"][0]["delta"].get("content", "")
    assert texts == [choice["message"]["content"] for choice in whole]
    assert len(set(texts)) > 1
    assert found[-2]["usage"]["completion_tokens"] == 18


def test_the_package_openai_is_answered(served: Served) -> None:
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["demo"]
        assert client.models.retrieve("gpt-4o").id == "demo"
        create = client.chat.completions.create
        whole = create(model="demo", messages=ASK, temperature=0).choices[0].message.content
        with create(model="demo", messages=ASK, temperature=0, stream=True) as stream:
            assert "".join(piece.choices[0].delta.content or "" for piece in stream) == whole
        with pytest.raises(openai.NotFoundError, match="no model 'gpt-5'"):
            create(model="gpt-5", messages=ASK)


def test_tools_are_streamed_with_their_arguments() -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}}}}}  # fmt: skip
    arguments = '{"a": 12345}'
    replies = [call("add", arguments), call("add", arguments), call("add", arguments) + call("add", '{"a": 2}')]
    model, _ = scripted(*replies)
    with serving(model=model) as served, client(served) as http:
        (choice,) = chat(http, tools=[tool])["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"a": 12345}
        deltas = [piece["choices"][0]["delta"] for piece in events(http, tools=[tool])[:-1]]
        pieces = [one for delta in deltas for one in delta.get("tool_calls", ())]
        assert (pieces[0]["function"]["name"], pieces[0]["type"], bool(pieces[0]["id"])) == ("add", "function", True)
        assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == {"a": 12345}
        assert len(pieces) > 2
        single = chat(http, tools=[tool], parallel_tool_calls=False)["choices"][0]
        assert len(single["message"]["tool_calls"]) == 1
        assert single["finish_reason"] == "tool_calls"


def test_schema_stop_seed_and_log_probabilities(http: httpx.Client) -> None:
    held = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    content = chat(http, response_format=held, max_tokens=100)["choices"][0]["message"]["content"]
    assert list(json.loads(content)) == ["a"]
    # as clients of llama.cpp and vLLM have it
    for held in ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"json_schema": SCHEMA},
                 {"structured_outputs": {"json": SCHEMA}}):  # fmt: skip
        assert chat(http, **held, max_tokens=100)["choices"][0]["message"]["content"] == content
    assert "-" not in chat(http, stop=["-"])["choices"][0]["message"]["content"]
    drawn = [chat(http, seed=seed, temperature=2, max_tokens=8)["choices"][0]["message"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    steps = chat(http, logprobs=True, top_logprobs=2, max_tokens=4)["choices"][0]["logprobs"]["content"]
    assert all(step["top_logprobs"][0]["token"] == step["token"] for step in steps)
    assert "".join(step["token"] for step in steps) == chat(http, max_tokens=4)["choices"][0]["message"]["content"]
    pieces = events(http, logprobs=True, max_tokens=4)[1:-2]
    assert [piece["choices"][0]["logprobs"]["content"][0]["token"] for piece in pieces] == [
        step["token"] for step in steps
    ]


def test_completions_are_the_librarys(served: Served, http: httpx.Client) -> None:
    def complete(**body: object) -> Any:  # noqa: ANN401  # JSON
        response = http.post("/v1/completions", json={"temperature": 0, "max_tokens": 6, **body})
        assert response.status_code == 200, response.text
        return response.json()

    prompt = "To list files,"
    own = served.model.generate(prompt, temperature=0.0, max_tokens=6)
    found = complete(prompt=prompt)
    assert (found["object"], found["choices"][0]["text"]) == ("text_completion", own.text)
    assert found["usage"]["completion_tokens"] == 6
    tokens = http.post("/tokenize", json={"prompt": prompt}).json()["tokens"]
    assert complete(prompt=tokens)["choices"][0]["text"] == own.text
    several = complete(prompt=[prompt, "echo"], n=2, echo=True)
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
    assert several["choices"][1]["text"] == prompt + own.text
    assert several["choices"][3]["text"].startswith("echo")
    probable = complete(prompt=prompt, logprobs=2)["choices"][0]["logprobs"]
    assert "".join(probable["tokens"]) == own.text
    assert probable["token_logprobs"] == pytest.approx(own.logprobs, abs=0.1)  # prefixes round
    assert [len(top) for top in probable["top_logprobs"]] == [2] * 6
    assert probable["text_offset"][:2] == [0, len(probable["tokens"][0])]
    pieces = events(http, "/v1/completions", prompt=prompt, temperature=0, max_tokens=6, echo=True,
                    stream_options={"include_usage": True})  # fmt: skip
    assert "".join(piece["choices"][0]["text"] for piece in pieces[:-2]) == prompt + own.text
    assert pieces[-3]["choices"][0]["finish_reason"] == "length"
    assert pieces[-2]["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    ("path", "body", "param", "says"),
    [
        ("/v1/chat/completions", {"messages": []}, "messages", "at least 1"),
        ("/v1/chat/completions", {}, "messages", "'messages' is missing"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, "messages.0.role", "is missing"),
        ("/v1/chat/completions", {**GREEDY, "temperature": "hot"}, "temperature", "expected the type number"),
        ("/v1/chat/completions", {**GREEDY, "max_tokens": 0}, "max_tokens", "1 or more"),
        ("/v1/chat/completions", {**GREEDY, "n": 1000}, "n", "128 is the most"),
        ("/v1/chat/completions", {**GREEDY, "functions": [{"name": "a"}]}, "functions", "Use tools"),
        ("/v1/chat/completions", {**GREEDY, "response_format": {"type": "poem"}}, None, "'poem'"),
        ("/v1/chat/completions", {**GREEDY, "grammar": "root ::= [a-z]"}, "grammar", "'grammar' is not followed"),
        (
            "/v1/completions",
            {"prompt": "a", "guided_grammar": "a"},
            "guided_grammar",
            "'guided_grammar' is not followed",
        ),
        ("/v1/chat/completions", {**GREEDY, "modalities": ["text", "audio"]}, "modalities.1", 'one of ["text"]'),
        ("/v1/chat/completions", {**GREEDY, "stream_options": {"include_usage": True}}, None, "stream=True"),
        ("/v1/completions", {"prompt": []}, "prompt", "expected the type string or non-empty array of string or"),
        ("/v1/completions", {"prompt": ["a", 3]}, "prompt", "array of string or non-empty array of integer or"),
        ("/v1/completions", {"prompt": [[1], []]}, "prompt", "non-empty array of non-empty array of integer."),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix", "not followed"),
        ("/v1/completions", {"prompt": "a", "best_of": 3}, "best_of", "best_of is 3"),
        ("/v1/embeddings", {"input": "a"}, None, "generates text"),
        ("/v1/embeddings", {"input": []}, "input", "expected the type string or non-empty array of string or"),
        ("/v1/embeddings", {"input": [1, 2]}, "input", "token ids"),
        ("/detokenize", {"tokens": [10**6]}, "tokens", "there is no token 1000000"),
        ("/detokenize", {"tokens": [1.0]}, "tokens.0", "expected the type integer"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents", "at least 1"),
        ("/tokenize", {}, None, "no text"),
        ("/tokenize", {"messages": []}, "messages", "at least 1"),
    ],
)
def test_a_request_that_cannot_be_followed_is_told_why(
    http: httpx.Client, path: str, body: object, param: str | None, says: str
) -> None:
    response = http.post(path, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert says in error["message"]


def test_a_prompt_that_is_too_long_has_the_code_and_the_words_that_clients_know_it_by(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "word " * 3000}]
    for stream in (False, True):
        response = http.post("/v1/chat/completions", json={"messages": messages, "stream": stream})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "maximum context length is 2048 tokens" in error["message"]  # LiteLLM, agents
    response = http.post("/v1/messages", json={"messages": messages, "max_tokens": 1})
    tokens = http.post("/v1/messages/count_tokens", json={"messages": messages}).json()["input_tokens"]
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"prompt is too long: {tokens} tokens > 2048 maximum")


def test_what_clients_send_for_the_books_of_a_service_is_ignored(http: httpx.Client) -> None:
    extras = {"user": "me", "metadata": {"a": "b"}, "store": True, "unheard_of": 1, "tools": [], "logit_bias": None}
    assert chat(http, **extras)["choices"][0]["message"] == chat(http)["choices"][0]["message"]


def test_a_fault_of_the_library_is_not_told_as_one_of_the_request(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: object, **__: object) -> None:
        raise TypeError("a fault")

    monkeypatch.setattr(embedllm.Model, "requests", fault)
    response = http.post("/v1/chat/completions", json=GREEDY)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "a fault" not in response.text
    assert "a fault" in caplog.text


def test_a_reply_whose_model_is_closed_is_an_error(served: Served, http: httpx.Client) -> None:
    """Closed by a server that ends at once, say: what there is of the reply is no whole one."""
    with http.stream(
        "POST", "/v1/completions", json={"prompt": "Tell a story", "max_tokens": 900, "stream": True}
    ) as response:
        lines = response.iter_lines()
        next(lines)
        served.model.runner.scheduler.cancel_all()
        found = [line for line in lines if line.startswith("data: ")]
    assert any("model_closed" in line for line in found), found[-3:]
    assert not any('"finish_reason":"length"' in line for line in found)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": ASK}),
        ("/v1/completions", {"prompt": "Tell a story"}),
        ("/v1/responses", {"input": "Tell a story"}),
        ("/v1/messages", {"messages": ASK, "max_tokens": 300}),
    ],
)
def test_a_reply_that_the_engine_ends_is_an_error(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object]
) -> None:
    scheduler, left = served.model.runner.scheduler, [3]
    make_room = scheduler._make_room

    def fail() -> None:
        left[0] -= 1
        if not left[0]:
            raise RuntimeError("out of handles")
        make_room()

    monkeypatch.setattr(scheduler, "_make_room", fail)
    response = http.post(path, json={"model": "demo", **body})
    assert response.status_code == 500, response.text
    assert "out of handles" not in response.text


def test_texts_and_tokens(served: Served, http: httpx.Client) -> None:
    text = "ls -l # größe"
    found = http.post("/tokenize", json={"content": text, "with_pieces": True}).json()
    assert "".join(token["piece"] for token in found["tokens"]).replace("\ufffd", "") != ""
    tokens = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": text, "content": text}
    of_chat = http.post("/tokenize", json={"messages": ASK}).json()
    assert of_chat["tokens"] == served.model.prompt_tokens(ASK)  # type: ignore[arg-type]  # messages
    assert (of_chat["count"], of_chat["max_model_len"]) == (len(of_chat["tokens"]), served.model.context)


def test_embeddings_and_rerank(embedder: Any, reranker: Any) -> None:  # noqa: ANN401, F811  # fixtures
    models = [ServedModel(name="embed", path=str(embedder)), ServedModel(name="rank", path=str(reranker))]
    with serving(models) as served, client(served) as http:
        whole = http.post("/v1/embeddings", json={"model": "embed", "input": ["the quick", "fox"]}).json()
        own = served.pool.loaded["embed"].embed(["the quick", "fox"])
        assert [row["embedding"] for row in whole["data"]] == [pytest.approx(row.tolist()) for row in own]
        assert whole["usage"]["prompt_tokens"] == len("thequick" + "fox") + 4  # letters, and [CLS] and [SEP] of each
        queries = {"model": "embed", "input": ["the quick", "fox"], "input_type": "query"}
        of_queries = http.post("/v1/embeddings", json=queries).json()["usage"]
        assert of_queries["prompt_tokens"] == whole["usage"]["prompt_tokens"] + 2 * len(
            "find"
        )  # the model's own prompt
        body = {"model": "rank", "query": "fox", "documents": ["the quick", {"text": "fox"}], "top_n": 1}
        ranked = http.post("/v1/rerank", json={**body, "return_documents": True}).json()
        (best,) = served.pool.loaded["rank"].rerank("fox", ["the quick", "fox"], top=1)
        assert ranked["results"][0]["index"] == best.index
        assert ranked["results"][0]["relevance_score"] == pytest.approx(best.score)
        assert ranked["usage"]["total_tokens"] == 2 * len("fox") + len("thequick" + "fox") + 6
        assert ranked["results"][0]["document"]["text"] in ("the quick", "fox")
        assert "document" not in http.post("/v2/rerank", json=body).json()["results"][0]
        openai = pytest.importorskip("openai", reason="the package openai is not installed")
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as official:
            found = official.embeddings.create(model="embed", input=["the quick", "fox"])  # base64 by default
            assert found.data[1].embedding == pytest.approx(own[1].tolist())


def test_the_client_in_this_process_streams_several_choices_too(served: Served) -> None:
    create = OpenAI(served.model).chat.completions.create
    options: Any = {"messages": ASK, "n": 2, "seed": 3, "temperature": 2, "max_tokens": 5}
    texts = ["", ""]
    for piece in create(stream=True, **options):
        texts[piece.choices[0].index] += piece.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in create(**options).choices]

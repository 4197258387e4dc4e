"""build_app() on a Ray cluster of this machine, through its HTTP proxy."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray 2.60's own, of pydantic
    ray = pytest.importorskip("ray")  # of the extra [ray]
    from ray import data, serve

    from embedllm.integrations.ray.serve_app import build_app

import httpx
import openai
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

import embedllm
from embedllm.integrations.ray.batch_inference import BatchGenerator
from embedllm.loading.options import LoadOptions
from embedllm.server.model_pool import ServedModel
from tests.server.serving import wait_until
from tests.support.otlp_receiver import receiver
from tests.support.ports import port_for_later

if TYPE_CHECKING:
    from ray.actor import ActorHandle

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "list files by size"}]


SOURCES = str(Path(embedllm.__file__).parents[1])
FRIENDLY = {"command": sys.executable, "args": ["-m", "tests.integrations.mcp.friendly_server"],
            "env": {"PYTHONPATH": SOURCES}}  # fmt: skip


@pytest.fixture(scope="module")
def traces() -> Iterator[tuple[str, list[Any]]]:
    """Where the replicas send their spans, and what came."""
    with receiver() as found:
        yield found


@pytest.fixture(scope="module")
def url(traces: tuple[str, list[Any]]) -> Iterator[str]:
    """Of a cluster with two replicas of the demo."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else a token is written into HOME
        environment = {"PYTHONPATH": SOURCES, "ORT_DISABLE_TELEMETRY": "1",
                       "OTEL_EXPORTER_OTLP_ENDPOINT": traces[0], "OTEL_BSP_SCHEDULE_DELAY": "100"}  # fmt: skip
        port = port_for_later()
        ray.init(
            "local", num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment}
        )
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        model = ServedModel(name="demo", path="demo", aliases=("small",), options=LoadOptions(threads=1))
        app = build_app([model], replicas=2, actor_options={"num_cpus": 1}, mcp={"friendly": FRIENDLY}, has_traces=True)
        serve.run(app)
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()
        ray.shutdown()


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


def test_replies_are_those_of_the_library_streamed_or_not(client: openai.OpenAI) -> None:
    with embedllm.load("demo") as llm:
        asked = llm.generate([{"role": "user", "content": "list files by size"}], max_tokens=16, temperature=0.0)
        expected = asked.text
    whole = client.chat.completions.create(model="small", messages=QUESTION, max_tokens=16, temperature=0)
    assert whole.choices[0].message.content == expected
    chunks = client.chat.completions.create(model="demo", messages=QUESTION, max_tokens=16, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected


def test_a_prompt_goes_where_its_prefix_is(client: openai.OpenAI) -> None:
    system: ChatCompletionMessageParam = {
        "role": "system",
        "content": "Files of the project: " + " ".join(f"file{i}.txt" for i in range(150)),
    }
    shares = []
    for place in range(6):
        messages: list[ChatCompletionMessageParam] = [
            system,
            {"role": "user", "content": f"what is in file{place}.txt?"},
        ]
        usage = client.chat.completions.create(model="demo", messages=messages, max_tokens=1).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        shares.append((usage.prompt_tokens_details.cached_tokens or 0) / usage.prompt_tokens)
    assert shares[0] < 0.5
    assert min(shares[1:]) > 0.8


def test_a_replica_runs_tools_of_mcp_servers(client: openai.OpenAI) -> None:
    server: Any = {"type": "mcp", "server_label": "friendly", "require_approval": "never"}
    found = client.responses.create(model="demo", input="Add 2 and 3.", tools=[server], max_output_tokens=4)
    assert found.output[0].type == "mcp_list_tools"
    assert "add" in [tool.name for tool in found.output[0].tools]


def test_a_request_leaves_a_trace(client: openai.OpenAI, traces: tuple[str, list[Any]]) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    asked = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    client.chat.completions.create(model="demo", messages=QUESTION, max_tokens=3, extra_headers={"traceparent": asked})

    def of_it() -> list[Any]:
        groups = [scope for _, request in traces[1] for group in request.resource_spans for scope in group.scope_spans]
        return [span for group in groups for span in group.spans if span.trace_id.hex() in asked]

    wait_until(of_it)
    (span,) = of_it()
    assert span.name == "chat demo"
    assert {one.key: one.value.int_value for one in span.attributes}["gen_ai.usage.output_tokens"] == 3


def test_a_dataset_is_replied_to(url: str) -> None:
    """On the same cluster."""
    rows = data.from_items([{"prompt": "list files by size", "id": place} for place in range(5)])
    options = {"model": "demo", "max_tokens": 8, "temperature": 0.0}
    done = rows.map_batches(BatchGenerator, fn_constructor_kwargs=options, batch_size=2, concurrency=1).take_all()
    assert sorted(row["id"] for row in done) == list(range(5))
    assert {row["finish_reason"] for row in done} == {"length"}
    assert len({row["reply"] for row in done} - {""}) == 1


def test_errors_are_the_servers(client: openai.OpenAI, url: str) -> None:
    with pytest.raises(openai.NotFoundError, match="nothing"):
        client.chat.completions.create(model="nothing", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="demo", messages=QUESTION, temperature=-1)
    assert httpx.post(f"{url}/v1/chat/completions", content=b"{").status_code == 400
    assert httpx.get(f"{url}/v1/nothing").status_code == 404
    assert httpx.get(f"{url}/health").status_code == 200
    assert next(iter(client.models.list())).id == "demo"


def test_a_body_that_is_too_large_is_refused_before_it_is_sent_on(url: str) -> None:
    reply = httpx.post(f"{url}/v1/chat/completions", content=b" " * (9 << 20), timeout=60)
    assert reply.status_code == 413
    assert "bytes" in reply.json()["error"]["message"]


def test_a_lost_replica_ends_its_streams_with_an_error_and_the_others_go_on(client: openai.OpenAI) -> None:
    streams = []
    for topic in range(6):  # prompts with nothing in common go where there are fewest texts: to both replicas
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"topic{topic} " * 120}]
        streams.append(client.chat.completions.create(
            model="demo", messages=messages, max_tokens=600, stream=True, extra_body={"min_tokens": 600}
        ))  # fmt: skip
        next(iter(streams[-1]))
    ray.kill(_replicas()[0])
    ends = [_end(stream) for stream in streams]
    lost = [end for end in ends if "replica that computed this reply was lost" in end]
    assert set(ends) == {"length", *lost}
    assert 0 < len(lost) < len(ends)
    patient = client.with_options(max_retries=20)  # 503 until the router knows
    assert patient.chat.completions.create(model="demo", messages=QUESTION, max_tokens=1).choices


def _end(stream: openai.Stream[ChatCompletionChunk]) -> str:
    """Why a stream ended, or the error that it ended with."""
    try:
        return str([chunk.choices[0].finish_reason for chunk in stream][-1])
    except openai.APIError as error:
        return str(error)


def _replicas() -> list[ActorHandle]:
    actors = ray.util.list_named_actors(all_namespaces=True)
    found = [actor for actor in actors if "SERVE_REPLICA" in actor["name"] and "model-demo" in actor["name"]]
    return [ray.get_actor(actor["name"], namespace=actor["namespace"]) for actor in found]

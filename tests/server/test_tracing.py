"""OpenTelemetry traces of requests: in memory, to an OTLP/HTTP receiver, and none of it where it is off."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.server.serving import WAIT_S, client, serving, wait_until

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from embedllm.server.tracing import OpenTelemetryTracing, tracing_from_environment
from embedllm.text.function_schema import FunctionTool
from tests.support.otlp_receiver import receiver
from tests.support.scripted import call, scripted

SECRET = "list the files of secret-of-the-test"
ASK = [{"role": "user", "content": SECRET}]
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextmanager
def traced(**options: Any) -> Iterator[tuple[httpx.Client, InMemorySpanExporter]]:  # noqa: ANN401
    """A server whose spans are kept."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with serving(tracing=OpenTelemetryTracing(provider, **options)) as again, client(again) as http:
        yield http, spans


def only(spans: InMemorySpanExporter) -> ReadableSpan:
    """The one span, which ends shortly after its response."""
    wait_until(spans.get_finished_spans)
    (found,) = spans.get_finished_spans()
    spans.clear()
    return found


def of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_is_a_span_with_its_parameters_and_usage(is_stream: bool) -> None:
    body = {"model": "demo", "messages": ASK, "temperature": 0.5, "top_p": 0.9, "seed": 3, "max_tokens": 4, "n": 2,
            "stop": ["END"], "frequency_penalty": 0.1, "stream": is_stream,
            "response_format": {"type": "text"}}  # fmt: skip
    if is_stream:
        body["stream_options"] = {"include_usage": True}
    with traced() as (http, spans):
        found = http.post("/v1/chat/completions", json=body,
                          headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"})  # fmt: skip
        span = only(spans)
    last = json.loads(found.text.splitlines()[-4][6:]) if is_stream else found.json()
    usage = last["usage"]
    attributes = of(span)
    assert attributes.pop("gen_ai.response.time_to_first_chunk") > 0
    assert attributes.pop("embedllm.time_in_queue") >= 0
    assert attributes.pop("gen_ai.request.stream", False) is is_stream
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "embedllm",
        "gen_ai.request.model": "demo",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 3,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.request.frequency_penalty": 0.1,
        "gen_ai.output.type": "text",
        "gen_ai.response.id": last["id"],
        "gen_ai.response.model": "demo",
        "gen_ai.response.finish_reasons": ("length", "length"),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": 200,
    }
    assert (span.name, span.kind, span.status.status_code) == ("chat demo", SpanKind.SERVER, StatusCode.UNSET)
    assert span.parent is not None
    assert span.context is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE_ID, PARENT_ID)
    assert span.end_time is not None
    assert span.start_time is not None
    assert span.end_time - span.start_time > attributes.get("gen_ai.response.time_to_first_chunk", 0)


def test_all_dialects_have_the_same_words() -> None:
    tool = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    bodies: dict[str, tuple[str, dict[str, Any], str]] = {
        "/v1/messages": ("chat", {"messages": ASK, "max_tokens": 3, "stop_sequences": ["END"]}, "length"),
        "/v1/responses": ("chat", {"input": SECRET, "tools": [{"type": "function", **tool}],
                                   "tool_choice": "required", "reasoning": {"effort": "low"}}, "tool_call"),
        "/v1/completions": ("text_completion", {"prompt": "ls", "max_tokens": 3}, "length"),
    }  # fmt: skip
    with traced() as (http, spans):
        for path, (operation, body, reason) in bodies.items():
            found = http.post(path, json={**body, "temperature": 0}).json()
            span = only(spans)
            attributes = of(span)
            assert span.name == operation  # no model was asked for by name
            assert attributes["gen_ai.response.id"] == found["id"]
            assert attributes["gen_ai.response.finish_reasons"] == (reason,)
            usage = found["usage"]
            assert attributes["gen_ai.usage.output_tokens"] == usage.get(
                "completion_tokens", usage.get("output_tokens")
            )
            given = usage.get("prompt_tokens", usage.get("input_tokens")) + usage.get("cache_read_input_tokens", 0)
            assert attributes["gen_ai.usage.input_tokens"] == given
            assert not any(SECRET in str(value) for value in attributes.values())
        assert http.get("/health").status_code == http.get("/v1/models").status_code == 200
        assert spans.get_finished_spans() == ()  # of requests to models only


def test_errors_are_in_the_span() -> None:
    with traced() as (http, spans):
        assert http.post("/v1/chat/completions", json={"model": "none", "messages": ASK}).status_code == 404
        span = only(spans)
        assert (of(span)["error.type"], of(span)["http.response.status_code"]) == ("model_not_found", 404)
        assert span.status.status_code is StatusCode.UNSET  # the client's fault
        assert http.post("/v1/chat/completions", content=b"{").status_code == 400
        assert (of(only(spans))["error.type"], span.name) == ("invalid_json", "chat none")
        long = {"messages": ASK, "max_tokens": 900, "min_tokens": 900, "stream": True}
        with http.stream("POST", "/v1/chat/completions", json=long) as response:
            next(response.iter_lines())
        gone = of(only(spans))
        assert gone["error.type"] == "client_disconnected"
        assert gone["gen_ai.response.finish_reasons"] == ("error",)
        assert gone["gen_ai.usage.input_tokens"] > 0


def test_content_is_there_when_asked_for_and_in_the_form_of_the_conventions() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [{"role": "system", "content": "Be short."}, *ASK, {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "a.py"}]  # fmt: skip
    with traced(has_content=True) as (http, spans):
        found = http.post("/v1/chat/completions", json={"messages": messages, "temperature": 0}).json()
        attributes = of(only(spans))
    roles = [(one["role"], one["parts"][0]["type"]) for one in json.loads(attributes["gen_ai.input.messages"])]
    assert roles == [("system", "text"), ("user", "text"), ("assistant", "tool_call"), ("tool", "tool_call_response")]
    said = json.loads(attributes["gen_ai.output.messages"])
    text = found["choices"][0]["message"]["content"]
    assert said == [{"role": "assistant", "parts": [{"type": "text", "content": text}], "finish_reason": "stop"}]


def test_tools_that_run_here_are_spans_within_the_requests() -> None:
    parameters: Any = {"type": "object", "properties": {}}
    schema: Any = {"type": "function", "function": {"name": "look", "description": "", "parameters": parameters}}
    model, _ = scripted(call("look", "{}"), "Done.")
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    servers = {"files": {"look": FunctionTool(schema=schema, run=lambda arguments, cancel: SECRET)}}
    tool = {"type": "mcp", "server_label": "files", "require_approval": "never"}
    with (
        serving(model=model, tracing=OpenTelemetryTracing(provider), tool_servers=servers) as served,
        client(served) as http,
    ):
        found = http.post("/v1/responses", json={"input": "x", "tools": [tool]}).json()
        wait_until(lambda: len(spans.get_finished_spans()) == 2)
    ran, request = spans.get_finished_spans()
    assert (ran.name, request.name) == ("execute_tool look", "chat")
    assert request.context is not None
    assert ran.parent is not None
    assert ran.parent.span_id == request.context.span_id
    assert of(request)["gen_ai.usage.output_tokens"] == found["usage"]["output_tokens"]  # of both replies
    assert of(request)["gen_ai.response.finish_reasons"] == ("stop",)
    assert not any(SECRET in str(of(span)) for span in (ran, request))


def test_spans_reach_an_otlp_receiver_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with receiver() as (url, got):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        tracing = tracing_from_environment()
        with serving(tracing=tracing) as again, client(again) as http:
            http.post("/v1/completions", json={"model": "demo", "prompt": SECRET, "max_tokens": 2})
        tracing.close()  # sends what is left
    ((headers, request),) = got
    assert headers["x-tenant"] == "blue"
    (group,) = request.resource_spans
    resource = {one.key: one.value.string_value for one in group.resource.attributes}
    assert resource["service.name"] == "embedllm"
    assert resource["deployment.environment.name"] == "test"
    (span,) = group.scope_spans[0].spans
    assert span.name == "text_completion demo"
    assert {one.key: one.value.int_value for one in span.attributes}["gen_ai.usage.output_tokens"] == 2
    assert SECRET.encode() not in request.SerializeToString()


def test_what_the_environment_cannot_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ValueError, match="http/protobuf"):
        tracing_from_environment()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(ValueError, match="'otlp', 'console' or 'none'"):
        tracing_from_environment()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    tracing = tracing_from_environment()
    assert tracing.has_content
    tracing.close()


def test_without_traces_nothing_of_opentelemetry_is_imported() -> None:
    code = ("import sys, embedllm.server.run, embedllm.cli.commands.serve; "
            "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))")  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_the_command_sends_what_is_left_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    command = [sys.executable, "-m", "embedllm", "serve", "demo", "--port", "0", "--otel"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            url = next(line for line in process.stderr if " at http://" in line).split()[-1]
            with httpx.Client(base_url=url, trust_env=False, timeout=WAIT_S) as http:
                http.post("/v1/completions", json={"model": "demo", "prompt": SECRET, "max_tokens": 2})
        finally:
            process.terminate()
        said, _ = process.communicate(timeout=WAIT_S)
    assert json.loads(said)["attributes"]["gen_ai.usage.output_tokens"] == 2
    assert SECRET not in said

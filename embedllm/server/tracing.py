"""Traces by OpenTelemetry: a span for each request to a model, by the semantic conventions for generative AI.

Source: opentelemetry-semantic-conventions 0.66b2, and semantic-conventions-genai, docs/gen-ai/client-inference.md
(November 2026), whose attributes a server has as well. No prompt or reply is in a span unless has_content.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from embedllm.errors import MissingPart
from embedllm.files.version import __version__
from embedllm.text.lone_surrogates import replace_surrogates


@contextmanager
def _needs_packages() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise MissingPart('traces need OpenTelemetry\'s packages: pip install "embedllm[otel]"') from error


with _needs_packages():
    from opentelemetry import context, propagate, trace
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from embedllm.generation.completion import Completion
    from embedllm.server.request_record import RequestRecord
    from embedllm.text.prompt import Prompt

_PROVIDER = "embedllm"
_SCALARS = {  # attributes by the names of parameters in all dialects
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "dimensions": "gen_ai.embeddings.dimension.count",
}
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_WITH_CONTENT = ("true", "span_only", "span_and_event")


def tracing_from_environment() -> OpenTelemetryTracing:
    """As the OTEL_* variables say: exporter, endpoint, headers, sampler, resource, propagators, batches.

    Raises ValueError for an exporter or a protocol that there is not, and MissingPart.
    """
    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: _PROVIDER})
    provider = TracerProvider(resource=resource)
    if (exporter := _exporter()) is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return OpenTelemetryTracing(provider, has_content=os.environ.get(_CONTENT, "").strip().lower() in _WITH_CONTENT)


def _exporter() -> SpanExporter | None:
    name = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if name in ("none", "console"):
        return ConsoleSpanExporter() if name == "console" else None
    if name != "otlp":
        raise ValueError(f"OTEL_TRACES_EXPORTER is '{name}'; expected 'otlp', 'console' or 'none'.")
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if protocol := os.environ.get(variable):
            if protocol != "http/protobuf":
                raise ValueError(f"{variable} is '{protocol}'; expected 'http/protobuf', the only one here.")
            break
    with _needs_packages():
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    return OTLPSpanExporter()


class OpenTelemetryTracing:
    """Traces to the exporters of a provider of the OpenTelemetry SDK."""

    def __init__(self, provider: TracerProvider, *, has_content: bool = False) -> None:
        """has_content: spans have the messages of requests and replies."""
        self._provider = provider
        self._tracer = provider.get_tracer("embedllm.server", __version__)
        self.has_content = has_content

    @contextmanager
    def request(
        self, operation: str, method: str, route: str, headers: Mapping[str, str], record: RequestRecord
    ) -> Iterator[_RequestSpan]:
        """A request that has come; its span belongs to the trace that its headers name (traceparent)."""
        parent = propagate.extract(headers, context.Context())
        fixed = {"gen_ai.operation.name": operation, "gen_ai.provider.name": _PROVIDER, "http.request.method": method,
                 "http.route": route, "url.path": route}  # fmt: skip
        span = _RequestSpan(self._tracer, operation, parent, fixed)
        try:
            yield span
        finally:
            span.end(record)

    @contextmanager
    def tool(self, name: str, call_id: str) -> Iterator[None]:
        """A tool that runs within a request."""
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name,
                      "gen_ai.tool.type": "extension", "gen_ai.tool.call.id": call_id}  # fmt: skip
        with self._tracer.start_as_current_span(f"execute_tool {name}", attributes=attributes):
            yield

    def close(self) -> None:
        """Sends what is left, and ends."""
        self._provider.shutdown()


class _RequestSpan:
    """Begins when the body was read, as samplers read the attributes of that time, or else when the request ends."""

    def __init__(self, tracer: trace.Tracer, operation: str, parent: context.Context, fixed: Mapping[str, str]) -> None:
        self._tracer, self._operation, self._parent, self._fixed = tracer, operation, parent, fixed
        self._began_ns = time.time_ns()
        self._span: trace.Span | None = None
        self._before: Any = None  # a token of opentelemetry.context

    def begin(self, body: Mapping[str, Any]) -> None:
        self._start(_request_attributes(body), body.get("model"))
        self._before = context.attach(trace.set_span_in_context(self._span or trace.INVALID_SPAN, self._parent))

    def end(self, record: RequestRecord) -> None:
        """With what the request came to."""
        span = self._span or self._start({}, None)
        if self._before is not None:
            context.detach(self._before)
        span.set_attributes(_reply_attributes(record))
        if record.error is not None and record.error.status >= 500:  # others are the client's: HTTP's conventions
            span.set_status(trace.StatusCode.ERROR, record.error.message)
        span.end()

    def _start(self, attributes: Mapping[str, Any], model: str | None) -> trace.Span:
        self._span = self._tracer.start_span(
            f"{self._operation} {model}" if model else self._operation,
            self._parent,
            trace.SpanKind.SERVER,
            {**self._fixed, **attributes},
            start_time=self._began_ns,
        )
        return self._span


def _request_attributes(body: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a request, whose types were checked."""
    attributes = {attribute: body[name] for name, attribute in _SCALARS.items() if name in body}
    if model := body.get("model"):
        attributes["gen_ai.request.model"] = model
    if body.get("n", 1) != 1:
        attributes["gen_ai.request.choice.count"] = body["n"]
    if body.get("stream"):
        attributes["gen_ai.request.stream"] = True
    if stop := body.get("stop", body.get("stop_sequences")):
        attributes["gen_ai.request.stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if encoding := body.get("encoding_format"):
        attributes["gen_ai.request.encoding_formats"] = [encoding]
    reasoning, output = body.get("reasoning") or {}, body.get("output_config") or {}
    level = body.get("reasoning_effort", reasoning.get("effort", output.get("effort")))
    if isinstance(level, str):
        attributes["gen_ai.request.reasoning.level"] = level
    form = body.get("response_format") or (body.get("text") or {}).get("format") or output.get("format") or {}
    if isinstance(form, Mapping) and isinstance(kind := form.get("type"), str):
        attributes["gen_ai.output.type"] = "json" if kind.startswith("json") else "text"
    return attributes


def _reply_attributes(record: RequestRecord) -> dict[str, Any]:
    """Attributes of what a request came to."""
    attributes = {
        "http.response.status_code": record.status or None,
        "gen_ai.response.id": record.response_id,
        "gen_ai.response.model": record.model,
        "gen_ai.response.finish_reasons": record.finish_reasons or None,
        "gen_ai.response.time_to_first_chunk": record.first_chunk_s,
        "gen_ai.usage.input_tokens": record.input_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "embedllm.time_in_queue": record.queued_s,
    }
    if record.error is not None:
        attributes["error.type"] = record.error.code or str(record.error.status)
    elif record.is_gone:
        attributes["error.type"] = "client_disconnected"
    if record.prompts:
        attributes["gen_ai.input.messages"] = _json(_input(record.prompts))
    if record.replies:
        pairs = zip(record.replies, record.finish_reasons, strict=False)
        attributes["gen_ai.output.messages"] = _json([_output(reply, reason) for reply, reason in pairs])
    return {name: value for name, value in attributes.items() if value is not None}


def _json(value: object) -> str:
    return replace_surrogates(json.dumps(value, ensure_ascii=False))


def _input(prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for prompt in prompts:
        if isinstance(prompt, str):
            messages.append({"role": "user", "parts": [{"type": "text", "content": prompt}]})
        else:
            messages += [_message(one) for one in prompt if isinstance(one, Mapping)]  # token ids are no text
    return messages


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of this library in the form of the conventions (gen-ai-input-messages.json)."""
    text = message.get("content")
    if message["role"] == "tool":
        response = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": text}
        return {"role": "tool", "parts": [response]}
    parts = [_PART[name](message[name]) for name in _PART if message.get(name)]
    return {"role": message["role"], "parts": [part for some in parts for part in some]}


def _calls(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "tool_call", "id": call.get("id"), **call["function"]} for call in calls]


_PART: Mapping[str, Callable[[Any], list[dict[str, Any]]]] = {
    "reasoning_content": lambda text: [{"type": "reasoning", "content": text}],
    "content": lambda text: [{"type": "text", "content": text}],
    "tool_calls": _calls,
}


def _output(reply: Completion, reason: str) -> dict[str, Any]:
    return {**_message(reply.message), "finish_reason": reason}

"""Metrics for Prometheus: requests and tokens are counted as they come, what models do is read when it is asked for.

Three gauges are those that the endpoint picker of the Gateway API inference extension reads (its model server
protocol): waiting requests, the used share of the KV cache, and the LoRA adapters that run and wait. docs/server.md
lists all.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from embedllm.generation.scheduler_statistics import scheduler_statistics
from embedllm.server.model_pool import ModelPool

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from embedllm.generation.chunk import Statistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)


class Metrics:
    """Those of one server; another one in the same process has its own."""

    def __init__(self, pool: ModelPool) -> None:
        registry = self._registry = CollectorRegistry()
        registry.register(_Models(pool))
        self.requests = Counter("embedllm_requests", "Requests by path and status.", ("path", "status"),
                                registry=registry)  # fmt: skip
        self.request_s = Histogram("embedllm_request_seconds", "Until the end of the response.", ("path",),
                                   buckets=_SECONDS, registry=registry)  # fmt: skip
        self.cancelled = Counter("embedllm_cancelled_requests", "Requests whose clients went away.", ("path",),
                                 registry=registry)  # fmt: skip
        of_model = ("model_name",)
        self._prompt = Counter("embedllm_prompt_tokens", "Tokens of prompts.", of_model, registry=registry)
        self._cached = Counter("embedllm_cached_prompt_tokens", "Of these, not computed again.", of_model,
                               registry=registry)  # fmt: skip
        self._generated = Counter("embedllm_generation_tokens", "Generated tokens.", of_model, registry=registry)
        self._queue_s = Histogram("embedllm_request_queue_seconds", "Waited for other replies.", of_model,
                                  buckets=_SECONDS, registry=registry)  # fmt: skip
        self._first_s = Histogram("embedllm_time_to_first_token_seconds", "Queue and prompt.", of_model,
                                  buckets=_SECONDS, registry=registry)  # fmt: skip
        self._token_s = Histogram("embedllm_time_per_output_token_seconds", "Mean of a reply, after its first token.",
                                  of_model, buckets=_TOKEN_SECONDS, registry=registry)  # fmt: skip

    def count_reply(self, model: str, statistics: Statistics) -> None:
        """Counts a reply, or what there was of it."""
        self._prompt.labels(model).inc(statistics.prompt_tokens)
        self._cached.labels(model).inc(statistics.cached_tokens)
        self._generated.labels(model).inc(statistics.tokens)
        self._queue_s.labels(model).observe(statistics.queued_s)
        if statistics.tokens:
            self._first_s.labels(model).observe(statistics.queued_s + statistics.prefill_s)
        if statistics.tokens > 1:
            self._token_s.labels(model).observe(statistics.decode_s / (statistics.tokens - 1))

    def page(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self._registry)


class _Models(Collector):
    """What the models of a pool do now."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        labels = ["model_name"]
        running = GaugeMetricFamily("embedllm_num_requests_running", "Requests that are computed.", labels=labels)
        waiting = GaugeMetricFamily("embedllm_num_requests_waiting", "Requests in the queue.", labels=labels)
        preempted = CounterMetricFamily("embedllm_num_preemptions", "Preemptions of running requests.", labels=labels)
        used = GaugeMetricFamily("embedllm_kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.", labels=labels)
        lora = GaugeMetricFamily("embedllm_lora_requests_info", "Seconds since 1970.",
                                 labels=["model_name", "max_lora", "running_lora_adapters", "waiting_lora_adapters"]
                                 )  # fmt: skip
        prefix = [
            GaugeMetricFamily(f"embedllm_prefix_cache_{name}_bytes", text, labels=labels)
            for name, text in (
                ("held", "Bytes of KV in the prefix cache."),
                ("capacity", "Budget of the prefix cache in bytes."),
            )
        ]
        hits = [
            CounterMetricFamily(f"embedllm_prefix_cache_{name}", text, labels=labels)
            for name, text in (
                ("evicted_bytes", "Bytes evicted from the prefix cache."),
                ("hit_tokens", "Prompt tokens served from the prefix cache."),
                ("prompt_tokens", "Prompt tokens looked up in the prefix cache."),
            )
        ]
        loaded = GaugeMetricFamily("embedllm_model_loaded", "1: in memory; 0: not.", labels=labels)
        memory = GaugeMetricFamily("embedllm_model_memory_bytes", "What the model takes.", labels=labels)
        for status in self._pool.listed():
            loaded.add_metric([status.name], float(status.state == "loaded"))
            memory.add_metric([status.name], status.memory_bytes or 0)
        for name, model in self._pool.loaded.items():
            now = scheduler_statistics(model.runner.scheduler, model.runner.sequences)
            running.add_metric([name], now.running)
            waiting.add_metric([name], now.waiting)
            preempted.add_metric([name], now.preempted)
            used.add_metric([name], now.kv_usage)
            if model.adapters:
                lora.add_metric([name, str(len(model.adapters)), ",".join(now.running_adapters),
                                 ",".join(now.waiting_adapters)], time.time())  # fmt: skip
            if (cache := model.runner.sequences.prefix_cache) is not None:
                statistics = cache.statistics
                for metric, value in zip(
                    [*prefix, *hits],
                    (
                        statistics.held_bytes,
                        statistics.capacity_bytes,
                        statistics.evicted_bytes,
                        statistics.hit_tokens,
                        statistics.prompt_tokens,
                    ),
                    strict=True,
                ):
                    metric.add_metric([name], value)
        return [running, waiting, preempted, used, lora, *prefix, *hits, loaded, memory]

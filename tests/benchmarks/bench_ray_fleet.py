"""Prefix-aware routing over a fleet of replicas on one machine: cached share of the prompts, and the first token.

python tests/benchmarks/bench_ray_fleet.py --replicas 8 --prefixes 16 --rounds 12

Each of the `prefixes` is a long system message that all requests with it share; the requests come in random order,
one at a time, so that replicas do not compete for the cores. The same requests go through Ray's prefix-aware router,
and through its default one. The first requests of each prefix are counted, too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import time
from pathlib import Path
from random import Random

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else a token is written into HOME
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import ray
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from ray import serve

from embedllm.integrations.ray.serve_app import build_app
from embedllm.loading.options import LoadOptions
from embedllm.server.model_pool import ServedModel

ROOT = Path(__file__).parents[2]
WORDS = (ROOT / "tests" / "benchmarks" / "bench_ray_fleet.py").read_text(encoding="utf-8").split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--prefixes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=12, help="requests of each prefix")
    parser.add_argument("--words", type=int, default=300, help="of a prefix")
    parser.add_argument("--port", type=int, default=8123)
    given = parser.parse_args()
    ray.init("local", num_cpus=given.replicas + 2, include_dashboard=False, log_to_driver=False,
             runtime_env={"env_vars": {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}})  # fmt: skip
    serve.start(http_options={"host": "127.0.0.1", "port": given.port})
    print(f"Ray {ray.__version__}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, {given}")
    for is_prefix_aware in (True, False):
        model = ServedModel(name="model", path=given.model, options=LoadOptions(threads=1))
        app = build_app(
            [model], replicas=given.replicas, actor_options={"num_cpus": 1}, is_prefix_aware=is_prefix_aware
        )
        serve.run(app)
        shares, firsts = asyncio.run(measure(given))
        name = "prefix-aware" if is_prefix_aware else "Ray's default"
        mean_ms, median_ms = statistics.mean(firsts) * 1e3, statistics.median(firsts) * 1e3
        cached = f"{statistics.mean(shares):.1%} of the prompts' tokens cached"
        print(f"{name}: {cached}, first token {mean_ms:.0f} ms (mean), {median_ms:.0f} ms (median)")
        serve.delete("default")
    serve.shutdown()
    ray.shutdown()


async def measure(given: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Of each request: the cached share of its prompt, seconds to the first token."""
    random = Random(0)
    prefixes = [" ".join(random.choices(WORDS, k=given.words)) for _ in range(given.prefixes)]
    order = [which for which in range(given.prefixes) for _ in range(given.rounds)]
    random.shuffle(order)
    shares: list[float] = []
    firsts: list[float] = []
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{given.port}/v1", api_key="none", timeout=300) as client:
        for place, which in enumerate(order):
            messages: list[ChatCompletionMessageParam] = [
                {"role": "system", "content": prefixes[which]},
                {"role": "user", "content": f"question {place}"},
            ]
            began, first = time.perf_counter(), 0.0
            stream = await client.chat.completions.create(
                model="model", messages=messages, max_tokens=4, stream=True, stream_options={"include_usage": True}
            )
            async for chunk in stream:
                if chunk.choices and not first:
                    first = time.perf_counter() - began
                if (usage := chunk.usage) is not None and (details := usage.prompt_tokens_details) is not None:
                    shares.append((details.cached_tokens or 0) / usage.prompt_tokens)
            firsts.append(first)
    return shares, firsts


if __name__ == "__main__":
    main()

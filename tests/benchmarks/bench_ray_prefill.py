"""Prefill on one replica, decode on another: KV goes through a folder that both have (cache_dir).

python tests/benchmarks/bench_ray_prefill.py --rounds 10

Two deployments of the same model, "prefill" and "decode". Half of the prompts go to "decode" at once; the others are
asked of "prefill" for one token before. Measured is the first token of "decode".
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from random import Random

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else a token is written into HOME
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import ray
from openai import OpenAI
from ray import serve

from embedllm.integrations.ray.serve_app import build_app
from embedllm.loading.options import LoadOptions
from embedllm.server.model_pool import ServedModel

ROOT = Path(__file__).parents[2]
WORDS = Path(__file__).read_text(encoding="utf-8").split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--words", type=int, default=500, help="of a prompt")
    parser.add_argument("--port", type=int, default=8124)
    given = parser.parse_args()
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False,
             runtime_env={"env_vars": {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}})  # fmt: skip
    serve.start(http_options={"host": "127.0.0.1", "port": given.port})
    print(f"Ray {ray.__version__}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, {given}")
    with tempfile.TemporaryDirectory() as folder:
        options = LoadOptions(cache_dir=folder, threads=2)
        models = [ServedModel(name=name, path=given.model, options=options) for name in ("prefill", "decode")]
        serve.run(build_app(models, actor_options={"num_cpus": 1}))
        times: dict[bool, list[float]] = {False: [], True: []}
        random, tokens = Random(0), 0
        with OpenAI(base_url=f"http://127.0.0.1:{given.port}/v1", api_key="none", timeout=300) as client:
            for place in range(2 * given.rounds + 2):
                prompt, is_passed = " ".join(random.choices(WORDS, k=given.words)), place % 2 == 1
                if is_passed:
                    ask(client, "prefill", prompt)
                between = time.perf_counter()
                tokens = ask(client, "decode", prompt)
                if place >= 2:  # the first ones warm up
                    times[is_passed].append(time.perf_counter() - between)
        cold, warm = (statistics.median(times[is_passed]) * 1e3 for is_passed in (False, True))
        print(f"prompts of {tokens} tokens; first token of decode, median: {cold:.0f} ms, "
              f"after prefill elsewhere {warm:.0f} ms ({warm / cold:.0%})")  # fmt: skip
    serve.shutdown()
    ray.shutdown()


def ask(client: OpenAI, model: str, prompt: str) -> int:
    """Generates one token; the prompt's tokens."""
    reply = client.completions.create(model=model, prompt=prompt, max_tokens=1)
    assert reply.usage is not None
    return reply.usage.prompt_tokens


if __name__ == "__main__":
    main()

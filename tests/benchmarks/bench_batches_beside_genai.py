"""Several sequences at once: our streams and generate_batch beside onnxruntime-genai's Engine and its generator.

    python tests/benchmarks/bench_batches_beside_genai.py FOLDER [--device cuda] [--sequences 1 8 32] [--prompt 64]
        [--tokens 256] [--rounds 3]

Each engine is a process of its own over the same folder (on CUDA its float16 graph), all loaded before the first
round; a round runs every engine once, with fresh random prompts of one length, greedy, without stop tokens. Rates are
tokens a second of all sequences, from the call to the last token, prompts included. onnxruntime-genai runs three ways:
its generator with that many rows, the same with captured steps, and its Engine (static batches: this folder has no
paged graph). What one cannot do is printed with its own message.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
from bench_cuda import for_genai

Run = Callable[[list[list[int]], int], None]  # prompts, count of new tokens of each


def ours(folder: str, device: str, how: str) -> Run:
    """how: "streams", each in a thread, or "batch"."""
    import embedllm

    llm = embedllm.load(folder, device=device, tuned=False)
    greedy = embedllm.Sampling(temperature=0)

    def stream(prompt: list[int], count: int) -> None:
        found = sum(1 for _ in llm.stream(prompt, greedy, max_tokens=count, stop_tokens=(), speculate="off"))
        assert found == count, found

    def run(prompts: list[list[int]], count: int) -> None:
        if how == "batch":
            llm.generate_batch(prompts, greedy, max_tokens=count, stop_tokens=(), speculate="off")
            return
        with ThreadPoolExecutor(len(prompts)) as threads:
            list(threads.map(lambda prompt: stream(prompt, count), prompts))

    return run


def _genai_model(folder: str, device: str, captured: bool) -> tuple[Any, Any]:
    og: Any = importlib.import_module("onnxruntime_genai")  # it has no type information
    config = og.Config(folder)
    if device != "cpu":
        config.clear_providers()
        config.append_provider(device)
        if captured:
            config.set_provider_option(device, "enable_cuda_graph", "1")
    return og, og.Model(config)


def genai_generator(folder: str, device: str, how: str) -> Run:
    """how: "captured" or "plain"."""
    og, model = _genai_model(folder, device, how == "captured")

    def run(prompts: list[list[int]], count: int) -> None:
        length = len(prompts[0]) + count
        parameters = og.GeneratorParams(model)
        parameters.set_search_options(do_sample=False, max_length=length, min_length=length, batch_size=len(prompts))
        generator = og.Generator(model, parameters)
        generator.append_tokens(np.array(prompts, np.int32))
        for _ in range(count):
            generator.generate_next_token()
            generator.get_next_tokens()

    return run


def genai_engine(folder: str, device: str, how: str) -> Run:
    """how: the greatest batch of its static scheduler."""
    changed = Path(folder) / "genai_config.json"
    told = json.loads(changed.read_text())
    told["engine"] = {"static_batching": {"max_batch_size": int(how)}}
    changed.write_text(json.dumps(told))
    og, model = _genai_model(folder, device, captured=False)
    engine = og.Engine(model)
    events = engine.create_event_buffer(1024)

    def run(prompts: list[list[int]], count: int) -> None:
        requests = []
        for prompt in prompts:
            options = og.RequestOptions()
            options.set_max_session_tokens(len(prompt) + count)
            request = engine.create_request(options=options)
            turn = og.TurnOptions(request)
            turn.set_do_sample(False)
            turn.set_max_generated_tokens(count)
            turn.set_min_generated_tokens(count)
            request.begin_turn(prompt, turn)
            requests.append(request)
        tokens = 0
        while engine.has_pending_requests():
            for event in engine.run(events):
                if event.flags & og.EngineEventFlags.FAILED:
                    raise RuntimeError(f"onnxruntime-genai's engine failed: {event.error_code}.")
                tokens += bool(event.flags & og.EngineEventFlags.TOKEN)
        for request in requests:
            request.close()
        assert tokens == count * len(prompts), (tokens, count, len(prompts))

    return run


KINDS: dict[str, Callable[[str, str, str], Run]] = {
    "embedllm": ours,
    "generator": genai_generator,
    "engine": genai_engine,
}


def serve(kind: str, folder: str, device: str, how: str) -> None:
    """Answers each line of stdin, prompts and a count, with seconds or an error."""
    try:
        run = KINDS[kind](folder, device, how)
    except Exception as error:  # noqa: BLE001 - a peer's own, told as it is
        print("answer", json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return
    print("answer", json.dumps({}), flush=True)
    for line in sys.stdin:
        prompts, count = json.loads(line)
        start = time.perf_counter()
        try:
            run(prompts, count)
        except Exception as error:  # noqa: BLE001
            print("answer", json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        else:
            print("answer", json.dumps({"seconds": time.perf_counter() - start}), flush=True)


class Engine:
    """An engine in its process."""

    def __init__(self, name: str, kind: str, folder: Path, device: str, how: str) -> None:
        self.name = name
        command = [sys.executable, __file__, "--serve", kind, str(folder), device, how]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.error: str | None = self._answer().get("error")

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer"):
                return json.loads(line.removeprefix("answer"))
        return {"error": f"the process ended with {self._process.wait()}"}

    def seconds(self, prompts: list[list[int]], count: int) -> float | None:
        if self.error is not None:
            return None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([prompts, count]) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.error = answer.get("error")
        return answer.get("seconds")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{options.folder.name}, {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}; "
          f"prompts of {options.prompt}, {options.tokens} new, {options.rounds} rounds")  # fmt: skip
    with tempfile.TemporaryDirectory(dir=options.folder.parent) as temporary:
        for count in options.sequences:
            measure(count, options, Path(temporary) / str(count))


def measure(count: int, options: argparse.Namespace, temporary: Path) -> None:
    temporary.mkdir()
    folders = [options.folder] * 2
    for place in range(3):
        folders.append(for_genai(options.folder, temporary / str(place), is_cuda=options.device == "cuda"))
    kinds = [("embedllm, streams", "embedllm", "streams"), ("embedllm, generate_batch", "embedllm", "batch"),
             ("onnxruntime-genai, generator", "generator", "plain"),
             ("onnxruntime-genai, generator, captured", "generator", "captured"),
             ("onnxruntime-genai, Engine", "engine", str(count))]  # fmt: skip
    engines = [Engine(name, kind, folder, options.device, how)
               for (name, kind, how), folder in zip(kinds, folders, strict=True)
               if options.device == "cuda" or how != "captured"]  # fmt: skip
    found: dict[str, list[float]] = {engine.name: [] for engine in engines}
    numbers = random.Random(0)
    for number in range(-1, options.rounds):  # the first one compiles, captures and settles
        for engine in engines:
            prompts = [[numbers.randrange(3, 16000) for _ in range(options.prompt)] for _ in range(count)]
            seconds = engine.seconds(prompts, options.tokens)
            if seconds is not None and number >= 0:
                found[engine.name].append(count * options.tokens / seconds)
    best = statistics.median(found["embedllm, generate_batch"])
    for engine in engines:
        engine.close()
        rates = found[engine.name]
        if engine.error is not None or not rates:
            print(f"{count:3d} at once, {engine.name:40s} {engine.error}", flush=True)
            continue
        rate = statistics.median(rates)
        print(f"{count:3d} at once, {engine.name:40s} {rate:9.1f} tokens/s ({min(rates):.1f}-{max(rates):.1f}), "
              f"{rate / best:.2f} of generate_batch", flush=True)  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:6])
    else:
        main()

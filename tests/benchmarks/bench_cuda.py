"""Time to the first token and decoding speed on an NVIDIA GPU, against onnxruntime-genai and PyTorch, in one run.

    python tests/benchmarks/make_checkpoint.py /tmp/q06
    embedllm export /tmp/q06 /tmp/q06-g32
    python tests/benchmarks/bench_cuda.py /tmp/q06-g32 [--checkpoint /tmp/q06] [--genai FOLDER ...] [--compile]
        [--bandwidth 4800]

Each engine is a process of its own, all are loaded before the first round, and each round runs every engine once, in
turn: a prompt of random ids, then greedy decoding through the public API of each, timed from outside, token by token.
onnxruntime-genai runs our folder's float16 graph (--genai adds folders of its own builder), PyTorch the checkpoint in
bfloat16 through transformers; --compile adds its static cache with torch.compile. --bandwidth, GB/s, prints the share
of it that reading the weights once a token takes. Medians, the spread, and ratios to the first engine.
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
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

Run = Callable[[list[int], int], list[float]]  # prompt, count of tokens -> when each token was there, seconds


def ours(folder: str, device: str) -> Run:
    import embedllm

    llm = embedllm.load(folder, device=device)

    def run(prompt: list[int], count: int) -> list[float]:
        start = time.perf_counter()
        greedy = embedllm.Sampling(temperature=0)
        return [time.perf_counter() - start for _ in llm.stream(prompt, greedy, max_tokens=count, stop_tokens=())]

    return run


def genai(folder: str, options: str) -> Run:
    """options: of its CUDA provider, as JSON."""
    og: Any = importlib.import_module("onnxruntime_genai")  # it has no type information

    config: Any = og.Config(folder)
    config.clear_providers()
    config.append_provider("cuda")
    for key, value in json.loads(options).items():
        config.set_provider_option("cuda", key, value)
    model = og.Model(config)

    def run(prompt: list[int], count: int) -> list[float]:
        parameters = og.GeneratorParams(model)
        length = len(prompt) + count
        parameters.set_search_options(do_sample=False, max_length=length, min_length=length)
        generator = og.Generator(model, parameters)
        start, times = time.perf_counter(), []
        generator.append_tokens(prompt)
        for _ in range(count):
            generator.generate_next_token()
            generator.get_next_tokens()
            times.append(time.perf_counter() - start)
        return times

    return run


def pytorch(checkpoint: str, cache: str) -> Run:
    """cache: "dynamic", or "static", which transformers compiles the step for."""
    import torch
    import transformers

    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
    model = loaded.cuda().eval()

    class Clock:
        def __init__(self) -> None:
            self.start, self.times = time.perf_counter(), []

        def put(self, value: torch.Tensor) -> None:
            value.tolist()  # on the host, as the others have it
            self.times.append(time.perf_counter() - self.start)

        def end(self) -> None: ...

    def run(prompt: list[int], count: int) -> list[float]:
        ids = torch.tensor([prompt], device="cuda")
        clock = Clock()
        with torch.inference_mode():
            model.generate(ids, do_sample=False, max_new_tokens=count, min_new_tokens=count, streamer=clock,
                           cache_implementation=None if cache == "dynamic" else cache)  # fmt: skip
        return clock.times[1:]  # the first is the prompt

    return run


KINDS: dict[str, Callable[..., Run]] = {"embedllm": ours, "onnxruntime-genai": genai, "pytorch": pytorch}


def serve(kind: str, *arguments: str) -> None:
    """Runs what comes line by line on stdin."""
    run = KINDS[kind](*arguments)
    print("ready", flush=True)
    for line in sys.stdin:
        prompt, count = json.loads(line)
        print("times", json.dumps(run(prompt, count)), flush=True)


class Engine:
    """An engine in its process."""

    def __init__(self, name: str, kind: str, *arguments: str) -> None:
        self.name = name
        self.first_s: list[float] = []
        self.token_s: list[float] = []
        command = [sys.executable, __file__, "--serve", kind, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer("ready")

    def _answer(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
        raise SystemExit(f"'{self.name}' ended.")

    def run(self, prompt: list[int], count: int) -> tuple[float, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([prompt, count]) + "\n")
        self._process.stdin.flush()
        times = json.loads(self._answer("times"))
        assert len(times) == count, (self.name, len(times))
        return times[0], (times[-1] - times[0]) / (count - 1)


def for_genai(folder: Path, into: Path, *, is_cuda: bool = True) -> Path:
    """The folder, on CUDA with its float16 graph in genai_config.json; hard links: external data must lie beside."""
    into.mkdir()
    for file in folder.iterdir():
        if file.is_file() and file.name != "genai_config.json":
            os.link(file, into / file.name)
    config = json.loads((folder / "genai_config.json").read_text())
    if is_cuda:
        config["model"]["decoder"]["filename"] = "model.fp16.onnx"
    (into / "genai_config.json").write_text(json.dumps(config))
    return into


def read_per_token(folder: Path) -> int:
    """Bytes of weights that a step reads: all but the rotary tables, and an embedding that is not the head."""
    from embedllm.files.safetensors_header import read_header
    from embedllm.package.package import open_package

    package = open_package(folder)
    skipped = {"rope", "openvino"} | (set() if package.decoder.tied else {package.decoder.embedding.name})
    tensors = read_header(package.weights).tensors
    return sum(tensor.length for name, tensor in tensors.items() if name.rpartition(".")[0] not in skipped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--checkpoint")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--genai", nargs="*", default=[])
    parser.add_argument("--bandwidth", type=float)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder.parent) as temporary:
        linked = str(for_genai(options.folder, Path(temporary) / "genai"))
        engines = [Engine("embedllm", "embedllm", str(options.folder), options.device)]
        for folder, name in ((linked, "same folder"), *((f, Path(f).name) for f in options.genai)):
            for settings, words in (({}, ""), ({"enable_cuda_graph": "1"}, ", captured")):
                arguments = (folder, json.dumps(settings))
                engines.append(Engine(f"onnxruntime-genai, {name}{words}", "onnxruntime-genai", *arguments))
        if options.checkpoint:
            for cache in ("dynamic", "static") if options.compile else ("dynamic",):
                engines.append(Engine(f"transformers, bf16, {cache} cache", "pytorch", options.checkpoint, cache))
        measure(engines, options)
    show(engines, options)


def measure(engines: list[Engine], options: argparse.Namespace) -> None:
    numbers = random.Random(0)
    for number in range(-2, options.rounds):  # the first two compile, capture and settle
        prompt = [numbers.randrange(3, 16000) for _ in range(options.prompt)]
        for engine in engines:
            first, token = engine.run(prompt, options.tokens)
            if number >= 0:
                engine.first_s.append(first)
                engine.token_s.append(token)


def show(engines: list[Engine], options: argparse.Namespace) -> None:
    print(f"{options.folder.name}, {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}; "
          f"prompt {options.prompt}, {options.tokens} new, median (least-most) of {options.rounds}")  # fmt: skip
    bytes_read = read_per_token(options.folder)
    for engine in engines:
        first = [seconds * 1000 for seconds in engine.first_s]
        speeds = sorted(1 / seconds for seconds in engine.token_s)
        ratio = statistics.median(b / e for b, e in zip(engines[0].token_s, engine.token_s, strict=True))
        share = bytes_read * statistics.median(speeds) / 1e9 / options.bandwidth if options.bandwidth else 0
        print(
            f"{engine.name:45s} first token {statistics.median(first):7.1f} ms ({min(first):.1f}-{max(first):.1f})  "
            f"decode {statistics.median(speeds):7.1f} ({speeds[0]:.1f}-{speeds[-1]:.1f}) tokens/s  x{ratio:.2f}"
            + (f"  {share:.0%} of the bandwidth" if share and engine is engines[0] else "")
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()

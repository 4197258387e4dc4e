"""Decoding and first tokens on WebGPU by the public API, captured and not, and of onnxruntime-genai, in one run.

    python tests/benchmarks/bench_webgpu.py FOLDER [--rounds 5] [--tokens 256] [--genai | --sampled] [--json FILE]

Each engine is a process of its own, and each round runs every engine once, in turn, on the same fresh random prompts:
one of 64 tokens and --tokens greedy ones, the same sampled (temperature 0.8, top_p 0.95), and one of 512 tokens for the
time to its first token. Greedy tokens are compared with those of steps that are not captured; compare_devices.py tells
ties from faults. --genai: onnxruntime-genai with its WebGPU provider on the same folder. --sampled: sampled steps that
run ahead beside steps one by one, by several options, and nothing else: how many times as fast, how many guesses were
right, and whether the tokens were the same.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

LONG, SHORT = 512, 64  # tokens of the prompts
Reply = tuple[list[int], list[float], list[int]]  # tokens, their times, how many guesses were right and wrong
Run = Callable[[list[int], int, dict[str, Any]], Reply]  # of a prompt, a number of tokens, options of sampling
GREEDY: dict[str, Any] = {"temperature": 0}
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95}
KINDS_OF_SAMPLING: dict[str, dict[str, Any]] = {
    "temperature 0.8, top_p 0.95": SAMPLED,
    "temperature 0.6, top_k 20, top_p 0.95": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "temperature 1": {},
    "temperature 1, min_p 0.05": {"min_p": 0.05},
}


def ours(folder: str, device: str) -> Run:
    import embedllm
    from embedllm.backends.gpu.webgpu_guesses import Guesses

    llm = embedllm.load(folder, device=device, tuned=False)
    check, guesses = Guesses.check, [0, 0]

    def counted(self: Guesses, token: int) -> bool:
        is_guess, is_right = self._latest is not None, check(self, token)
        guesses[0 if is_right else 1] += is_guess
        return is_right

    Guesses.check = counted

    def run(prompt: list[int], count: int, options: dict[str, Any]) -> Reply:
        sampling = embedllm.Sampling(seed=1, **options)
        guesses[:] = 0, 0
        start, tokens, times = time.perf_counter(), [], []
        for chunk in llm.stream(prompt, sampling, max_tokens=count, stop_tokens=(), speculate="off"):
            times.append(time.perf_counter() - start)
            tokens.append(chunk.token)
        return tokens, times, list(guesses)

    return run


def genai(folder: str, library: str) -> Run:
    og: Any = importlib.import_module("onnxruntime_genai")  # it has no type information

    og.register_execution_provider_library("WebGpuExecutionProvider", library)
    config: Any = og.Config(folder)
    config.clear_providers()
    config.append_provider("WebGPU")
    model = og.Model(config)

    def run(prompt: list[int], count: int, options: dict[str, Any]) -> Reply:
        parameters = og.GeneratorParams(model)
        length = len(prompt) + count
        how = {"do_sample": False} if options == GREEDY else {"do_sample": True, **options}
        parameters.set_search_options(max_length=length, min_length=length, **how)
        generator = og.Generator(model, parameters)
        start, tokens, times = time.perf_counter(), [], []
        generator.append_tokens(prompt)
        for _ in range(count):
            generator.generate_next_token()
            tokens += [int(token) for token in generator.get_next_tokens()]
            times.append(time.perf_counter() - start)
        return tokens, times, [0, 0]

    return run


KINDS: dict[str, Callable[[str, str], Run]] = {"embedllm": ours, "onnxruntime-genai": genai}


def serve(kind: str, folder: str, argument: str) -> None:
    """Runs what comes line by line on stdin."""
    start = time.perf_counter()
    run = KINDS[kind](folder, argument)
    print("ready", time.perf_counter() - start, flush=True)
    for line in sys.stdin:
        print("run", json.dumps(run(*json.loads(line))), flush=True)


def rate(times: Sequence[float]) -> float:
    """Tokens/s, the first one left out."""
    return (len(times) - 1) / (times[-1] - times[0])


class Engine:
    """An engine in its process."""

    def __init__(self, kind: str, folder: Path, argument: str, **environment: str) -> None:
        self.found: dict[str, list[float]] = {"tokens/s": [], "sampled, tokens/s": [], f"first of {LONG}, ms": []}
        self.tokens: list[list[int]] = []
        command = [sys.executable, __file__, "--serve", kind, str(folder), argument]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment
        )
        self.load_s = float(self._answer("ready"))

    def _answer(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
        raise RuntimeError("it ended; see above")

    def ask(self, prompt: Sequence[int], count: int, options: dict[str, Any]) -> Reply:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([prompt, count, options]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._answer("run"))

    def round(self, numbers: random.Random, count: int, vocabulary: int, *, counts: bool) -> None:
        short, again, long = ([numbers.randrange(3, vocabulary) for _ in range(n)] for n in (SHORT, SHORT, LONG))
        tokens, times, _ = self.ask(short, count, GREEDY)
        _, sampled, _ = self.ask(again, count, SAMPLED)
        _, first, _ = self.ask(long, 2, GREEDY)
        rates = [rate(times), rate(sampled)]
        if counts:
            self.tokens.append(tokens)
            for name, value in zip(self.found, (*rates, 1000 * first[0]), strict=True):
                self.found[name].append(value)


def for_genai(folder: Path, into: Path) -> Path:
    """The folder with its WebGPU graph named in genai_config.json."""
    shutil.copytree(folder, into)
    config = json.loads((into / "genai_config.json").read_text())
    config["model"]["decoder"]["filename"] = "model.webgpu.onnx"
    (into / "genai_config.json").write_text(json.dumps(config))
    return into


def compare_sampled(folder: Path, *, rounds: int, count: int, vocabulary: int) -> dict[str, object]:
    """Steps ahead beside steps one by one, in turn on the same prompts and seeds."""
    engines = [Engine("embedllm", folder, "webgpu", EMBEDLLM_WEBGPU_CAPTURE=value) for value in ("1", "greedy")]
    result: dict[str, object] = {"load_s": [engine.load_s for engine in engines]}
    for name, options in KINDS_OF_SAMPLING.items():
        rates: list[list[float]] = []
        same = right = wrong = 0
        for number in range(-1, rounds):  # the first one compiles and captures
            numbers = random.Random(number + 1)
            prompt = [numbers.randrange(3, vocabulary) for _ in range(SHORT)]
            order = engines[:: 1 if number % 2 else -1]
            found = {id(engine): engine.ask(prompt, count, options) for engine in order}
            (tokens, times, guesses), (expected, others, _) = (found[id(engine)] for engine in engines)
            if number >= 0:
                rates.append([rate(times), rate(others)])
                same, right, wrong = same + (tokens == expected), right + guesses[0], wrong + guesses[1]
        ahead, single = (statistics.median(each) for each in zip(*rates, strict=True))
        ratios = sorted(one / other for one, other in rates)
        print(f"{name}: ahead {ahead:.1f} tokens/s, one by one {single:.1f}, ratio {statistics.median(ratios):.2f} "
              f"({ratios[0]:.2f}-{ratios[-1]:.2f}); guesses right {right}, wrong {wrong}; the same tokens in {same} of "
              f"{rounds}", flush=True)  # fmt: skip
        result[name] = {"rates": rates, "same": same, "right": right, "wrong": wrong}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=16000, help="prompts are of tokens below this")
    parser.add_argument("--genai", action="store_true")
    parser.add_argument("--sampled", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    from embedllm.loading.resolve import package_folder

    folder = package_folder(options.folder)
    if options.sampled:
        result = compare_sampled(folder, rounds=options.rounds, count=options.tokens, vocabulary=options.vocabulary)
        if options.json:
            Path(options.json).write_text(json.dumps(result, indent=1), encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as temporary:
        engines = {
            "embedllm": Engine("embedllm", folder, "webgpu"),
            "embedllm, not captured": Engine("embedllm", folder, "webgpu", EMBEDLLM_WEBGPU_CAPTURE="0"),
        }
        if options.genai:
            library = importlib.import_module("onnxruntime_ep_webgpu").get_library_path()
            engines["onnxruntime-genai"] = Engine(
                "onnxruntime-genai", for_genai(folder, Path(temporary) / "g"), library
            )
        for number in range(-1, options.rounds):  # the first one compiles and captures
            for engine in engines.values():
                engine.round(random.Random(number + 1), options.tokens, options.vocabulary, counts=number >= 0)
    result = {}
    plain = engines["embedllm, not captured"].tokens
    for name, engine in engines.items():
        same = [len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=True))))
                for a, b in zip(engine.tokens, plain, strict=True)]  # fmt: skip
        cells = [f"{what} {statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"
                 for what, values in engine.found.items()]  # fmt: skip
        print(f"{name}: loaded in {engine.load_s:.1f} s; {'; '.join(cells)}; the same first tokens {same}")
        result[name] = {"load_s": engine.load_s, "same": same, **engine.found}
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    serve(*sys.argv[2:]) if sys.argv[1:2] == ["--serve"] else main()

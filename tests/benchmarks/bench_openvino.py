"""OpenVINO, ONNX Runtime and both together on one folder, against openvino-genai, interleaved in one run; and memory.

    python tests/benchmarks/make_checkpoint.py /tmp/q06 --tokenizer embedllm/demo
    embedllm export /tmp/q06 /tmp/q06-ov
    python tests/benchmarks/bench_openvino.py /tmp/q06-ov [--rounds 5] [--prompt 512] [--tokens 128]

Each round runs every engine once, in turn, in the same process: a prompt of random ids, then greedy decoding. The first
token's time is that of the public API of each; openvino-genai is given ids, so that no tokenizer takes part. Other work
on the machine makes single figures drift; ratios of one run are what to quote.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import numpy as np
import onnxruntime
import openvino as ov

import embedllm
from embedllm.package.package import WEIGHTS, open_package

genai: Any = importlib.import_module("openvino_genai")  # peers have no type information, and may be missing
tokenizers: Any = importlib.import_module("openvino_tokenizers")
transformers: Any = importlib.import_module("transformers")
DEVICES = ("cpu", "openvino", "openvino+cpu")
Times = tuple[float, float]  # seconds to the first token, seconds per further token

MEMORY = """
import sys, embedllm
def megabytes():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return [int(lines[key].split()[0]) / 1024 for key in ("VmHWM", "RssAnon", "RssFile")]
model = embedllm.load(sys.argv[1], device=sys.argv[2])
loaded = megabytes()
model.generate([5, 6, 7], max_tokens=2)
print(*loaded, *megabytes())
"""


@dataclass
class Engine:
    name: str
    run: Callable[[list[int], int], Times]
    first_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)


def ours(folder: str, device: str) -> Callable[[list[int], int], Times]:
    llm = embedllm.load(folder, device=device)

    def run(prompt: list[int], count: int) -> Times:
        reply = llm.generate(prompt, embedllm.Sampling(temperature=0), max_tokens=count, stop_tokens=())
        assert reply.statistics.cached_tokens == 0
        return reply.statistics.prefill_s, reply.statistics.decode_s / (count - 1)

    return run


def theirs(folder: str, **options: str) -> Callable[[list[int], int], Times]:
    """LLMPipeline over our model and weights; the tokenizer is made for it and never asked."""
    place = Path(folder)
    with TemporaryDirectory() as made:
        made_tokenizer, detokenizer = tokenizers.convert_tokenizer(
            transformers.AutoTokenizer.from_pretrained(folder), with_detokenizer=True
        )
        ov.save_model(made_tokenizer, Path(made) / "openvino_tokenizer.xml")
        ov.save_model(detokenizer, Path(made) / "openvino_detokenizer.xml")
        tokenizer = genai.Tokenizer(made)
    weights = ov.Tensor(np.memmap(place / WEIGHTS, np.uint8, "c"))
    pipeline = genai.LLMPipeline((place / "openvino_model.xml").read_text(), weights, tokenizer, "CPU", **options)

    def run(prompt: list[int], count: int) -> Times:
        ids = ov.Tensor(np.array([prompt], np.int64))
        inputs = genai.TokenizedInputs(ids, ov.Tensor(np.ones((1, len(prompt)), np.int64)))
        config = genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        metrics = pipeline.generate(inputs, config).perf_metrics
        return metrics.get_ttft().mean / 1000, metrics.get_tpot().mean / 1000

    return run


def row(engine: Engine, base: Engine, prompt: int) -> str:
    cells = [f"{engine.name:28s}"]
    for what, mine, other, count in (
        ("prefill", engine.first_s, base.first_s, prompt),
        ("decode", engine.decode_s, base.decode_s, 1),
    ):
        speeds = sorted(count / seconds for seconds in mine)
        ratio = statistics.median(b / e for b, e in zip(other, mine, strict=True))
        cells.append(
            f"{what} {statistics.median(speeds):7.1f} ({speeds[0]:.1f}-{speeds[-1]:.1f}) tokens/s x{ratio:.2f}"
        )
    return "  ".join(cells)


def memory(folder: str) -> None:
    size = open_package(folder).files[WEIGHTS].bytes / (1 << 20)
    print(f"{WEIGHTS}: {size:.0f} MiB. In a fresh process, MiB (and sizes of that file):")
    for device in DEVICES:
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, folder, device], capture_output=True, text=True, check=True
        )
        figures = [float(value) for value in done.stdout.split()]
        for when, (peak, private, mapped) in (("loaded", figures[:3]), ("after 2 tokens", figures[3:])):
            print(
                f"  {device:14s} {when:15s} peak RSS {peak:5.0f} ({peak / size:.2f}), now private {private:5.0f} "
                f"({private / size:.2f}), mapped from files {mapped:5.0f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    engines = [
        Engine("openvino-genai", theirs(options.folder)),
        Engine("openvino-genai, SDPA", theirs(options.folder, ATTENTION_BACKEND="SDPA")),
        Engine("openvino-genai, float32", theirs(options.folder, INFERENCE_PRECISION_HINT="f32")),
        *(Engine(f"embedllm, {device}", ours(options.folder, device)) for device in DEVICES),
    ]
    random = np.random.default_rng(0)
    for engine in engines:
        engine.run(random.integers(3, 16000, options.prompt).tolist(), 4)
    for _ in range(options.rounds):
        for engine in engines:
            first_s, decode_s = engine.run(random.integers(3, 16000, options.prompt).tolist(), options.tokens)
            engine.first_s.append(first_s)
            engine.decode_s.append(decode_s)
    versions = {"openvino": ov.__version__, "onnxruntime": onnxruntime.__version__, "embedllm": embedllm.__version__}
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python "
        f"{platform.python_version()}, {json.dumps(versions)}; prompt {options.prompt}, {options.tokens} new, "
        f"median (least-most) of {options.rounds}"
    )
    for engine in engines:
        print(row(engine, engines[0], options.prompt))
    memory(options.folder)


if __name__ == "__main__":
    main()

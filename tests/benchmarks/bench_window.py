"""Memory of KV and time of a step of models whose layers have windows, on the CPU. Linux.

    python -m tests.benchmarks.bench_window [--shape gemma|mistral] [--tokens 8192 32768]

Two sessions of a model with random weights, one that keeps all and one that forgets what no window sees any more, get
the same KV of random numbers, which is quicker than a prompt. Then they read the last tokens and make others in turn,
and their logits are compared bit by bit. Counted are the pages of their buffers in memory: /proc/self/pagemap.
"""

from __future__ import annotations

import argparse
import mmap
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from embedllm.backends.ort.engine import OrtEngine, devices
from embedllm.backends.ort.session import OrtSession
from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.package import open_package
from tests.support.described import described_package

_STEPS = 256  # as many as are forgotten at once
_PIECE = 512  # tokens of KV that are given at once
_READ = 2048  # tokens that are read after them
_BASE = {"vocab_size": 4096, "num_key_value_heads": 1, "max_position_embeddings": 65536, "rms_norm_eps": 1e-6,
         "rope_theta": 10000.0}  # fmt: skip
# attention as in the models; a smaller vocabulary, and fewer layers
SHAPES: dict[str, dict[str, object]] = {
    "gemma": {**_BASE, "model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048,
              "num_hidden_layers": 12, "num_attention_heads": 4, "head_dim": 256, "sliding_window": 512,
              "sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "rope_local_base_freq": 10000.0},
    "mistral": {**_BASE, "model_type": "mistral", "hidden_size": 1024, "intermediate_size": 3584,
                "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
                "sliding_window": 4096},
}  # fmt: skip


def resident_bytes(session: OrtSession) -> int:
    """Of its KV."""
    count = 0
    with open("/proc/self/pagemap", "rb") as pages:  # noqa: PTH123
        for array in session.kv.values():
            first = array.ctypes.data // mmap.PAGESIZE
            last = (array.ctypes.data + array.nbytes - 1) // mmap.PAGESIZE
            pages.seek(8 * first)
            entries = np.frombuffer(pages.read(8 * (last - first + 1)), np.uint64)
            count += int(((entries >> np.uint64(63)) & (entries >> np.uint64(56)) & np.uint64(1)).sum())
    return count * mmap.PAGESIZE


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="gemma")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768])
    options = parser.parse_args(arguments)
    decoder = replace(describe(Config(SHAPES[options.shape]), None), context=max(options.tokens) + _STEPS)
    print("| shape | tokens | KV, MiB | forgets, MiB | read, tokens/s | forgets, tokens/s | step, ms | forgets, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        package = open_package(
            described_package(Path(folder) / "model", decoder, Recipe(method="nearest"), variant="generic-float32")
        )
        graph = package.graph("generic-float32")
        assert graph is not None
        # two, or the prompt of one would be fed in small pieces beside the steps of the other, and round otherwise
        engines = [OrtEngine(package, graph, devices()[0]) for _ in range(2)]
        for count in options.tokens:
            print(f"| {options.shape} | {count:,} | {row(engines, count)} |", flush=True)


def row(engines: Sequence[OrtEngine], count: int) -> str:
    keeps, forgets = (engine.open() for engine in engines)
    keeps.keeps_all = True
    random = np.random.default_rng(0)
    tokens = random.integers(0, engines[0].package.decoder.vocabulary, count + _STEPS).tolist()
    shapes = [(heads, _PIECE, size) for _, heads, _, size in (array.shape for array in keeps.kv.values())]
    while keeps.position < count - _READ:
        arrays = [random.standard_normal(shape, np.float32) for shape in shapes]
        token = tokens[keeps.position]
        for session in (keeps, forgets):
            session.import_state(list(zip(arrays[::2], arrays[1::2], strict=True)))
            session.feed([token])
    read_s, first = [0.0, 0.0], keeps.position
    for start in range(first, count, engines[0].chunk):
        for place, session in enumerate((keeps, forgets)):
            started = time.perf_counter()
            session.feed(tokens[start : min(start + engines[0].chunk, count)])
            read_s[place] += time.perf_counter() - started
    steps_s: list[list[float]] = [[], []]
    for token in tokens[count:]:
        logits = []
        for session, times in zip((keeps, forgets), steps_s, strict=True):
            started = time.perf_counter()
            session.feed([token])
            times.append(time.perf_counter() - started)
            logits.append(session.logits.copy())
        np.testing.assert_array_equal(*logits)
    held = [resident_bytes(session) / 2**20 for session in (keeps, forgets)]
    for session in (keeps, forgets):
        session.close()
    ms = [1000 * float(np.median(times)) for times in steps_s]
    rates = [(count - first) / read for read in read_s]
    return f"{held[0]:.0f} | {held[1]:.0f} | {rates[0]:.0f} | {rates[1]:.0f} | {ms[0]:.1f} | {ms[1]:.1f}"


if __name__ == "__main__":
    main()

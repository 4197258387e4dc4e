"""What a Gather in front of products costs: a model whose columns lie in another order beside the same in its own.

    python -m tests.benchmarks.bench_order [--layers 8]

In the shape of Qwen3-0.6B with fewer layers and rows of its table, 4 bits in groups of 128, by one thread.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import Engine
from embedllm.backends.devices.registry import devices, open_engine
from embedllm.backends.options import RuntimeOptions
from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.package import open_package
from embedllm.package.packing import Packing
from tests.support.described import described_package
from tests.support.held import HeldRandomSource, OrderedRandomSource
from tests.support.tiny import tiny_config

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHAPE = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
          "head_dim": 128, "vocab_size": 4096, "max_position_embeddings": 512}  # fmt: skip
_PROMPT, _STEPS, _ROUNDS = 128, 32, 15
_VARIANTS = {"cpu": "generic-float32", "openvino": "openvino"}
_PACKING = Packing(bits=4, group_size=128)


def timed(engines: Sequence[Engine]) -> NDArray[np.float64]:
    """Seconds of a prompt and of each step behind it, [1 + steps, engines], each token by one after the other."""
    sessions = [engine.open() for engine in engines]
    times = np.empty((1 + _STEPS, len(engines)))
    for at in range(1 + _STEPS):
        for number, session in enumerate(sessions):
            start = time.perf_counter()
            session.feed([at] if at else list(range(_PROMPT)))
            times[at, number] = time.perf_counter() - start
    for session in sessions:
        session.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    layers = parser.parse_args().layers
    decoder = describe(Config(tiny_config("qwen3", num_hidden_layers=layers, **_SHAPE)), None)
    sources = {"in its own order": HeldRandomSource(decoder, _PACKING),
               "in another": OrderedRandomSource(decoder, _PACKING, plain=decoder.embedding.source)}  # fmt: skip
    for name, variant in _VARIANTS.items():
        device = next(device for device in devices() if device.name == name)
        with tempfile.TemporaryDirectory() as folder:
            engines = [
                open_engine(open_package(described_package(Path(folder) / kind, decoder, Recipe(), variant=variant,
                                                           source=source)), device, runtime=RuntimeOptions(threads=1))
                for kind, source in sources.items()
            ]  # fmt: skip
            found = 1000 * np.stack([timed(engines) for _ in range(_ROUNDS)])
            prompts, steps = found[:, 0].min(axis=0), found[:, 1:].min(axis=(0, 1))
            for kind, prompt, step in zip(sources, prompts, steps, strict=True):
                print(f"{name}, {kind}: {_PROMPT} tokens {prompt:.1f} ms, a step {step:.3f} ms")
            for engine in engines:
                engine.close()


if __name__ == "__main__":
    main()

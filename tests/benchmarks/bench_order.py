"""What a Gather in front of products costs: a model whose columns lie in another order beside the same in its own.

    python -m tests.benchmarks.bench_order [--layers 8]

In the shape of Qwen3-0.6B with fewer layers and rows of its table, 4 bits in groups of 128.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from embedllm.backends.base import Engine
from embedllm.backends.registry import devices, open_engine
from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.config import Config
from embedllm.export.quantize import Packing
from embedllm.package import open_package
from tests.described import described_package
from tests.held import HeldRandomSource, OrderedRandomSource
from tests.tiny import tiny_config

_SHAPE = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
          "head_dim": 128, "vocab_size": 4096, "max_position_embeddings": 512}  # fmt: skip
_PROMPT, _STEPS, _ROUNDS = 128, 32, 15
_FLAVOURS = {"cpu": "generic-float32", "openvino": "openvino"}
_PACKING = Packing(bits=4, group=128)


def timed(engine: Engine) -> tuple[float, list[float]]:
    """Seconds of a prompt, and of each step behind it."""
    session, times = engine.open(), []
    for tokens in (list(range(_PROMPT)), *([token] for token in range(_STEPS))):
        start = time.perf_counter()
        session.feed(tokens)
        times.append(time.perf_counter() - start)
    session.close()
    return times[0], times[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    layers = parser.parse_args().layers
    decoder = describe(Config(tiny_config("qwen3", num_hidden_layers=layers, **_SHAPE)), None)
    sources = {"in its own order": HeldRandomSource(decoder, _PACKING),
               "in another": OrderedRandomSource(decoder, _PACKING, plain=decoder.embedding.source)}  # fmt: skip
    for name, flavour in _FLAVOURS.items():
        device = next(device for device in devices() if device.name == name)
        with tempfile.TemporaryDirectory() as folder:
            engines = {
                kind: open_engine(open_package(described_package(Path(folder) / kind, decoder, Recipe(),
                                                                 flavour=flavour, source=source)), device)
                for kind, source in sources.items()
            }  # fmt: skip
            found = [{kind: timed(engine) for kind, engine in engines.items()} for _ in range(_ROUNDS)]  # by turns
            for kind, engine in engines.items():
                prompt, step = min(each[kind][0] for each in found), min(min(each[kind][1]) for each in found)
                print(f"{name}, {kind}: {_PROMPT} tokens {1000 * prompt:.1f} ms, a step {1000 * step:.3f} ms")
                engine.close()


if __name__ == "__main__":
    main()

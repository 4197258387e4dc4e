"""What prompts with images cost: the first token of fresh images, of a second turn, and of text on the same model.

    python -m tests.benchmarks.bench_images cpu openvino [--shape smolvlm] [--rounds 5] [--layers 30]

A random model of SmolVLM-256M's shape is exported first (4 bits, the encoder 8): an encoder of 12 layers for tiles of
512 x 512 pixels, 64 tokens each, and a decoder of 30 layers. Of Qwen3-VL-2B's shape (qwen3_vl), images have 256 tokens,
or 1,024. Pixels are noise, given as a processor gives them: decoding and resizing files is not part of it. Printed are
medians of the rounds, whose images are all new, and the first request by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
from safetensors.numpy import save_file

import embedllm
from embedllm.backends.images import place_images
from embedllm.export import Recipe, convert
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from tests.support.described import RandomSource
from tests.support.families import BASE, QWEN_TOKENS, SIGLIP, SMOLVLM
from tests.support.tiny import tiny_config, write_tokenizer

if TYPE_CHECKING:
    from embedllm.generation.request import Request
    from embedllm.types import F32

TILE_TOKENS, IMAGE_TOKEN, SIDE, GENERATED = 64, 300, 512, 16
SQUARE = 32  # pixels a side that become a token of Qwen3-VL
# by shape and case: the shape of an image's pixels without the channels, and how many there are
CASES: dict[str, dict[str, tuple[tuple[int, int, int], int]]] = {
    "smolvlm": {
        "one image of one tile": ((1, SIDE, SIDE), 1),
        "one image of 5 tiles": ((5, SIDE, SIDE), 1),
        "5 images of one tile": ((1, SIDE, SIDE), 5),
    },
    "qwen3_vl": {
        "one image of 512 x 512": ((1, SIDE, SIDE), 1),
        "one image of 1024 x 1024": ((1, 2 * SIDE, 2 * SIDE), 1),
        "5 images of 512 x 512": ((1, SIDE, SIDE), 5),
    },
}


@dataclass(frozen=True, eq=False)
class Image:
    """Noise, as a processor gives it."""

    pixel_values: F32  # [tiles, 3, height, width]
    grid: tuple[int, int] | None  # rows and columns of tokens, where the size says them

    @property
    def tokens(self) -> int:
        return TILE_TOKENS * len(self.pixel_values) if self.grid is None else self.grid[0] * self.grid[1]

    @property
    def sha256(self) -> str:
        return sha256(self.pixel_values.tobytes()).hexdigest()


def random_checkpoint(folder: Path, layers: int, *, shape: str = "smolvlm", vision_layers: int = 12) -> Path:
    """The random model, before its export; returns its folder."""
    config = smolvlm_config(layers, vision_layers) if shape == "smolvlm" else qwen3_vl_config(layers, vision_layers)
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps(config))
    tensors = RandomSource(describe(Config(config))).tensors
    for name, kernel in tensors.items():
        if name.endswith(("patch_embedding.weight", "patch_embed.proj.weight")):
            tensors[name] = kernel.reshape(-1, 3, *([2] if shape == "qwen3_vl" else []), 16, 16)
    save_file(tensors, checkpoint / "model.safetensors")
    write_tokenizer(checkpoint, 307)
    return checkpoint


def smolvlm_config(layers: int, vision_layers: int) -> dict[str, object]:
    text = tiny_config("llama", attention_bias=False, eos_token_id=None, max_position_embeddings=8192)
    text |= {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
             "num_hidden_layers": layers, "head_dim": 64, "vocab_size": 49280}  # fmt: skip
    vision = {**SIGLIP, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": vision_layers,
              "num_attention_heads": 12, "image_size": SIDE, "patch_size": 16, "initializer_range": 0.02}  # fmt: skip
    return {**SMOLVLM, "model_type": "smolvlm", "text_config": text, "vision_config": vision, "scale_factor": 4}


def qwen3_vl_config(layers: int, vision_layers: int) -> dict[str, object]:
    text = {**BASE, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 6144, "num_hidden_layers": layers, "vocab_size": 8192, "eos_token_id": None,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True,
                                "mrope_section": [24, 20, 20]}}  # fmt: skip
    deepstack = [vision_layers * part // 4 - 1 for part in (1, 2, 3)]
    vision = {"depth": vision_layers, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
              "out_hidden_size": 2048, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
              "num_position_embeddings": 2304, "deepstack_visual_indexes": deepstack,
              "initializer_range": 0.02}  # fmt: skip
    return {**QWEN_TOKENS, "model_type": "qwen3_vl", "text_config": text, "vision_config": vision}


class Bench:
    """One device, and random images and texts that it has not seen."""

    def __init__(self, llm: embedllm.Model, shape: str) -> None:
        self._llm, self._shape = llm, shape
        self._random = np.random.default_rng(0)

    def image(self, size: tuple[int, int, int]) -> Image:
        tiles, height, width = size
        pixels = self._random.standard_normal((tiles, 3, height, width)).astype(np.float32)
        return Image(pixels, (height // SQUARE, width // SQUARE) if self._shape == "qwen3_vl" else None)

    def request(self, size: tuple[int, int, int], images: int) -> Request:
        seen = [self.image(size) for _ in range(images)]
        tokens = [5, 6, 7]
        for one in seen:
            tokens += [IMAGE_TOKEN] * one.tokens + [8, 9]
        tokens += self.text(20)
        plain = self._llm.request(tokens, temperature=0, max_tokens=GENERATED, stop_tokens=[])
        return replace(plain, prompt=place_images(tokens, seen, IMAGE_TOKEN), images=tuple(seen))

    def text(self, count: int) -> list[int]:
        return [int(one) for one in self._random.integers(10, 290, count)]

    def first_s(self, request: Request) -> float:
        """Seconds to the first token, all others awaited."""
        self._llm.runner.check(request)
        began = time.perf_counter()
        chunks = self._llm.runner.stream(request, embedllm.Cancel())
        next(iter(chunks))
        first = time.perf_counter() - began
        for _ in chunks:
            pass
        return first


def measure(device: str, package: Path, shape: str, rounds: int) -> None:
    with embedllm.load(package, device=device) as llm:
        bench = Bench(llm, shape)
        for name, (size, images) in CASES[shape].items():
            fresh: list[float] = []
            second: list[float] = []
            for _ in range(rounds + 1):
                request = bench.request(size, images)
                fresh.append(bench.first_s(request))
                second.append(bench.first_s(replace(request, prompt=[*request.prompt, *bench.text(6)])))
            first, later, again = (
                1e3 * fresh[0],
                1e3 * statistics.median(fresh[1:]),
                1e3 * statistics.median(second[1:]),
            )
            print(f"{device}, {name}: first request {first:.1f} ms; then {later:.1f}, a second turn {again:.1f}")
        texts = [
            llm.request(bench.text(90), temperature=0, max_tokens=GENERATED, stop_tokens=[]) for _ in range(rounds)
        ]
        print(f"{device}, text of 90 tokens: {1e3 * statistics.median(map(bench.first_s, texts)):.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", choices=CASES, default="smolvlm")
    parser.add_argument("--layers", type=int, default=30, help="of the decoder")
    parser.add_argument("--vision-layers", type=int, default=12, help="of the encoder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = random_checkpoint(
            Path(folder), options.layers, shape=options.shape, vision_layers=options.vision_layers
        )
        package = convert(checkpoint, Path(folder) / "package", Recipe(method="nearest"))
        for device in options.devices:
            measure(device, package, options.shape, options.rounds)


if __name__ == "__main__":
    main()

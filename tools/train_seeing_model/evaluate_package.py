"""Exact answers of an exported package about the pictures of evaluation.py, through embedllm's chat.

    python -m tools.train_seeing_model.evaluate_package samples/seeing/model PREPARED --device openvino --count 200

A package of the same checkpoint with --bits 16 tells what quantization costs.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import embedllm
from tools.train_seeing_model.evaluation import sampled, score, splits
from tools.train_seeing_model.rendering import Renderer, scene_tensors
from tools.train_seeing_model.scenes import Fonts


def answer(llm: embedllm.Model, picture: NDArray[np.uint8], question: str) -> str:
    """The greedy reply about a picture [height, width, 3]."""
    content = [{"type": "image", "image": picture}, {"type": "text", "text": question}]
    messages = [{"role": "user", "content": content}]
    return llm.chat(messages, temperature=0, max_tokens=64).text  # pyright: ignore[reportArgumentType] # images are no JSON


def evaluate_package(folder: Path, prepared: Path, device: str, count: int) -> None:
    """Prints score() of each set, for count questions each."""
    fonts, renderer = Fonts(prepared / "sprites.npz"), Renderer(prepared / "sprites.npz", torch.device("cpu"))
    with embedllm.load(folder, device=device) as llm:
        for number, (name, split) in enumerate(splits(fonts).items()):
            cases = sampled(fonts, split, count, -1 - number)
            pixels = renderer.pictures(scene_tensors([scene for scene, _ in cases]))
            pictures = (pixels.permute(0, 2, 3, 1) * 255).round().byte().numpy()
            start = time.perf_counter()
            answered = [answer(llm, picture, turn.question) for picture, (_, turn) in zip(pictures, cases, strict=True)]
            score(f"{device}, {name}, {1000 * (time.perf_counter() - start) / count:.0f} ms each", cases, answered)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=200, help="questions of each set")
    options = parser.parse_args()
    torch.manual_seed(0)  # noise of the pictures
    evaluate_package(options.package, options.prepared, options.device, options.count)


if __name__ == "__main__":
    main()

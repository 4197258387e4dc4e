"""A layer of multi-head latent attention (MLA) on the CPU: whole keys and values, and latents, interleaved.

    python -m tests.benchmarks.bench_mla [--device openvino] [--heads 16] [--rank 512] [--nope 128] [--hidden 2048]

The shape is that of DeepSeek-V2-Lite, with a dense mlp of about the size of the experts that a token passes. A layer is
the difference of a model of three layers and one of one layer, by two: the last layer of a model computes the last
position only. Both graphs have the same weights: 4 bits in groups of 32. Medians in milliseconds of the wall, and of
the CPU for a busy machine: a step behind 512 and 4,000 tokens, a prompt of 512, the last 512 tokens of one of 4,000.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from embedllm.backends.base import Session
from embedllm.backends.devices.registry import open_engine
from embedllm.backends.options import RuntimeOptions
from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.graphs import stored_layout
from embedllm.export.onnx.decoder import build
from embedllm.files.atomic import write_json
from embedllm.package.graph_variants import FLOAT32, OPENVINO, OPENVINO_LATENT
from embedllm.package.package import MANIFEST, Package, open_package, sha256
from embedllm.package.packing import packings
from embedllm.package.tensors import kv_bytes
from tests.support.described import described_package
from tests.support.openings import device

VOCABULARY = 307
LAYERS = (1, 3)  # of the models whose difference is measured
LENGTHS = (512, 4000)  # tokens before a step
PIECE = 512  # tokens of a prompt
ROUNDS = 15
FORMS = ("whole", "latent")


def package(options: argparse.Namespace, layers: int, folder: Path, form: str) -> Package:
    config = {"model_type": "deepseek_v2", "hidden_size": options.hidden, "intermediate_size": options.inner,
              "num_hidden_layers": layers, "first_k_dense_replace": layers, "num_attention_heads": options.heads,
              "num_key_value_heads": options.heads, "vocab_size": VOCABULARY, "max_position_embeddings": 4608,
              "rms_norm_eps": 1e-6, "rope_theta": 1e4, "q_lora_rank": None, "kv_lora_rank": options.rank,
              "qk_rope_head_dim": 64, "qk_nope_head_dim": options.nope, "v_head_dim": options.value,
              "n_routed_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 64, "hidden_act": "silu",
              "n_shared_experts": None, "tie_word_embeddings": True}  # fmt: skip
    variant = FLOAT32.name
    if options.device == "openvino":
        variant = OPENVINO if form == "whole" else OPENVINO_LATENT
    described_package(folder, describe(Config(config), None), Recipe(method="nearest"), variant=variant)
    found = open_package(folder)
    if variant != FLOAT32.name:
        return found
    return found if form == "latent" else whole(found)


def whole(found: Package) -> Package:
    """The same folder with a graph that keeps whole keys and values, as older folders have it."""
    variant = dataclasses.replace(FLOAT32, latent_kv=False)
    graph = build(found.decoder, stored_layout(found), packings(found.manifest), variant)
    path = found.folder / FLOAT32.file
    path.write_bytes(graph.SerializeToString(deterministic=True))
    entry = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    graphs = [dataclasses.replace(one, kv="").as_json() for one in found.listed]
    files = {name: file.as_json() for name, file in found.files.items()}
    write_json(found.folder / MANIFEST, {**found.manifest, "graphs": graphs, "files": {**files, path.name: entry}})
    return open_package(found.folder)


def seconds(session: Session, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Of the wall and of the CPU, for a feed that is taken back."""
    position = session.position
    started, cpu = time.perf_counter(), time.process_time()
    session.feed(tokens)
    found = np.array([time.perf_counter() - started, time.process_time() - cpu])
    session.rewind(position)
    return found


def measure(sessions: dict[tuple[str, int], Session], tokens: Sequence[int], rounds: int) -> None:
    """Prints one line: milliseconds of a layer in both forms."""
    times = {key: [seconds(session, tokens) for _ in range(1)] for key, session in sessions.items()}
    for _ in range(rounds):
        for key, session in sessions.items():
            times[key].append(seconds(session, tokens))
    medians = {key: np.median(found[1:], axis=0) for key, found in times.items()}
    first, last = LAYERS
    by_form = {form: (medians[form, last] - medians[form, first]) / (last - first) * 1e3 for form in FORMS}
    position = next(iter(sessions.values())).position
    figures = ", ".join(f"{form} {wall:.2f} ({cpu:.2f})" for form, (wall, cpu) in by_form.items())
    print(f"{len(tokens)} tokens behind {position}: {figures} ms a layer, of the CPU in brackets", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"heads": 16, "rank": 512, "nope": 128, "value": 128, "hidden": 2048, "inner": 11264}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(f"onnxruntime {ort.__version__}, {platform.machine()}, {options.threads} threads; {vars(options)}")
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        sessions: dict[tuple[str, int], Session] = {}
        for form in FORMS:
            for layers in LAYERS:
                found = package(options, layers, Path(folder) / f"{form}-{layers}", form)
                runtime = RuntimeOptions(threads=options.threads)
                sessions[form, layers] = open_engine(found, device(options.device), runtime=runtime).open()
                if layers == 1:
                    values = kv_bytes(found.decoder, 1, 1, kv=found.graphs[0].kv)
                    print(f"{form}: {values:,} numbers a token and layer")
        for length in (0, *LENGTHS):
            for session in sessions.values():
                while session.position < length:
                    count = min(PIECE, length - session.position)
                    session.feed(random.integers(0, VOCABULARY, count).tolist())
            if length:
                measure(sessions, [5], ROUNDS)
            if length != LENGTHS[0]:
                measure(sessions, random.integers(0, VOCABULARY, PIECE).tolist(), 3)


if __name__ == "__main__":
    main()

"""Prompts and steps on the CPU: our engine, and onnxruntime-genai as an engine over the same graph, whole and in three.

    python tests/benchmarks/bench_genai.py [FOLDER] [--prompt 512] [--steps 64] [--rounds 5] [--threads 2]
        [--spinning]

FOLDER is an export; the demo by default. The engines take turns, each with a new session a round.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.utils import Extractor

sys.path.insert(0, str(Path(__file__).parents[2]))

from embedllm.backends.base import Engine
from embedllm.backends.genai.engine import GenaiEngine
from embedllm.backends.genai.engine import devices as genai_devices
from embedllm.backends.options import RuntimeOptions
from embedllm.backends.ort.engine import OrtEngine, devices
from embedllm.loading.resolve import package_folder
from embedllm.package.external.detect import manifest_of
from embedllm.package.external.genai_config import CONFIG, read_config
from embedllm.package.external.genai_pipeline import read
from embedllm.package.graph_variants import FLOAT32
from embedllm.package.package import MANIFEST, Package, open_package

_ROWS, _STATES = "embedding.rows", "head.norm"  # our graph's embeddings, and what its head reads


def in_three(ours: Package, folder: Path) -> Path:
    """The package's CPU graph, cut before its first layer and before its head."""
    shutil.copytree(ours.folder, folder, ignore=shutil.ignore_patterns(MANIFEST, "*.onnx", "*.xml", "weights*"))
    model = onnx.load(ours.folder / "model.onnx")
    for name in (_ROWS, _STATES):
        shape = ["batch", "tokens", ours.decoder.hidden]
        model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    past = [one.name for one in model.graph.input if one.name.startswith("past")]
    present = [one.name for one in model.graph.output if one.name.startswith("present")]
    parts = {"embeddings": (["input_ids"], [_ROWS]),
             "transformer": ([_ROWS, "attention_mask", *past], [_STATES, *present]),
             "lm_head": ([_STATES], ["logits"])}  # fmt: skip
    stages = {}
    for name, (inputs, outputs) in parts.items():
        onnx.save(Extractor(model).extract_model(inputs, outputs), folder / f"{name}.onnx")
        stages[name] = {"filename": f"{name}.onnx", "inputs": inputs, "outputs": outputs}
    told = json.loads((folder / CONFIG).read_text())
    told["model"]["type"] = "decoder-pipeline"
    del told["model"]["decoder"]["filename"]
    told["model"]["decoder"]["pipeline"] = stages
    (folder / CONFIG).write_text(json.dumps(told))
    return folder


def in_genai(folder: Path, runtime: RuntimeOptions) -> Engine:
    reading = read(read_config(folder / CONFIG))
    package = Package(reading.root, manifest_of(reading), reading.external)
    return GenaiEngine(package, package.graphs[0], genai_devices()[0], runtime)


def timed(engine: Engine, tokens: list[int], steps: int) -> tuple[float, float]:
    """Seconds of the prompt, and of a step behind it."""
    session = engine.open(len(tokens) + steps)
    start = time.perf_counter()
    for at in range(0, len(tokens), engine.chunk):
        session.feed(tokens[at : at + engine.chunk]).top(1)
    read_at = time.perf_counter()
    for token in tokens[:steps]:
        session.feed([token]).top(1)
    stepped_at = time.perf_counter()
    session.close()
    return read_at - start, (stepped_at - read_at) / steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default="demo")
    for name, usual in (("prompt", 512), ("steps", 64), ("rounds", 5), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--spinning", action="store_true")
    given = parser.parse_args()
    ours = open_package(package_folder(given.folder))
    runtime = RuntimeOptions(threads=given.threads, spinning=given.spinning)
    graph = ours.graph(FLOAT32.name)
    assert graph is not None
    tokens = np.random.default_rng(0).integers(3, ours.decoder.vocabulary - 3, given.prompt).tolist()
    with tempfile.TemporaryDirectory() as place:
        engines = {
            "cpu": OrtEngine(ours, graph, devices()[0], runtime=runtime),
            "genai, one graph": in_genai(ours.folder, runtime),
            "genai, three": in_genai(in_three(ours, Path(place) / "three"), runtime),
        }
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
        for _ in range(given.rounds):
            for name, engine in engines.items():
                took[name].append(timed(engine, tokens, given.steps))
    for name, rounds in took.items():
        for what, at in (("prompt", 0), ("step", 1)):
            times = sorted(1000 * one[at] for one in rounds)
            print(f"{name:18} {what:7} {statistics.median(times):8.2f} ms ({times[0]:.2f} to {times[-1]:.2f})")


if __name__ == "__main__":
    main()

"""Where the time of loading, of a prompt and of a step goes, and what the memory is; `cpu` and `openvino`. Linux.

    python tests/benchmarks/profile_steps.py FOLDER [--device openvino] [--prompts 128 512] [--steps 16]

Loads the folder in this process, with clocks around the parts of that, and tells the memory; then again with the
runtime's own profiler on: ONNX Runtime's `enable_profiling`, OpenVINO's PERF_COUNT. Both cost some time themselves
(5 us a node), so shares are what to read. Of steps the median is told, for each kind of node. Without a prefix cache.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[2]))  # as a file it has its own folder there
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import embedllm

Times: TypeAlias = dict[str, float]  # milliseconds by the kind of node; "all" of them and what is around
PARTS = {
    "cpu": {"session: graph, packing": ("onnxruntime", "InferenceSession.__init__")},
    "openvino": {
        "read the graph": ("openvino", "Core.read_model"),
        "paged attention's pass": ("embedllm.backends.openvino.paged_engine", "paged_attention"),
        "compile": ("openvino", "Core.compile_model"),
    },
}
BOTH = {
    "tokenizer": ("embedllm.text.tokenizer", "Tokenizer.open"),
    "package": ("embedllm.loading.load", "open_package"),
}
DRAWS = random.Random(0)
MEMORY = ("private, pages of 2 MiB", "private, others", "weights file", "other files")


def load_parts(folder: str, device: str) -> tuple[embedllm.Model, dict[str, float]]:
    """The first model of this process, and seconds of each part of loading it."""
    spent: dict[str, float] = {}
    started = time.perf_counter()
    for module in ("numpy", "onnxruntime" if device == "cpu" else "openvino", "tokenizers"):
        began = time.perf_counter()
        import_module(module)
        spent[f"import {module}"] = time.perf_counter() - began
    with ExitStack() as clocks:
        for part, (module, name) in (BOTH | PARTS[device]).items():
            clocks.enter_context(_clocked(part, module, name, spent))
        model = embedllm.load(folder, device=device, tuned=False, prefix_cache=0)
    total = time.perf_counter() - started
    return model, {**spent, "the rest": total - sum(spent.values()), "all": total}


@contextmanager
def _clocked(part: str, module: str, name: str, spent: dict[str, float]) -> Iterator[None]:
    """Within the block, what a function takes is added up."""
    *owners, last = name.split(".")
    owner: Any = import_module(module)
    for one in owners:
        owner = getattr(owner, one)
    function: Callable[..., object] = getattr(owner, last)

    def timed(*args: object, **options: object) -> object:
        began = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            spent[part] = spent.get(part, 0.0) + time.perf_counter() - began

    with patch.object(owner, last, timed):
        yield


def by_onnx_runtime(folder: str, prompts: Sequence[int], steps: int) -> list[Sequence[Times]]:
    """Of each prompt: the times of its run and of each step behind it."""
    from embedllm.backends.ort import engine as backend

    made = backend.session_options
    with TemporaryDirectory() as place:

        def profiled(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - of a function of ours, passed through
            chosen = made(*args, **options)
            chosen.enable_profiling = True
            chosen.profile_file_prefix = f"{place}/profile"
            return chosen

        with (
            patch.object(backend, "session_options", profiled),
            embedllm.load(folder, device="cpu", tuned=False, prefix_cache=0) as model,
        ):
            for prompt in [prompts[0], *prompts]:  # the first run takes memory and is not told
                reply(model, prompt, steps)
            engine: Any = model.runner.engine
            events = json.loads(Path(engine.session.end_profiling()).read_text())
    runs = _runs(events)[-len(prompts) * (steps + 1) :]
    return [runs[at : at + steps + 1] for at in range(0, len(runs), steps + 1)]


def _runs(events: Sequence[dict[str, Any]]) -> Sequence[Times]:
    """By node kind, of each run of a session, in their order."""
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == "model_run")
    found = [defaultdict(float, {"all": (end - start) / 1000}) for start, end in spans]
    nodes = sorted((e for e in events if e["name"].endswith("_kernel_time")), key=lambda event: event["ts"])
    run = 0
    for event in nodes:
        while run < len(spans) and event["ts"] > spans[run][1]:
            run += 1
        if run < len(spans) and event["ts"] >= spans[run][0]:
            found[run][_kind(event)] += event["dur"] / 1000
    return found


def _kind(event: dict[str, Any]) -> str:
    kind, name = event["args"]["op_name"], event["name"].removesuffix("_kernel_time")
    product = name.rstrip("/").rpartition("/")[2].rpartition(".")[2]
    return f"{kind} {product}" if kind == "MatMulNBits" else kind


def by_openvino(folder: str, prompts: Sequence[int], steps: int) -> list[Sequence[Times]]:
    """As by_onnx_runtime()."""
    from embedllm.backends.openvino import engine as ov
    from embedllm.backends.openvino import paged_engine

    told, run = ov.properties, paged_engine.PagedEngine.run
    runs, means = list[Times](), list[dict[str, float]]()

    def counted(self: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as above
        began = time.perf_counter()
        result = run(self, *args, **options)
        times = defaultdict(float, {"all": (time.perf_counter() - began) * 1000})
        infos = self._request.get_profiling_info()
        means.append({node.node_name: node.real_time.total_seconds() * 1000 for node in infos})
        for node in infos:  # the mean of all runs so far (2026.4)
            before = means[-2].get(node.node_name, 0.0) if len(means) > 1 else 0.0
            times[node.node_type] += means[-1][node.node_name] * len(means) - before * (len(means) - 1)
        runs.append(times)
        return result

    with (
        patch.object(ov, "properties", lambda *args: {**told(*args), "PERF_COUNT": True}),
        patch.object(paged_engine.PagedEngine, "run", counted),
        embedllm.load(folder, device="openvino", tuned=False, prefix_cache=0) as model,
    ):
        reply(model, prompts[0], steps)
        found = []
        for prompt in prompts:
            runs.clear()
            reply(model, prompt, steps)
            pieces = runs[:-steps]
            whole = {kind: sum(piece.get(kind, 0.0) for piece in pieces) for kind in set().union(*pieces)}
            found.append([whole, *runs[-steps:]])
    return found


def reply(model: embedllm.Model, prompt: int, steps: int) -> None:
    """Reads random tokens, and makes `count` steps after them."""
    tokens = [DRAWS.randrange(model.package.decoder.vocabulary) for _ in range(prompt)]
    model.generate(tokens, embedllm.Sampling(temperature=0), max_tokens=steps + 1, stop_tokens=(), speculate="off")
    time.sleep(0.3)


def memory(weights: Path) -> dict[str, float]:
    """MiB that are resident now, by what they are."""
    sizes: dict[str, float] = dict.fromkeys(MEMORY, 0.0)
    name = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, rest = line.partition(":")
        if "-" in key.split()[0]:
            *_, name = f"{line} ".split(" ", 5)  # addresses, rights, offset, device, inode
            name = name.strip()
        elif key in ("Rss", "Anonymous", "AnonHugePages"):
            mib = int(rest.split()[0]) / 1024
            if key == "Rss":
                sizes["weights file" if name == str(weights.resolve()) else "other files"] += mib
            else:
                sizes[MEMORY[0] if key == "AnonHugePages" else MEMORY[1]] += mib
    sizes["other files"] -= sizes[MEMORY[1]]  # private pages are resident ones too
    sizes[MEMORY[1]] -= sizes[MEMORY[0]]
    return sizes


def say_memory(title: str, model: embedllm.Model) -> None:
    sizes = memory(model.package.weights)
    print(f"memory in MiB, {title}: " + ", ".join(f"{kind} {size:.0f}" for kind, size in sizes.items()))


def show(title: str, runs: Sequence[Times], least: float) -> None:
    """Medians over runs; kinds of less than that share are added up."""
    times: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for kind in set().union(*runs):
            times[kind].append(run.get(kind, 0.0))
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    whole = medians.pop("all")
    large = {kind: ms for kind, ms in medians.items() if ms >= least * whole}
    small = sum(medians.values()) - sum(large.values())
    told = sorted(large.items(), key=lambda pair: -pair[1])
    rows = [*told, ("other nodes", small), ("around them", max(whole - sum(medians.values()), 0.0))]
    print(f"\n{title}: {whole:.1f} ms")
    for kind, ms in rows:
        print(f"  {kind:28s} {ms:8.2f} ms {ms / whole:6.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--device", choices=tuple(PARTS), default="cpu")
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 512], metavar="TOKENS")
    parser.add_argument("--steps", type=int, default=16)
    options = parser.parse_args()
    model, spent = load_parts(options.folder, options.device)
    print(f"load on {options.device}, load average {os.getloadavg()[0]:.1f}:")
    for part, seconds in spent.items():
        print(f"  {part:28s} {seconds * 1000:8.1f} ms")
    with model:
        time.sleep(1.0)  # while pages are moved
        say_memory("loaded", model)
        for prompt in options.prompts:
            reply(model, prompt, options.steps)
            say_memory(f"after a prompt of {prompt}", model)
    profile = by_onnx_runtime if options.device == "cpu" else by_openvino
    profiles = profile(options.folder, options.prompts, options.steps)
    for count, (first, *steps) in zip(options.prompts, profiles, strict=True):
        show(f"a prompt of {count}", [first], 0.01)
        show(f"a step behind {count}", steps, 0.01)


if __name__ == "__main__":
    main()

"""Private memory of a model after a prompt, in fresh processes, against embedllm.loading.memory_estimate. Linux.

    python tests/benchmarks/bench_memory.py FOLDER [--device cpu] [--exact] [--prompts 1 512 1900]

Measured is how much the process's anonymous memory grew from before loading to after the prompt (random tokens) and one
token of reply; the pages of the weights file that are mapped are not part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def measure(folder: str, device: str, prompt: int, *, exact: bool) -> dict[str, int]:
    """In this process, which must be fresh: expected and measured bytes."""
    import onnxruntime  # noqa: F401 - what a program has besides a model

    import embedllm
    from embedllm.loading.memory_estimate import estimate_memory

    if device.startswith("openvino"):
        import openvino  # noqa: F401 - as above
    before = anonymous_bytes()
    with embedllm.load(folder, device=device, exact=exact) as model:
        draws = random.Random(0)
        vocabulary = model.package.decoder.vocabulary
        tokens = [draws.randrange(vocabulary) for _ in range(prompt)]
        model.generate(tokens, embedllm.Sampling(temperature=0), max_tokens=1, stop_tokens=[])
        measured = anonymous_bytes() - before
        expected = estimate_memory(model.package, model.device, context=prompt + 1, exact=exact)
    return {"prompt": prompt, "expected_bytes": expected.needed_bytes, "measured_bytes": measured}


def in_fresh_process(folder: str, device: str, prompt: int, *, exact: bool = False) -> dict[str, int]:
    command = [sys.executable, __file__, folder, "--device", device, "--prompts", str(prompt), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [*command, *(["--exact"] if exact else [])], capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(done.stdout)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--prompts", type=int, nargs="+", default=[1, 512, 1900], metavar="TOKENS")
    parser.add_argument("--json", action="store_true", help="of one prompt, in this process")
    options = parser.parse_args(arguments)
    if options.json:
        print(json.dumps(measure(options.folder, options.device, options.prompts[0], exact=options.exact)))
        return
    print("| device | prompt | expected, MiB | measured, MiB | expected / measured |\n| --- | --- | --- | --- | --- |")
    for prompt in options.prompts:
        found = in_fresh_process(options.folder, options.device, prompt, exact=options.exact)
        expected, measured = found["expected_bytes"], found["measured_bytes"]
        name = f"`{options.device}`{', exact' if options.exact else ''}"
        row = f"{expected / 2**20:,.0f} | {measured / 2**20:,.0f} | {expected / measured:.2f}"
        print(f"| {name} | {prompt:,} | {row} |", flush=True)


if __name__ == "__main__":
    main()

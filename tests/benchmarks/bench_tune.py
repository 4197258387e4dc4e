"""What `embedllm tune` gains: a model loaded as by default and as tuned, in turn.

    python tests/benchmarks/bench_tune.py FOLDER [--seconds 60] [--rounds 5] [--cache FOLDER]

Tunes first, and shows that table. Then each round loads the model twice, once with tuned=False, reads a prompt of 256
random tokens and makes 64, through the public API; another prompt in each round, the same for both. Prints medians and
the median of the rounds' ratios. What is remembered goes into --cache (Linux), or into a folder that is removed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

import numpy as np

import embedllm

_PROMPT, _TOKENS = 256, 64


@dataclass
class Times:
    prefill_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    how: str = ""

    @property
    def total_s(self) -> list[float]:
        return [prefill + _TOKENS * step for prefill, step in zip(self.prefill_s, self.step_s, strict=True)]

    def add(self, folder: str, prompt: list[int], *, tuned: bool) -> None:
        greedy = embedllm.Sampling(temperature=0)
        with embedllm.load(folder, tuned=tuned, prefix_cache=0) as llm:
            self.how = f"{llm.device.name}; {llm.tuned}"
            llm.generate(prompt[::-1], greedy, max_tokens=2, stop_tokens=())  # packs weights
            found = llm.generate(prompt, greedy, max_tokens=_TOKENS, stop_tokens=(), speculate="off").statistics
        self.prefill_s.append(found.prefill_s)
        self.step_s.append(found.decode_s / (_TOKENS - 1))

    def __str__(self) -> str:
        speeds = _PROMPT / statistics.median(self.prefill_s), 1 / statistics.median(self.step_s)
        return (f"prompt {speeds[0]:,.0f} tokens/s, reply {speeds[1]:.1f} tokens/s, both {spread(self.total_s)} s  "
                f"({self.how})")  # fmt: skip


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["XDG_CACHE_HOME"] = given.cache or temporary
        command = [sys.executable, "-m", "embedllm", "tune", given.folder, "--seconds", str(given.seconds)]
        subprocess.run(command, check=True)
        random = np.random.default_rng(0)
        default, tuned = Times(), Times()
        for _ in range(given.rounds):
            prompt = random.integers(3, 16000, _PROMPT).tolist()
            default.add(given.folder, prompt, tuned=False)
            tuned.add(given.folder, prompt, tuned=True)
    ratios = [one / other for one, other in zip(tuned.total_s, default.total_s, strict=True)]
    print(f"default: {default}\ntuned:   {tuned}\ntuned / default: {spread(ratios)}, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

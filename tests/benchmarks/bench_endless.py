"""What a chat that outgrows its context costs: time to the first token of turns that drop something, and of others.

python tests/benchmarks/bench_endless.py demo --turns 110

Greedy; the policies turn by turn in one process, so that both meet the same load of the machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from itertools import pairwise

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import embedllm
from embedllm import Sampling, Statistics
from embedllm.generation.options import WhenFull

POLICIES: tuple[WhenFull, ...] = ("drop-oldest", "shift")


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):5.0f} ms ({min(values):.0f}-{max(values):.0f})" if values else "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=110)
    parser.add_argument("--tokens", type=int, default=60, help="of a reply at most")
    options = parser.parse_args()
    with embedllm.load(options.folder, device=options.device, prefix_cache=0) as llm:
        talks = {policy: llm.conversation("You answer briefly.", when_full=policy) for policy in POLICIES}
        told: dict[str, list[Statistics]] = {policy: [] for policy in POLICIES}
        for turn in range(options.turns):
            for policy, talk in talks.items():
                text = f"show the {turn} biggest files in my home folder"
                told[policy].append(talk.say(text, Sampling(temperature=0), max_tokens=options.tokens).statistics)
        print(f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {llm.device.backend}, "
              f"{llm.name}, context {llm.context}, {options.turns} turns")  # fmt: skip
        for policy, turns in told.items():
            dropping: list[float] = []
            others: list[float] = []
            for before, now in pairwise(turns):
                drops = now.dropped_tokens > before.dropped_tokens
                (dropping if drops else others).append(now.prefill_s * 1000)
            print(f"{policy:12s} {len(dropping)} turns dropped: {spread(dropping)}; others {spread(others)}; "
                  f"{turns[-1].dropped_tokens} tokens dropped in all")  # fmt: skip


if __name__ == "__main__":
    main()

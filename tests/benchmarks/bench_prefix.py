"""Time to the first token over a shared prefix of 2,000 tokens: cold, and from each place that has its KV.

    python tests/benchmarks/bench_prefix.py FOLDER [--device cpu] [--tokens 2000] [--rounds 3]

Each round computes the prompt cold, then with 20 new tokens behind the prefix: the second turn on the same sequence;
another request while the first is still under way; after another prompt took the sequence, from memory; and from disk
in a new process. A round before them warms up. Medians in seconds, their share of the cold one, the spread, and how
many of the prompt's tokens were not computed. A special token stands before prefix, new tokens and reply, as in a chat:
a recurrent model keeps its states there. Such a FOLDER:
python -m tests.benchmarks.make_hybrid FOLDER --shape qwen3.5-0.8b --graphs generic-float32
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import embedllm

GREEDY = embedllm.Sampling(temperature=0)
NEW = 20  # tokens after the shared prefix
LARGE = 4 << 30  # bytes; the default holds less than 2,000 tokens of a model of this size


def first_token_s(llm: embedllm.Model, prompt: Sequence[int]) -> tuple[float, int]:
    """Seconds to the first token, and how many of the prompt's tokens were not computed."""
    start = time.perf_counter()
    stream = llm.stream(prompt, GREEDY, max_tokens=2, stop_tokens=())
    chunk = next(stream)
    seconds = time.perf_counter() - start
    stream.close()
    return seconds, chunk.statistics.cached_tokens


def chat(llm: embedllm.Model, shared: Sequence[int], new: Sequence[int]) -> list[int]:
    mark = min(llm.tokenizer.special_tokens)
    return [mark, *shared, mark, *new, mark]


def child(folder: str, device: str, cache_dir: str, prompt: str) -> None:
    with embedllm.load(folder, device=device, cache_dir=cache_dir) as llm:
        print(json.dumps(first_token_s(llm, chat(llm, *json.loads(prompt)))))


def in_new_process(
    folder: str, device: str, cache_dir: str, shared: Sequence[int], new: Sequence[int]
) -> tuple[float, int]:
    command = [sys.executable, __file__, "--child", folder, device, cache_dir, json.dumps([list(shared), list(new)])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, cached = json.loads(done.stdout)
    return seconds, cached


def one_round(llm: embedllm.Model, shared: Sequence[int], new: list[list[int]]) -> dict[str, tuple[float, int]]:
    found: dict[str, tuple[float, int]] = {}
    found["cold"] = first_token_s(llm, chat(llm, shared, new[0]))
    found["same sequence"] = first_token_s(llm, chat(llm, shared, new[1]))
    under_way = llm.stream(chat(llm, shared, new[2]), GREEDY, max_tokens=4, stop_tokens=())
    next(under_way)
    found["running sequence"] = first_token_s(llm, chat(llm, shared, new[3]))
    under_way.close()
    llm.generate(new[4], GREEDY, max_tokens=1)  # takes the sequence
    found["memory"] = first_token_s(llm, chat(llm, shared, new[5]))
    return found


def on_disk(folder: str, device: str, shared: Sequence[int], new: list[list[int]]) -> dict[str, tuple[float, int]]:
    with tempfile.TemporaryDirectory() as cache_dir:
        return {
            name: in_new_process(folder, device, cache_dir, shared, new[at])
            for name, at in (("cold, new process", 6), ("disk, new process", 7))
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    pick = random.Random(1)
    rounds = []
    with embedllm.load(arguments.folder, device=arguments.device, prefix_cache=LARGE) as llm:
        for at in range(arguments.rounds + 1):
            shared = [pick.randrange(1000) for _ in range(arguments.tokens)]
            new = [[pick.randrange(1000, 1200) for _ in range(NEW)] for _ in range(8)]
            found = one_round(llm, shared, new)
            llm.release()
            if at:  # behind the first one GPUs have captured their steps
                rounds.append(found | on_disk(arguments.folder, arguments.device, shared, new))
    cold = statistics.median(round["cold"][0] for round in rounds)
    print(f"{Path(arguments.folder).name} on {arguments.device}, {arguments.tokens} + {NEW} tokens")
    for name in rounds[0]:
        seconds = [round[name][0] for round in rounds]
        tokens = rounds[-1][name][1]
        median = statistics.median(seconds)
        print(f"{name:18} {median:7.3f} s  {median / cold:6.1%}  ({min(seconds):.3f} to {max(seconds):.3f}) {tokens}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()

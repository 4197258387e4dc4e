"""Plain decoding, prompt lookup and a draft model, interleaved in one process.

    embedllm export DEMO_CHECKPOINT /tmp/demo
    embedllm export DRAFT_CHECKPOINT /tmp/draft
    python tests/benchmarks/bench_speculation.py /tmp/demo --work copy --prompts CHAT.jsonl --every 1
    python tests/benchmarks/bench_speculation.py /tmp/demo --work fresh --prompts CHAT.jsonl --draft /tmp/draft
    python tests/benchmarks/make_checkpoint.py /tmp/q06r --repeats
    embedllm export /tmp/q06r /tmp/q06r-int4
    python tests/benchmarks/bench_speculation.py /tmp/q06r-int4 --work loop
    embedllm eagle /tmp/demo HEAD
    cd tests/benchmarks
    python bench_speculation.py /tmp/demo --work fresh --draft /tmp/demo/eagle --every 1 --min-tokens 80 --prompts
        speculation_prompts.jsonl

--prompts: JSON lines with "messages"; where they have a "kind" too, ratios are printed by kind, with
their geometric mean. --work: copy, conversations in which a long reply is asked for again; fresh, all conversations;
loop, random tokens, for a model that repeats the last one.
Greedy, or --sampled with a seed; ratios of the time per decoded token, by prompt and round: median (least-most), and
of the CPU time of whole replies; how many replies have the same tokens as the plain ones.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import embedllm
from embedllm import Completion, Model, Sampling

Prompt = list[dict[str, Any]] | list[int]
Ratios = dict[str, dict[str, list[float]]]  # by mode and kind
LONG = 60  # tokens


def conversations(options: argparse.Namespace, llm: Model) -> list[list[dict[str, Any]]]:
    """Those of --prompts, up to the last thing that a user says."""
    kept: list[list[dict[str, Any]]] = []
    for line in options.prompts.read_text(encoding="utf-8").splitlines()[:: options.every]:
        messages = json.loads(line)["messages"]
        while messages and messages[-1]["role"] == "assistant":
            messages = messages[:-1]
        if messages and len(llm.tokenizer.encode(llm.prompt(messages), special=False)) < llm.context // 2:
            kept.append(messages)
    return kept


def copies(options: argparse.Namespace, llm: Model) -> Iterator[Prompt]:
    """The same asked again with the long reply before it, where the model then says nine tenths of it once more."""
    for messages in conversations(options, llm):
        first = llm.generate(messages, Sampling(temperature=0), max_tokens=options.tokens, speculate="off")
        if len(first.tokens) < LONG:
            continue
        again = [*messages, first.message, messages[-1]]
        second = llm.generate(again, Sampling(temperature=0), max_tokens=options.tokens, speculate="off")
        if sum(a == b for a, b in zip(first.tokens, second.tokens, strict=False)) > 0.9 * len(first.tokens):
            yield again


def prompts(options: argparse.Namespace, llm: Model) -> list[Prompt]:
    if options.work == "copy":
        return list(copies(options, llm))
    if options.work == "loop":
        order = random.Random(0)
        return [order.choices(range(100, 16000), k=64)]
    return [messages for messages in conversations(options, llm) if is_long(messages, options, llm)]


def is_long(messages: Prompt, options: argparse.Namespace, llm: Model) -> bool:
    if not options.least:
        return True
    reply = llm.generate(messages, Sampling(temperature=0), max_tokens=options.tokens, speculate="off")
    return len(reply.tokens) >= options.least


def kinds(path: Path | None) -> dict[str, str]:
    """The kind of a prompt, by the last thing that a user says in it."""
    lines = [] if path is None else [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {each["messages"][-1]["content"]: each["kind"] for each in lines if "kind" in each}


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def print_kinds(ratios: Ratios) -> None:
    for mode, by_kind in ratios.items():
        medians = {kind: statistics.median(values) for kind, values in sorted(by_kind.items())}
        each = ", ".join(f"{kind} {value:.2f}" for kind, value in medians.items())
        print(f"{mode:7s} geometric mean x{statistics.geometric_mean(medians.values()):.2f}: {each}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--work", choices=["copy", "fresh", "loop"], default="copy")
    parser.add_argument("--prompts", type=Path, help="for --work copy and fresh")
    parser.add_argument("--every", type=int, default=20, help="of the prompts, every so manyeth")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--least", type=int, default=0, help="of the fresh ones, those with so long a plain reply")
    parser.add_argument("--min-tokens", type=int, default=0)
    parser.add_argument("--sampled", action="store_true", help="at temperature 0.8, one seed a round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    llm = embedllm.load(options.folder, device=options.device, exact=options.exact, draft=options.draft)
    modes = ["lookup", *(["draft", "auto"] if options.draft else [])]
    stop_tokens = () if options.work == "loop" else None
    asked = prompts(options, llm)

    kind_of = kinds(options.prompts)

    def reply(prompt: Prompt, speculate: str, seed: int = 0) -> tuple[Completion, float]:
        """The reply, and seconds of CPU time per token."""
        sampling = Sampling(temperature=0.8, seed=seed) if options.sampled else Sampling(temperature=0)
        started_s = time.process_time()
        found = llm.generate(prompt, sampling, max_tokens=options.tokens, min_tokens=options.min_tokens,
                             stop_tokens=stop_tokens, speculate=speculate)  # type: ignore[arg-type]  # fmt: skip
        return found, (time.process_time() - started_s) / max(1, found.statistics.tokens)

    for prompt in asked[: 18 if kind_of else 2]:  # warm, and what a step costs learned
        for mode in ("off", *modes):
            reply(prompt, mode)
    ratios: dict[str, list[float]] = {mode: [] for mode in modes}
    cpu_ratios: dict[str, list[float]] = {mode: [] for mode in modes}
    by_kind: Ratios = {mode: {} for mode in modes}
    totals = dict.fromkeys(("off", *modes), 0.0)
    last: dict[str, list[Completion]] = {mode: [] for mode in modes}
    same = dict.fromkeys(modes, 0)
    for seed in range(options.rounds):
        for prompt in asked:
            reply(prompt, "off", seed)  # so that what is cached is the same for all
            plain, plain_cpu_s = reply(prompt, "off", seed)
            totals["off"] += plain.statistics.decode_s
            for mode in modes:
                found, cpu_s = reply(prompt, mode, seed)
                each, base = (r.statistics.decode_s / max(1, r.statistics.tokens - 1) for r in (found, plain))
                if found.statistics.tokens > 1:
                    ratios[mode].append(base / each)
                    cpu_ratios[mode].append(plain_cpu_s / cpu_s)
                    last_said = prompt[-1]
                    if kind_of and isinstance(last_said, dict):
                        by_kind[mode].setdefault(kind_of[last_said["content"]], []).append(base / each)
                totals[mode] += found.statistics.decode_s * plain.statistics.tokens / found.statistics.tokens
                same[mode] += found.tokens == plain.tokens
                last[mode].append(found)
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python "
          f"{platform.python_version()}, {llm.device.backend}, embedllm {embedllm.__version__}; {options.work}, "
          f"{len(asked)} prompts, {options.rounds} rounds, up to {options.tokens} tokens")  # fmt: skip
    for mode in modes:
        replies = last[mode]
        drafted, accepted = (
            sum(getattr(r.statistics, name) for r in replies) for name in ("drafted_tokens", "accepted_tokens")
        )
        tokens = sum(r.statistics.tokens for r in replies)
        print(
            f"{mode:7s} x{spread(ratios[mode])}  CPU time x{statistics.median(cpu_ratios[mode]):.2f}  "
            f"all together x{totals['off'] / totals[mode]:.2f}  "
            f"drafted {drafted}, accepted {accepted} ({accepted / max(1, drafted):.0%}) of {tokens} tokens  "
            f"same reply {same[mode]} of {len(replies)}"
        )
    if kind_of:
        print_kinds(by_kind)


if __name__ == "__main__":
    main()

"""How far a shifted sequence is from one that computes again what is left, and what a shift costs.

    embedllm export DEMO_CHECKPOINT /tmp/demo
    python tests/benchmarks/bench_shift.py /tmp/demo --text VALIDATION.jsonl

--text: JSON lines with "text". Each document fills the window; then its tokens go on, fed one by one, and what must
go is shifted out. At the points that are compared, a fresh session is fed the tokens that are left. KL is that of the
fresh distribution over the shifted one, in nats a token; "top" is how often both have the same best token. The same is
told of what else could be done at once: "no sink" drops the first tokens as well, "unturned" leaves keys as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np

import embedllm
from embedllm import Model
from embedllm.kv_cache.context_shift import ContextShift
from embedllm.package.architecture.rope import LinearScaling
from embedllm.types import Logits


def log_softmax(logits: Logits) -> np.ndarray:
    row = np.array(logits.values(range(logits.size)), np.float64)
    row -= row.max()
    return row - np.log(np.exp(row).sum())


def compare(
    llm: Model, tokens: list[int], shift: ContextShift, options: argparse.Namespace
) -> list[tuple[float, bool]]:
    """KL and whether the best token is the same, at each point."""
    found: list[tuple[float, bool]] = []
    sequence = llm.runner.sequences.new()
    sequence.feed(tokens[: options.window])
    sequence.shift = shift
    for at in range(options.window, len(tokens)):
        logits = sequence.feed([tokens[at]])
        if (at - options.window) % options.every:
            continue
        shifted = log_softmax(logits)
        fresh_session = llm.runner.sequences.new()
        fresh = log_softmax(fresh_session.feed(sequence.tokens))
        fresh_session.close()
        found.append((float((np.exp(fresh) * (fresh - shifted)).sum()), bool(fresh.argmax() == shifted.argmax())))
    sequence.close()
    return found


def clock(llm: Model, tokens: list[int], shift: ContextShift, options: argparse.Namespace) -> tuple[float, float]:
    """Seconds of a shift, and of computing again what is left."""
    sequence, fresh = llm.runner.sequences.new(), llm.runner.sequences.new()
    sequence.feed(tokens[: options.window])
    sequence.shift = shift
    started = time.perf_counter()
    sequence._make_room(1)
    shifted_s = time.perf_counter() - started
    started = time.perf_counter()
    fresh.feed(sequence.tokens)
    fresh_s = time.perf_counter() - started
    sequence.close()
    fresh.close()
    return shifted_s, fresh_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--window", type=int, default=512, help="tokens that the sequence may hold")
    parser.add_argument("--more", type=int, default=512, help="tokens fed behind them")
    parser.add_argument("--every", type=int, default=16, help="of them, every so manyeth is compared")
    parser.add_argument("--documents", type=int, default=6)
    options = parser.parse_args()
    llm = embedllm.load(options.folder, device=options.device, prefix_cache=0)
    ropes = llm.package.decoder.layer_ropes
    still = tuple(rope and replace(rope, scaling=LinearScaling(factor=1e30)) for rope in ropes)
    rules = {
        "shift": ContextShift(keep=4, context=options.window, ropes=ropes),
        "no sink": ContextShift(keep=0, context=options.window, ropes=ropes),
        "unturned": ContextShift(keep=4, context=options.window, ropes=still),
    }
    texts = (json.loads(line)["text"] for line in options.text.read_text(encoding="utf-8").splitlines())
    encoded = (llm.tokenizer.encode(text, special=True)[: options.window + options.more] for text in texts)
    documents = [tokens for tokens in encoded if len(tokens) == options.window + options.more][: options.documents]
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {llm.device.backend}, "
          f"{llm.name}, window {options.window}, {len(documents)} documents of {options.more} more tokens")  # fmt: skip
    for name, rule in rules.items():
        found = [point for tokens in documents for point in compare(llm, tokens, rule, options)]
        values = sorted(kl for kl, _ in found)
        print(f"{name:9s} mean KL {statistics.mean(values):.4f}  median {statistics.median(values):.4f}  "
              f"worst {values[-1]:.3f}  top {sum(same for _, same in found) / len(found):.1%}  "
              f"{len(found)} points")  # fmt: skip
    times = [clock(llm, tokens, rules["shift"], options) for tokens in documents]
    shifted_s, fresh_s = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"a shift {shifted_s * 1000:.1f} ms, computing it again {fresh_s * 1000:.0f} ms")


if __name__ == "__main__":
    main()

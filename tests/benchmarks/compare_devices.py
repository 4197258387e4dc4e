"""Whether a device gives the greedy tokens of another: same text, or a tie where it leaves it.

    python tests/benchmarks/compare_devices.py FOLDER cuda cpu [--prompts 4] [--tokens 64]

The first device continues random prompts. The second, in its exact mode where it has one, reads prompt and reply and
says at each token which it would have taken. A different one is a tie when both its logits are as near to each other as
the two devices' logits are at that place.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import numpy as np

from embedllm.backends.base import Engine, FeedsAll
from embedllm.backends.devices import registry
from embedllm.errors import EmbedError
from embedllm.loading.resolve import package_folder
from embedllm.package.package import Package, open_package


def opened(package: Package, name: str, *, exact: bool) -> Engine:
    devices = registry.devices_for(package, [name], exact=exact)
    return registry.open_engine(package, next(d for d in devices if d.name == name), exact=exact)


def exact_if_possible(package: Package, name: str) -> tuple[Engine, bool]:
    try:
        return opened(package, name, exact=True), True
    except EmbedError:
        return opened(package, name, exact=False), False


def reply(engine: Engine, prompt: list[int], count: int) -> tuple[list[int], np.ndarray]:
    """The most probable tokens, and the logits that each was taken from, [count, V]."""
    session, tokens, rows = engine.open(len(prompt) + count), [], []
    logits = session.feed(prompt)
    while True:
        rows.append(logits.values(range(logits.size)))
        tokens.append(int(np.argmax(rows[-1])))
        if len(tokens) == count:
            session.close()
            return tokens, np.array(rows, np.float32)
        logits = session.feed(tokens[-1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("device")
    parser.add_argument("other")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    package = open_package(package_folder(options.folder))
    random = np.random.default_rng(0)
    prompts = random.integers(3, min(16000, package.decoder.vocabulary), (options.prompts, options.length)).tolist()
    engine = opened(package, options.device, exact=False)
    replies = [reply(engine, prompt, options.tokens) for prompt in prompts]
    engine.close()
    other, is_exact = exact_if_possible(package, options.other)
    same = ties = 0
    largest = 0.0
    for prompt, (tokens, rows) in zip(prompts, replies, strict=True):
        session = other.open(len(prompt) + len(tokens))
        assert isinstance(session, FeedsAll)
        theirs = session.feed_all([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        session.close()
        for token, ours, row in zip(tokens, rows, theirs, strict=True):
            difference = float(np.abs(ours - row).max())
            largest = max(largest, difference)
            same += int(row.argmax()) == token
            ties += int(row.argmax()) != token and float(row.max() - row[token]) <= 2 * difference
    count = options.prompts * options.tokens
    print(
        f"{package.name}: of {count} greedy tokens of {options.device}, {same} are those of {options.other}"
        f"{' (exact)' if is_exact else ''}, {ties} are ties, {count - same - ties} are others; "
        f"logits differ by at most {largest:.3g} of {max(float(np.abs(rows).max()) for _, rows in replies):.3g}"
    )


if __name__ == "__main__":
    main()

"""What forgetting guesses costs a sequence: a feed of several tokens, a rewind behind the right ones, the next token.

    python tests/benchmarks/bench_rollback.py FOLDER --device cuda [--guesses 3] [--right 0] [--prompt 512]
        [--rounds 20] [--head FOLDER/eagle]

Medians in ms, of the wall and, for a busy machine, of the CPU in brackets, on the engine itself: a step; the same
behind a prompt, where states are kept; the guesses with the token before them, the best behind each; the rewind; and
the step behind it, which computes again what the rewind has left. With a head, MTP or EAGLE-3: its reading the tokens
of such a step, and making the guesses.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np

from embedllm.backends.base import Device, FeedsAll, FeedsRows, Session, WarmsUp
from embedllm.backends.devices.registry import devices, open_draft_head, open_engine
from embedllm.backends.options import DEFAULT
from embedllm.generation.speculation.draft_head import FollowingSession
from embedllm.generation.speculation.speculator import Draft
from embedllm.loading.draft import hidden_graph_of
from embedllm.package.package import Package, open_package


def open_head(package: Package, device: Device, session: Session) -> FollowingSession:
    engine = open_draft_head(package, device, runtime=DEFAULT, exact=False)
    head = cast("FollowingSession", engine.open())
    head.follow(session)
    return head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--device", default="cpu")
    for name, usual in (("guesses", 3), ("right", 0), ("prompt", 512), ("rounds", 20)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--head", type=Path)
    options = parser.parse_args()
    device = next(d for d in devices() if d.name == options.device)
    package = None if options.head is None else open_package(options.head)
    engine = open_engine(open_package(options.folder), device, hidden_graph=hidden_graph_of(package))
    if isinstance(engine, WarmsUp):
        engine.warm_up()
    random, times = np.random.default_rng(1), defaultdict(list)
    session = engine.open(options.prompt + 200)
    assert isinstance(session, FeedsAll)

    wrong = options.guesses - options.right

    def tokens(count: int) -> list[int]:
        return random.integers(3, 300, count).tolist()

    def guess(tokens: Sequence[int]) -> None:
        """As a request verifies drafts: the best token behind each."""
        if isinstance(session, FeedsRows):
            for row in session.feed_rows(tokens):
                row.top(1)
        else:
            session.feed_all(tokens).argmax(axis=1)

    head = None if package is None else open_head(package, device, session)

    def guess_by_head(held: Sequence[int]) -> None:
        """As a request has a head draft: what the model has read since, and then guesses."""
        assert head is not None
        draft = Draft(head, [], context=engine.context, chunk=engine.context,  # type: ignore[arg-type]  # a session
                      want=head.want if head.guesses_on else None)  # fmt: skip
        draft.want(options.guesses)
        found = draft.guesses(head.feed([*held, 7][head.position :]))
        while len(found) < options.guesses:
            found = [*found, *draft.guesses(head.feed([0]))]
        head.rewind(len(held))

    def timed(name: str, work: Callable[[], object]) -> None:
        started, cpu = time.perf_counter(), time.process_time()
        work()
        times[name].append((1000 * (time.perf_counter() - started), 1000 * (time.process_time() - cpu)))

    for _ in range(options.rounds):
        session.rewind(0)
        held = tokens(options.prompt)
        timed("prompt", lambda held=held: session.feed(held).top(1))
        if head is not None:
            head.rewind(0)
            timed("head, first", lambda held=held: guess_by_head(held))
        timed("first step", lambda: session.feed(tokens(1)).top(1))
        for _ in range(8):
            timed("step", lambda: session.feed(tokens(1)).top(1))
        if head is not None:
            held += [0] * (session.position - len(held))
            guess_by_head(held)
        new = tokens(1 + options.guesses)
        timed("guesses", lambda new=new: guess(new))
        if head is not None:
            held += new
            timed("head", lambda held=held: guess_by_head(held))
        timed("rewind", lambda: session.rewind(session.position - wrong))
        timed("step behind it", lambda: session.feed(tokens(1)).top(1))
    print(f"{engine.device.backend}, {engine.device.description}, {options.guesses} guesses, {options.right} right")
    for name, found in times.items():
        wall, cpu = np.median(found, axis=0)
        print(f"{name:>15}: {wall:8.3f} ({cpu:8.3f})")
    session.close()
    engine.close()


if __name__ == "__main__":
    main()

"""Random requests for a long time: replies checked, memory, threads and files counted, processes killed while writing.

    python -m tests.benchmarks.soak [--minutes 30] [--seed 0] [--model demo] [--device cpu] [--threads 6] [--tasks 3]

Threads and the tasks of an event loop ask for replies of every kind: streams that are cancelled or left, structured
output, speculation, batches, conversations that are saved, opened and branched, wrong requests, more than the queue
holds; over a prefix cache that is too small, in memory and on disk. Every token's log probability is checked against a
fresh session that computes prompt and reply alone (soak_checks.py). Beside it a process writes caches and conversations
and is killed, over and over; what it reported must be there. Prints what was done; the exit status is 1 when anything
was wrong or leaked. Linux only (/proc).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import numpy as np

import embedllm
from tests.benchmarks.soak_checks import Alone
from tests.benchmarks.soak_killed import check_killed
from tests.benchmarks.soak_requests import Soak

MIB = 1 << 20
_SAMPLE_S = 1.0
_GROWTH = 0.05  # of the memory, between the second and the last third, that is called a leak


@dataclass(frozen=True, slots=True)
class Size:
    """What the process has."""

    seconds: float
    rss_mib: float
    threads: int
    files: int


@dataclass
class Result:
    """What a soak found."""

    counts: Counter[str] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)
    sizes: list[Size] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    differences: str = ""

    @property
    def floors_mib(self) -> list[float]:
        """Of twelve equal parts the least memory but for a tenth: what is there between the requests."""
        parts = np.array_split(np.array([size.rss_mib for size in self.sizes]), min(12, len(self.sizes)))
        return [float(np.quantile(part, 0.1)) for part in parts]

    @property
    def slope_mib_min(self) -> float:
        """Of these, after the first third."""
        late = self.floors_mib[len(self.floors_mib) // 3 :]
        minutes = (self.sizes[-1].seconds - self.sizes[0].seconds) / 60 / max(len(self.floors_mib), 1)
        return float(np.polyfit(np.arange(len(late)) * minutes, late, 1)[0]) if len(late) > 1 else 0.0

    @property
    def growth(self) -> float:
        """Of these, from the second third to the last, as a share."""
        third = max(len(self.floors_mib) // 3, 1)
        second, last = self.floors_mib[third : 2 * third] or self.floors_mib, self.floors_mib[-third:]
        return float(np.mean(last) / np.mean(second) - 1)


def size(began: float) -> Size:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Size(
        seconds=time.monotonic() - began,
        rss_mib=pages * os.sysconf("SC_PAGESIZE") / MIB,
        threads=len(list(Path("/proc/self/task").iterdir())),
        files=len(list(Path("/proc/self/fd").iterdir())),
    )


def soak(
    folder: Path, *, seconds: float, seed: int = 0, model: str = "demo", device: str = "cpu", threads: int = 6,
    tasks: int = 3, kills: bool = True,
) -> Result:  # fmt: skip
    """Runs it; folder: for caches and conversations."""
    result = Result()
    began = time.monotonic()
    (folder / "talks").mkdir()
    alone = Alone(model, device)
    with embedllm.load(model, device=device, prefix_cache=12 * MIB, cache_dir=folder / "kv", cache_dir_bytes=40 * MIB,
                       max_sequences=3, max_waiting=4) as llm:  # fmt: skip
        work = Soak(llm, alone, folder / "talks", result.counts)
        before = size(began)
        workers = [_thread(work.act, Random(seed * 1000 + which), began + seconds, result) for which in range(threads)]
        workers.append(threading.Thread(target=_loop, args=(work, seed, tasks, began + seconds, result)))
        if kills:
            workers.append(threading.Thread(target=_kill, args=(model, alone, folder, seed, began + seconds, result)))
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            time.sleep(_SAMPLE_S)
            result.sizes.append(size(began))
        gc.collect()
        scheduler = llm.runner.scheduler
        llm.runner.call(lambda: None)  # what was left by its callers has ended then
        if scheduler.running or scheduler.waiting:
            found = f"{len(scheduler.running)} requests run and {len(scheduler.waiting)} wait"
            result.troubles.append(f"{found}, though none is left")
    alone.close()
    result.differences = str(alone.differences)
    after = size(began)
    if after.files > before.files or after.threads > before.threads:
        result.troubles.append(f"files or threads are left: {before} before, {after} after")
    return result


def _thread(act: Callable[[Random], None], random: Random, until: float, result: Result) -> threading.Thread:
    def run() -> None:
        while time.monotonic() < until and not result.troubles:
            try:
                act(random)
            except Exception:  # noqa: BLE001  # told at the end
                result.troubles.append(traceback.format_exc())

    return threading.Thread(target=run)


def _loop(work: Soak, seed: int, tasks: int, until: float, result: Result) -> None:
    async def run(which: int) -> None:
        random = Random(seed * 1000 + 500 + which)
        while time.monotonic() < until and not result.troubles:
            try:
                await work.aact(random)
            except Exception:  # noqa: BLE001  # told at the end
                result.troubles.append(traceback.format_exc())

    async def all_of_them() -> None:
        await asyncio.gather(*(run(which) for which in range(tasks)))

    asyncio.run(all_of_them())


def _kill(model: str, alone: Alone, folder: Path, seed: int, until: float, result: Result) -> None:
    random = Random(seed)
    written = folder / "killed"
    written.mkdir()
    while time.monotonic() < until and not result.troubles:
        try:
            result.killed.update(check_killed(model, alone, written, random.randrange(10**6), random.random() * 4))
        except Exception:  # noqa: BLE001  # told at the end
            result.troubles.append(traceback.format_exc())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--tasks", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = soak(Path(folder), seconds=60 * given.minutes, seed=given.seed, model=given.model,
                      device=given.device, threads=given.threads, tasks=given.tasks)  # fmt: skip
    print(f"requests: {dict(result.counts)}\nkilled processes: {dict(result.killed)}\n{result.differences}")
    for at in np.linspace(0, len(result.sizes) - 1, 9).astype(int):
        print(result.sizes[at])
    print(f"least memory in each twelfth, MiB: {[round(floor) for floor in result.floors_mib]}")
    print(f"its slope {result.slope_mib_min:+.2f} MiB a minute, {result.growth:+.1%} from the second third to the last")
    if result.growth > _GROWTH:
        result.troubles.append("the memory grows")
    for trouble in result.troubles:
        print(f"WRONG: {trouble}", file=sys.stderr)
    sys.exit(1 if result.troubles else 0)


if __name__ == "__main__":
    main()

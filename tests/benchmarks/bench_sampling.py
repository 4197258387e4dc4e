"""Microseconds that one token costs the sampler (median), by options, vocabulary and shape of the logits.

Run on an idle machine:

    python tests/benchmarks/bench_sampling.py

Every pick sees a row that no question was asked of before, as after a step of a model. `peaked` has 0.9 of the
probability in some 30 tokens; `flat` is a normal distribution of logits, whose nucleus of 0.9 is 60 % of the
vocabulary: worse than any trained model at a usual temperature.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler

if TYPE_CHECKING:
    from embedllm.types import F32

VOCABULARIES = (16384, 151936)
STEPS = 300

PENALTIES = Sampling(repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1)
SEEN = {"penalties, 8000 seen": 8000, "penalties, 30000 seen": 30000}  # tokens of prompt and reply, where not 1000

OPTIONS = {
    "greedy": Sampling(temperature=0),
    "temperature 0.8": Sampling(temperature=0.8),
    "top_k 40": Sampling(top_k=40),
    "top_p 0.9": Sampling(top_p=0.9),
    "top_p 0.9, temperature 0.8": Sampling(top_p=0.9, temperature=0.8),
    "min_p 0.05": Sampling(min_p=0.05),
    "typical_p 0.9": Sampling(typical_p=0.9),
    "typical_p 0.9, top_p 0.9": Sampling(typical_p=0.9, top_p=0.9),
    "top_n_sigma 1": Sampling(top_n_sigma=1.0),
    "xtc 0.5": Sampling(xtc_probability=0.5),
    "mirostat 2": Sampling(mirostat=2),
    "dynamic_temperature 0.5": Sampling(dynamic_temperature=0.5),
    "penalties, 1000 seen": PENALTIES,
    "penalties, 8000 seen": PENALTIES,
    "penalties, 30000 seen": PENALTIES,
    "top_k, top_p, min_p, temperature": Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    "everything, 1000 seen": Sampling(
        temperature=0.8,
        top_k=100,
        typical_p=0.95,
        top_p=0.9,
        min_p=0.02,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        logit_bias={5: -100.0},
    ),
}


def logits_of(shape: str, size: int) -> F32:
    rng = np.random.default_rng(7)
    logits = rng.standard_normal(size)
    if shape == "peaked":
        logits[rng.permutation(size)[:200]] += np.linspace(18, 4, 200)
    return logits.astype(np.float32)


def microseconds(sampling: Sampling, logits: F32, count: int) -> float:
    """Median time of a pick and its note, with that many different tokens in prompt and reply."""
    rng = np.random.default_rng(8)
    seen = rng.permutation(logits.size)[:count].tolist()
    sampler = Sampler(sampling, seen[: count // 2])
    for token in seen[count // 2 :]:
        sampler.note(token)
    times: list[float] = []
    for _ in range(STEPS):
        row = NumpyLogits(logits)
        start = time.perf_counter()
        sampler.note(sampler.pick(row).token)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def main() -> None:
    columns = [(size, shape) for size in VOCABULARIES for shape in ("peaked", "flat")]
    print(f"{'':34}" + "".join(f"{size:>10} {shape:6}" for size, shape in columns))
    for name, sampling in OPTIONS.items():
        times = [microseconds(sampling, logits_of(shape, size), SEEN.get(name, 1000)) for size, shape in columns]
        print(f"{name:34}" + "".join(f"{each:>10.0f} {'':6}" for each in times))


if __name__ == "__main__":
    main()

"""Writes what the rule answers in Python, for its twin in JavaScript to answer alike: tests/golden/web_rule.json.

    python -m tools.make_web_vectors

Rows are not in the file: both sides make them, from a seed, by a formula of whole numbers whose results float32 holds
exactly. Run it again when the rule changes, and tests/web/node/rule.test.mjs with it.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.generation.defaults import read_defaults
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler
from embedllm.sampling.token_choice import truncated
from tools.web_text_vectors import generations, stops, streams

if TYPE_CHECKING:
    from embedllm.types import F32

PATH = Path(__file__).parents[1] / "tests/golden/web_rule.json"
SHAPES = ("normal", "peaked", "ties", "masked", "flat", "constant")
STEPS = 32  # of every case of sampling
_PENALTIES: dict[str, object] = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25}
_BIASES: dict[str, object] = {"logit_bias": {3: 9.5, 17: -100, 40: -math.inf, 299: 2.25}}

# name, options, shape, size: the last two sizes go past the lists of 255 and 4096 tokens
CASES: list[tuple[dict[str, object], str, int]] = [
    *[({"temperature": 0}, shape, 300) for shape in SHAPES],
    *[({"temperature": 0.8}, shape, 777) for shape in SHAPES],
    ({"top_k": 1}, "ties", 300),
    ({"top_k": 7}, "ties", 300),
    *[({"top_k": 40, "temperature": 1.5}, shape, 1000) for shape in SHAPES],
    *[({"top_p": 0.9}, shape, 1000) for shape in SHAPES],
    *[({"min_p": 0.05}, shape, 1000) for shape in SHAPES],
    *[({"typical_p": 0.9}, shape, 1000) for shape in SHAPES],
    ({"top_p": 0, "temperature": 2}, "normal", 300),
    ({"top_p": 0.3, "min_p": 0.2}, "normal", 1000),
    *[({"typical_p": 0.9, "top_p": 0.9}, shape, 5000) for shape in ("normal", "flat", "ties")],
    *[({"top_p": 0.9}, shape, 5000) for shape in ("normal", "flat")],
    ({"top_p": 0.5, "min_p": 0.9}, "flat", 5000),
    ({"typical_p": 0.5}, "flat", 5000),
    ({"temperature": 0.01}, "normal", 1000),
    ({"temperature": 30, "top_k": 500}, "normal", 1000),
    ({"temperature": 0, **_PENALTIES}, "ties", 300),
    ({"temperature": 0, **_BIASES}, "normal", 300),
    ({"presence_penalty": 2}, "peaked", 300),
    ({"frequency_penalty": -2}, "peaked", 300),
    ({"repetition_penalty": 0.5}, "masked", 300),
    ({**_PENALTIES, **_BIASES}, "normal", 1000),
    ({"temperature": 0.7, "top_k": 100, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.02, **_PENALTIES, **_BIASES},
     "peaked", 1000),
]  # fmt: skip

# generation_config.json of models that ask for bans; rows come back every third step, so that greedy repeats itself
BANS: list[dict[str, object]] = [
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3, "repetition_penalty": 1.2},
    {"no_repeat_ngram_size": 5, "bad_words_ids": None},
    {"no_repeat_ngram_size": 100},
    {"bad_words_ids": [[26], [3, 11], [36, 30, 11], [11, 15, 30]]},  # the prompt's 3 begins none
    {"bad_words_ids": [[500], [11, 500], [11, 36, 26]], "suppress_tokens": []},  # 500: of no vocabulary
    {"suppress_tokens": [36, 26]},
    {"no_repeat_ngram_size": 2, "bad_words_ids": [[4], [17, 2]], "suppress_tokens": [11], "do_sample": True,
     "top_k": 6},
    {"no_repeat_ngram_size": 3, "do_sample": True, "temperature": 0.5, "top_p": 0.9},
]  # fmt: skip
_BANNED_SIZE = 40

# what both sides refuse, with the same words
REFUSED: list[dict[str, object]] = [
    {"temperature": -0.5},
    {"temperature": 100.5},
    {"temperature": "hot"},
    {"top_k": -1},
    {"top_k": 1.5},
    {"top_p": 1.25},
    {"min_p": -0.25},
    {"typical_p": 2},
    {"repetition_penalty": 0},
    {"presence_penalty": 2.5},
    {"frequency_penalty": -3},
    {"logit_bias": [[-1, 2]]},
    {"logit_bias": [[5, 101]]},
]


def make_row(shape: str, size: int, seed: int) -> F32:
    """Logits by a formula that rule.test.mjs has too; the hash is Wellons's "lowbias32"."""
    words = np.arange(4 * size, dtype=np.uint32) + np.uint32(seed * 0x9E3779B9 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        words = (words ^ (words >> np.uint32(shift))) * np.uint32(factor)
    halves = ((words ^ (words >> np.uint32(16))) >> np.uint32(16)).astype(np.int64).reshape(size, 4)
    first = halves[:, 0]
    row = (halves.sum(axis=1) - 131072) / 16384  # -8 to 8, of deviation 2.3
    if shape == "peaked":
        row += np.where(first % 97 == 0, 8, 0)
    elif shape == "ties":
        row = first // 8192 - 4.0
    elif shape == "masked":
        row = np.where(first % 16 == 0, row, -np.inf)
    elif shape == "flat":
        row /= 16
    elif shape == "constant":
        row = np.full(size, -1.5)
    return row.astype(np.float32)


def vectors() -> dict[str, object]:
    """All of the file."""
    return {
        "random": [_random(seed) for seed in (0, 1, -5, 42, 2**32, 2**53 - 1, 2**70 + 3)],
        "rows": [_row(shape, size) for shape in SHAPES for size in (1, 63, 300, 5000)],
        "refused": [{"options": options, "error": _refusal(options)} for options in REFUSED],
        "sampling": [_sampling(seed, *case) for seed, case in enumerate(CASES, 1)],
        "bans": [_banned(seed, config) for seed, config in enumerate(BANS, 1)],
        "stops": stops(),
        "streams": streams(),
        "generations": generations(make_row),
    }


def _random(seed: int) -> dict[str, object]:
    source = random.Random(seed)
    numbers = [source.random() for _ in range(1000)]
    return {"seed": str(seed), "first": numbers[:4], "last": numbers[-4:]}


def _row(shape: str, size: int) -> dict[str, object]:
    """Answers of one row to every question; infinite numbers are left out, which JSON cannot hold."""
    if shape == "masked" and size == 1:
        shape = "normal"
    row = NumpyLogits(make_row(shape, size, size))
    draw = random.Random(size)
    best = row.top(1).tokens[0]
    tokens = [best, *(draw.randrange(size) for _ in range(3))]
    centres = [None, row.mean(1.0), row.values([best])[0] - 1]
    shown = min(size, 40)
    return {
        "shape": shape,
        "size": size,
        "top": [[count, list(row.top(count).tokens[-shown:])] for count in (1, 2, 7, 255, 4096, size)],
        "logsumexp": [[heat, row.logsumexp(heat)] for heat in (0.1, 0.7, 1.0, 5.0)],
        "mean": [[heat, row.mean(heat)] for heat in (0.1, 0.7, 1.0, 5.0)],
        "deviation": row.deviation(),
        "draws": [[heat, u, row.draw(heat, u)] for heat in (0.5, 1.0) for u in (0.0, 0.015625, 0.34375, 0.7, 0.999)],
        "nearer": [
            [token, centre, row.mass_nearer(token, math.inf if centre is None else centre, temperature=0.9)]
            for token in tokens
            for centre in centres
        ],
    }


def _refusal(options: dict[str, object]) -> str:
    try:
        sampling_of(options)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{options} was not refused")


def sampling_of(options: dict[str, object]) -> Sampling:
    """Options as the file has them, which a type checker cannot follow."""
    return Sampling(**options)  # type: ignore[arg-type]  # the tables above, some of them wrong on purpose


def _sampling(seed: int, options: dict[str, object], shape: str, size: int) -> dict[str, object]:
    sampling = sampling_of({**options, "seed": seed})
    prompt = [7, 8, 9, 7, size - 1]
    sampler = Sampler(sampling, prompt)
    picked = []
    for step in range(STEPS):
        picked.append(sampler.pick(NumpyLogits(make_row(shape, size, _seed(seed, step)))))
        sampler.note(picked[-1].token)
    return {
        "options": {**options, "seed": seed, "logit_bias": _pairs(sampling)},
        "shape": shape,
        "size": size,
        "prompt": prompt,
        "tokens": [pick.token for pick in picked],
        "logprobs": [round(pick.logprob, 6) for pick in picked],
        "kept": [_kept(sampling, NumpyLogits(make_row(shape, size, _seed(seed, 0))), look) for look in (255, 4096)],
    }


def _banned(seed: int, config: dict[str, object]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
        sampling = replace(read_defaults(Path(folder)).sampling, seed=seed)
    prompt = [7, 9, 11, 7, 9, 3]
    sampler = Sampler(sampling, prompt)
    tokens: list[int] = []
    for step in range(STEPS):
        tokens.append(sampler.pick(NumpyLogits(make_row("normal", _BANNED_SIZE, step % 3))).token)
        sampler.note(tokens[-1])
    return {"config": config, "seed": seed, "size": _BANNED_SIZE, "prompt": prompt, "tokens": tokens}


def _seed(case: int, step: int) -> int:
    return 1000 * case + step


def _pairs(sampling: Sampling) -> list[list[object]]:
    """The biases, with None for minus infinity."""
    return [[token, None if bias == -math.inf else bias] for token, bias in dict(sampling.logit_bias).items()]


def _kept(sampling: Sampling, row: NumpyLogits, look: int) -> int | None:
    """How many tokens truncation leaves; None when the list is too short to tell."""
    if sampling.is_greedy or not sampling.truncates:
        return None
    pool = truncated(row, sampling, sampling.draw_steps, look=look)
    return pool and len(pool.best.tokens)


def written(parts: dict[str, object]) -> str:
    """The file's text: an entry a line, so that a change shows where it is."""
    blocks = []
    for name, entries in parts.items():
        assert isinstance(entries, Sequence)
        lines = ",\n".join(json.dumps(entry, ensure_ascii=True, separators=(",", ":")) for entry in entries)
        blocks.append(f"{json.dumps(name)}: [\n{lines}\n]")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(written(vectors()), encoding="utf-8")

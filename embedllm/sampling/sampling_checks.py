"""What values the options of sampling may have, and what is said of others. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

F = TypeVar("F")

# The steps in the order of common use; those before "temperature" change logits, the rest choose among tokens.
CHANGES = ("penalties", "dry", "processors")
ORDER = (*CHANGES, "temperature", "top_k", "top_n_sigma", "typical_p", "top_p", "min_p", "xtc")

# field, least, most, what to say
RANGES = (
    ("temperature", 0, 100, "0 (greedy) to 100"),
    ("top_k", 0, math.inf, "0 (off) or more"),
    ("top_p", 0, 1, "0 to 1 (off)"),
    ("min_p", 0, 1, "0 (off) to 1"),
    ("typical_p", 0, 1, "0 to 1 (off)"),
    ("top_n_sigma", 0, 1000, "0 (off) to 1000"),
    ("xtc_probability", 0, 1, "0 (off) to 1"),
    ("xtc_threshold", 0, 0.5, "0 to 0.5; above it, no two tokens can be"),
    ("repetition_penalty", 0.01, 100, "0.01 to 100, 1 = off"),
    ("presence_penalty", -2, 2, "-2 to 2, 0 = off"),  # this and the next: OpenAI's ranges
    ("frequency_penalty", -2, 2, "-2 to 2, 0 = off"),
    ("dry_multiplier", 0, 100, "0 (off) to 100"),
    ("dry_base", 1, 100, "1 to 100"),
    ("dry_allowed_length", 1, math.inf, "1 or more"),
    ("dry_range", 0, math.inf, "0 (all) or more"),
    ("no_repeat_ngram", 0, math.inf, "0 (off) or more"),
    ("dynamic_temperature", 0, 100, "0 (off) to 100"),
    ("dynamic_exponent", 0.01, 100, "0.01 to 100"),
    ("mirostat", 0, 2, "0 (off), 1 or 2"),
    ("mirostat_tau", 0.01, 100, "0.01 to 100"),
    ("mirostat_eta", 0, 1, "0 to 1"),
)
NUMBERS = (*(row[0] for row in RANGES), "seed")
_WHOLE = {
    "top_k": "0 = off",
    "dry_allowed_length": "1 or more",
    "dry_range": "0 = all",
    "no_repeat_ngram": "0 = off",
    "mirostat": "0 = off",
}


def check_ranges(options: Mapping[str, object]) -> None:
    """Raises ValueError for a number out of its range."""
    for name, least, most, expected in RANGES:
        _check(name, options[name], least=least, most=most, expected=expected)
    for name, meaning in _WHOLE.items():
        if not isinstance(options[name], int):
            raise ValueError(f"{name} is {options[name]!r}; expected a whole number, {meaning}")
    seed = options["seed"]
    if seed is not None and not isinstance(seed, int):
        raise ValueError(f"seed is {seed!r}; expected a whole number or None")


def biases(given: Mapping[int, float] | Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """A bias for each token, in the order of ids. Raises ValueError for one that cannot be added."""
    found = dict(given)
    for token, bias in found.items():
        if not isinstance(token, int) or token < 0:
            raise ValueError(f"logit_bias has the token {token!r}; expected token ids, 0 or more")
        if bias != -math.inf:
            expected = "-100 to 100, or -inf to forbid the token"
            _check(f"logit_bias of token {token}", bias, least=-100, most=100, expected=expected)
    return tuple(sorted(found.items()))


def words(given: Sequence[str | Sequence[int]]) -> tuple[str | tuple[int, ...], ...]:
    """Texts and sequences of token ids, unchangeable. Raises ValueError for anything else, and for an empty one."""
    found = () if isinstance(given, str) else tuple(word if isinstance(word, str) else tuple(word) for word in given)
    for word in found:
        is_text = isinstance(word, str) and bool(word.strip())
        if not is_text and not (word and all(isinstance(token, int) and token >= 0 for token in word)):
            raise ValueError(f"bad_words has {word!r}; expected texts or sequences of token ids that are not empty")
    if isinstance(given, str):
        raise ValueError(f"bad_words is {given!r}; expected a list of texts or of sequences of token ids")
    return found


def texts(name: str, given: Sequence[str]) -> tuple[str, ...]:
    """Texts, unchangeable. Raises ValueError for anything else, and for an empty one."""
    if isinstance(given, str) or not all(isinstance(text, str) and text for text in given):
        raise ValueError(f"{name} is {given!r}; expected a list of texts that are not empty")
    return tuple(given)


def functions(given: Sequence[F]) -> tuple[F, ...]:
    """Functions, unchangeable. Raises ValueError for anything else."""
    if callable(given) or not all(callable(each) for each in given):
        raise ValueError(f"processors is {given!r}; expected a list of functions of logits and tokens")
    return tuple(given)


def steps(order: Sequence[str], *, on: Sequence[str]) -> tuple[str, ...]:
    """An order of steps, unchangeable.

    Raises ValueError for an unknown or repeated step, one of `on` that is not there, and a change of the logits that
    comes after what chooses among tokens.
    """
    known, found = ", ".join(ORDER), tuple(order)
    if odd := [step for step in found if step not in ORDER or found.count(step) > 1]:
        raise ValueError(f"order has {odd[0]!r} where that is no step, or twice; expected each of {known} once")
    if lacking := [step for step in on if step not in found]:
        raise ValueError(f"order lacks '{lacking[0]}', which is on; name it, or leave its options out")
    late = [step for place, step in enumerate(found) if step in CHANGES and set(found[:place]) - set(CHANGES)]
    if late:
        raise ValueError(f"order has '{late[0]}' too late; expected {', '.join(CHANGES)} before all other steps")
    return found


def _check(name: str, value: object, *, least: float, most: float, expected: str) -> None:
    # not a comparison turned round: a NaN is in no range
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}; expected {expected}")

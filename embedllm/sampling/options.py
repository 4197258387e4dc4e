"""Sampling: the frozen options of how a token is drawn, and their checks."""

from __future__ import annotations

import math
import numbers
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from embedllm.sampling.custom_processors import Processor

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
_MOST_IDS = 1 << 31  # graphs take signed ids
_IDS = "0 to 2147483647"
NUMBERS = (*(row[0] for row in RANGES), "seed")
_WHOLE = {
    "top_k": "0 = off",
    "dry_allowed_length": "1 or more",
    "dry_range": "0 = all",
    "no_repeat_ngram": "0 = off",
    "mirostat": "0 = off",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling options. By default every option is off: tokens are drawn from the model's own distribution.

    Raises ValueError for a value out of its range.
    """

    temperature: float = 1.0
    """Divides the logits; 0 (or below 1e-5) = greedy: always the best token."""
    dynamic_temperature: float = 0.0
    """Dynamic temperature range (dynatemp): added to and subtracted from temperature by entropy; 0 = off."""
    dynamic_exponent: float = 1.0
    """Dynamic temperature exponent (dynatemp), of the normalized entropy."""
    top_k: int = 0
    """Top-k: only the k best tokens; 0 = off, 1 = greedy."""
    top_p: float = 1.0
    """Top-p (nucleus): only the fewest tokens with this probability mass; 1 = off."""
    min_p: float = 0.0
    """Min-p: minimum probability relative to the best token; 0 = off."""
    typical_p: float = 1.0
    """Locally typical sampling: probability mass; 1 = off."""
    top_n_sigma: float = 0.0
    """Only logits within N standard deviations of the best; 0 = off."""
    xtc_probability: float = 0.0
    """XTC: probability of removing all but the last top choice; 0 = off."""
    xtc_threshold: float = 0.1
    """XTC: minimum probability of a top choice."""
    mirostat: int = 0
    """1 or 2: target perplexity control, in place of every truncation; 0 = off."""
    mirostat_tau: float = 5.0
    """Target surprise tau, bits per token."""
    mirostat_eta: float = 0.1
    """Learning rate eta."""
    repetition_penalty: float = 1.0
    """Divides positive, multiplies negative logits of prompt and reply; 1 = off."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that are in the reply; 0 = off."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence of the token in the reply; 0 = off."""
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    """Added to the logits, by token id; kept as pairs in the order of ids."""
    dry_multiplier: float = 0.0
    """DRY penalty on repeated sequences: multiplier; 0 = off."""
    dry_base: float = 1.75
    """DRY: base of the exponential growth beyond the allowed length."""
    dry_allowed_length: int = 2
    """DRY: longest sequence that may repeat without a penalty."""
    dry_range: int = 0
    """DRY: number of last tokens to search; 0 = all of prompt and reply."""
    dry_breakers: Sequence[str] = ("\n", ":", '"', "*")
    """DRY sequence breakers: texts that end a repetition."""
    no_repeat_ngram: int = 0
    """No n-gram of N tokens occurs twice in prompt and reply; 0 = off."""
    bad_words: Sequence[str | Sequence[int]] = ()
    """Banned strings, or sequences of token ids."""
    processors: Sequence[Processor] = ()
    """Functions that change the logits, in turn."""
    order: Sequence[str] = ORDER
    """Of the steps; those that are off may be left out."""
    seed: int | None = None
    """Same seed, same logits: same tokens; None = different ones each time."""
    draw_steps: tuple[str, ...] = field(init=False, repr=False, compare=False, default=())
    """Not an option: the active steps among "temperature" and the truncations, in order; cached for every step."""

    def __post_init__(self) -> None:
        for name in NUMBERS:
            if not isinstance(value := getattr(self, name), (int, float)):
                object.__setattr__(self, name, _plain_number(value))
        _check_ranges({name: getattr(self, name) for name in NUMBERS})
        # tuples, because a dict or a list would make the options unhashable and let them change
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        object.__setattr__(self, "bad_words", _words(self.bad_words))
        object.__setattr__(self, "dry_breakers", _texts("dry_breakers", self.dry_breakers))
        object.__setattr__(self, "processors", _functions(self.processors))
        on = [step for step, is_on in IS_ON.items() if is_on(self)]
        object.__setattr__(self, "order", _steps(self.order, on=on))
        drawn = tuple(step for step in self.order if step in on and step not in CHANGES)
        object.__setattr__(self, "draw_steps", drawn)
        if self.mirostat and self.truncates:
            raise ValueError("mirostat takes the place of the truncations; leave top_k, top_p and the like out")

    @property
    def truncates(self) -> bool:
        """Whether a truncation is on."""
        return any(step != "temperature" for step in self.draw_steps)

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is always taken."""
        return self.temperature < LEAST_TEMPERATURE or self.top_k == 1


def is_token_id(value: object) -> bool:
    """Whether a value can be a token id of any model."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_IDS


def _plain_number(value: object) -> object:
    """A number of NumPy's as Python's; anything else as it is."""
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def _check_list(name: str, value: object, expected: str) -> None:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"{name} is {reprlib.repr(value)}; expected {expected}")


def _check_ranges(options: Mapping[str, object]) -> None:
    """Raises ValueError for a number out of its range."""
    for name, least, most, expected in RANGES:
        _check(name, options[name], least=least, most=most, expected=expected)
    for name, meaning in _WHOLE.items():
        if not isinstance(options[name], int):
            raise ValueError(f"{name} is {options[name]!r}; expected a whole number, {meaning}")
    seed = options["seed"]
    if seed is not None and not isinstance(seed, int):
        raise ValueError(f"seed is {seed!r}; expected a whole number or None")


def _biases(value: Mapping[int, float] | Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """A bias for each token, in the order of ids. Raises ValueError for one that cannot be added."""
    try:
        biases = dict(value)
    except (TypeError, ValueError):
        raise ValueError(f"logit_bias is {reprlib.repr(value)}; expected numbers by token id") from None
    for token, bias in biases.items():
        if not is_token_id(token):
            raise ValueError(f"logit_bias has the token {reprlib.repr(token)}; expected token ids, {_IDS}")
        if bias != -math.inf:
            expected = "-100 to 100, or -inf to forbid the token"
            _check(f"logit_bias of token {token}", bias, least=-100, most=100, expected=expected)
    return tuple(sorted(biases.items()))


def _words(words: Sequence[str | Sequence[int]]) -> tuple[str | tuple[int, ...], ...]:
    """Texts and sequences of token ids, unchangeable. Raises ValueError for anything else, and for an empty one."""
    _check_list("bad_words", words, "a list of texts or of sequences of token ids")
    bad_words = tuple(
        tuple(word) if isinstance(word, Iterable) and not isinstance(word, str) else word for word in words
    )
    for word in bad_words:
        is_text = isinstance(word, str) and bool(word.strip())
        if not is_text and not (isinstance(word, tuple) and word and all(is_token_id(token) for token in word)):
            raise ValueError(
                f"bad_words has {reprlib.repr(word)}; expected texts or sequences of token ids, {_IDS}, that are not "
                "empty"
            )
    return bad_words


def _texts(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Texts, unchangeable. Raises ValueError for anything else, and for an empty one."""
    expected = "a list of texts that are not empty"
    _check_list(name, texts, expected)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{name} is {texts!r}; expected {expected}")
    return tuple(texts)


def _functions(functions: Sequence[F]) -> tuple[F, ...]:
    """Functions, unchangeable. Raises ValueError for anything else."""
    expected = "a list of functions of logits and tokens"
    _check_list("processors", functions, expected)
    if callable(functions) or not all(callable(each) for each in functions):
        raise ValueError(f"processors is {functions!r}; expected {expected}")
    return tuple(functions)


def _steps(order: Sequence[str], *, on: Sequence[str]) -> tuple[str, ...]:
    """An order of steps, unchangeable.

    Raises ValueError for an unknown or repeated step, one of `on` that is not there, and a change of the logits that
    comes after what chooses among tokens.
    """
    step_names = ", ".join(ORDER)
    _check_list("order", order, f"a list of steps: {step_names}")
    steps = tuple(order)
    if odd := [step for step in steps if step not in ORDER or steps.count(step) > 1]:
        raise ValueError(f"order has {odd[0]!r} where that is no step, or twice; expected each of {step_names} once")
    if lacking := [step for step in on if step not in steps]:
        raise ValueError(f"order lacks '{lacking[0]}', which is on; name it, or leave its options out")
    late = [step for place, step in enumerate(steps) if step in CHANGES and set(steps[:place]) - set(CHANGES)]
    if late:
        raise ValueError(f"order has '{late[0]}' too late; expected {', '.join(CHANGES)} before all other steps")
    return steps


def _check(name: str, value: object, *, least: float, most: float, expected: str) -> None:
    # not a comparison turned round: a NaN is in no range
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}; expected {expected}")


IS_ON: Mapping[str, Callable[[Sampling], bool]] = {
    "penalties": lambda options: (
        options.repetition_penalty != 1
        or options.presence_penalty != 0
        or options.frequency_penalty != 0
        or bool(options.logit_bias)
    ),
    "dry": lambda options: options.dry_multiplier > 0,
    "processors": lambda options: bool(options.processors),
    "temperature": lambda options: options.temperature != 1 or options.dynamic_temperature > 0,
    "top_k": lambda options: options.top_k > 0,
    "top_n_sigma": lambda options: options.top_n_sigma > 0,
    "typical_p": lambda options: options.typical_p < 1,
    "top_p": lambda options: options.top_p < 1,
    "min_p": lambda options: options.min_p > 0,
    "xtc": lambda options: options.xtc_probability > 0,
}


# vLLM's limit; below it the differences of two float32 logits over the temperature mean nothing.
LEAST_TEMPERATURE = 1e-5

"""The options of sampling that can be typed or sent: one table, for the command line and the worker.

Their meaning, ranges and defaults are those of Sampling; logit_bias, processors and order are for programs only.
Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A sampling option of the command line."""

    name: str  # the field of Sampling
    kind: type[float] | type[int] | type[str]
    text: str  # what it does
    is_list: bool = False  # of that kind
    needs_chance: bool = False  # means nothing when nothing is drawn


def _chance(name: str, kind: type[float] | type[int], text: str) -> Option:
    return Option(name=name, kind=kind, text=text, needs_chance=True)


def _always(name: str, kind: type[float] | type[int], text: str) -> Option:
    return Option(name=name, kind=kind, text=text)


def _texts(name: str, text: str) -> Option:
    return Option(name=name, kind=str, text=text, is_list=True)


SAMPLING_OPTIONS = (
    _always("temperature", float, "Sampling temperature; 0 = greedy."),
    _chance("dynamic_temperature", float, "Dynamic temperature range (dynatemp); 0 = off."),
    _chance("dynamic_exponent", float, "Dynamic temperature exponent (dynatemp)."),
    _chance("top_k", int, "Top-k sampling: keep the K most probable tokens; 0 = off."),
    _chance("top_p", float, "Top-p (nucleus) sampling: keep the fewest tokens with this probability mass; 1 = off."),
    _chance("min_p", float, "Min-p sampling: minimum probability relative to the best token; 0 = off."),
    _chance("typical_p", float, "Locally typical sampling: probability mass; 1 = off."),
    _chance(
        "top_n_sigma", float, "Top-n-sigma sampling: keep logits within N standard deviations of the best; 0 = off."
    ),
    _chance("xtc_probability", float, "XTC sampling: probability of removing the top choices; 0 = off."),
    _chance("xtc_threshold", float, "XTC sampling: minimum probability of a top choice."),
    _chance("mirostat", int, "Mirostat 1/2: target perplexity control, in place of the truncations above; 0 = off."),
    _chance("mirostat_tau", float, "Mirostat target surprise tau (bits)."),
    _chance("mirostat_eta", float, "Mirostat learning rate eta."),
    _always("repetition_penalty", float, "Repetition penalty on tokens of prompt and reply; 1 = off."),
    _always("presence_penalty", float, "Presence penalty on tokens of the reply; 0 = off."),
    _always("frequency_penalty", float, "Frequency penalty on tokens of the reply, per occurrence; 0 = off."),
    _always("dry_multiplier", float, "DRY penalty on repeated sequences: multiplier; 0 = off."),
    _always("dry_base", float, "DRY penalty: base of the exponential growth."),
    _always("dry_allowed_length", int, "DRY penalty: longest sequence that may repeat without a penalty."),
    _always("dry_range", int, "DRY penalty: number of last tokens to search; 0 = all."),
    _texts("dry_breakers", "DRY sequence breakers."),
    _always("no_repeat_ngram", int, "No n-gram of N tokens occurs twice; 0 = off."),
    _texts("bad_words", "Banned strings (bad_words)."),
    _chance("seed", int, "Random seed, for reproducible replies on the same device."),
)

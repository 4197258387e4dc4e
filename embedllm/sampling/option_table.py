"""The options of sampling that can be typed or sent: one table, for the command line and the worker.

Their meaning, ranges and defaults are those of Sampling; logit_bias, processors and order are for programs only.
Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One of them."""

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
    _always("temperature", float, "0 always takes the most probable token; higher is more varied."),
    _chance("dynamic_temperature", float, "How far the temperature goes up and down with the entropy; 0 = off."),
    _chance("dynamic_exponent", float, "Of the entropy's share: above 1 the temperature stays low for longer."),
    _chance("top_k", int, "Draw from the K most probable tokens only; 0 = off."),
    _chance("top_p", float, "Draw from the fewest best tokens that hold this probability; 1 = off."),
    _chance("min_p", float, "Draw from tokens at least this share as probable as the best; 0 = off."),
    _chance("typical_p", float, "Draw from the most ordinary tokens that hold this probability; 1 = off."),
    _chance("top_n_sigma", float, "Draw from logits within so many deviations of the best; 0 = off."),
    _chance("xtc_probability", float, "How often all but the last of the top choices are left out; 0 = off."),
    _chance("xtc_threshold", float, "The probability from which on a token is a top choice."),
    _chance("mirostat", int, "1 or 2: hold the surprise of the text, in place of the options above; 0 = off."),
    _chance("mirostat_tau", float, "The surprise to hold, bits a token."),
    _chance("mirostat_eta", float, "How much of a step's error goes into the next."),
    _always("repetition_penalty", float, "Above 1: what was in prompt or reply becomes less probable."),
    _always("presence_penalty", float, "Subtracted from the logits of tokens that are in the reply."),
    _always("frequency_penalty", float, "Subtracted once for each time that a token is in the reply."),
    _always("dry_multiplier", float, "Subtracted from what would prolong a repetition; 0 = off."),
    _always("dry_base", float, "To the power of how much longer it is than allowed."),
    _always("dry_allowed_length", int, "Tokens that may repeat without that."),
    _always("dry_range", int, "How many of the last tokens are searched for it; 0 = all."),
    _texts("dry_breakers", "No repetition reaches across a token with this text."),
    _always("no_repeat_ngram", int, "No run of so many tokens comes twice; 0 = off."),
    _texts("bad_words", "A text that must not come."),
    _chance("seed", int, "The same seed gives the same reply on the same device."),
)

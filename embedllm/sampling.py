"""Which token comes next: the options of sampling, and the rule that applies them to the logits of one step.

Standard library only. The steps, in order; each is off by default:

1. logit_bias, repetition_penalty, then presence_penalty and frequency_penalty. vLLM's order; transformers biases
   before it penalizes, too. Then the mask of a grammar, so that no bias brings a token back that it forbids.
2. temperature. Before the truncations, as in transformers and vLLM, so that a nucleus holds its mass of the
   distribution that is drawn from. (llama.cpp truncates first.)
3. top_k, typical_p, top_p, min_p, in llama.cpp's order. Each works on what the one before left, scaled to sum to 1.
   top_k comes first because it makes all others cheap; min_p comes last because it is relative to the best token left.
4. the draw.

Versions read: vLLM 0.22 (v1/sample/sampler.py), transformers 5.23 (generation/utils.py, logits_process.py),
llama.cpp b10470 (common/common.h, common_params_sampling).

Log probabilities are those of the model: the log softmax of the logits as they came, before step 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from embedllm.constraint import Constraint
from embedllm.penalties import Penalties
from embedllm.truncation import Shortlist, above_share, listed, nucleus, typical
from embedllm.types import Logits

# How many of the best tokens are looked at, in turn, until they are seen to hold all that the truncations keep.
# 255 are enough for a peaked distribution, and what GPUs list; sorting 4096 costs what all the rest of a step does.
_FIRST_LOOK, _SECOND_LOOK = 255, 4096

# Draws from the whole vocabulary that may miss a large kept set. One that holds half the mass is missed by all of
# them once in 65,000 steps, and then found by sorting.
_TRIES = 16

# vLLM's limit; below it the differences of two float32 logits over the temperature mean nothing.
_LEAST_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose tokens. By default every option is off: tokens are drawn as the model distributes them.

    Raises ValueError for a value out of its range.
    """

    temperature: float = 1.0  # divides the logits; 0 (or below 1e-5) = greedy: always the best token
    top_k: int = 0  # only the k best tokens; 0 = off, 1 = greedy
    top_p: float = 1.0  # only the fewest best tokens that hold this probability; 1 = off
    min_p: float = 0.0  # only tokens at least this share as probable as the best; 0 = off
    typical_p: float = 1.0  # only the fewest tokens of most ordinary surprise that hold this probability; 1 = off
    repetition_penalty: float = 1.0  # divides positive, multiplies negative logits of prompt and reply; 1 = off
    presence_penalty: float = 0.0  # subtracted from the logits of tokens that are in the reply; 0 = off
    frequency_penalty: float = 0.0  # subtracted once for every time that the token is in the reply; 0 = off
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()  # added; kept as pairs in the order of ids
    seed: int | None = None  # same seed, same logits: same tokens; None = different ones each time

    def __post_init__(self) -> None:
        for name, least, most, expected in _RANGES:
            _check(name, getattr(self, name), least=least, most=most, expected=expected)
        if not isinstance(self.top_k, int):
            raise ValueError(f"top_k is {self.top_k!r}; expected a whole number, 0 = off")
        if self.seed is not None and not isinstance(self.seed, int):
            raise ValueError(f"seed is {self.seed!r}; expected a whole number or None")
        biases = dict(self.logit_bias)
        for token, bias in biases.items():
            if not isinstance(token, int) or token < 0:
                raise ValueError(f"logit_bias has the token {token!r}; expected token ids, 0 or more")
            if bias != -math.inf:
                expected = "-100 to 100, or -inf to forbid the token"
                _check(f"logit_bias of token {token}", bias, least=-100, most=100, expected=expected)
        # pairs, because a dict would make the options unhashable and let them change
        object.__setattr__(self, "logit_bias", tuple(sorted(biases.items())))

    @property
    def truncates(self) -> bool:
        """Whether some tokens are left out of the draw."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0 or self.typical_p < 1

    @property
    def is_greedy(self) -> bool:
        """Whether no chance is involved."""
        return self.temperature < _LEAST_TEMPERATURE or self.top_k == 1


# field, least, most, what to say
_RANGES = (
    ("temperature", 0, 100, "0 (greedy) to 100"),
    ("top_k", 0, math.inf, "0 (off) or more"),
    ("top_p", 0, 1, "0 to 1 (off)"),
    ("min_p", 0, 1, "0 (off) to 1"),
    ("typical_p", 0, 1, "0 to 1 (off)"),
    ("repetition_penalty", 0.01, 100, "0.01 to 100, 1 = off"),
    ("presence_penalty", -2, 2, "-2 to 2, 0 = off"),  # this and the next: OpenAI's ranges
    ("frequency_penalty", -2, 2, "-2 to 2, 0 = off"),
)


def _check(name: str, value: object, *, least: float, most: float, expected: str) -> None:
    # not a comparison turned round: a NaN is in no range
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}; expected {expected}")


@dataclass(frozen=True, slots=True)
class Picked:
    """A chosen token and its natural log probability in the model's own distribution."""

    token: int
    logprob: float


class Sampler:
    """Picks the tokens of one sequence; holds its random state and which tokens it has seen.

    `pick` chooses; `note` tells what entered the sequence.

    constraint: what it allows is all that is chosen from, whatever biases and penalties say.
    """

    __slots__ = ("_constraint", "_penalties", "_random", "_sampling")

    def __init__(
        self, sampling: Sampling, prompt_tokens: Sequence[int] = (), *, constraint: Constraint | None = None
    ) -> None:
        self._sampling = sampling
        self._constraint = constraint
        self._random = Random(sampling.seed)
        self._penalties = Penalties(sampling, prompt_tokens)

    def pick(self, logits: Logits) -> Picked:
        """The next token.

        Raises ValueError when a biased or seen token is not in the vocabulary, or no token is allowed.
        """
        row = self._penalties.applied(logits)
        if self._constraint is not None:
            row = self._constraint.allowed(row)
        token = choose(row, self._sampling, uniform=self._random.random)
        return Picked(token, logprob(logits, token))

    def note(self, token: int) -> None:
        """Count a token that is now part of the reply, whether it was picked or given."""
        self._penalties.note(token)
        if self._constraint is not None:
            self._constraint.note(token)

    @property
    def is_done(self) -> bool:
        """Whether a constraint leaves nothing but a stop token."""
        return self._constraint is not None and self._constraint.is_done


def logprob(logits: Logits, token: int) -> float:
    """The natural log probability of this token as the logits stand."""
    return logits.values([token])[0] - logits.logsumexp()


def top_logprobs(logits: Logits, count: int) -> list[Picked]:
    """The `count` most probable tokens as the logits stand, best first."""
    best, logsumexp = logits.top(count), logits.logsumexp()
    return [Picked(token, logit - logsumexp) for token, logit in zip(best.tokens, best.logits, strict=True)]


def choose(logits: Logits, sampling: Sampling, *, uniform: Callable[[], float]) -> int:
    """The next token, by temperature, truncations and the draw; of equally good ones, greedy takes the lowest id.

    uniform: gives numbers in [0, 1), as many as are asked for.
    """
    if sampling.is_greedy:
        return logits.top(1).tokens[0]
    if not sampling.truncates:
        return logits.draw(sampling.temperature, uniform())
    kept = truncated(logits, sampling, look=_FIRST_LOOK)
    if kept is None:
        token = _draw_kept(logits, sampling, uniform=uniform)
        if token is not None:
            return token
        kept = truncated(logits, sampling, look=_SECOND_LOOK) or truncated(logits, sampling, look=logits.size)
    assert kept is not None  # nothing is unlisted when the list has every token
    return kept.draw(uniform())


def truncated(logits: Logits, sampling: Sampling, *, look: int) -> Shortlist | None:
    """The tokens that all truncations leave, exactly; None when the `look` best do not show which.

    look: not asked for when top_k says how many are enough.
    """
    temperature = sampling.temperature
    best = logits.top(sampling.top_k or look)
    is_all = sampling.top_k > 0 or look >= logits.size
    kept: Shortlist | None = listed(best, temperature, logsumexp=None if is_all else logits.logsumexp(temperature))
    if sampling.typical_p < 1:
        mean = kept.mean() if kept.is_whole else logits.mean(temperature)
        kept = typical(kept, sampling.typical_p, mean=mean)
    if kept and sampling.top_p < 1:
        kept = nucleus(kept, sampling.top_p)
    if kept and sampling.min_p > 0:
        kept = above_share(kept, sampling.min_p)
    return kept if kept and kept.is_whole else None


def _draw_kept(logits: Logits, sampling: Sampling, *, uniform: Callable[[], float]) -> int | None:
    """A token from a large kept set, found by drawing from all until one is in it; None if there was none.

    Whether a token is in the set is one sum, however large the set; that of a flat distribution has 100,000 tokens.
    Not for typical_p with another truncation, where membership depends on sums over the typical set alone.
    """
    temperature = sampling.temperature
    is_typical = sampling.typical_p < 1
    if is_typical and (sampling.top_p < 1 or sampling.min_p > 0):
        return None
    mass = sampling.typical_p if is_typical else sampling.top_p
    centre = logits.mean(temperature) if is_typical else math.inf
    least = -math.inf
    if sampling.min_p > 0:
        least = logits.top(1).logits[0] + temperature * math.log(sampling.min_p)
    for _ in range(_TRIES):
        token = logits.draw(temperature, uniform())
        if logits.values([token])[0] >= least and (
            mass == 1 or logits.mass_nearer(token, centre, temperature=temperature) < mass
        ):
            return token
    return None

"""Which token comes next: the options of sampling, and what applies them to the logits of one sequence.

Standard library only. The steps, in the order that `Sampling.order` has by default; each is off unless asked for:

1. penalties: logit_bias, repetition_penalty, then presence_penalty and frequency_penalty. vLLM's order; transformers
   biases before it penalizes, too.
2. dry, and then processors: functions of your own.
3. What may not come next gets -inf, wherever the other steps are, so that none brings it back: the stop tokens before
   min_tokens, bad_words, no_repeat_ngram, and what a grammar forbids.
4. temperature, or dynamic_temperature. Before the truncations, as in transformers and vLLM, so that a nucleus holds its
   mass of the distribution that is drawn from. (llama.cpp truncates first; order=(..., "xtc", "temperature") does.)
5. top_k, top_n_sigma, typical_p, top_p, min_p, xtc: llama.cpp's order, but that it has top_n_sigma first, which
   leaves the same tokens. Each works on what the one before left, scaled to sum to 1. top_k comes first because it
   makes all others cheap; min_p is last but xtc because it is relative to the best token left. Or mirostat, in place of
   all of them.
6. the draw. Greedy takes the best token after step 3.

Versions read: vLLM 0.22 (v1/sample/sampler.py), transformers 5.23 (generation/utils.py, logits_process.py),
llama.cpp b10470 (common/common.h, common_params_sampling).

Log probabilities are those of the model: the log softmax of the logits as they came, before step 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from embedllm.sampling import sampling_checks
from embedllm.sampling.bans import Forbidden
from embedllm.sampling.constraint import Constraint
from embedllm.sampling.custom_processors import Processor, Processors
from embedllm.sampling.dry import Dry
from embedllm.sampling.mirostat import Mirostat
from embedllm.sampling.penalties import Penalties
from embedllm.sampling.token_choice import LEAST_TEMPERATURE, choose
from embedllm.types import Logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose tokens. By default every option is off: tokens are drawn as the model distributes them.

    Raises ValueError for a value out of its range.
    """

    temperature: float = 1.0  # divides the logits; 0 (or below 1e-5) = greedy: always the best token
    dynamic_temperature: float = 0.0  # how far the temperature goes up and down with the entropy; 0 = off
    dynamic_exponent: float = 1.0  # of the entropy's share of its maximum: above 1 it stays low for longer
    top_k: int = 0  # only the k best tokens; 0 = off, 1 = greedy
    top_p: float = 1.0  # only the fewest best tokens that hold this probability; 1 = off
    min_p: float = 0.0  # only tokens at least this share as probable as the best; 0 = off
    typical_p: float = 1.0  # only the fewest tokens of most ordinary surprise that hold this probability; 1 = off
    top_n_sigma: float = 0.0  # only logits within so many standard deviations of the best; 0 = off
    xtc_probability: float = 0.0  # how often all but the last of the tokens above the threshold are left out; 0 = off
    xtc_threshold: float = 0.1  # the probability from which on a token is a top choice
    mirostat: int = 0  # 1 or 2: that version holds the surprise of the text, in place of every truncation; 0 = off
    mirostat_tau: float = 5.0  # the surprise to hold, bits a token
    mirostat_eta: float = 0.1  # how much of a step's error goes into the next
    repetition_penalty: float = 1.0  # divides positive, multiplies negative logits of prompt and reply; 1 = off
    presence_penalty: float = 0.0  # subtracted from the logits of tokens that are in the reply; 0 = off
    frequency_penalty: float = 0.0  # subtracted once for every time that the token is in the reply; 0 = off
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()  # added; kept as pairs in the order of ids
    dry_multiplier: float = 0.0  # subtracted from what would prolong a repetition, times the next; 0 = off
    dry_base: float = 1.75  # to the power of how much longer it is than allowed
    dry_allowed_length: int = 2  # tokens that may repeat without a penalty
    dry_range: int = 0  # how many of the last tokens are searched for it; 0 = all of prompt and reply
    dry_breakers: Sequence[str] = ("\n", ":", '"', "*")  # no repetition reaches across a token that has one of these
    no_repeat_ngram: int = 0  # no run of so many tokens comes twice in prompt and reply; 0 = off
    bad_words: Sequence[str | Sequence[int]] = ()  # texts, or token ids in a row, that must not come
    processors: Sequence[Processor] = ()  # functions that change the logits, in turn
    order: Sequence[str] = sampling_checks.ORDER  # of the steps; those that are off may be left out
    seed: int | None = None  # same seed, same logits: same tokens; None = different ones each time
    # what is on of "temperature" and the truncations, in order; kept, since every step asks
    draw_steps: tuple[str, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        sampling_checks.check_ranges({name: getattr(self, name) for name in sampling_checks.NUMBERS})
        # tuples, because a dict or a list would make the options unhashable and let them change
        object.__setattr__(self, "logit_bias", sampling_checks.biases(self.logit_bias))
        object.__setattr__(self, "bad_words", sampling_checks.words(self.bad_words))
        object.__setattr__(self, "dry_breakers", sampling_checks.texts("dry_breakers", self.dry_breakers))
        object.__setattr__(self, "processors", sampling_checks.functions(self.processors))
        on = [step for step, is_on in _IS_ON.items() if is_on(self)]
        object.__setattr__(self, "order", sampling_checks.steps(self.order, on=on))
        drawn = tuple(step for step in self.order if step in on and step not in sampling_checks.CHANGES)
        object.__setattr__(self, "draw_steps", drawn)
        if self.mirostat and self.truncates:
            raise ValueError("mirostat takes the place of the truncations; leave top_k, top_p and the like out")

    @property
    def truncates(self) -> bool:
        """Whether some tokens are left out of the draw."""
        return any(step != "temperature" for step in self.draw_steps)

    @property
    def is_greedy(self) -> bool:
        """Whether no chance is involved."""
        return self.temperature < LEAST_TEMPERATURE or self.top_k == 1


_IS_ON: dict[str, Callable[[Sampling], bool]] = {
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


@dataclass(frozen=True, slots=True)
class Picked:
    """A chosen token and its natural log probability in the model's own distribution."""

    token: int
    logprob: float


class Change(Protocol):
    """One step that changes logits, and remembers of the sequence what it needs."""

    def applied(self, logits: Logits) -> Logits: ...
    def note(self, token: int) -> None: ...


class Sampler:
    """Picks the tokens of one sequence; holds its random state and which tokens it has seen.

    `pick` chooses; `note` tells what entered the sequence.

    constraint: what it allows is all that is chosen from, whatever biases and penalties say.
    stop_tokens: forbidden until the reply has min_tokens.
    decode: the text of tokens, which dry_breakers are looked for in.
    Raises ValueError for bad_words that are texts (spelled() makes them token ids), and for dry without `decode`.
    """

    __slots__ = ("_changes", "_constraint", "_mirostat", "_random", "_sampling")

    def __init__(
        self,
        sampling: Sampling,
        prompt_tokens: Sequence[int] = (),
        *,
        constraint: Constraint | None = None,
        stop_tokens: Collection[int] = (),
        min_tokens: int = 0,
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        self._sampling = sampling
        self._constraint = constraint
        self._random = Random(sampling.seed)
        self._mirostat = Mirostat(sampling) if sampling.mirostat else None
        made: dict[str, Callable[[], Change]] = {
            "penalties": lambda: Penalties(sampling, prompt_tokens),
            "dry": lambda: Dry(sampling, prompt_tokens, decode=decode),
            "processors": lambda: Processors(sampling.processors, prompt_tokens),
        }
        self._changes = [made[step]() for step in sampling.order if step in made and _IS_ON[step](sampling)]
        if min_tokens or sampling.no_repeat_ngram or sampling.bad_words:
            self._changes.append(Forbidden(sampling, prompt_tokens, stop_tokens=stop_tokens, min_tokens=min_tokens))

    def pick(self, logits: Logits) -> Picked:
        """The next token.

        Raises ValueError when a biased or seen token is not in the vocabulary, or no token is allowed.
        """
        row = logits
        for change in self._changes:
            row = change.applied(row)
        if self._constraint is not None:
            row = self._constraint.allowed(row)
        rule = choose if self._mirostat is None else self._mirostat.choose
        token = rule(row, self._sampling, uniform=self._random.random)
        return Picked(token, logprob(logits, token))

    def note(self, token: int) -> None:
        """Count a token that is now part of the reply, whether it was picked or given."""
        for change in self._changes:
            change.note(token)
        if self._mirostat is not None:
            self._mirostat.note(token)
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

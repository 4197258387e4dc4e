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

Versions read: vLLM 0.22 (v1/sample/sampler.py), transformers 5.24 (generation/utils.py, logits_process.py),
llama.cpp b10470 (common/common.h, common_params_sampling).

Log probabilities are those of the model: the log softmax of the logits as they came, before step 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from embedllm.errors import DeviceError
from embedllm.sampling.bans import BannedTokens
from embedllm.sampling.constraint import Constraint
from embedllm.sampling.custom_processors import Processors
from embedllm.sampling.draws import Draws, can_be_guessed
from embedllm.sampling.dry import Dry
from embedllm.sampling.mirostat import Mirostat
from embedllm.sampling.options import IS_ON, Sampling
from embedllm.sampling.penalties import Penalties
from embedllm.sampling.token_choice import choose
from embedllm.types import Logits

_UNIFORM = 1e-3  # how far rounding may take the log probability of a token from that of a uniform distribution


@dataclass(frozen=True, slots=True)
class Picked:
    """A chosen token and its natural log probability in the model's own distribution."""

    token: int
    """Its id."""
    logprob: float
    """Natural log of its probability in the model's own distribution."""


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

    __slots__ = ("_changes", "_constraint", "_is_plain", "_mirostat", "_random", "_sampling", "draws")

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
        factories: dict[str, Callable[[], Change]] = {
            "penalties": lambda: Penalties(sampling, prompt_tokens),
            "dry": lambda: Dry(sampling, prompt_tokens, decode=decode),
            "processors": lambda: Processors(sampling.processors, prompt_tokens),
        }
        self._changes = [factories[step]() for step in sampling.order if step in factories and IS_ON[step](sampling)]
        if min_tokens or sampling.no_repeat_ngram or sampling.bad_words:
            self._changes.append(BannedTokens(sampling, prompt_tokens, stop_tokens=stop_tokens, min_tokens=min_tokens))
        is_bare = not self._changes and constraint is None and self._mirostat is None
        self._is_plain = is_bare and sampling.is_greedy  # the best token, and no more
        # for a device that guesses the tokens; None: it cannot
        self.draws = Draws(sampling, self._random) if is_bare and can_be_guessed(sampling) else None

    @property
    def prepare(self) -> Callable[[], None] | None:
        """Does what can be done before the next logits are there; None: nothing. Raises ValueError as pick()."""
        return None if self._constraint is None else self._constraint.prepare

    def pick(self, logits: Logits) -> Picked:
        """The next token.

        Raises ValueError when a biased or seen token is not in the vocabulary, or no token is allowed.
        """
        if self._is_plain:
            best = logits.top(1)
            return Picked(best.tokens[0], best.logits[0] - logits.logsumexp())
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


def check_logits(logits: Logits, logprob: float) -> None:
    """Raises DeviceError when the model's logits are all equal, so that greedy decoding would repeat token 0 forever.

    logprob: of any token of them. The row itself is read only where that is the one of a uniform distribution.
    """
    size = logits.size
    if size > 1 and abs(logprob + math.log(size)) < _UNIFORM and logits.deviation() == 0:
        raise DeviceError(
            f"all {size} logits of the model are {logits.top(1).logits[0]:g}; expected different ones. Its weights are "
            "damaged, or overflowed when the model was run; export it again, or try another device or a wider type."
        )


def logprob(logits: Logits, token: int) -> float:
    """The natural log probability of this token as the logits stand."""
    return logits.values([token])[0] - logits.logsumexp()


def top_logprobs(logits: Logits, count: int) -> list[Picked]:
    """The `count` most probable tokens as the logits stand, best first."""
    best, logsumexp = logits.top(count), logits.logsumexp()
    return [Picked(token, logit - logsumexp) for token, logit in zip(best.tokens, best.logits, strict=True)]

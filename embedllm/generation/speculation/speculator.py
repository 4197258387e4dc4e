"""Speculative decoding: whether to propose draft tokens, which and how many, so that it pays.

Draft tokens come from prompt lookup and from a draft model. The loop verifies them (loop.py): they change the speed of
a reply, not the distribution of its tokens. Source of the expected number of
tokens: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding". Standard library only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, cast

from embedllm.generation.loop import DecodeStep, Feed, Feedable, FeedGenerator
from embedllm.generation.speculation.cost_model import SpeculationStatistics
from embedllm.generation.speculation.prompt_lookup import LONGEST, PromptLookup
from embedllm.types import Logits

if TYPE_CHECKING:
    from embedllm.backends.base import GuessesOn
    from embedllm.cancel import Cancel
    from embedllm.generation.request import Request
    from embedllm.kv_cache.sequence import CachedSequence

MAX_DRAFT_TOKENS = 31  # per step
# Wrong guesses may lose half a step at first, this part of one with each token, and what right guesses have won; but of
# what earlier replies have won no more than _BROUGHT steps. So all replies of a model together lose less than 3 %.
_STAKE, _BROUGHT = 0.01, 2.0
_MARGIN = 1.03  # less of a gain is in the noise of the clock
_MARGIN_BESIDE = 2.0  # beside other requests, whose steps have to wait, and are not run ahead (docs/cuda.md)
_FIFTHS = 5


class DraftSequence(Feedable, Protocol):
    """A sequence of a draft model."""

    tokens: list[int]  # held


class Draft:
    """A draft model's sequence, synchronized with the target model's."""

    def __init__(
        self,
        sequence: DraftSequence,
        prompt: Iterable[int],
        *,
        context: int,
        chunk: int,
        vocabulary: Sequence[int] | None = None,
        is_ready: Callable[[], bool] = lambda: True,
        want: Callable[[int], None] | None = None,
    ) -> None:
        """context: the most tokens that it holds. chunk: tokens per feed. is_ready: whether it can guess now.

        vocabulary: the token that each of its logits is of; None: all tokens, in their order.
        want: tells a sequence that guesses on how many the next feed shall make; None: each is fed for the next one.
        """
        self.sequence = sequence
        self.tokens = list(prompt)
        self.context = context
        self.is_ready = is_ready
        self._chunk = chunk
        self._vocabulary = vocabulary
        self._want = want
        self._agreed = 0  # tokens that are surely held

    @property
    def guesses_on(self) -> bool:
        """Whether a feed makes several guesses."""
        return self._want is not None

    def want(self, guesses: int) -> None:
        if self._want is not None:
            self._want(guesses)

    def guesses(self, logits: Logits) -> Sequence[tuple[int, float]]:
        """The likeliest tokens, one behind the other, and each one's probability among those there are logits of."""
        return cast("GuessesOn", logits).guesses() if self.guesses_on else [self.best(logits)]

    def best(self, logits: Logits) -> tuple[int, float]:
        best = logits.top(1)
        place = best.tokens[0]
        share = math.exp(best.logits[0] - logits.logsumexp())
        return (place if self._vocabulary is None else self._vocabulary[place]), share

    def pieces(self) -> list[list[int]]:
        """Rewinds rejected draft tokens; the tokens to feed to catch up with the last token."""
        sequence_tokens, place = self.sequence.tokens, self._agreed
        most = min(len(sequence_tokens), len(self.tokens) - 1)
        while place < most and sequence_tokens[place] == self.tokens[place]:
            place += 1
        if len(sequence_tokens) > place:
            self.sequence.rewind_by(len(sequence_tokens) - place)
        self._agreed = len(self.tokens)
        return [self.tokens[at : at + self._chunk] for at in range(place, len(self.tokens), self._chunk)]


class Drafter(Protocol):
    """A draft model, or a head of the target model itself."""

    def can_draft_for(self, request: Request) -> bool:
        """Whether it reads such prompts."""
        ...

    def draft_sequence(
        self, target: CachedSequence, prompt: Sequence[int], cancel: Cancel
    ) -> AbstractContextManager[Draft]:
        """Within the block, a sequence that proposes tokens for the request that runs on `target`."""
        ...

    def check_files(self) -> None:
        """Raises PackageError where its weights were changed on disk."""
        ...


class Speculator:
    """Proposes draft tokens for one reply. Learns the acceptance rate, and limits what rejected tokens may cost."""

    def __init__(
        self,
        prompt: Sequence[int],
        experience: SpeculationStatistics,
        *,
        draft: Draft | None = None,
        uses_lookup: bool = True,
        room: Callable[[], int | None] = lambda: None,
        together: Callable[[], int] = lambda: 1,
    ) -> None:
        """experience: of the engine. uses_lookup: prompt lookup first, the draft model only where there is no match.

        room: the most tokens that may be fed now; None: any number. together: how many requests step in one run, which
        drafts leave: they are verified alone.
        """
        self._tokens: list[int] | None = list(prompt)  # until the lookup has them
        self._experience = experience
        self._costs = experience.costs
        self._draft = draft
        self._room, self._together = room, together
        self._uses_lookup = uses_lookup
        self._lookup: PromptLookup | None = None
        self._pending: list[tuple[int, int]] = []  # of the draft: token and kind, until they are right or wrong
        self._balance = min(experience.balance, _BROUGHT)
        self._drafted = 0  # steps of the draft model since the last step
        self._free_s = 0.0  # of the time since then, what counts as no loss: reading the prompt
        self._is_rewound = False

    def note(self, token: int) -> None:
        if self._lookup is not None:
            if self._lookup.length:  # learned without being fed, too
                self._experience.matches.note(_kind(self._lookup.length), is_right=self._lookup.following(1) == [token])
            self._lookup.note(token)
        elif self._tokens is not None:
            self._tokens.append(token)
        if self._draft is not None:
            self._draft.tokens.append(token)
        if self._pending:
            draft_token, kind = self._pending.pop(0)
            for acceptance, place in ((self._experience.confidences, kind), (self._experience.drafts, 0)):
                acceptance.note(place, is_right=draft_token == token)
            if draft_token != token:
                self._pending.clear()

    def propose(self, most: int) -> FeedGenerator:
        self._drafted, self._free_s = 0, 0.0
        self._pending.clear()
        if not self._costs.is_known or self._costs.is_stale:
            return ()
        if (room := self._room()) is not None:
            most = min(most, room - 1)
        most = max(0, min(most, MAX_DRAFT_TOKENS))
        if self._uses_lookup and (draft_tokens := self._lookup_tokens(most)):
            return draft_tokens
        if self._draft is None or not self._draft.is_ready():
            return ()
        return (yield from self._draft_tokens(self._draft, most))

    def measure(self, step: DecodeStep) -> None:
        costs, is_alone = self._costs, self._together() == 1
        if is_alone:  # else the clock tells of other requests, too
            costs.note(step.fed, step.feed_s, is_rewound=self._is_rewound)
        if costs.is_known:
            self._balance += _STAKE * step.chosen
            if step.fed > 1 or self._drafted or self._is_rewound:
                expected = costs.of(step.fed) + self._drafted * costs.draft + self._is_rewound * costs.rewound
                spent = costs.clipped(step.total_s - self._free_s, expected) if is_alone else expected
                self._balance += step.chosen * self._plain_cost() - spent
            self._experience.balance = self._balance
        self._is_rewound = step.chosen < step.fed

    def _lookup_tokens(self, most: int) -> list[int]:
        if self._lookup is None:
            self._lookup, self._tokens = PromptLookup(self._tokens or ()), None
        length = self._lookup.length
        if not length:
            return []
        kinds = (_kind(length + place) for place in range(most))
        count, _ = self._worth(self._experience.matches.of(kind) for kind in kinds)
        return self._lookup.following(count)

    def _worth(self, shares: Iterable[float], *, each: float = 0.0) -> tuple[int, float]:
        """How many guesses give the most tokens in the least time, and how many times as many; 0 when none pay.

        shares: the probability of each to be right, when those before it are. each: what making one costs.
        """
        costs, reach, expected = self._costs, 1.0, 1.0
        undrafted = self._plain_cost()
        best, value = 0, (_MARGIN if self._together() == 1 else _MARGIN_BESIDE) / undrafted
        for count, share in enumerate(shares, start=1):
            reach *= share
            expected += reach
            cost = costs.of(count + 1) + count * each
            if cost + costs.rewound - undrafted > self._balance:
                break
            if (gain := expected / (cost + (1 - reach) * costs.rewound)) > value:
                best, value = count, gain
        return best, value

    def _plain_cost(self) -> float:
        """What a token takes without drafts, in steps of one: a run of rows takes about what as many tokens do."""
        together = min(self._together(), MAX_DRAFT_TOKENS + 1)
        return self._costs.of(together) / together

    def _draft_tokens(self, draft: Draft, most: int) -> FeedGenerator:
        most = min(most, draft.context - len(draft.tokens))
        costs, average = self._costs, self._experience.drafts.of(0)
        count, _ = self._worth((average for _ in range(most)), each=costs.draft)
        if not count:
            # once in a while, to learn whether it would pay by now
            count = int(most > 0 and self._balance > 2 * (costs.of(2) + costs.draft + costs.rewound - 1))
        draft_tokens: list[int] = []
        draft.want(count)
        pieces = draft.pieces() if count else []
        reach = 1.0
        while len(draft_tokens) < count:
            for draft_token, share in (yield from self._guesses(draft, pieces)):
                kind = min(int(share * _FIFTHS), _FIFTHS - 1)
                self._pending.append((draft_token, kind))
                reach *= self._experience.confidences.of(kind)
                if draft_tokens and reach < costs.of(len(draft_tokens) + 2) - costs.of(len(draft_tokens) + 1):
                    return draft_tokens  # it costs more to feed than it will give
                draft_tokens.append(draft_token)
            if draft.guesses_on:
                break
            pieces = [draft_tokens[-1:]]
        return draft_tokens

    def _guesses(
        self, draft: Draft, pieces: Sequence[list[int]]
    ) -> Generator[Feed, Sequence[Logits], Sequence[tuple[int, float]]]:
        """What it guesses behind the last of these."""
        guesses: Sequence[tuple[int, float]] = ()
        for piece in pieces:
            started_s = time.perf_counter()
            rows = yield Feed(draft.sequence, piece)
            if piece is pieces[-1]:
                guesses = draft.guesses(rows[-1])
            self._clock(len(piece), time.perf_counter() - started_s, max(1, len(guesses)))
        return guesses

    def _clock(self, fed: int, seconds: float, guessed: int) -> None:
        """Takes a feed of the draft model; those that read a prompt are no step, the first ones are to learn from."""
        is_prompt = fed > MAX_DRAFT_TOKENS + 1
        if is_prompt or not self._costs.is_draft_known:
            self._free_s += seconds
        else:
            self._drafted += guessed
        if fed == 1 or (guessed > 1 and not is_prompt):
            self._costs.note_draft(seconds / guessed)


def _kind(length: int) -> int:
    return min(length, LONGEST).bit_length()

"""How a sampler will choose, for a device that guesses its tokens ahead of it. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedllm.sampling.options import Sampling

_GUESSED = ("temperature", "top_k", "top_p", "min_p")  # steps that a device applies, in this order


@dataclass(frozen=True, slots=True)
class Draws:
    """Temperature, top_k, top_p and min_p of one sampler, and the numbers that it will draw.

    A device may guess tokens by them. The sampler still chooses each one itself, and draws then.
    """

    sampling: Sampling
    random: Random  # the sampler's own

    def upcoming(self, count: int) -> list[float]:
        """The next numbers that it will draw, in [0, 1): one for each row of logits, as nearly all rows take."""
        state = self.random.getstate()
        numbers = [self.random.random() for _ in range(count)]
        self.random.setstate(state)
        return numbers


def can_be_guessed(sampling: Sampling) -> bool:
    """Whether a row of logits and one number decide the token, by steps that a device applies."""
    steps = tuple(step for step in _GUESSED if step in sampling.draw_steps)
    return steps == sampling.draw_steps and not (
        sampling.is_greedy or sampling.dynamic_temperature or sampling.mirostat
    )

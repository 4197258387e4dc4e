"""The interface of constrained decoding: which tokens a grammar allows next, step by step. Standard library only.

The rule asks `allowed` before each choice and tells `note` what was chosen. Whatever holds the grammar makes one bit a
token and hands the bits to the row, which masks itself where it lies: nothing of the vocabulary's size passes through
here.
"""

from __future__ import annotations

from typing import Protocol

from embedllm.types import Logits


class Constraint(Protocol):
    """What one reply may still say. It is made for one reply and cannot go back."""

    @property
    def is_done(self) -> bool:
        """Whether the reply is whole and nothing but a stop token may follow; the rule ends it there."""
        ...

    @property
    def is_stop_allowed(self) -> bool:
        """Whether the reply would be whole if it ended now."""
        ...

    def prepare(self) -> None:
        """Computes what `allowed` needs, as far as it can: called while a device computes the logits."""
        ...

    def allowed(self, logits: Logits) -> Logits:
        """A copy in which every token that may not come next has -inf; stop tokens may if `is_stop_allowed`.

        All of it may be -inf, when no token of the vocabulary continues the reply; choosing from it then raises
        ValueError.
        """
        ...

    def note(self, token: int) -> None:
        """Takes the token that is now part of the reply, a stop token too.

        Raises ValueError for a token that `allowed` forbids.
        """
        ...

"""Steps of sampling that an application brings along: functions that change the logits. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from embedllm.types import Logits


class Processor(Protocol):
    """A function of your own that changes the logits of a step.

    It may be asked again about the same step, so its answer should depend on what it gets alone.
    """

    def __call__(self, logits: Logits, tokens: Sequence[int], /) -> Logits:
        """The changed logits: `logits` itself, or what its methods penalized() and masked() give.

        tokens: of prompt and reply so far; not to be changed.
        """
        ...


class Processors:
    """The processors of one sequence, in order, and the tokens that they receive."""

    __slots__ = ("_processors", "_tokens")

    def __init__(self, processors: Sequence[Processor], prompt_tokens: Sequence[int] = ()) -> None:
        self._processors = processors
        self._tokens = list(prompt_tokens)

    def note(self, token: int) -> None:
        self._tokens.append(token)

    def applied(self, logits: Logits) -> Logits:
        """The changed logits. Raises ValueError when a function gives something else, or a row of another size."""
        for processor in self._processors:
            changed = processor(logits, self._tokens)
            size = getattr(changed, "size", None)
            if size != logits.size:
                actual = type(changed).__name__ if size is None else f"{size} of them"
                raise ValueError(
                    f"a processor of logits gave {actual}; expected logits of {logits.size} tokens: return what it was "
                    "given, or what penalized() or masked() of that gives."
                )
            logits = changed
        return logits

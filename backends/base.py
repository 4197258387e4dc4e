"""What a backend is: protocols of an engine and a session. One file per runtime implements them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from embedllm.types import Logits

if TYPE_CHECKING:
    from embedllm.types import F32


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Something that can run a model, or a reason why it can't."""

    name: str  # what a caller asks for: "cpu", "cuda", "reference"
    backend: str  # "onnxruntime 1.31.1"
    description: str  # the hardware, in words
    available: bool
    reason: str = ""  # why not
    remedy: str = ""  # what to install or do


class Interrupted(Exception):
    """A feed was stopped from outside; the session stands where it stood before that feed."""


class Session(Protocol):
    """One sequence on one device: its KV cache and how far it has come."""

    position: int  # tokens held
    capacity: int  # most it can hold without taking more memory; grows in steps up to the context

    def feed(self, tokens: Sequence[int]) -> Logits:
        """Append at least one token; the logits after the last of them, valid until the next feed.

        Raises ContextFull when they don't fit (nothing is appended), ValueError for an id outside the vocabulary,
        Interrupted.
        """
        ...

    def rewind(self, position: int) -> None:
        """Forget everything from `position` on; ValueError unless 0 <= position <= self.position."""
        ...

    def close(self) -> None:
        """Give the memory back. Closing twice is fine."""
        ...


@runtime_checkable
class FeedsAll(Protocol):
    """A session that can give the logits after every token that it is fed."""

    def feed_all(self, tokens: Sequence[int]) -> F32:
        """As feed; returns [T, V]."""
        ...


@runtime_checkable
class Interruptible(Protocol):
    """A session whose running feed can be stopped from another thread."""

    def interrupt(self, stop: bool = True) -> None:
        """Make the running feed and every later one raise Interrupted, until interrupt(False)."""
        ...


class Engine(Protocol):
    """A loaded model on one device; opens sessions that share its weights."""

    device: Device
    chunk: int  # how many tokens of a prompt are best fed at once

    def open(self, capacity: int = 0) -> Session:
        """A new session with room for at least `capacity` tokens."""
        ...

    def close(self) -> None:
        """Free the weights. Its sessions must be closed before."""
        ...

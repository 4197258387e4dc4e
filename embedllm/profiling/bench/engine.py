"""What a worker asks of the engine that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The model that an engine runs."""

    model: str
    weights_sha256: str = ""  # of the file, where a manifest tells it
    weights_bytes: int  # of the file or files
    bits: int | None = None  # of the layers' matrices; None where they are mixed, or nothing tells them
    group: int | None = None  # values that share a scale
    vocabulary: int
    context: int  # most tokens that prompt and reply may have together
    step_bytes: int  # of weights, as they are stored, that a step reads
    kv_bytes_per_token: float | None = None  # that a step reads; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class About(Facts):
    """An opened engine and its model, in its own words."""

    versions: dict[str, str]
    device: str
    hardware: str = ""  # in words; empty where the engine does not tell
    on_host: bool  # whether it reads the machine's own memory
    threads: int  # requested; 0: its own choice
    keeps: bool  # what it computed last, so that a prompt with the same prefix is not computed again
    can: tuple[str, ...] = ()  # kinds of cases besides replies and shared prefixes


class Engine(Protocol):
    """One model, opened."""

    @property
    def about(self) -> About: ...

    def run(self, tokens: Sequence[int], count: int) -> list[float]:
        """Greedily, stop tokens off: when each of `count` tokens was there, in seconds from the call on."""
        ...

    def structured(self, tokens: Sequence[int], count: int) -> list[float]:
        """As run(), with the reply held to a JSON schema that it cannot fulfil in fewer tokens; when `about.can`."""
        ...

    def batch(self, prompts: Sequence[Sequence[int]], count: int) -> float:
        """Seconds until each of several prompts has its `count` tokens, started together; when `about.can`."""
        ...

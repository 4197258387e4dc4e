"""What makes a device faster or slower and its numbers never worse; what `embedllm tune` chooses. Standard library."""

from __future__ import annotations

from dataclasses import dataclass

MOST_THREADS = 1024  # ONNX Runtime takes any number, and a million of them until the machine gives up


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """How a device computes, where that is left open by what was asked for.

    Nothing in here can round what is not rounded without it: a choice among Knobs never costs exactness.
    """

    threads: int = 0  # of the CPU; 0: one a physical core
    spinning: bool = False  # threads wait for work without sleeping: ONNX Runtime's on the CPU
    floats: bool = False  # activations stay float in 4-bit products, which is nearer: ONNX Runtime's on the CPU

    def __post_init__(self) -> None:
        if type(self.threads) is not int or not 0 <= self.threads <= MOST_THREADS:
            raise ValueError(f"threads is {self.threads!r}; expected 0 (one a physical core) to {MOST_THREADS}.")
        for name in ("spinning", "floats"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected true or false.")

    def __str__(self) -> str:
        threads = "" if not self.threads else f"{self.threads} thread{'s' * (self.threads > 1)}"
        named = [threads, "spinning" * self.spinning, "float activations" * self.floats]
        return ", ".join(filter(None, named)) or "default"


USUAL = Knobs()

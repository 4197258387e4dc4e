"""What a sequence takes on a device, and what is free there; embedllm/loading/memory_estimate.py computes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What one sequence of `context` tokens needs on a device, in bytes, and what is free there."""

    model: str
    device: str
    context: int
    weights_bytes: int  # as the runtime keeps them, with what it needs itself, and adapters
    kv_bytes: int
    scratch_bytes: int  # of a prompt that is being read
    batch_bytes: int = 0  # of what sequences that step together have besides, as far as there is room for it
    free_bytes: int | None  # of a device's own memory: all of it; None: not told
    largest_context: int | None  # tokens, at most the package's; 0: not even LEAST; None: what is free is not told
    is_measured: bool  # by the formula of this device; else a plain estimate: the weights file and the KV
    variants: tuple[str, ...] = ()  # of the graphs that it is for, for open_engine(); none: whatever the device may run

    @property
    def needed_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.scratch_bytes + self.batch_bytes

    @property
    def kv_tokens(self) -> int | None:
        """Tokens for whose KV there is memory beside the weights; None: what is free is not told."""
        if self.free_bytes is None or not self.kv_bytes:
            return None
        left = self.free_bytes - self.weights_bytes - self.scratch_bytes - self.batch_bytes
        return max(left * self.context // self.kv_bytes, self.context)

    @property
    def fits(self) -> bool | None:
        """None: what is free is not told."""
        return None if self.free_bytes is None else self.needed_bytes <= self.free_bytes

    def __str__(self) -> str:
        parts = (self.weights_bytes, self.kv_bytes, self.scratch_bytes, self.batch_bytes)
        weights, kv, scratch, batches = (f"{part / 2**20:,.0f} MiB" for part in parts)
        besides = f", batches {batches}" if self.batch_bytes else ""
        return (
            f"about {self.needed_bytes / 2**20:,.0f} MiB for {self.context:,} tokens "
            f"(weights {weights}, KV {kv}, scratch {scratch}{besides})"
        )

"""Context shift: in a full sequence the first tokens (attention sink) stay, the oldest after them are dropped.

The keys of the remaining tokens are rotated (RoPE) to their new positions, which is exact up to rounding. It is
approximate because they were computed with attention to the dropped tokens (docs/numerics.md#shift). Source: Xiao et
al. 2023, "Efficient Streaming Language Models with Attention Sinks". Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.backends.base import MovesState, Session

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.architecture.rope import Rope

SINK = 4  # attention sink: first tokens that always stay, since all others attend to them
_STEPS = 4  # each moves all that stays, so that few of them are better


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShift:
    """What is dropped from a sequence when its context is full."""

    keep: int  # tokens at its beginning that stay
    context: int  # tokens that it can hold
    ropes: tuple[Rope | None, ...]  # RoPE of each layer's keys

    @property
    def step(self) -> int:
        """How many tokens are dropped per shift."""
        return max(1, (self.context - self.keep) // _STEPS)

    def tokens_to_drop(self, length: int, count: int) -> int:
        """How many tokens to drop before `count` more are appended; 0 as long as they fit."""
        over = length + count - self.context
        return 0 if over <= 0 else min(-(-over // self.step) * self.step, length - self.keep)

    def shifted(self, state: KeyValues, start: int, *, by: int) -> KeyValues:
        """The KV of the tokens from `start` on, for positions that are smaller by `by`."""
        from embedllm.package.rope import moved_keys  # numpy

        return [
            (keys if rope is None else moved_keys(keys, rope, start, by=by), values)  # type: ignore[arg-type]  # floats: check_movable
            for rope, (keys, values) in zip(self.ropes, state, strict=True)
        ]


def check_movable(session: Session, device: str, decoder: Decoder) -> None:
    """Raises ValueError when a session's KV cannot be moved to other positions."""
    other = "Take when_full='drop-oldest', which computes again what stays."
    if decoder.position_embeddings is not None or any(attention.norm_after_rope for attention in decoder.attentions):
        raise ValueError(
            f"when_full='shift' moves KV to other positions, and a '{decoder.model_type}' model mixes these into its "
            f"keys for good (learned positions, or norms behind the rotation). {other}"
        )
    if not isinstance(session, MovesState):
        raise ValueError(f"when_full='shift' moves KV, and that of '{device}' cannot be taken out. {other}")
    kinds = {keys.dtype for keys, _ in session.export_state(0, 0)}
    if any(kind.kind != "f" for kind in kinds):
        raise ValueError(
            f"when_full='shift' rotates keys to other positions; found quantized {kinds.pop()} keys. Load without kv=. "
            f"{other}"
        )

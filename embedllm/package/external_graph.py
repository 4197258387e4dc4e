"""A decoder of which nothing is known but its graph: what a package says of one that another exporter has traced.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalGraph:
    """What there is to know besides the graph of the variant "external-float32" (docs/format.md#external-graphs)."""

    model_type: str
    context: int  # most tokens that the export holds
    vocabulary: int
    kv: tuple[tuple[int, ...], ...]  # by layer: KV heads, and the size of a key or value
    parameters: int  # weights of the matrices and of all else that is stored
    in_pieces: bool  # a prompt may be fed in pieces; else what follows the first piece is fed token by token


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a graph calls its inputs and outputs; "%d" stands for a layer's number."""

    tokens: str = "input_ids"
    mask: str = "attention_mask"
    positions: str = "position_ids"
    logits: str = "logits"
    past: tuple[str, str] = ("past_key_values.%d.key", "past_key_values.%d.value")
    present: tuple[str, str] = ("present.%d.key", "present.%d.value")
    layers: tuple[int, ...] = ()  # the numbers of those that keep keys and values; none: 0 to their count
    rounds: bool = False  # it rounds activations by what is fed at once, so that the way of feeding shows in logits
    appends: bool = False  # its attention appends in place, where past and present are the same memory

    def pairs(self, count: int) -> list[tuple[str, str]]:
        """(past, present) of every key and value, layer by layer."""
        numbers = self.layers or range(count)
        both = list(zip(self.past, self.present, strict=True))
        return [
            (past.replace("%d", str(at)), present.replace("%d", str(at))) for at in numbers for past, present in both
        ]

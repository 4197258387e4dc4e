"""A decoder of which nothing is known but its graph: what a package says of one that another exporter has traced.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What there is to know besides the graph of the dialect "traced-float32" (docs/format.md#traced)."""

    model_type: str
    context: int  # most tokens that the export holds
    vocabulary: int
    kv: tuple[tuple[int, ...], ...]  # by layer: KV heads, and the size of a key or value
    parameters: int  # weights of the matrices and of all else that is stored
    in_pieces: bool  # a prompt may be fed in pieces; else what follows the first piece is fed token by token

"""What a graph that another exporter has written is fed at a step, by the names and types that it declares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.ort.runtime import ort

if TYPE_CHECKING:
    from embedllm.package.external_graph import Names

_TYPES = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}
_BRANCH = "use_cache_branch"  # of optimum's merged decoders: whether there is anything in the past
_KEPT = ("num_logits_to_keep", "logits_to_keep")  # how many of the last tokens' logits are wanted
_FROM = "logits_from"  # ours: the first token whose logits are wanted


class Inputs:
    """The inputs of a loaded graph."""

    def __init__(self, session: ort.InferenceSession, names: Names) -> None:
        entries = (*session.get_inputs(), *session.get_overridable_initializers())
        self._types = {entry.name: _TYPES.get(entry.type) for entry in entries}
        self._sizes = {entry.name: len(entry.shape) for entry in entries}
        self._names = names
        self.gives_all = True  # logits of every token that is fed, until it is found otherwise

    def kv(self, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """The keys and values of no token, layer by layer, in the type that the graph keeps them in."""
        pairs = self._names.pairs(len(shapes))
        return [
            np.empty((1, shapes[at // 2][0], 0, shapes[at // 2][1]), self._types[past])
            for at, (past, _) in enumerate(pairs)
        ]

    def feeds(
        self, tokens: Sequence[int], start: int, *, each: bool, length: int
    ) -> Iterator[tuple[str, ort.OrtValue]]:
        """All but keys and values.

        each: the logits of every token are wanted, not of the last alone. length: of the mask, at least as many as are
        held then.
        """
        names, end = self._names, start + len(tokens)
        values = {
            names.tokens: np.array([tokens]),
            names.mask: (np.arange(length) < end)[None],
            names.positions: np.arange(start, end)[None],
            _BRANCH: np.array([start > 0]),
            _FROM: np.array([0 if each else -1]),
            **dict.fromkeys(_KEPT, np.array([len(tokens) if each else 1])),
        }
        for name, value in values.items():
            if name in self._types:
                shaped = value if self._sizes[name] else value.reshape(())
                yield name, ort.OrtValue.ortvalue_from_numpy(shaped.astype(self._types[name]))

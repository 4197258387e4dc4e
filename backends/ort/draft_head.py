"""A head (MTP, EAGLE-3) in ONNX Runtime: drafts from the hidden states of the target model's sequence.

The head has a KV cache of its own, of the tokens whose hidden states were there to be read. It may begin anywhere in a
sequence: its attention knows distances only, and what it drafts is verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import GivesHidden
from embedllm.backends.checks import check_rewind
from embedllm.backends.ort.engine import OrtEngine
from embedllm.files.safetensors_header import read_header
from embedllm.package.tensors import DRAFT_TOKENS

if TYPE_CHECKING:
    from embedllm.backends.base import Device, Session
    from embedllm.backends.options import RuntimeOptions
    from embedllm.package.entries import Graph
    from embedllm.package.package import Package
    from embedllm.sampling.numpy_logits import NumpyLogits


# Tokens that are read at once where drafts have paused, in which the head has read nothing: more of them would cost
# what the limits of speculation do not count. The KV then begins with them.
_CAUGHT_UP = 32


class DraftHeadEngine:
    """A head. It is an engine so that its sequences are fed as those of a draft model are."""

    def __init__(self, package: Package, graph: Graph, device: Device, *, runtime: RuntimeOptions, exact: bool) -> None:
        """package: of the head, in the folder of its target model. Raises DeviceError."""
        self._engine = OrtEngine(package, graph, device, runtime=runtime, exact=exact,
                                 weights_folder=package.folder.parent)  # fmt: skip
        self.device = device
        self.context = self.chunk = self._engine.context  # one feed: tokens without a hidden state are passed over
        self.remedy = self._engine.remedy
        self.tokens = _draft_tokens(package)

    def open(self, capacity: int = 0) -> DraftHeadSession:
        """A session that follows none yet; room is taken as it is needed."""
        return DraftHeadSession(self._engine)

    def close(self) -> None:
        self._engine.close()


def _draft_tokens(package: Package) -> tuple[int, ...] | None:
    """The token that each row of a head's matrix is of; None where all tokens have one."""
    tensor = read_header(package.weights).tensors.get(DRAFT_TOKENS)
    if tensor is None:
        return None
    return tuple(np.fromfile(tensor.file, np.dtype("<i4"), tensor.shape[0], offset=tensor.offset).tolist())


class DraftHeadSession:
    """Drafts for the sequence that it follows. Holds its tokens; of those that it can, their KV."""

    def __init__(self, engine: OrtEngine) -> None:
        self.position = 0
        self._inner = engine.open()
        self._followed: GivesHidden | None = None
        self._tokens: list[int] = []
        self._start = 0  # the token that the KV begins with
        self._read = 0  # tokens up to here were read with hidden states of the target model

    def follow(self, session: Session) -> None:
        """Reads the hidden states of that session from now on. ValueError where it keeps none."""
        if not isinstance(session, GivesHidden) or session.hidden is None:
            raise ValueError("a head that drafts needs a session that keeps hidden states.")
        self._followed = session

    @property
    def capacity(self) -> int:
        return self._inner.capacity

    def feed(self, tokens: Sequence[int]) -> NumpyLogits:
        """As Session.feed: the logits of the token behind the last one.

        Where the target model has read all but the last token, everything is read with its hidden states, also drafts
        that were read with the head's own before. Else it is one more token of a draft.
        """
        followed = self._followed
        assert followed is not None
        assert followed.hidden is not None  # as follow() has checked
        end, inner = len(self._tokens) + len(tokens), self._inner
        if end - 1 > min(followed.position, followed.hidden.stop):
            assert len(tokens) == 1, "a draft goes on token by token"
            assert inner.hidden is not None  # a head gives them
            logits = self._feed(tokens, inner.hidden.get(inner.position - 1, inner.position))
            self._tokens += tokens
            self.position = end
            return logits
        begin = max(self._read, followed.hidden.first + 1)
        if self._read and end - begin > _CAUGHT_UP:
            begin = end - _CAUGHT_UP
        if begin > self._read or not inner.position:
            inner.rewind(0)
            self._start = begin
        else:
            inner.rewind(begin - self._start)
        logits = self._feed([*self._tokens, *tokens][begin:], followed.hidden.get(begin - 1, end - 1))
        self._tokens += tokens
        self.position = self._read = end
        return logits

    def _feed(self, tokens: Sequence[int], hidden: np.ndarray) -> NumpyLogits:
        self._inner.hidden_states = hidden[None]
        return self._inner.feed(tokens)

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        del self._tokens[position:]
        self.position = position
        self._read = min(self._read, position)
        self._inner.rewind(min(self._inner.position, max(0, position - self._start)))

    def interrupt(self, stop: bool = True) -> None:
        self._inner.interrupt(stop)

    def close(self) -> None:
        self._inner.close()
        self._followed = None

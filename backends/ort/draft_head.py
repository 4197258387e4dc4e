"""A head (MTP, EAGLE-3) on ONNX Runtime's CPU provider, where hidden states are arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.sessions.draft_head import DraftHeadEngine
from embedllm.files.safetensors_header import read_header
from embedllm.package.tensors import DRAFT_TOKENS

if TYPE_CHECKING:
    from embedllm.backends.base import Device
    from embedllm.backends.options import RuntimeOptions
    from embedllm.backends.sessions.hidden_rows import HiddenRows
    from embedllm.package.entries import Graph
    from embedllm.package.package import Package
    from embedllm.sampling.numpy_logits import NumpyLogits
    from embedllm.types import F32


def open_on_host(
    package: Package, graph: Graph, device: Device, *, runtime: RuntimeOptions, exact: bool
) -> DraftHeadEngine[F32]:
    """package: of the head, in the folder of its target model. Raises DeviceError."""
    engine = OrtEngine(package, graph, device, runtime=runtime, exact=exact, weights_folder=package.folder.parent)
    return DraftHeadEngine(_Host(engine), _draft_tokens(package))


def _draft_tokens(package: Package) -> tuple[int, ...] | None:
    """The token that each row of a head's matrix is of; None where all tokens have one."""
    tensor = read_header(package.weights).tensors.get(DRAFT_TOKENS)
    if tensor is None:
        return None
    return tuple(np.fromfile(tensor.file, np.dtype("<i4"), tensor.shape[0], offset=tensor.offset).tolist())


class _Host:
    def __init__(self, engine: OrtEngine) -> None:
        self._engine = engine
        self.device, self.context, self.remedy = engine.device, engine.context, engine.remedy

    def open_head(self) -> _Head:
        return _Head(self._engine)

    def close(self) -> None:
        self._engine.close()


class _Head:
    """As ReadingHead."""

    def __init__(self, engine: OrtEngine) -> None:
        self._session = engine.open()
        self.longest = self.most = engine.context

    @property
    def position(self) -> int:
        return self._session.position

    @property
    def hidden(self) -> HiddenRows:
        assert self._session.hidden is not None  # a head gives them
        return self._session.hidden

    def read(self, tokens: Sequence[int], hidden: F32, guesses: int) -> NumpyLogits:
        self._session.hidden_states = hidden[None]
        return self._session.feed(tokens)

    def rewind(self, position: int) -> None:
        self._session.rewind(position)

    def interrupt(self, stop: bool = True) -> None:
        self._session.interrupt(stop)

    def close(self) -> None:
        self._session.close()

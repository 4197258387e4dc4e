"""A slow decoder in plain NumPy that reads the same folder: the oracle of all tests, and the last resort.

Follows the mathematics of embedllm/package/architecture literally, in float32, one sequence at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import Device
from embedllm.backends.checks import check_change, check_room, check_span, check_state, check_tokens
from embedllm.backends.images import ImageFeatures, images_of, last_seen
from embedllm.backends.mrope import open_places
from embedllm.backends.reference.layers import Layers
from embedllm.backends.reference.vision import open_vision
from embedllm.backends.sessions.recurrent_session import StatefulSession
from embedllm.errors import PackageError
from embedllm.files.safetensors_header import TensorFile, read_header
from embedllm.package.architecture.weights import Linear
from embedllm.package.package import Package
from embedllm.package.packing import Packed, dequantize, packings
from embedllm.package.tensors import parameters
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.base import KeyValues
    from embedllm.package.lora.adapter import Adapter
    from embedllm.types import F32

DEVICE = Device(
    name="reference", backend=f"numpy {np.__version__}", description="slow; for checking results", available=True
)
_KEPT = 250_000_000  # weights; smaller models keep their matrices as floats, larger ones unpack them at every step
_DTYPES = {"U8": np.uint8, "I32": np.int32, "F16": np.float16, "F32": np.float32}


class ReferenceEngine:
    """A folder, dequantized."""

    device = DEVICE
    chunk = 512

    def __init__(self, package: Package) -> None:
        self.package = package
        self.decoder = package.decoder
        self.context = package.context
        self.remedy = package.larger_context
        self.images: ImageFeatures | None = None
        if self.decoder.vision is not None:
            self.images = ImageFeatures(lambda: open_vision(self), bidirectional=self.decoder.images_are_bidirectional)
        self._packing = packings(package.manifest)
        self._matrices: dict[str, F32] | None = {} if parameters(self.decoder) < _KEPT else None

    def open(self, capacity: int = 0) -> ReferenceSession:
        session = ReferenceSession(self)
        return StatefulSession(self, session) if self.decoder.is_recurrent else session  # type: ignore[return-value]  # a Session, too

    def close(self) -> None:
        self._matrices = None

    @cached_property
    def _file(self) -> TensorFile:
        return read_header(self.package.weights)

    def tensor(self, name: str) -> np.ndarray:
        """A stored tensor, as it lies in the file."""
        entry = self._file.tensors.get(name)
        if entry is None or entry.dtype not in _DTYPES:
            raise PackageError(f"'{entry.file if entry else self.package.weights}' has no usable tensor '{name}'.")
        return np.memmap(entry.file, _DTYPES[entry.dtype], "r", entry.offset, entry.shape)

    def matrix(self, linear: Linear) -> F32:
        """The float weights [rows, columns] that a matrix stands for."""
        if self._matrices is None or linear.name not in self._matrices:
            matrix = self._unpacked(linear)
            if self._matrices is None:
                return matrix
            self._matrices[linear.name] = matrix
        return self._matrices[linear.name]

    def rows(self, linear: Linear, tokens: Sequence[int]) -> F32:
        """Rows of an embedding table; of a large one, only these are unpacked."""
        return self._unpacked(linear, list(tokens)) if self._matrices is None else self.matrix(linear)[list(tokens)]

    def _unpacked(self, linear: Linear, rows: list[int] | slice = slice(None)) -> F32:
        packing = self._packing.get(linear.name)
        if packing is None:  # of the small matrices, which stay floats
            return self.tensor(f"{linear.name}.weight")[rows]
        weight, scale, zero, minimum = (
            self.tensor(f"{linear.name}.{kind}")[rows] if stored else None
            for kind, stored in (
                ("weight", True),
                ("scale", packing.quantized),
                ("zero", packing.quantized and packing.stores_zeros),
                ("minimum", packing.quantized and packing.has_minimum),
            )
        )
        assert weight is not None
        if scale is None:
            return weight.astype(np.float32)
        floats = dequantize(Packed(weight, scale, zero, minimum), packing, linear.columns)
        return floats[:, self._inverse(packing.column_order)] if packing.column_order else floats

    def _inverse(self, matrix: str) -> NDArray[np.intp]:
        """Where each column lies of what has the order of a matrix."""
        order = self.tensor(f"{matrix}.order")
        inverse = np.argsort(order)
        if (order[inverse] != np.arange(len(order))).any():
            raise PackageError(f"'{matrix}.order' does not name each column once. Export the folder again.")
        return inverse


class ReferenceSession(Layers):
    """A sequence of tokens of a folder's model."""

    def __init__(self, engine: ReferenceEngine) -> None:
        super().__init__(engine)
        self._engine = engine
        self._images = images_of(engine)
        self._places = open_places(engine.decoder, self._images)

    def feed(self, tokens: Sequence[int]) -> NumpyLogits:
        return NumpyLogits(self._step(tokens, only_last=True)[-1])

    def feed_all(self, tokens: Sequence[int]) -> F32:
        return self._step(tokens, only_last=False)

    def export_state(self, start: int, stop: int) -> KeyValues:
        check_span(start, stop, self.position)
        return [(key[:, start:stop].copy(), value[:, start:stop].copy()) for key, value in self._kv]

    def import_state(self, state: KeyValues) -> None:
        count = check_state(state, [(key.shape[0], key.shape[2]) for key, _ in self._kv])
        check_room(self.position, count, limit=self._engine.context, remedy=self._engine.remedy)
        self._kv = [
            (
                np.concatenate([key, more], axis=1, dtype=np.float32),
                np.concatenate([value, also], axis=1, dtype=np.float32),
            )
            for (key, value), (more, also) in zip(self._kv, state, strict=True)
        ]
        self.position = self.capacity = self.position + count

    def states(self) -> dict[str, F32]:
        return {name: state.copy() for name, state in self._states.items()}

    def set_states(self, states: Mapping[str, F32]) -> None:
        self._states = {name: state.copy() for name, state in states.items()}

    def copied(self, states: Mapping[str, F32]) -> Mapping[str, F32]:
        return states

    def take_states(self, states: Mapping[str, F32]) -> None:
        self.set_states(states)

    def adapt(self, adapter: Adapter | None) -> None:
        check_change(adapter, self.position, can=True)
        self._adapter = adapter

    def close(self) -> None:
        self.rewind(0)

    def rewind(self, position: int) -> None:
        super().rewind(position)
        if self._places is not None:
            self._places.rewind(position)

    def put_images(self, place: int, tokens: Sequence[int]) -> None:
        if self._places is not None:
            self._places.put(place, tokens)

    def _rope_rows(self, rope: int, count: int) -> tuple[F32, F32]:
        if not self._places:
            return super()._rope_rows(rope, count)
        return self._places.rope_rows(self.position, self.position + count)

    def _step(self, tokens: Sequence[int], only_last: bool) -> F32:
        engine, decoder = self._engine, self._engine.decoder
        check_tokens(tokens, self.position, vocabulary=decoder.vocabulary, limit=engine.context, remedy=engine.remedy,
                     images=self._images)  # fmt: skip
        images = None if self._images is None else self._images.take(tokens)
        rows = engine.rows(decoder.embedding, tokens if images is None else images.tokens.tolist())
        x = self._embedded(rows, self.position)  # [T, hidden]
        self._last_seen = None
        if images is not None:
            x[images.places] = images.features[:, : decoder.hidden]
            if self._images is not None and self._images.bidirectional:
                self._last_seen = np.array(last_seen(tokens, self.position))
        self.put_images(self.position, tokens)
        if decoder.per_layer_embedding is not None:
            table = decoder.per_layer_embedding.table
            self._set_per_layer_inputs(x, engine.rows(table, [token if token < table.rows else 0 for token in tokens]))
        x = self._begun(x)
        for index, layer in enumerate(decoder.layers):
            x = self._layer(index, layer, x)
            if images is not None and (index + 1) * decoder.hidden < images.features.shape[1]:  # DeepStack
                x[images.places] += images.features[:, (index + 1) * decoder.hidden : (index + 2) * decoder.hidden]
        self.position += len(tokens)
        self.capacity = self.position
        x = self._ended(x[-1:] if only_last else x)
        return self._scaled_logits(self._linear(self._norm(x, decoder.norm), decoder.head))

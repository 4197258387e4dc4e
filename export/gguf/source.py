"""A model in GGUF as a source: its config, its small files as Hugging Face has them, its tensors by rows."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.checkpoints.open_files import OpenFiles
from embedllm.export.gguf.config import config_of, guessing_layers
from embedllm.export.gguf.encoders import sentences_of, task_of
from embedllm.export.gguf.metadata_files import write_texts
from embedllm.export.gguf.reader import GgufModel, Placed, read_model
from embedllm.export.gguf.rope import ROTATIONS
from embedllm.export.gguf.tensor_location import Place
from embedllm.export.gguf.tensor_names import places
from embedllm.export.gguf.types import READ, TYPES, floats, packed, packing_of
from embedllm.hub.location import Location
from embedllm.package.architecture import Linear, Norm, Origin
from embedllm.package.packing import Packed, Packing, ordered

if TYPE_CHECKING:
    from embedllm.package.architecture import Decoder
    from embedllm.types import F32

SUFFIX = ".gguf"
_HEAD = "output.weight"  # that vectors of texts do not pass


class GgufSource:
    """The tensors of a model, under the names that a checkpoint has for them, read into fresh arrays.

    May be read from several threads. folder: what the file says of tokens and chats, in small files that are gone when
    this is closed. Raises ExportError, UnsupportedModel.
    """

    def __init__(self, path: Path) -> None:
        self._model: GgufModel = read_model(path)
        self.config, self._family = config_of(self._model)
        self.folders: tuple[str, ...] = ()  # of sentence-transformers: there are none
        self.task = task_of(self._model, self._family)
        self.sentences = sentences_of(self._model) if self.task == "embed" else None
        self._places: Mapping[str, Place] = {}
        self._files = OpenFiles()
        self._texts = tempfile.TemporaryDirectory(prefix="embedllm-gguf-")
        self.folder = Path(self._texts.name)
        try:
            write_texts(self._model, self.folder)
        except BaseException:
            self._texts.cleanup()
            raise

    @property
    def location(self) -> Location:
        return Location(self.folder, self._model.path.name)

    def described(self, decoder: Decoder) -> Decoder:
        """The decoder as these files hold it; called before the tensors of it are asked for.

        Raises UnsupportedModel where the files hold more than it has.
        """
        decoder = restated(decoder)
        self._places = places(decoder, self._family, self._model.tensors)
        read = {place.tensor for place in self._places.values()} | ROTATIONS
        if decoder.encoder is not None:
            read.add(_HEAD)
        behind = tuple(f"blk.{number}." for number in guessing_layers(self.config))
        unread = {name for name in self._model.tensors if name not in read and not name.startswith(behind)}
        if unread:
            raise UnsupportedModel(
                f"'{self._model.path}' has a tensor '{min(unread)}' that is of no part of a '{decoder.model_type}' as "
                "its metadata describes it. Try the checkpoint that the file was made from.",
                model_type=decoder.model_type,
            )
        return decoder

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises ExportError unless the tensor is here with this shape, in a type that is read.

        All dimensions of the tensor but the last count as one.
        """
        place, tensor = self._find(name)
        rows, width = _size(place, tensor)
        found = rows - place.start if place.count is None else place.count
        end = place.start + found
        if place.rows is not None:
            found, end = len(place.rows), int(place.rows.max()) + 1
        if end > rows or shape != ((found,) if width is None else (found, width)):
            raise ExportError(
                f"'{tensor.file}': tensor '{place.tensor}' is {list(tensor.shape)}; the file's metadata calls for "
                f"{list(shape)} ('{name}')."
            )
        kind = TYPES[tensor.type].name
        if width is None and TYPES[tensor.type].values > 1:
            raise ExportError(f"'{tensor.file}': tensor '{place.tensor}' is {kind}; expected floats, as of any vector.")
        if kind not in READ:
            raise ExportError(
                f"'{tensor.file}': tensor '{place.tensor}' is {kind}, which is not read; known: {', '.join(READ)}. "
                "Take a file of the model in one of these."
            )

    def rows(self, name: str, start: int, stop: int) -> F32:
        """Rows [start, stop) of a tensor, as float32: what lies along its last dimension; of a vector, its values."""
        place, tensor = self._find(name)
        _, width = _size(place, tensor)
        if place.turned_over:
            return self._turned_over(tensor, start, stop)
        if place.rows is None:
            values = self._floats(tensor, width, place.start + start, place.start + stop)
        else:
            wanted = place.rows[start:stop]
            first = int(wanted.min())
            values = self._floats(tensor, width, first, int(wanted.max()) + 1)[wanted - first]
        if place.is_exp:
            return _logarithms(values, f"'{tensor.file}': tensor '{place.tensor}'")
        return values if place.columns is None else values[:, place.columns]

    def packing(self, name: str) -> Packing | None:
        """How a tensor is stored so that nothing is lost; None for what is not read, which check() refuses."""
        place = self._places.get(name)
        tensor = None if place is None else self._model.tensors.get(place.tensor)
        if place is None or tensor is None:
            return None
        held = packing_of(TYPES[tensor.type])
        if held is None or not held.quantized:
            return held
        is_split = place.columns is not None and place.run % held.group_size
        return Packing(bits=32) if place.turned_over or is_split else held  # its groups do not lie along our rows

    def packed(self, name: str, start: int, stop: int) -> Packed:
        """Rows [start, stop) of a quantized tensor, as they are stored."""
        place, tensor = self._find(name)
        _, width = _size(place, tensor)
        wanted = np.arange(place.start + start, place.start + stop) if place.rows is None else place.rows[start:stop]
        first, last = int(wanted.min()), int(wanted.max()) + 1
        rows = packed(TYPES[tensor.type], self._raw(tensor, width, first, last), last - first)
        rows = rows if place.rows is None else ordered([rows], wanted - first)
        held = packing_of(TYPES[tensor.type])
        if place.columns is None or held is None:
            return rows
        order = place.columns[:: held.group_size] // held.group_size
        minimum = None if rows.minimum is None else rows.minimum[:, order]
        return Packed(rows.weight[:, order], rows.scale[:, order], None, minimum)  # no type of GGUF has zero points

    def _find(self, name: str) -> tuple[Place, Placed]:
        place = self._places.get(name)
        tensor = None if place is None else self._model.tensors.get(place.tensor)
        if place is None or tensor is None:
            sought = f"'{name}'" if place is None else f"'{place.tensor}' (for '{name}')"
            raise ExportError(f"'{self._model.path}' has no tensor {sought}, which its metadata calls for.")
        return place, tensor

    def _turned_over(self, tensor: Placed, start: int, stop: int) -> F32:
        """Rows of a tensor that is [parts, columns, rows of a part]."""
        _, columns, each = tensor.shape
        first, last = start // each, -(-stop // each)
        parts = self._floats(tensor, each, first * columns, last * columns).reshape(last - first, columns, each)
        return parts.swapaxes(1, 2).reshape(-1, columns)[start - first * each : stop - first * each]

    def _floats(self, tensor: Placed, width: int | None, start: int, stop: int) -> F32:
        raw = self._raw(tensor, width, start, stop)
        return floats(TYPES[tensor.type], raw).reshape((stop - start,) if width is None else (stop - start, width))

    def _raw(self, tensor: Placed, width: int | None, start: int, stop: int) -> bytearray:
        kind = TYPES[tensor.type]
        row_bytes = kind.bytes if width is None else width // kind.values * kind.bytes
        return self._read(tensor, start * row_bytes, (stop - start) * row_bytes)

    def _read(self, tensor: Placed, start: int, count: int) -> bytearray:
        """Bytes of a tensor."""
        return self._files.read(tensor.file, tensor.offset + start, count)

    def close(self) -> None:
        self._files.close()
        self._texts.cleanup()


def _logarithms(values: F32, place: str) -> F32:
    """x of -exp(x), to the last digit of float32 or nearly so."""
    if not (np.isfinite(values).all() and (values < 0).all()):
        raise ExportError(f"{place} has values that are not below 0. Get the file again.")
    return np.log(-values.astype(np.float64)).astype(np.float32)


def _size(place: Place, tensor: Placed) -> tuple[int, int | None]:
    """Rows, and values of each; None of a vector, each of whose values counts as a row."""
    shape = tensor.shape
    if place.is_row:
        return 1, math.prod(shape)
    if place.turned_over:
        is_whole = len(shape) == 3 and shape[0] == place.turned_over
        return (shape[0] * shape[2], shape[1]) if is_whole else (0, None)
    if len(shape) == 1 or place.tensor.endswith(".bias"):  # those of all experts are one tensor
        return math.prod(shape), None
    return math.prod(shape[:-1]), shape[-1]


T = TypeVar("T")


def restated(node: T) -> T:
    """The same description, where no norm adds to its weights, and no matrix is a part of another or turned over."""
    if isinstance(node, Norm):
        return dataclasses.replace(node, weight_offset=0.0)
    if isinstance(node, Linear):
        return _alone(node)
    if isinstance(node, tuple):
        return tuple(restated(each) for each in node)  # type: ignore[return-value]  # of the same types
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        changes = {f.name: restated(getattr(node, f.name)) for f in dataclasses.fields(node)}
        return dataclasses.replace(node, **changes)
    return node


def _alone(linear: Linear) -> Linear:
    """One that is among others gets a name of its own; the order of its rows within a head stays."""
    if linear.origin is None:
        return linear
    whole = dataclasses.replace(linear.origin, rows=linear.rows, start=0, block=0, stride=0, transposed=False)
    return dataclasses.replace(
        linear,
        source=linear.source if linear.origin.rows == linear.rows else linear.name,
        origin=None if whole == Origin(rows=linear.rows) else whole,
    )

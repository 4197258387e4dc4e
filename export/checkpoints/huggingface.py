"""A Hugging Face checkpoint as a source: config.json and safetensors, in one file or in shards."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError, PackageError
from embedllm.export.checkpoints.fused_experts import Experts, find_experts, has_no_suffix
from embedllm.export.checkpoints.open_files import OpenFiles
from embedllm.export.checkpoints.quantized.detect import QuantizedMatrix, find_quantized
from embedllm.export.checkpoints.quantized.packed_integers import PackedMatrix
from embedllm.export.checkpoints.quantized.schemes import scheme_of, without_scheme
from embedllm.export.checkpoints.split_convolutions import SplitConvolution, find_convolution
from embedllm.files.float_types import FLOATS, to_float32
from embedllm.files.json_object import required_json_object
from embedllm.files.safetensors_header import BYTES, Tensor, read_header
from embedllm.hub.location import Location

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.package.packing import Packed, Packing
    from embedllm.types import F32

_MOST_WHOLE = 8  # tensors: two matrices with scales, zero points and the order of their columns
_SIGLIP, _NEW_SIGLIP = "vision_tower.vision_model.", "vision_tower."
_LAYER = re.compile(r"(?:.*?\.)??\d+\.")  # what the names of a layer's tensors begin with
_CONSTANTS = ("inv_freq", "act_fn.beta", "act_fn.eps")  # the same in every checkpoint
_EMBEDDINGS = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight")
_HEAD = "lm_head.weight"
_OLD = {"weight": "gamma", "bias": "beta"}  # of names in the first BERTs
_PRE_NORMS = {"input_layernorm": "attention_layer_norm", "post_attention_layernorm": "feedforward_layer_norm"}


class HuggingFaceSource:
    """The tensors of a folder, read row by row into fresh arrays; nothing is mapped, nothing is kept.

    May be read from several threads.
    """

    def __init__(self, location: Location) -> None:
        self.folder = location.folder
        config = read_json(self.folder / "config.json", "a model's configuration")
        self._scheme = scheme_of(config)
        self.config = config if self._scheme is None else without_scheme(config)
        self.folders: tuple[str, ...] = ()  # of more tensors, in a model.safetensors of their own
        self.location = location
        self._files = OpenFiles()
        self._lock = threading.Lock()
        self._packings: dict[str, Packing] = {}
        self._whole: dict[tuple[Path, int], bytearray] = {}  # whole tensors that pieces of several rows are read from

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        """Where the tensors lie; asked for first when the rest of the model is known to be in order."""
        named = _weight_files(self.folder)
        more = [f"{folder}/model.safetensors" for folder in self.folders]
        self.location.fetch([*(["model.safetensors"] if named is None else named), *more])
        tensors = _find_tensors(self.folder)
        for folder in self.folders:
            tensors |= {f"{folder}/{name}": tensor for name, tensor in _find_tensors(self.folder / folder).items()}
        return tensors

    def fetch(self) -> None:
        """Downloads the weights where they are not there yet, and looks at where their tensors lie."""
        assert self._tensors is not None

    def _stored(self, name: str) -> str | None:
        """The name under which a tensor lies here; None: there is none.

        A model that was saved without its head (gpt2, Qwen3-Embedding) has names that lack their first part.

        Norms of the first BERTs (bert-base-uncased) have a gamma and a beta. transformers 5 saves SigLIP without
        "vision_model.". A table that is head and embedding may be stored as the head. OLMo Hybrid's norms have names of
        their own, which transformers 5 writes for its post-norms, too.
        """
        part, _, end = name.rpartition(".")
        names = [name, f"{part}.{_OLD[end]}"] if end in _OLD else [name]
        names += [part] if end == "weight" and has_no_suffix(part) else []
        layer, _, norm = part.rpartition(".")
        names += [f"{layer}.{_PRE_NORMS[norm]}.{end}"] if norm in _PRE_NORMS else []
        names += [_HEAD] if name in _EMBEDDINGS and self.config.get("tie_word_embeddings") is True else []
        names += [name.replace(_SIGLIP, _NEW_SIGLIP, 1)] if _SIGLIP in name else []
        stored = (each for name in names for each in (name, name.partition(".")[2]) if each in self._tensors)
        return next(stored, None)

    def _tensor(self, name: str) -> Tensor | None:
        stored = self._stored(name)
        return None if stored is None else self._tensors[stored]

    def has(self, name: str) -> bool:
        """Whether there is a tensor of that name."""
        return self._tensor(name) is not None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a tensor of floats; None where there is none of that name."""
        tensor = self._tensor(name)
        return None if tensor is None or tensor.dtype not in FLOATS else tensor.shape

    def other_vectors(self, names: Iterable[str]) -> Iterator[str]:
        """Vectors of floats, not all zero, that lie in the layers of these tensors and are none of them.

        Of quantized checkpoints none: what is stored beside their matrices looks alike.
        """
        if self._scheme is not None:
            return
        stored_names = {stored for name in names if (stored := self._stored(name)) is not None}
        layers = {match[0] for name in stored_names if (match := _LAYER.match(name))}
        for name, tensor in self._tensors.items():
            match = _LAYER.match(name)
            if match is None or match[0] not in layers or name in stored_names or name.endswith(_CONSTANTS):
                continue
            if len(tensor.shape) == 1 and tensor.dtype in FLOATS and self.rows(name, 0, tensor.shape[0]).any():
                yield name

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises ExportError unless the tensor is here with this shape and a float type.

        All dimensions of the tensor but the last count as one.
        """
        composed = self._composed(name)
        if composed is not None:
            composed.check(name, shape)
            return
        packed = self._packed(name)
        if packed is not None:
            packed.check(shape)
            return
        tensor = self._tensor(name)
        if tensor is None:
            raise ExportError(f"'{self.folder}' has no tensor '{name}', which its config.json calls for.")
        dims = tensor.shape or (1,) if len(tensor.shape) < 2 else (math.prod(tensor.shape[:-1]), tensor.shape[-1])
        if dims != shape:
            raise ExportError(f"tensor '{name}' is {list(tensor.shape)}; config.json calls for {list(shape)}.")
        if tensor.dtype not in FLOATS:
            raise ExportError(f"tensor '{name}' is {tensor.dtype}; expected F16, BF16 or F32.")

    def rows(self, name: str, start: int, stop: int) -> F32:
        """Rows [start, stop) of a tensor, as float32: what lies along its last dimension; of a vector, its values."""
        composed = self._composed(name)
        if composed is not None:
            return composed.rows(self._read, start, stop)
        packed = self._packed(name)
        if packed is not None:
            return packed.rows(self._read_cached, start, stop)
        tensor = self._tensor(name)
        assert tensor is not None, name  # as `check` found
        row_shape = tensor.shape[-1:] if len(tensor.shape) > 1 else ()
        row_values = math.prod(row_shape)
        row_bytes = row_values * BYTES[tensor.dtype]
        raw = self._read(tensor, start * row_bytes, (stop - start) * row_bytes)
        return to_float32(raw, tensor.dtype).reshape(stop - start, *row_shape)

    def _composed(self, name: str) -> Experts | SplitConvolution | None:
        """What stands behind a name that no tensor has: a part of a tensor, or several."""
        return find_experts(self._tensors, name) or find_convolution(self._tensors, name)

    def integers(self, name: str) -> NDArray[np.int64] | None:
        """A vector of 64-bit integers; None where there is none of that name. Raises ExportError for another type."""
        tensor = self._tensor(name)
        if tensor is None:
            return None
        if tensor.dtype != "I64" or len(tensor.shape) != 1:
            raise ExportError(f"tensor '{name}' is {tensor.dtype} {list(tensor.shape)}; expected a vector of I64.")
        return np.frombuffer(self._read(tensor, 0, tensor.length), "<i8")

    def packing(self, name: str) -> Packing | None:
        """How a tensor is stored so that nothing is lost; None for floats. Raises ExportError where it cannot be."""
        matrix = self._packed(name)
        return None if matrix is None else self._packing(matrix)

    def packed(self, name: str, start: int, stop: int) -> Packed:
        """Rows [start, stop) of a quantized tensor, as they are stored."""
        matrix = self._packed(name)
        assert matrix is not None, name  # as `packing` found
        return matrix.packed(self._read_cached, self._packing(matrix), start, stop)

    def order(self, name: str) -> NDArray[np.int32] | None:
        """Which of a tensor's columns each packed one is; None: each itself."""
        matrix = self._packed(name)
        return matrix.order(self._read_cached) if isinstance(matrix, PackedMatrix) else None

    def _packed(self, name: str) -> QuantizedMatrix | None:
        return find_quantized(self._scheme, self._tensors, name, self._read_cached)

    def _packing(self, matrix: QuantizedMatrix) -> Packing:
        """What it takes a look at all zero points to know."""
        with self._lock:
            packing = self._packings.get(matrix.name)
        if packing is None:
            matrix.check(matrix.shape)
            packing = self._packings[matrix.name] = matrix.packing(self._read_cached)
        return packing

    def _read_cached(self, tensor: Tensor, start: int, count: int) -> bytearray:
        """As _read(); of a tensor that is read whole, the last few are kept: its rows are asked for in pieces."""
        if start or count != tensor.length:
            return self._read(tensor, start, count)
        place = tensor.file, tensor.offset
        with self._lock:
            raw = self._whole.get(place)
        if raw is None:
            raw = self._read(tensor, start, count)
            with self._lock:
                self._whole[place] = raw
                while len(self._whole) > _MOST_WHOLE:
                    del self._whole[next(iter(self._whole))]
        return raw

    def _read(self, tensor: Tensor, start: int, count: int) -> bytearray:
        """Bytes of a tensor."""
        return self._files.read(tensor.file, tensor.offset + start, count)

    def close(self) -> None:
        self._files.close()


def read_json(path: Path, what: str) -> dict[str, object]:
    """A JSON object from a file; ExportError says what is wrong with it."""
    return {**required_json_object(path, f"{what} there", error=ExportError)}


def _find_tensors(folder: Path) -> dict[str, Tensor]:
    named = _weight_files(folder)
    files = sorted(folder.glob("*.safetensors")) if named is None else [folder / name for name in named]
    if not files:
        others = [p.name for p in sorted(folder.iterdir()) if p.suffix in (".bin", ".pt", ".pth", ".gguf", ".onnx")]
        listing = f"found {', '.join(others)}; " if others else ""
        raise ExportError(f"no safetensors in '{folder}'; {listing}expected model.safetensors or its shards.")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors.update(read_header(file).tensors)
        except PackageError as error:
            raise ExportError(str(error)) from error
    return tensors


def _weight_files(folder: Path) -> list[str] | None:
    """The files that hold the weights, if the folder says so; repositories often have others beside them."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists():
        return ["model.safetensors"]
    if not index.exists():
        return None
    weight_map = read_json(index, "the list of shards").get("weight_map")
    if not isinstance(weight_map, dict):
        raise ExportError(f"'{index}' has no 'weight_map' object.")
    for name in weight_map.values():
        if not isinstance(name, str) or name in ("", "..") or Path(name).name != name:
            raise ExportError(f"'{index}' names the shard {name!r}; expected a plain file name.")
    return sorted(set(weight_map.values()))

"""A model in GGUF: its config, its small files as Hugging Face has them, and its tensors once it is described."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from embedllm.errors import UnsupportedModel
from embedllm.export.checkpoints.open_files import OpenFiles
from embedllm.export.gguf.config import config_of, mtp_blocks
from embedllm.export.gguf.encoders import sentences_of, task_of
from embedllm.export.gguf.metadata_files import write_texts
from embedllm.export.gguf.mmproj import Mmproj, find_mmproj, open_mmproj
from embedllm.export.gguf.reader import GgufModel, read_model
from embedllm.export.gguf.rope import ROTATIONS
from embedllm.export.gguf.tensor_location import TensorLocation
from embedllm.export.gguf.tensor_names import layer_locations, tensor_locations
from embedllm.export.gguf.tensor_names_vision import repeated, vision_locations, with_own_order
from embedllm.export.gguf.tensors import GgufTensors
from embedllm.files.atomic import write_json
from embedllm.hub.location import Location
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.weights import Linear, Norm, Origin

if TYPE_CHECKING:
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.architecture.layer import Layer

SUFFIX = ".gguf"
_HEAD = "output.weight"  # which an embedding model may have and does not use
T = TypeVar("T")


class GgufSource:
    """A model's metadata as a checkpoint has it; tensors() gives its weights.

    folder: what the file says of tokens and chats, in small files that are gone when this is closed.
    mmproj: the file of the model's vision encoder; True: the one beside it, if there is; False: text only.
    Raises ExportError, UnsupportedModel.
    """

    def __init__(self, path: Path, mmproj: Path | bool = True) -> None:
        self._model: GgufModel = read_model(path)
        self.config, self._family = config_of(self._model)
        self.mtp_blocks = mtp_blocks(self.config)
        encoder = _mmproj_of(self._model, mmproj)
        if encoder is not None:
            self.config, self._model = encoder.config(self.config), encoder.joined()
        self.folders: tuple[str, ...] = ()  # of sentence-transformers: there are none
        self.task = task_of(self._model, self._family)
        self.sentences = sentences_of(self._model) if self.task == "embed" else None
        self._files = OpenFiles()
        self._texts = tempfile.TemporaryDirectory(prefix="embedllm-gguf-")
        self.folder = Path(self._texts.name)
        try:
            write_texts(self._model, self.folder)
            if encoder is not None:
                write_json(self.folder / "preprocessor_config.json", encoder.processor)
        except BaseException:
            self._texts.cleanup()
            raise

    @property
    def location(self) -> Location:
        return Location(self.folder, self._model.path.name)

    def tensors(self, decoder: Decoder) -> tuple[Decoder, GgufTensors]:
        """The decoder as these files hold it, and its tensors, which can be read until this is closed.

        Raises UnsupportedModel where the files hold more than it has.
        """
        described, decoder = decoder, unfused(decoder)
        locations = tensor_locations(decoder, self._family, self._model.tensors)
        if decoder.vision is not None and described.vision is not None:
            vision = with_own_order(decoder.vision, described.vision)
            locations |= vision_locations(vision, self._model.tensors)
            decoder = dataclasses.replace(decoder, vision=vision)
        used_names = {name for location in locations.values() for name in location.names} | ROTATIONS
        if decoder.encoder is not None:
            used_names.add(_HEAD)
        if decoder.vision is not None:
            used_names |= repeated(decoder.vision)
        skipped = (*(f"blk.{number}." for number in self.mtp_blocks), *_unused_keys(decoder))
        unread = {name for name in self._model.tensors if name not in used_names and not name.startswith(skipped)}
        if unread:
            name = min(unread)
            raise UnsupportedModel(
                f"'{self._model.tensors[name].file}' has a tensor '{name}' that is of no part of a "
                f"'{decoder.model_type}' as its metadata describes it. Try the checkpoint that the file was made from.",
                model_type=decoder.model_type,
            )
        return decoder, GgufTensors(self._model, self._files, locations)

    def has(self, name: str) -> bool:
        """Whether there is a tensor of that name, as GGUF has it."""
        return name in self._model.tensors

    def head_tensors(self, decoder: Decoder, layer: Layer, block: int) -> GgufTensors:
        """The tensors of a multi-token prediction head, whose layer is that block; its others by their names in GGUF.

        decoder: the model, which is unfused(), as the layer is. Raises UnsupportedModel.
        """
        if self._family.separate_mlps:
            raise UnsupportedModel(
                f"the multi-token prediction head of a '{decoder.model_type}' is not read from GGUF.",
                model_type=decoder.model_type,
            )
        tensors = self._model.tensors
        locations = tensor_locations(decoder, self._family, tensors)
        locations |= layer_locations(layer, f"blk.{block}", self._family, tensors)
        own = {name: TensorLocation(tensor=name) for name in tensors if name.startswith(f"blk.{block}.nextn.")}
        return GgufTensors(self._model, self._files, locations | own)

    def close(self) -> None:
        self._files.close()
        self._texts.cleanup()


def _mmproj_of(model: GgufModel, mmproj: Path | bool) -> Mmproj | None:
    if isinstance(mmproj, bool):
        return find_mmproj(model) if mmproj else None
    return open_mmproj(mmproj, model)


def _unused_keys(decoder: Decoder) -> Iterator[str]:
    """How the names begin of tensors that are not used: of layers that read the keys and values of others."""
    for index, layer in enumerate(decoder.layers):
        if isinstance(layer.attention, Attention) and layer.attention.kv_from is not None:
            yield from (f"blk.{index}.{part}" for part in ("attn_k.", "attn_v.", "attn_k_norm."))


def unfused(node: T) -> T:
    """The same, where no norm adds to its weights, and no matrix is multiplied, transposed or part of another one."""
    if isinstance(node, Norm):
        return dataclasses.replace(node, weight_offset=0.0)
    if isinstance(node, Linear):
        return _unfused_linear(node)
    if isinstance(node, tuple):
        return tuple(unfused(each) for each in node)  # type: ignore[return-value]  # of the same types
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        changes = {f.name: unfused(getattr(node, f.name)) for f in dataclasses.fields(node)}
        return dataclasses.replace(node, **changes)
    return node


def _unfused_linear(linear: Linear) -> Linear:
    """One that is part of another gets a name of its own; the order of its rows within a head stays."""
    linear = dataclasses.replace(linear, weight_multiplier=1.0)
    if linear.origin is None:
        return linear
    whole = dataclasses.replace(linear.origin, rows=linear.rows, start=0, block=0, stride=0, transposed=False,
                                source_columns=0, column_start=0)  # fmt: skip
    return dataclasses.replace(
        linear,
        source=linear.name if linear.origin.source_columns or linear.origin.rows != linear.rows else linear.source,
        origin=None if whole == Origin(rows=linear.rows) else whole,
    )

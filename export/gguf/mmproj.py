"""The vision encoder of a model in GGUF: a file of its own (mmproj), given by name or found beside the text model."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures.config import Config
from embedllm.export.gguf.header import shortest
from embedllm.export.gguf.projectors import PROJECTORS, Projector
from embedllm.export.gguf.reader import GgufModel, read_model
from embedllm.files.nearest import nearest
from embedllm.hub.mmproj_files import is_mmproj, preferred

_ARCHITECTURE, _KEYS = "clip", "clip."
_SECTIONS = "rope.dimension_sections"  # of M-RoPE: time, rows, columns, and one that is 0
_SEEING = frozenset(name for projector in PROJECTORS.values() for name in projector.families)
_log = logging.getLogger("embedllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mmproj:
    """A vision encoder that fits a text model."""

    model: GgufModel
    projector: Projector
    own: Config  # what it says, behind "clip."
    text: GgufModel
    image_token: int

    @property
    def processor(self) -> dict[str, object]:
        """preprocessor_config.json."""
        return self.projector.processor(self.own)

    def config(self, text: Mapping[str, object]) -> dict[str, object]:
        """The config.json of both together. text: that of the text model."""
        architecture = _architecture(self.text)
        section = dict(text)
        sections = self.text.metadata.get(f"{architecture}.{_SECTIONS}")
        if sections is not None:
            if not isinstance(sections, np.ndarray) or sections.dtype.kind not in "iu" or len(sections) < 3:
                raise ExportError(
                    f"'{self.text.path}': '{architecture}.{_SECTIONS}' is {sections!r}; expected numbers."
                )
            scaling = section.get("rope_scaling")
            scaling = scaling if isinstance(scaling, dict) else {"rope_type": "default"}
            section["rope_scaling"] = {**scaling, "mrope_section": sections[:3].tolist()}
        return {
            **self.projector.config(self.own, self.model.tensors),
            "model_type": self.projector.families[architecture],
            "text_config": section,
            "tie_word_embeddings": section["tie_word_embeddings"],
            "image_token_id": self.image_token,
        }

    def joined(self) -> GgufModel:
        """The text model with the tensors of both. Raises ExportError for one that both have."""
        unread = self.projector.unread_tensors
        own = {name: tensor for name, tensor in self.model.tensors.items() if not name.startswith(unread)}
        if both := self.text.tensors.keys() & own.keys():
            raise ExportError(f"'{self.text.path}' and '{self.model.path}' both have a tensor '{min(both)}'.")
        return dataclasses.replace(self.text, tensors={**self.text.tensors, **own})


def open_mmproj(path: Path, text: GgufModel) -> Mmproj:
    """The vision encoder of a text model. Raises ExportError, UnsupportedModel for one that is not."""
    model = read_model(path)
    if _architecture(model) != _ARCHITECTURE:
        raise ExportError(
            f"'{path}' is a model of the architecture '{_architecture(model)}'; expected '{_ARCHITECTURE}', the vision "
            "encoder of a model (mmproj)."
        )
    metadata = {
        key.removeprefix(_KEYS): _plain(value) for key, value in model.metadata.items() if key.startswith(_KEYS)
    }
    own = Config(metadata, f"'{path}', {_KEYS}*")
    kind = own.text("projector_type", own.text("vision.projector_type", ""))
    projector = PROJECTORS.get(kind)
    if projector is None:
        raise UnsupportedModel(
            f"'{path}' has the projector '{kind}', which is not read from GGUF. Known: {', '.join(PROJECTORS)}."
            f"{nearest(kind, PROJECTORS)} Without it the text model can be exported alone: --no-mmproj."
        )
    if _architecture(text) not in projector.families:
        raise ExportError(
            f"'{path}' is the vision encoder of another model: its projector '{kind}' goes with the architecture "
            f"{' or '.join(projector.families)}; '{text.path}' is '{_architecture(text)}'."
        )
    projector.check(own, metadata, str(path))
    hidden = text.metadata.get(f"{_architecture(text)}.embedding_length")
    if (width := own.integer("vision.projection_dim")) != hidden:
        raise ExportError(
            f"'{path}' gives features of {width} values; the text model '{text.path}' has {hidden}. They are of two "
            "sizes of a model; take the file that was published with it."
        )
    return Mmproj(model=model, projector=projector, own=own, text=text, image_token=_image_token(text, projector))


def mmproj_files(files: Sequence[Path]) -> list[Path]:
    """The files whose names say that they are a vision encoder, in the folder of a model, as they are preferred().

    files: the model's.
    """
    try:
        siblings = list(files[0].parent.iterdir())
    except OSError:  # a folder whose files can be read but not listed
        return []
    encoders = {path.name: path for path in siblings if is_mmproj(path.name) and path.is_file() and path not in files}
    return [encoders[name] for name in preferred(encoders, files[0].name)]


def find_mmproj(text: GgufModel) -> Mmproj | None:
    """The first of mmproj_files() that fits a text model."""
    if not can_see(text):
        return None
    for path in mmproj_files(text.files):
        if (mmproj := _fitting(path, text)) is not None:
            _log.info("'%s' has its vision encoder in '%s'", text.path, path)
            return mmproj
    return None


def can_see(text: GgufModel) -> bool:
    """Whether a text model is of an architecture whose vision encoders are read."""
    return _architecture(text) in _SEEING


def fits(path: Path, text: GgufModel) -> bool:
    """Whether a file has the vision encoder of a text model."""
    return _fitting(path, text) is not None


def _fitting(path: Path, text: GgufModel) -> Mmproj | None:
    try:
        return open_mmproj(path, text)
    except ExportError as error:
        _log.info("'%s' is not taken as the vision encoder of '%s': %s", path, text.path, error)
        return None


def _architecture(model: GgufModel) -> str:
    return str(model.metadata.get("general.architecture"))


def _plain(value: object) -> object:
    """Numbers of a list as config.json has them."""
    if not isinstance(value, np.ndarray):
        return value
    return [shortest(each) if value.dtype == np.float32 else each for each in value.tolist()]


def _image_token(text: GgufModel, projector: Projector) -> int:
    tokens = text.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or projector.placeholder not in tokens:
        raise UnsupportedModel(
            f"'{text.path}' has no token '{projector.placeholder}', which stands for images in the prompts of such "
            "models. Take a file of the text model with its whole vocabulary."
        )
    return tokens.index(projector.placeholder)

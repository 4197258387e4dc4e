"""genai_config.json of onnxruntime-genai: its sections, and which graphs it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.files.json_object import read_json_object
from embedllm.package.manifest_fields import plain_name
from embedllm.types import JSON

CONFIG = "genai_config.json"
MAKER = "onnxruntime-genai"
# keys of decoder.inputs that name what other engines here feed
_INPUTS = {"input_ids", "attention_mask", "position_ids", "past_key_names", "past_value_names"}
_BESIDE = ("embedding", "vision", "speech")  # sections of graphs that work with a decoder that generates text
_LIBRARY = "custom_ops_library"  # a key that names code to load
# sections of what does not go on with a text: transcription, translation, a second model that guesses
_OTHERS = ("encoder", "joiner", "vad", "draft", "mtp")


@dataclass(frozen=True, slots=True)
class Config:
    """The file, and two of its sections."""

    path: Path
    model: Mapping[str, JSON]
    decoder: Mapping[str, JSON]

    @property
    def is_special(self) -> bool:
        """Whether its maker alone feeds it: several graphs, or one with states of other kinds than keys and values."""
        is_several = "pipeline" in self.decoder or any(name in self.model for name in (*_BESIDE, *_OTHERS))
        return is_several or not section(self.decoder, "inputs", self.path, needed=False).keys() <= _INPUTS

    @property
    def graphs(self) -> tuple[str, ...]:
        """All that it names, each once. Raises PackageError for names that lead out of the folder."""
        beside = [section(self.model, name, self.path) for name in _BESIDE if name in self.model]
        named = [name for part in (*beside, self.decoder) for name in self._named(part)]
        return tuple(dict.fromkeys(map(plain_name, named)))

    def check_special(self) -> None:
        """Raises PackageError for a model that does not go on with a text, and for one that brings code."""
        if others := [name for name in _OTHERS if name in self.model]:
            raise PackageError(
                f"'{self.path}' has the section '{others[0]}', of a model that does more than to go on with a text; "
                f"this library does not run such. {MAKER} itself does (pip install onnxruntime-genai)."
            )
        if _names_library(self.model):
            raise PackageError(
                f"'{self.path}' has the key '{_LIBRARY}', which loads code from the folder; this library runs none. "
                "Remove it where you know the model to run without."
            )

    def _named(self, part: Mapping[str, JSON]) -> Iterator[str]:
        """The graphs of one section: its stages', which are objects by their names, in a list or in another object."""
        stages = part.get("pipeline")
        if stages is None:
            yield text(part, "filename", "model.onnx", self.path)
            return
        listed = [stages] if isinstance(stages, Mapping) else stages
        if not isinstance(listed, list) or not listed or not all(isinstance(one, Mapping) and one for one in listed):
            raise PackageError(f"'pipeline' of '{self.path}' is {stages!r:.40}; expected stages, each with its graph.")
        for one in listed:
            assert isinstance(one, Mapping)  # checked
            for name in one:
                yield text(section(one, name, self.path), "filename", None, self.path)


def read_config(path: Path) -> Config:
    """Raises PackageError for a file without these sections."""
    model = section(read_json_object(path), "model", path)
    return Config(path, model, section(model, "decoder", path))


def section(data: Mapping[str, JSON], key: str, path: Path, *, needed: bool = True) -> Mapping[str, JSON]:
    """An object in another one; empty where it is neither there nor needed."""
    value = data.get(key, None if needed else {})
    if not isinstance(value, Mapping):
        raise PackageError(f"'{key}' of '{path}' is {value!r:.40}; expected an object. Fetch the file again.")
    return value


def text(data: Mapping[str, JSON], key: str, usual: str | None, path: Path) -> str:
    """usual: where it says nothing; None: it has to."""
    value = data.get(key, usual)
    if not isinstance(value, str):
        raise PackageError(f"'{key}' of '{path}' is {value!r:.40}; expected a text. Fetch the file again.")
    return value


def _names_library(value: JSON) -> bool:
    if isinstance(value, Mapping):
        return _LIBRARY in value or any(map(_names_library, value.values()))
    return isinstance(value, list) and any(map(_names_library, value))

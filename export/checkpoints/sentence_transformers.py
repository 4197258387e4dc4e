"""What the files of sentence-transformers say is made of a model's vectors: modules.json and what it names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.huggingface import read_json
from embedllm.export.checkpoints.open_files import reading
from embedllm.package.architecture.encoder import Dense, Encoder, NamedPrompt
from embedllm.package.architecture.weights import Linear

MODULES = "modules.json"
_POOLINGS = {
    "cls": "cls", "mean": "mean", "max": "max", "lasttoken": "lasttoken", "weightedmean": "weightedmean",
    "mean_sqrt_len": "mean_sqrt_len_tokens", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}  # fmt: skip
_OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}  # fmt: skip
_ACTIVATIONS = {"Identity": "", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFolder:
    """A folder with a modules.json, read and checked."""

    pooling: str = ""  # as Encoder has it; empty: the family's own
    denses: tuple[Dense, ...] = ()
    folders: tuple[str, ...] = ()  # of those: each has a model.safetensors of its own
    normalize: bool = False
    tokens: int | None = None  # of a text at most
    prompts: tuple[NamedPrompt, ...] = ()
    prompt: str = ""

    def applied(self, encoder: Encoder, hidden: int) -> Encoder:
        """A family's encoder with what the folder says, behind the family's own matrices.

        Raises ExportError for matrices that do not fit, UnsupportedModel for a pooling in front of which the family's
        matrices give something else than behind it.
        """
        pooling, width = self.pooling or encoder.pooling, encoder.dense[-1].linear.rows if encoder.dense else hidden
        if encoder.dense and pooling == "max":
            raise UnsupportedModel(
                f"'{MODULES}' pools by 'max' what '{encoder.dense[-1].linear.source}' gives; that is not described."
            )
        for step in self.denses:
            if step.linear.columns != width:
                raise ExportError(
                    f"'{step.linear.source.partition('/')[0]}' takes vectors of {step.linear.columns} values; what is "
                    f"before it gives {width}."
                )
            width = step.linear.rows
        return replace(encoder, pooling=pooling, dense=(*encoder.dense, *self.denses),
                       normalize=self.normalize, prompts=self.prompts, prompt=self.prompt)  # fmt: skip


def read_sentence_folder(folder: Path) -> SentenceFolder | None:
    """What a checkpoint's folder says; None for one that has no modules.json.

    Raises ExportError for files that are damaged, UnsupportedModel for modules that are not described.
    """
    path = folder / MODULES
    if not path.exists():
        return None
    settings = SentenceFolder(tokens=_tokens(folder))
    for index, (kind, place) in enumerate(_modules(path)):
        if (kind == "Transformer") != (index == 0):
            raise UnsupportedModel(f"module {index} of '{path}' is '{kind}'; expected 'Transformer' first, and once.")
        if kind == "Transformer":
            if place:
                raise UnsupportedModel(f"the transformer of '{path}' lies in '{place}'; expected it beside that file.")
        elif kind == "Pooling" and not settings.pooling:
            settings = replace(settings, pooling=_pooling(folder / place))
        elif kind == "Dense" and settings.pooling and not settings.normalize:
            step = _dense(folder / place, place, len(settings.denses))
            settings = replace(settings, denses=(*settings.denses, step), folders=(*settings.folders, place))
        elif kind == "Normalize" and settings.pooling:
            settings = replace(settings, normalize=True)
        else:
            raise UnsupportedModel(
                f"module {index} of '{path}' is '{kind}'; expected Transformer, Pooling, Dense, Normalize."
            )
    prompts, prompt = _prompts(folder)
    return replace(settings, prompts=prompts, prompt=prompt)


def _modules(path: Path) -> list[tuple[str, str]]:
    """The kind and the folder of each module, in their order."""
    with reading(path):
        text = path.read_text(encoding="utf-8")
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExportError(f"cannot read '{path}': {error}.") from error
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, dict) for entry in listed):
        raise ExportError(f"'{path}' is no list of modules; expected one, each an object with 'type' and 'path'.")
    modules: list[tuple[str, str]] = []
    for entry in listed:
        kind, place = entry.get("type"), entry.get("path", "")
        if not isinstance(kind, str) or not isinstance(place, str) or place.startswith("/") or ".." in place:
            raise ExportError(f"'{path}' has the module {entry!r}; expected a 'type' and a 'path' inside the folder.")
        modules.append((kind.rpartition(".")[2], place))
    return modules


def _pooling(place: Path) -> str:
    config = read_json(place / "config.json", "how vectors of tokens become one")
    if config.get("include_prompt") is False:
        raise UnsupportedModel(f"'{place}' leaves the prompt's tokens out of the pooling, which is not described.")
    named = config.get("pooling_mode")
    if named is not None:
        if not isinstance(named, str) or named not in _POOLINGS:
            raise UnsupportedModel(f"pooling_mode of '{place}' is {named!r}; known: {', '.join(_POOLINGS)}.")
        return _POOLINGS[named]
    modes = [mode for key, mode in _OLD_POOLINGS.items() if config.get(key) is True]
    if len(modes) != 1:
        raise UnsupportedModel(f"'{place}' has {len(modes)} ways of pooling ({', '.join(modes)}); expected one.")
    return modes[0]


def _dense(place: Path, name: str, index: int) -> Dense:
    config = Config(read_json(place / "config.json", "the sizes of a matrix"), f"{name}/config.json")
    class_path = config.text("activation_function", "torch.nn.modules.activation.Tanh")
    activation = class_path.rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise UnsupportedModel(f"the activation of '{name}' is '{class_path}'; known: {', '.join(_ACTIVATIONS)}.")
    for key in ("module_input_name", "module_output_name"):
        if config.text(key, "sentence_embedding") != "sentence_embedding":
            raise UnsupportedModel(f"'{name}' changes what is no vector of a text ('{key}'); that is not described.")
    linear = Linear(
        name=f"steps.{index}",
        source=f"{name}/linear",
        rows=config.integer("out_features"),
        columns=config.integer("in_features"),
        bias=config.flag("bias", True),
    )
    return Dense(linear=linear, activation=_ACTIVATIONS[activation])


def _tokens(folder: Path) -> int | None:
    path = folder / "sentence_bert_config.json"
    if not path.exists():
        return None
    config = Config(read_json(path, "the limits of a text"), path.name)
    if config.flag("do_lower_case", False):
        raise UnsupportedModel(f"'{path.name}' has do_lower_case, which is not described; expected false.")
    return config.integer_or_none("max_seq_length", None)


def _prompts(folder: Path) -> tuple[tuple[NamedPrompt, ...], str]:
    """The prompts, and the name of the one that is usual."""
    path = folder / "config_sentence_transformers.json"
    if not path.exists():
        return (), ""
    config = read_json(path, "prompts")
    prompts, usual = config.get("prompts") or {}, config.get("default_prompt_name") or ""
    if not isinstance(prompts, Mapping) or not all(_are_texts(pair) for pair in prompts.items()):
        raise ExportError(f"'prompts' of '{path}' is {prompts!r}; expected texts by their names.")
    if not isinstance(usual, str) or (usual and usual not in prompts):
        raise ExportError(f"'default_prompt_name' of '{path}' is {usual!r}; it is none of: {', '.join(prompts)}.")
    return tuple(NamedPrompt(name=name, text=text) for name, text in prompts.items()), usual


def _are_texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)

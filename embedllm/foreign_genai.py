"""Folders of onnxruntime-genai: genai_config.json says how the graph beside it is called and fed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.export.traced import Names
from embedllm.foreign import Reading
from embedllm.foreign_onnx import reading_of
from embedllm.foreign_texts import Texts, whole
from embedllm.manifest_values import plain_name
from embedllm.tokenizer_config import JSON, read_json_object

CONFIG = "genai_config.json"
_MAKER = "onnxruntime-genai"
_SEVERAL = ("embedding", "encoder", "vision", "speech")  # sections of models in several graphs
# keys of decoder.inputs and decoder.outputs that name what is fed here
_INPUTS = {"input_ids", "attention_mask", "position_ids", "past_key_names", "past_value_names"}
_USUAL = Names()


def read(root: Path, chosen: Path | None) -> Reading | None:
    """chosen: a graph that was asked for; it is read here when it is the one that the configuration names."""
    config = root / CONFIG
    if not config.is_file():
        return None
    model = _section(read_json_object(config), "model", config)
    decoder = _section(model, "decoder", config)
    _check_alone(model, decoder, root)
    path = root / _graph(decoder, config)
    if chosen is not None and chosen != path:
        return None
    texts, named = Texts(root), _names(decoder, config)
    context = texts.context(stated=model.get("context_length"))
    kv = whole(decoder.get("num_key_value_heads")), whole(decoder.get("head_size"))
    eos = model.get("eos_token_id")
    return reading_of(path, texts, named, root=root, maker=_MAKER, context=context, kv=kv, eos=eos)


def graph_named(config: Path) -> str:
    """The graph that a configuration names, before it is there. Raises PackageError for a model in several graphs."""
    model = _section(read_json_object(config), "model", config)
    decoder = _section(model, "decoder", config)
    _check_alone(model, decoder, config.parent)
    return _graph(decoder, config)


def _graph(decoder: Mapping[str, JSON], config: Path) -> str:
    return plain_name(_text(decoder, "filename", "model.onnx", config))


def _check_alone(model: Mapping[str, JSON], decoder: Mapping[str, JSON], root: Path) -> None:
    """Raises PackageError for a model that is more than one graph."""
    several = [name for name in _SEVERAL if name in model]
    if "pipeline" in decoder:
        several.append("decoder.pipeline")
    if several:
        raise PackageError(
            f"'{root / CONFIG}' describes a model in several graphs ({', '.join(several)}), which this library does "
            f"not run; {_MAKER} itself does (pip install onnxruntime-genai). Or export the checkpoint: "
            "embedllm export SOURCE OUT."
        )


def _names(decoder: Mapping[str, JSON], config: Path) -> Names:
    """As the configuration says, or onnxruntime-genai's own where it says nothing."""
    inputs, outputs = (_section(decoder, key, config, needed=False) for key in ("inputs", "outputs"))
    if odd := sorted(inputs.keys() - _INPUTS):
        raise PackageError(
            f"'{config}' names the inputs {', '.join(repr(name) for name in odd)} of the decoder, which this library "
            f"does not feed; {_MAKER} itself does (pip install onnxruntime-genai)."
        )
    past = [_text(inputs, f"past_{part}_names", usual, config) for part, usual in
            zip(("key", "value"), _USUAL.past, strict=True)]  # fmt: skip
    present = [_text(outputs, f"present_{part}_names", usual, config) for part, usual in
               zip(("key", "value"), _USUAL.present, strict=True)]  # fmt: skip
    for name in (*past, *present):
        if name.count("%d") != 1:
            raise PackageError(f"'{config}' names keys or values '{name}'; expected one %d in it, for the layer.")
    return Names(
        tokens=_text(inputs, "input_ids", _USUAL.tokens, config),
        mask=_text(inputs, "attention_mask", _USUAL.mask, config),
        positions=_text(inputs, "position_ids", _USUAL.positions, config),
        logits=_text(outputs, "logits", _USUAL.logits, config),
        past=(past[0], past[1]),
        present=(present[0], present[1]),
    )


def _section(data: Mapping[str, JSON], key: str, config: Path, *, needed: bool = True) -> Mapping[str, JSON]:
    value = data.get(key, None if needed else {})
    if not isinstance(value, Mapping):
        raise PackageError(f"'{key}' of '{config}' is {value!r:.40}; expected an object. Fetch the file again.")
    return value


def _text(data: Mapping[str, JSON], key: str, usual: str, config: Path) -> str:
    value = data.get(key, usual)
    if not isinstance(value, str):
        raise PackageError(f"'{key}' of '{config}' is {value!r:.40}; expected a text. Fetch the file again.")
    return value

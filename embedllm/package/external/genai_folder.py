"""Folders of onnxruntime-genai: genai_config.json says how the graph beside it is called and fed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.package.external import genai_pipeline
from embedllm.package.external.config_files import Texts, whole
from embedllm.package.external.genai_config import CONFIG, MAKER, Config, read_config, section, text
from embedllm.package.external.onnx_folder import reading_of
from embedllm.package.external.types import Reading
from embedllm.package.external_graph import Names

# ours by the providers of its session_options
_DEVICES = {"cuda": "cuda", "dml": "directml", "webgpu": "webgpu"}
_USUAL = Names()


def read(root: Path, chosen: Path | None) -> Reading | None:
    """chosen: a graph that was asked for; it is read here when it is the one that the configuration names."""
    path = root / CONFIG
    if not path.is_file():
        return None
    config = read_config(path)
    if config.is_special:
        return None if chosen else genai_pipeline.read(config)
    (name,) = config.graphs
    graph = root / name
    if chosen is not None and chosen != graph:
        return None
    texts, named = Texts(root), _names(config)
    context = texts.context(stated=config.model.get("context_length"))
    kv = whole(config.decoder.get("num_key_value_heads")), whole(config.decoder.get("head_size"))
    eos = config.model.get("eos_token_id")
    return reading_of(graph, texts, named, root=root, maker=MAKER, context=context, kv=kv, eos=eos,
                      prefers=_preferred(config), is_asked=chosen is not None)  # fmt: skip


def _preferred(config: Config) -> str:
    """The device of ours that a folder was made for, as its provider_options name it; empty where it is none."""
    options = config.decoder.get("session_options")
    providers = options.get("provider_options") if isinstance(options, Mapping) else None
    named = (one for one in (providers if isinstance(providers, list) else ()) if isinstance(one, Mapping))
    names = [name.lower() for one in named for name in one]
    return next((_DEVICES[name] for name in names if name in _DEVICES), "")


def _names(config: Config) -> Names:
    """As the configuration says, or onnxruntime-genai's own where it says nothing."""
    path = config.path
    inputs, outputs = (section(config.decoder, key, path, needed=False) for key in ("inputs", "outputs"))
    past = [text(inputs, f"past_{part}_names", usual, path) for part, usual in
            zip(("key", "value"), _USUAL.past, strict=True)]  # fmt: skip
    present = [text(outputs, f"present_{part}_names", usual, path) for part, usual in
               zip(("key", "value"), _USUAL.present, strict=True)]  # fmt: skip
    for name in (*past, *present):
        if name.count("%d") != 1:
            raise PackageError(f"'{path}' names keys or values '{name}'; expected one %d in it, for the layer.")
    return Names(
        tokens=text(inputs, "input_ids", _USUAL.tokens, path),
        mask=text(inputs, "attention_mask", _USUAL.mask, path),
        positions=text(inputs, "position_ids", _USUAL.positions, path),
        logits=text(outputs, "logits", _USUAL.logits, path),
        past=(past[0], past[1]),
        present=(present[0], present[1]),
    )

"""Folders of onnxruntime-genai that only it can run, most of them of several graphs: backends/genai/engine.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embedllm.errors import PackageError
from embedllm.package.external.config_files import Texts, whole
from embedllm.package.external.genai_config import MAKER, Config, section
from embedllm.package.external.onnx_folder import check_ends, weights_of
from embedllm.package.external.types import ExternalFolder, Reading, Window
from embedllm.package.external_graph import ExternalGraph, Names
from embedllm.package.graph_variants import GENAI
from embedllm.package.onnx_reader import FLOAT16, GraphSummary, read_graph_summary

DEVICES = ("genai",)
COMPILED = "EPContext"  # an operator of graphs that a device has compiled, into a file beside them
_LAYERS, _MOST_LAYERS = "num_hidden_layers", 1_000
_LEAST_WINDOW = 2  # tokens
# operators of graphs that round activations, or may
_ROUNDING = {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QuantizeLinear", COMPILED}


def read(config: Config) -> Reading:
    """Raises PackageError for a model that is not run, and for a configuration without what onnxruntime-genai needs."""
    config.check_special()
    root = config.path.parent
    graphs = [root / name for name in config.graphs]
    summaries = [read_graph_summary(path) for path in graphs]
    for path, summary in zip(graphs, summaries, strict=True):
        check_ends(summary, path)
    beside = [file for path, summary in zip(graphs, summaries, strict=True) for file in weights_of(summary, path)]
    vocabulary = _number(config.model, "vocab_size", config)
    heads, size = (_number(config.decoder, key, config) for key in ("num_key_value_heads", "head_size"))
    layers, texts = _number(config.decoder, _LAYERS, config), Texts(root)
    context = texts.context(stated=config.model.get("context_length"))
    return Reading(
        root=root,
        graph=config.path,
        weights=tuple(dict.fromkeys([*graphs, *beside])),
        variant=GENAI,
        activations=_activations(summaries),
        described=ExternalGraph(
            model_type=texts.model_type,
            context=context,
            vocabulary=vocabulary,
            kv=((heads, size),) * layers,
            parameters=sum(summary.stored for summary in summaries),
            in_pieces=True,  # until it is found otherwise: backends/genai/engine.py
        ),
        stop_tokens=texts.stop_tokens(vocabulary, stated=config.model.get("eos_token_id")),
        external=ExternalFolder(
            maker=MAKER,
            names=Names(rounds=any(node.operator in _ROUNDING for summary in summaries for node in summary.nodes)),
            devices=DEVICES,
            weights=config.path.name,
            window=_window(config, context),
        ),
    )


def _activations(summaries: Sequence[GraphSummary]) -> str:
    """By what the graphs hand on: keys and values are among it."""
    kinds = {output.kind for summary in summaries for output in summary.outputs}
    return "float16" if FLOAT16 in kinds else "float32"


def _window(config: Config, context: int) -> Window | None:
    """Where a prompt is fed in pieces of a fixed size; other windows are of attention alone."""
    filler = config.model.get("pad_token_id", 0)
    if type(filler) is not int:
        raise PackageError(
            f"'pad_token_id' of '{config.path}' is {filler!r:.40}; expected a token. Fetch the file again."
        )
    window = section(config.decoder, "sliding_window", config.path, needed=False)
    if not window or window.get("slide_inputs", True) is not True:
        return None
    if filler < 0:
        raise PackageError(f"'pad_token_id' of '{config.path}' is {filler}; expected a token, which fills windows up.")
    size = _number(window, "window_size", config)
    if size < _LEAST_WINDOW:
        raise PackageError(
            f"'window_size' of '{config.path}' is {size} tokens; expected {_LEAST_WINDOW} or more, else {MAKER} "
            "(0.18) ends the process."
        )
    if size > context:
        raise PackageError(
            f"'window_size' of '{config.path}' is {size} tokens, more than the {context} that the model holds. "
            "Fetch the file again."
        )
    return Window(size=size, filler=filler)


def _number(data: Mapping[str, object], key: str, config: Config) -> int:
    number = whole(data.get(key))
    if number is None or (key == _LAYERS and number > _MOST_LAYERS):
        raise PackageError(
            f"'{key}' of '{config.path}' is {data.get(key)!r:.40}; expected a number from 1 on, without which "
            f"{MAKER} does not run it. Fetch the file again."
        )
    return number

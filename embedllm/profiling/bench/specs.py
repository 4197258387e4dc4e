"""Which engines are compared: how --against names them, and what has to be installed for each."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from embedllm.hub.name import hub_name
from embedllm.loading.resolve import find_package
from embedllm.package.package import open_package

OURS, GENAI, OPENVINO_GENAI, LLAMA_CPP, TRANSFORMERS = (
    "embedllm", "onnxruntime-genai", "openvino-genai", "llama-cpp", "transformers",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another engine."""

    modules: tuple[str, ...]
    install: str
    source: str  # what follows the colon
    takes_our_folder: bool = False
    or_module: str = ""  # which is taken where the others are not installed


PEERS: Mapping[str, Peer] = {
    GENAI: Peer(modules=("onnxruntime_genai",), install="pip install onnxruntime-genai", source="FOLDER",
                takes_our_folder=True),
    OPENVINO_GENAI: Peer(modules=("openvino_genai",), install="pip install openvino-genai", source="FOLDER",
                         takes_our_folder=True),
    LLAMA_CPP: Peer(modules=("llama_cpp",), install="pip install xllamacpp", source="FILE.gguf",
                    or_module="xllamacpp"),
    TRANSFORMERS: Peer(modules=("transformers", "torch"), install="pip install transformers torch", source="FOLDER"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One engine, and what it is to run."""

    engine: str  # OURS or a key of PEERS
    path: str
    device: str = ""  # of ours; empty: the usual choice
    label: str  # as it was asked for


def own_spec(model: str, device: str = "") -> Spec:
    """A package folder in this library. Raises PackageError when it is none, ValueError when it generates no text."""
    package = open_package(find_package(model), whole=False)
    package.check_generates()
    folder = package.folder
    return Spec(
        engine=OURS, path=str(folder), device=device, label=f"embedllm {model}" + (f"@{device}" if device else "")
    )


def against_spec(text: str, own: Spec) -> Spec:
    """What --against names: a folder of ours, FOLDER@DEVICE, or another engine with what it is to run after a colon.

    own: whose folder the engines run that can. Raises PackageError; ValueError, with what to install when the engine is
    not there.
    """
    engine, _, source = text.partition(":")
    if engine not in PEERS:
        return _ours(text)
    peer = PEERS[engine]
    missing = [module for module in peer.modules if importlib.util.find_spec(module) is None]
    if missing and not (peer.or_module and importlib.util.find_spec(peer.or_module)):
        raise ValueError(f"'{engine}' is not installed (no module '{missing[0]}'). Install it: {peer.install}")
    if not source and not peer.takes_our_folder:
        raise ValueError(f"--against {engine} does not say what to run; expected {engine}:{peer.source}.")
    if source and not Path(source).exists():
        raise ValueError(f"--against {text}: there is no '{source}'; expected {engine}:{peer.source}.")
    return Spec(engine=engine, path=source or own.path, label=text)


def _ours(text: str) -> Spec:
    folder, at, device = text.rpartition("@")
    if at and not Path(text).exists():
        return own_spec(folder, device)
    if text != "demo" and not Path(text).exists() and hub_name(text) is None:
        raise ValueError(
            f"--against {text}: there is no such folder, nor an engine of that name; expected a folder written by "
            f"'embedllm export', a model of the hub, either with @DEVICE, or one of {', '.join(PEERS)}."
        )
    return own_spec(text)

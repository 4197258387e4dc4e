"""What is known of a folder that another exporter wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from embedllm.package.external_graph import ExternalGraph, Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A piece of a prompt that has a fixed size."""

    size: int  # tokens
    filler: int  # the token that fills the last one up


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalFolder:
    """How a folder is to be read that has no manifest."""

    maker: str  # what writes such folders
    names: Names  # of an ONNX graph
    devices: tuple[str, ...]  # what "auto" means for it: those that run it, best first, or "auto" itself
    weights: str  # the file that a runtime is told of beside the graph; the graph itself where it names them
    # by device, what of the graph it does not compute, or wrongly: embedllm/package/external/known_defects.py
    faults: Mapping[str, str] = field(default_factory=dict)
    prefers: str = ""  # the device that it was made for, which "auto" tries first; empty: its maker says nothing
    passed_over: tuple[str, ...] = ()  # graphs that were not chosen
    window: Window | None = None  # its graphs take prompts in such, and single tokens
    is_asked: bool = False  # the graph that was chosen was asked for by its path

    @property
    def surest(self) -> str:
        """The device that runs it wherever it is run."""
        return "cpu" if self.devices[-1] == "auto" else self.devices[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was read of such a folder."""

    root: Path  # where its texts are
    graph: Path
    weights: tuple[Path, ...]  # files that the graph's weights lie in, where it is not the graph's own
    variant: str
    activations: str
    described: ExternalGraph
    stop_tokens: list[int]
    external: ExternalFolder

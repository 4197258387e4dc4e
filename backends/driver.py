"""What a backend exports: one DRIVER, which says where its devices come from, how each is opened and what it can do.

A backend is a folder with a module that has a `DRIVER`, and a line in backends/devices/drivers.py. A package of
somebody else announces its own as an entry point of the group "embedllm.drivers". Such a module loads no runtime when
it is imported: its functions do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from embedllm.backends.base import Device, Engine, OpenOptions, Unsupported
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import WITH_QMOE
from embedllm.package.package import Package

UNTESTED = "untested here"
TESTED_LINUX = "Linux x86-64, in every change"


def family_name(device: str) -> str:
    """What a device's name begins with: "cuda" of "cuda:1", "openvino-gpu" of "openvino-gpu.1"."""
    return re.split(r"[:.]", device, maxsplit=1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFootprint:
    """How a runtime keeps a model: docs/performance.md#memory has the measurements."""

    bits_per_group: int  # of packed weights, beside their own bits: scales, sums
    kv_bits: float  # a value
    chunk: int  # tokens of a prompt that are fed at once
    keeps_scores: bool = False  # of all heads, where a chunk follows what is in the KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBuffers:
    """Copies of the states of sequences that step together, and of their KV, which a device makes besides."""

    rows: int  # sequences, at most
    state_places: int
    copies_kv: bool = True  # where there is room, of models without windows and mixtures; False: the KV itself moves
    least_bytes: int = 0  # that all may take: these, or a share of the device's memory where that is more
    share: int = 0  # 0: there is no limit

    def most_bytes(self, memory: int) -> float:
        """memory: bytes of the device; 0: not told."""
        return max(self.least_bytes, memory // self.share) if self.share else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a device can do with a folder."""

    variants: tuple[str, ...] = ()  # of the graphs that it may run, best first; none: it reads the weights itself
    exact: tuple[str, ...] = ()  # those of them that it can compute in float32 throughout
    kv: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # as `variants`, by the type of a quantized KV
    # by the variant that gives hidden states for draft heads: of the graphs that give these, best first
    hidden: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # of the graphs of a draft head, likewise, by the CPU's
    heads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    external_graphs: tuple[str, ...] = ()  # variants of graphs of other exporters that it runs
    is_gpu: bool = False  # a GPU of ONNX Runtime, which takes another graph of a folder of another exporter
    moves_kv: bool = True  # its sessions give their KV away and take that of others
    odd_zero_points: bool = True  # it runs weights of 4 bits whose rows have an odd number of zero points
    recurrent: bool = False  # its sessions keep states of fixed size, too, and are rewound by copies of them
    state_places: int = 1  # in which a session has these, so that a step reads some and writes others
    batches: BatchBuffers | None = None  # None: rows are the sequences' own
    chunks: bool = False  # its attention keeps to chunks of tokens where the context exceeds one
    adapters: bool = False  # its sessions take adapters
    probed: bool = False  # a tiny model has to run and be right on it before it is used
    uses_host_memory: bool = False  # the machine's memory is its own
    dequantizes: bool = False  # it keeps all weights as float32
    speculates: bool = False  # speculation by prompt lookup was seen to pay on it (docs/performance.md)
    frees_windows: bool = False  # layers with sliding windows free KV on it (docs/concepts.md#windows)
    footprints: Mapping[bool, MemoryFootprint] = field(default_factory=dict)  # by whether it computes exactly
    tested: str = ""  # what it was run on

    def allowed_variants(
        self, *, exact: bool, kv: str | None, variants: Sequence[str], hidden_graph: str = ""
    ) -> list[str]:
        """Of the graphs that do what is asked, best first.

        variants: that may be used, all when there are none. hidden_graph: the one that gives what a draft head reads.
        """
        if hidden_graph:
            return [one for one in self.hidden.get(hidden_graph, ()) if not exact or one not in WITH_QMOE]
        candidates = self.kv.get(kv, ()) if kv else self.exact if exact else self.variants
        return [one for one in candidates if not variants or one in variants]

    def graphs(
        self,
        package: Package,
        *,
        exact: bool = False,
        kv: str | None = None,
        variants: Sequence[str] = (),
        hidden_graph: str = "",
    ) -> list[Graph]:
        """Those of a folder."""
        external = [graph for graph in package.graphs if graph.variant in self.external_graphs]
        if external and kv is None and not hidden_graph:
            return external
        allowed = self.allowed_variants(exact=exact, kv=kv, variants=variants, hidden_graph=hidden_graph)
        return [graph for one in allowed if (graph := package.graph(one)) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFamily:
    """Devices that differ in nothing but their number: "cuda", "cuda:1" and so on."""

    name: str  # what their names begin with
    open: Callable[[OpenOptions], Engine]
    capabilities: Capabilities
    # the same for an embedding or reranker model; None: it runs none
    open_encoder: Callable[[OpenOptions], Engine] | None = None
    # the same for a draft head of a model that runs on it; None: it runs none
    open_draft_head: Callable[[OpenOptions], Engine] | None = None
    python_package: str = ""  # whose version its numbers depend on, besides its runtime's; empty: none
    # of a name that no list has, such as a runtime's own words behind a colon: its device, if it is one
    free_form: Callable[[str, Sequence[Device]], list[Device]] | None = None
    free_form_capabilities: Capabilities | None = None  # of such; None: no others
    names_paths: bool = False  # a path may follow the colon
    # why its runtime cannot do what is asked (exact); asked of devices that are there
    unsupported_request: Callable[[bool], Unsupported | None] = lambda exact: None
    # why it cannot run a package, with a KV of that type
    unsupported_package: Callable[[Package, str | None], Unsupported | None] = lambda package, kv: None
    # raises PackageError for one that it could not compute exactly, whatever it is told
    check_exact: Callable[[Package], None] | None = None
    facts: Callable[[str], dict[str, str]] = lambda device: {}  # what its runtime tells of a device, for reports
    version: Callable[[Device], str] = lambda device: ""  # of what brings it, if that is not the runtime

    def capabilities_of(self, device: str) -> Capabilities:
        """Of one of its devices, by its name."""
        is_free_form = self.free_form_capabilities is not None and device.startswith(f"{self.name}:")
        return self.free_form_capabilities if is_free_form and self.free_form_capabilities else self.capabilities


@dataclass(frozen=True, slots=True)
class Source:
    """A list of devices."""

    families: tuple[str, ...]  # what the names of its devices begin with
    devices: Callable[[], list[Device]]
    # a quick look for a device that nobody asked for by name: why it is absent, without loading its runtime
    absent: Callable[[str], Device | None] = lambda name: None

    def has(self, name: str) -> bool:
        return family_name(name) in self.families


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A backend, as the rest of the library knows it."""

    families: tuple[DeviceFamily, ...]
    sources: tuple[Source, ...]


def absent_device(name: str, backend: str, reason: str, remedy: str = "") -> Device:
    """A device that is not there."""
    return Device(name=name, backend=backend, description="", available=False, reason=reason, remedy=remedy)

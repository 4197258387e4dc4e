"""The devices of this machine: lists them, as far as they are asked for, and opens an engine on the chosen one.

Besides the listed ones, "openvino:TARGET" is any target in OpenVINO's own words ("openvino:HETERO:GPU,CPU"),
"plugin:PATH" a provider of ONNX Runtime by the path of its library, and "A+B" reads prompts on A and makes tokens on B.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from embedllm.backends.base import Device, Engine, OpenOptions, Unsupported
from embedllm.backends.checks import cannot_run
from embedllm.backends.devices import drivers
from embedllm.backends.devices.drivers import capabilities, device_family, find_family
from embedllm.backends.devices.selection import Refusal, resolve
from embedllm.backends.devices.support import external_graph_unsupported, package_unsupported
from embedllm.backends.driver import Source
from embedllm.backends.options import DEFAULT, OpenVINOOptions, RuntimeOptions
from embedllm.errors import DeviceUnavailable, PackageError
from embedllm.files.command_line import graph_command, shell_word
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.graph_variants import (
    CALIBRATED,
    EAGLE,
    EAGLE_HIDDEN,
    HIDDEN_VARIANTS,
    IMAGES_VARIANTS,
    MTP,
    OPENVINO_LATENT,
    VARIANTS,
    WITH_QMOE,
    fuses_experts,
)
from embedllm.package.package import Package
from embedllm.package.packing import packings

PAIR = "+"  # between the names of two devices that share a sequence
_CALIBRATED = {variant.name for variant in CALIBRATED}
_WITHOUT_ADAPTERS = "use the device 'cpu' or 'openvino', or merge the adapter: embedllm export --lora ADAPTER ..."
_log = logging.getLogger("embedllm")


class DeviceCatalog:
    """The devices of this machine for one folder, listed source by source when they are first asked for."""

    def __init__(
        self,
        package: Package | None = None,
        *,
        exact: bool = False,
        kv: str | None = None,
        adapts: bool = False,
        hidden_graph: str = "",
    ) -> None:
        """package: devices that it has no graph for, or that cannot do what is asked, are not available."""
        self._package = package
        self._exact = exact
        self._kv = kv
        self._adapts = adapts
        self._hidden_graph = hidden_graph
        self._listed: dict[Source, list[Device]] = {}

    def everything(self) -> list[Device]:
        """Every device of every source, those that cannot be used with the reason."""
        return [device for source in drivers.sources() for device in self._devices_of(source)]

    def lookup(self, name: str, *, automatic: bool = False) -> list[Device]:
        """The devices that may be meant by a name; of an unknown name, every one. See selection.DeviceLookup."""
        if _is_pair(name):
            halves = {half: self.lookup(half) for half in name.split(PAIR)}
            by_name = {device.name: device for devices in halves.values() for device in devices}
            return [*by_name.values(), *([self._checked(_pair(name, halves))] if name.count(PAIR) == 1 else [])]
        sources = drivers.sources_of(name)
        if automatic and sources and (absent := sources[0].absent(name)):
            return [absent]
        candidates = [device for source in sources or drivers.sources() for device in self._devices_of(source)]
        family = find_family(name)
        if family is not None and family.free_form is not None and name not in {device.name for device in candidates}:
            candidates += [self._checked(device) for device in family.free_form(name, candidates)]
        return candidates

    def _devices_of(self, source: Source) -> list[Device]:
        if source not in self._listed:
            self._listed[source] = [self._checked(device) for device in source.devices()]
        return self._listed[source]

    def _checked(self, device: Device) -> Device:
        """As available as the folder lets it be."""
        if self._package is None or not device.available:
            return device
        package = suited(self._package, device)
        problem = _unsupported(package, device, exact=self._exact, kv=self._kv, adapts=self._adapts,
                               hidden_graph=self._hidden_graph)  # fmt: skip
        return replace(device, available=False, reason=problem.reason, remedy=problem.remedy) if problem else device


def devices() -> list[Device]:
    """Every device of every backend, those that cannot be used with the reason."""
    return DeviceCatalog().everything()


def devices_for(package: Package, wishes: Sequence[str] = (), *, exact: bool = False) -> list[Device]:
    """As devices(), for one folder.

    wishes: what these names may mean, pairs and targets that no list has among them; none: every device.
    """
    catalog = DeviceCatalog(package, exact=exact)
    if not wishes:
        return catalog.everything()
    return list({device.name: device for wish in wishes for device in catalog.lookup(wish)}.values())


def facts(device: Device) -> dict[str, str]:
    """What the runtime tells of a device: driver, architecture, what it can compute in. For reports."""
    return device_family(device).facts(device.name) if device.available else {}


def check_exact(package: Package, device: Device) -> None:
    """Raises PackageError for a package that a device, or one of a pair, could not compute exactly."""
    for half in _halves(device):
        if (check := device_family(half).check_exact) is not None:
            check(package)


def is_probed(device: Device) -> bool:
    """Whether a tiny model has to be right on a device before it is used; of a pair, its parts() are asked."""
    return len(_halves(device)) == 1 and capabilities(device).probed


def speculates(device: Device) -> bool:
    """Whether speculation is on by default on a device; on a pair it was not measured."""
    return len(_halves(device)) == 1 and capabilities(device).speculates


def suited(package: Package, device: Device, variants: Sequence[str] = ()) -> Package:
    """A package with the graph that suits a device: of a folder made by others a GPU may take another one.

    variants: of our own graphs that a probe found right there; none: it was not probed.
    """
    if package.external is None or len(_halves(device)) > 1:
        return package
    family = device_family(device)
    if not family.capabilities.is_gpu:
        return package
    from embedllm.package.gpu_graph_choice import on_gpu

    right = variants or family.capabilities.variants
    has_float16 = any(one.activations == "float16" for one in VARIANTS if one.name in right)
    return on_gpu(package, family.name, has_float16=has_float16, memory=device.memory)


def parts(package: Package, device: Device, *, exact: bool = False) -> list[Device]:
    """The two devices of an available pair, the one that reads prompts first; or the device itself."""
    if len(_halves(device)) == 1:
        return [device]
    search = DeviceCatalog(package, exact=exact)
    members = [resolve(half, search.lookup(half)) for half in device.name.split(PAIR)]
    return [one for one in members if isinstance(one, Device)]  # both, else the pair would not be available


def open_engine(
    package: Package,
    device: Device,
    *,
    runtime: RuntimeOptions = DEFAULT,
    exact: bool = False,
    kv: str | None = None,
    adapts: bool = False,
    openvino: OpenVINOOptions | None = None,
    variants: Mapping[str, Sequence[str]] | None = None,
    hidden_graph: str = "",
) -> Engine:
    """Loads the package on an available device.

    adapts: its sessions shall take adapters. hidden_graph: the variant that gives the
    hidden states which they shall keep for a draft head; on no pair.
    variants: by the device's name, or the names of a pair's devices, of the graphs that may be used, as a probe found
    them right; where there is none, whatever the device may run. One that it cannot run gives way to the next.
    Raises DeviceUnavailable when the folder has no graph for it, or the device cannot run that.
    """
    members = parts(package, device, exact=exact)
    if len(members) > 1:
        return _open_pair(
            package,
            device,
            members,
            runtime=runtime,
            exact=exact,
            adapts=adapts,
            openvino=openvino,
            variants=variants,
        )
    allowed = (variants or {}).get(device.name, ())
    if unsupported := _unsupported(package, device, exact=exact, kv=kv, adapts=adapts, variants=allowed,
                                   hidden_graph=hidden_graph):  # fmt: skip
        raise cannot_run(device, *unsupported)
    family = device_family(device)
    opens = family.open if package.encoder is None else family.open_encoder
    assert opens is not None  # as _unsupported found
    refused: list[DeviceUnavailable] = []
    graphs = capabilities(device).graphs(package, exact=exact, kv=kv, variants=allowed, hidden_graph=hidden_graph)
    for graph in graphs or [None]:
        try:
            return opens(
                OpenOptions(
                    package=package,
                    device=device,
                    graph=graph,
                    runtime=runtime,
                    exact=exact,
                    openvino=openvino,
                    kv=kv,
                    adapts=adapts,
                    hidden_graph=hidden_graph,
                )
            )
        except DeviceUnavailable as error:
            _log.info("the graph '%s' is not used: %s", graph.variant if graph else "", error)
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    raise DeviceUnavailable(" ".join(map(str, refused)), [one for error in refused for one in error.tried])


def open_draft_head(package: Package, device: Device, *, runtime: RuntimeOptions, exact: bool) -> Engine:
    """Loads a draft head on the device of its target model, which was opened with hidden_graph.

    Raises DeviceError; PackageError for a folder whose graph is damaged.
    """
    kind = MTP if package.decoder.mtp is not None else EAGLE
    opens, variants = device_family(device).open_draft_head, capabilities(device).heads[kind.name]
    assert opens is not None  # as _unsupported found for the target model
    for graph in filter(None, map(package.graph, variants)):
        if graph.variant in WITH_QMOE and exact:
            continue
        try:
            return opens(OpenOptions(package=package, device=device, graph=graph, runtime=runtime, exact=exact))
        except DeviceUnavailable as error:
            if graph.variant not in WITH_QMOE:
                raise
            _log.info("the graph '%s' is not used: %s", graph.variant, error)
    command = "mtp" if kind is MTP else "eagle"
    remedy = f"embedllm {command} {shell_word(package.folder.parent)} CHECKPOINT --replace"
    raise PackageError(f"'{package.folder}' has no '{variants[-1]}' graph. Write it again: {remedy}")


def _is_pair(name: str) -> bool:
    """Whether a name is of two devices; a "+" may be in a path, too."""
    if PAIR not in name:
        return False
    family = find_family(name)
    return family is None or not (family.names_paths and ":" in name)


def _halves(device: Device) -> list[Device]:
    """The two devices of a pair, by their names; or the device itself."""
    if not _is_pair(device.name):
        return [device]
    return [replace(device, name=half) for half in device.name.split(PAIR)]


def _open_pair(
    package: Package,
    device: Device,
    devices: Sequence[Device],
    *,
    runtime: RuntimeOptions,
    exact: bool,
    adapts: bool,
    openvino: OpenVINOOptions | None,
    variants: Mapping[str, Sequence[str]] | None,
) -> Engine:
    from embedllm.backends.devices.split_engine import SplitEngine

    opened: list[Engine] = []
    try:
        for one in devices:
            engine = open_engine(
                package,
                one,
                runtime=runtime,
                exact=exact,
                adapts=adapts,
                openvino=openvino,
                variants=variants,
            )
            opened.append(engine)
    except BaseException:
        for engine in opened:  # its packed weights, when memory may be short
            engine.close()
        raise
    reads, makes = opened
    return SplitEngine(reads, makes, device)


def _pair(name: str, halves: dict[str, list[Device]]) -> Device:
    """Two devices as one, available when both are."""
    members = [resolve(half, halves[half]) for half in name.split(PAIR)]
    refusals: list[Refusal] = []
    for half, device in zip(name.split(PAIR), members, strict=True):
        family = find_family(half)
        if isinstance(device, Refusal) or family is None:
            refusals.append(Refusal(half, "not found"))
        elif not family.capabilities.moves_kv:
            refusals.append(Refusal(half, "its KV can be neither taken out nor put in", "use that device alone"))
        elif not device.available:
            refusals.append(Refusal(half, device.reason, device.remedy))
    there = [device for device in members if isinstance(device, Device)]
    if len({device.name for device in there}) < len(there):
        refusals.append(Refusal(name, "both are the same device", "use it alone"))
    return Device(
        name=name,
        backend=" + ".join(device.backend for device in there),
        description=" + ".join(device.description for device in there),
        available=not refusals,
        reason="; ".join(f"'{one.device}': {one.reason}" for one in refusals),
        remedy="; ".join(one.remedy for one in refusals if one.remedy),
    )


def _unsupported(
    package: Package,
    device: Device,
    *,
    exact: bool,
    kv: str | None = None,
    adapts: bool = False,
    variants: Sequence[str] = (),
    hidden_graph: str = "",
) -> Unsupported | None:
    """Why a device cannot do what is asked with this folder, and what helps."""
    halves = _halves(device)
    if package.encoder is not None and (len(halves) > 1 or device_family(device).open_encoder is None):
        reason = f"'{package.name}' is an embedding or reranker model, which this device does not support"
        return Unsupported(reason, "use the device 'cpu', 'cuda' or 'openvino'")
    without_adapters = adapts and not all(capabilities(half).adapters for half in halves)
    if hidden_graph and (len(halves) > 1 or hidden_graph not in capabilities(device).hidden):
        kind = "EAGLE-3" if hidden_graph == EAGLE_HIDDEN.name else "MTP"
        reason = f"it runs no heads that draft ({kind}) with this library"
        return Unsupported(reason, "use the device 'cpu', 'openvino' or 'cuda'")
    if len(halves) > 1:
        if unsupported := _pair_unsupported(package, kv=kv, without_adapters=without_adapters):
            return unsupported
        graphs = [capabilities(half).graphs(package, exact=exact, variants=variants) for half in halves]
        if len({one[0].kv for one in graphs if one}) > 1:
            return Unsupported("two devices at once share their KV, and one of them keeps latents (MLA)",
                               "use one of them")  # fmt: skip
        return None
    family, can = device_family(device), capabilities(device)
    if unsupported := external_graph_unsupported(package, family, exact=exact, kv=kv):
        return unsupported
    if without_adapters:
        return Unsupported("it takes no adapters with this library", _WITHOUT_ADAPTERS)
    if adapts and kv is not None and set(can.kv.get(kv, ())) & _CALIBRATED:
        # measured: errors of 0.3 and 1.1 with strong adapters, where 0.09 is usual: tests/package/lora/test_adapters.py
        return Unsupported(
            f"the scales of its {kv} KV were found without adapters, which reach farther",
            "load it without kv, or use the device 'openvino'",
        )
    if kv is not None and kv not in can.kv:
        reason = f"its KV cannot be kept as {kv} with this library"
        return Unsupported(reason, "use the device 'cpu', or load without kv")
    if can.variants and exact and not can.exact:
        reason = "it computes in float16 or rounds, so that nothing is exact there"
        return Unsupported(reason, "load it without exact")
    if unsupported := family.unsupported_request(exact):
        return unsupported
    if can.variants and not can.graphs(package, exact=exact, kv=kv, variants=variants, hidden_graph=hidden_graph):
        allowed = can.allowed_variants(exact=exact, kv=kv, variants=variants, hidden_graph=hidden_graph)
        return _without_graph(package, allowed, can.variants)
    return package_unsupported(package, family, kv=kv)


def _pair_unsupported(package: Package, *, kv: str | None, without_adapters: bool) -> Unsupported | None:
    if without_adapters:
        return Unsupported("it takes no adapters with this library", _WITHOUT_ADAPTERS)
    if isinstance(package.architecture, Decoder) and package.decoder.is_recurrent:
        reason = "two devices at once share their KV, and a recurrent model has states beside it"
        return Unsupported(reason, "use one of them")
    if kv:
        return Unsupported("two devices at once share their KV as floats", "use one of them, or load without kv")
    return None


def _without_graph(package: Package, allowed: Sequence[str], variants: Sequence[str]) -> Unsupported:
    """allowed: of the variants that a device has, those that do what is asked."""
    allowed = [one for one in allowed if one != OPENVINO_LATENT or package.decoder.uses_mla]
    if not fuses_experts(package.decoder, packings(package.manifest)):
        allowed = [one for one in allowed if one not in WITH_QMOE]
    rows = (one for one in (*VARIANTS, *IMAGES_VARIANTS, *CALIBRATED, *HIDDEN_VARIANTS) if one.name in allowed)
    reasons = {one.name: one.unsupported(package.decoder) for one in rows}
    refused = [reason for reason in reasons.values() if reason]
    if len(refused) < len(allowed):  # such a folder may have some of them
        allowed = [one for one in allowed if not reasons.get(one)]
    names = " or ".join(f"'{variant}'" for variant in allowed or variants)
    if refused and len(refused) == len(reasons):
        return Unsupported(f"there is no {names} graph of '{package.name}': {refused[0]}", "use another device")
    if damaged := next((one for one in allowed if one in package.damaged), None):
        return Unsupported(package.damaged[damaged], graph_command(package.folder, damaged))
    has = ", ".join(f"'{graph.variant}'" for graph in package.graphs) or "none"
    remedy = graph_command(package.folder, allowed[0]) if allowed else "export the model again"
    return Unsupported(f"'{package.name}' has no {names} graph (it has {has})", remedy)

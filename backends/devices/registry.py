"""The devices of this machine: lists them, as far as they are asked for, and opens an engine on the chosen one.

Besides the listed ones, "openvino:TARGET" is any target in OpenVINO's own words ("openvino:HETERO:GPU,CPU"),
"plugin:PATH" a provider of ONNX Runtime by the path of its library, and "A+B" reads prompts on A and makes tokens on B.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from embedllm.backends.base import Device, Engine, OpenOptions
from embedllm.backends.checks import cannot_run
from embedllm.backends.devices.discovery import SOURCES, Source, plug_in_devices
from embedllm.backends.devices.drivers import driver_of, known_driver
from embedllm.backends.devices.selection import Refusal, resolve
from embedllm.backends.devices.support import external_graph_unsupported, model_lack
from embedllm.backends.options import DEFAULT, OpenVINOOptions, RuntimeOptions
from embedllm.errors import DeviceUnavailable
from embedllm.package.architecture import Decoder
from embedllm.package.graph_variants import CALIBRATED, FLOAT32, OPENVINO, VARIANTS
from embedllm.package.package import Package

PAIR = "+"  # between the names of two devices that share a sequence
_FREE = "openvino:"  # a target in OpenVINO's own words follows
_PLUG_IN = "plugin:"  # a path follows
_CALIBRATED = {variant.name for variant in CALIBRATED}
_WITHOUT_ADAPTERS = "use the device 'cpu' or 'openvino', or merge the adapter: embedllm export --lora ADAPTER ..."
_log = logging.getLogger("embedllm")


class DeviceCatalog:
    """The devices of this machine for one folder, listed source by source when they are first asked for."""

    def __init__(
        self, package: Package | None = None, *, exact: bool = False, kv: str | None = None, adapts: bool = False
    ) -> None:
        """package: devices that it has no graph for, or that cannot do what is asked, are not available."""
        self._package = package
        self._exact = exact
        self._kv = kv
        self._adapts = adapts
        self._listed: dict[Source, list[Device]] = {}

    def everything(self) -> list[Device]:
        """Every device of every source, those that cannot be used with the reason."""
        return [device for source in SOURCES for device in self._devices_of(source)]

    def lookup(self, name: str, *, automatic: bool = False) -> list[Device]:
        """The devices that may be meant by a name; of a name that is not known, every one. See select.Find."""
        if PAIR in name and not name.startswith(_PLUG_IN):
            halves = {half: self.lookup(half) for half in name.split(PAIR)}
            found = {device.name: device for devices in halves.values() for device in devices}
            return [*found.values(), *([self._checked(_pair(name, halves))] if name.count(PAIR) == 1 else [])]
        if name.startswith(_PLUG_IN):
            return [self._checked(device) for device in plug_in_devices(name)]
        sources = [source for source in SOURCES if source.has(name)]
        if automatic and sources and (lack := sources[0].absent(name)):
            return [lack]
        found = [device for source in sources or SOURCES for device in self._devices_of(source)]
        if name.startswith(_FREE) and name not in {device.name for device in found}:
            found += [self._checked(_free(name, device)) for device in found if device.name == "openvino"]
        return found

    def _devices_of(self, source: Source) -> list[Device]:
        if source not in self._listed:
            self._listed[source] = [self._checked(device) for device in source.devices()]
        return self._listed[source]

    def _checked(self, device: Device) -> Device:
        """As available as the folder lets it be."""
        if self._package is None or not device.available:
            return device
        package = suited(self._package, device)
        lack = _lack(package, device, exact=self._exact, kv=self._kv, adapts=self._adapts)
        return replace(device, available=False, reason=lack[0], remedy=lack[1]) if lack else device


def devices() -> list[Device]:
    """Every device of every backend, those that cannot be used with the reason."""
    return DeviceCatalog().everything()


def devices_for(package: Package, wishes: Sequence[str] = (), *, exact: bool = False) -> list[Device]:
    """As devices(), for one folder.

    wishes: what these names may mean, pairs and targets that no list has among them; none: every device.
    """
    found = DeviceCatalog(package, exact=exact)
    if not wishes:
        return found.everything()
    return list({device.name: device for wish in wishes for device in found.lookup(wish)}.values())


def facts(device: Device) -> dict[str, str]:
    """What the runtime tells of a device: driver, architecture, what it can compute in. For reports."""
    if not device.available or known_driver(device).variants != (OPENVINO,):
        return {}
    from embedllm.backends.openvino import runtime as ov_runtime

    return ov_runtime.facts(device.name)


def runs_graphs(device: Device) -> bool:
    """Whether a device runs the CPU's graph of the folder through ONNX Runtime, and so computes as that says."""
    return any(FLOAT32.name in known_driver(half).variants for half in _halves(device))


def is_probed(device: Device) -> bool:
    """Whether a tiny model has to be right on a device before it is used; of a pair, its parts() are asked."""
    return len(_halves(device)) == 1 and known_driver(device).probed


def suited(package: Package, device: Device, variants: Sequence[str] = ()) -> Package:
    """A package with the graph that suits a device: of a folder made by others a GPU may take another one.

    variants: of our own graphs that a probe found right there; none: it was not probed.
    """
    if package.external is None or len(_halves(device)) > 1:
        return package
    driver = known_driver(device)
    if driver.provider is None or not driver.is_gpu:
        return package
    from embedllm.package.gpu_graph_choice import on_gpu

    right = variants or driver.variants
    has_float16 = any(one.activations == "float16" for one in VARIANTS if one.name in right)
    return on_gpu(package, driver.provider.device, has_float16=has_float16, memory=device.memory)


def parts(package: Package, device: Device, *, exact: bool = False) -> list[Device]:
    """The two devices of an available pair, the one that reads prompts first; or the device itself."""
    if len(_halves(device)) == 1:
        return [device]
    search = DeviceCatalog(package, exact=exact)
    found = [resolve(half, search.lookup(half)) for half in device.name.split(PAIR)]
    return [one for one in found if isinstance(one, Device)]  # both, else the pair would not be available


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
) -> Engine:
    """Loads the package on an available device.

    adapts: its sessions shall take adapters.
    variants: by the device's name, or the names of a pair's devices, of the graphs that may be used, as a probe found
    them right; where there is none, whatever the device may run. One that it cannot run gives way to the next.
    Raises DeviceUnavailable when the folder has no graph for it, or the device cannot run that.
    """
    found = parts(package, device, exact=exact)
    if len(found) > 1:
        return _open_pair(
            package,
            device,
            found,
            runtime=runtime,
            exact=exact,
            adapts=adapts,
            openvino=openvino,
            variants=variants,
        )
    allowed = (variants or {}).get(device.name, ())
    if lack := _lack(package, device, exact=exact, kv=kv, adapts=adapts, variants=allowed):
        raise cannot_run(device, *lack)
    driver = known_driver(device)
    opens = driver.open if package.encoder is None else driver.open_encoder
    assert opens is not None  # as _lack found
    refused: list[DeviceUnavailable] = []
    for graph in driver.graphs(package, exact=exact, kv=kv, variants=allowed) or [None]:
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
                )
            )
        except DeviceUnavailable as error:
            _log.info("the graph '%s' is not used: %s", graph.variant if graph else "", error)
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    raise DeviceUnavailable(" ".join(map(str, refused)), [one for error in refused for one in error.tried])


def _halves(device: Device) -> list[Device]:
    """The two devices of a pair, by their names; or the device itself."""
    if PAIR not in device.name or device.name.startswith(_PLUG_IN):
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


def _free(name: str, cpu: Device) -> Device:
    """A target in OpenVINO's own words, on the word of OpenVINO's CPU device."""
    target = name.removeprefix(_FREE)
    described = replace(cpu, name=name, description=f"OpenVINO's {target}")
    plugin = target.partition(":")[0].partition(".")[0].upper()
    if not cpu.available:
        return described
    if plugin == "NPU":
        return replace(described, available=False, reason="it has no dynamic shapes", remedy="use the device 'npu'")
    if plugin not in ("CPU", "GPU", "AUTO", "HETERO"):
        reason = f"OpenVINO has no '{target}'"
        return replace(described, available=False, reason=reason, remedy="CPU, GPU, AUTO:... or HETERO:...")
    return described


def _pair(name: str, halves: dict[str, list[Device]]) -> Device:
    """Two devices as one, available when both are."""
    found = [resolve(half, halves[half]) for half in name.split(PAIR)]
    lacks: list[Refusal] = []
    for half, device in zip(name.split(PAIR), found, strict=True):
        driver = driver_of(half)
        if isinstance(device, Refusal) or driver is None:
            lacks.append(Refusal(half, "not found"))
        elif not driver.shares:
            lacks.append(Refusal(half, "its KV can be neither taken out nor put in", "use that device alone"))
        elif not device.available:
            lacks.append(Refusal(half, device.reason, device.remedy))
    there = [device for device in found if isinstance(device, Device)]
    if len({device.name for device in there}) < len(there):
        lacks.append(Refusal(name, "both are the same device", "use it alone"))
    return Device(
        name=name,
        backend=" + ".join(device.backend for device in there),
        description=" + ".join(device.description for device in there),
        available=not lacks,
        reason="; ".join(f"'{lack.device}': {lack.reason}" for lack in lacks),
        remedy="; ".join(lack.remedy for lack in lacks if lack.remedy),
    )


def _lack(
    package: Package,
    device: Device,
    *,
    exact: bool,
    kv: str | None = None,
    adapts: bool = False,
    variants: Sequence[str] = (),
) -> tuple[str, str] | None:
    """Why a device cannot do what is asked with this folder, and what helps."""
    is_encoder = package.encoder is not None
    if is_encoder and (len(_halves(device)) > 1 or known_driver(device).open_encoder is None):
        reason = f"'{package.name}' embeds or scores texts, which this library does not do there"
        return reason, "use the device 'cpu', 'cuda' or 'openvino'"
    alone = len(_halves(device)) == 1
    if alone and (lack := external_graph_unsupported(package, known_driver(device), exact=exact, kv=kv)) is not None:
        return lack
    if adapts and any(half.name.startswith(_FREE) or not known_driver(half).adapts for half in _halves(device)):
        return "it takes no adapters with this library", _WITHOUT_ADAPTERS
    if not alone and isinstance(package.architecture, Decoder) and package.decoder.is_recurrent:
        return "two devices at once share their KV, and a recurrent model has states beside it", "use one of them"
    if not alone:
        return ("two devices at once share their KV as floats", "use one of them, or load without kv") if kv else None
    driver = known_driver(device)
    if adapts and kv is not None and set(driver.kv.get(kv, ())) & _CALIBRATED:
        # measured: errors of 0.3 and 1.1 with strong adapters, where 0.09 is usual (tests/adapters/test_adapters.py)
        return (
            f"the scales of its {kv} KV were found without adapters, which reach farther",
            "load it without kv, or use the device 'openvino'",
        )
    if kv is not None and kv not in driver.kv:
        return f"its KV cannot be kept as {kv} with this library", "use the device 'cpu', or load without kv"
    if driver.variants and exact and not driver.exact:
        return "it computes in float16 or rounds, so that nothing is exact there", "load it without exact"
    if lack := driver.lack(exact):
        return lack
    if driver.variants and not driver.graphs(package, exact=exact, kv=kv, variants=variants):
        wanted = driver.wanted(exact=exact, kv=kv, variants=variants)
        named = " or ".join(f"'{variant}'" for variant in wanted or driver.variants)
        if impossible := [lack for one in VARIANTS if one.name in wanted and (lack := one.lack(package.decoder))]:
            return f"there is no {named} graph of '{package.name}': {impossible[0]}", "use another device"
        if damaged := next((one for one in wanted if one in package.damaged), None):
            return package.damaged[damaged], f"embedllm graph {package.folder} --variant {damaged}"
        has = ", ".join(f"'{graph.variant}'" for graph in package.graphs) or "none"
        remedy = f"embedllm graph {package.folder} --variant {wanted[0]}" if wanted else "export the model again"
        return f"'{package.name}' has no {named} graph (it has {has})", remedy
    return model_lack(package, driver, kv=kv)

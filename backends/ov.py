"""OpenVINO on CPU and GPU: one engine per folder and device, one session per sequence. The NPU is in npu.py."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import (
    LARGER_EXPORT,
    Device,
    Interrupted,
    check_rewind,
    check_room,
    check_span,
    check_state,
    check_tokens,
)
from embedllm.backends.threads import compute_threads
from embedllm.errors import DeviceError
from embedllm.export.dialects import OPENVINO_CONTEXT, OPENVINO_SUM
from embedllm.openvino_options import OpenVINOOptions
from embedllm.package import Graph, Package
from embedllm.rows import Row

# OpenVINO's tools, which its package imports, write an identifier into the home folder and report their use, where
# openvino_telemetry is installed; they go without where it is not (2026.4; tests/test_import.py)
_telemetry = sys.modules.get("openvino_telemetry")
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # which makes importing it fail
try:
    import openvino as ov
    from openvino import opset13 as op
finally:
    if _telemetry is None:
        del sys.modules["openvino_telemetry"]
    else:
        sys.modules["openvino_telemetry"] = _telemetry

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.types import F32

CHUNK = 1024  # tokens of a prompt fed at once (docs/performance.md)
# float activations, no rounding to int8, KV as it is computed. EXECUTION_MODE_HINT=ACCURACY stands for the same three,
# but unpacks the weights at every step where their scales are float16 (OpenVINO 2026.4)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "KV_CACHE_PRECISION": "f32"}
_TO_END = int(np.iinfo(np.int64).max)
_FACTS = ("FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE", "NPU_DRIVER_VERSION", "NPU_COMPILER_VERSION", "NPU_MAX_TILES",
          "GPU_UARCH_VERSION", "GPU_DEVICE_TOTAL_MEM_SIZE", "OPTIMIZATION_CAPABILITIES")  # fmt: skip
_PLACE = re.compile(r"Exception from|Check '.*' failed at ")  # in OpenVINO's sources
_VARIABLE = re.compile(r"past_key_values\.(\d+)\.(key|value)")


@cache
def core() -> ov.Core:
    """The only one: models of AUTO and HETERO use it after they are compiled, and crash when it is gone (2026.4)."""
    return ov.Core()


def compile_folder(
    package: Package, graph: Graph, target: str, properties: dict[str, object], *, cut_logits: bool
) -> ov.CompiledModel:
    """Reads the folder's model over its weights file and compiles it. Raises DeviceError.

    cut_logits: adds the input `logits_from`, the first position whose logits are wanted. Not in the file, because
    openvino-genai takes four inputs and no more.
    """
    path = package.folder / graph.file
    try:
        runtime = core()
        model = runtime.read_model(path, package.weights)
        if cut_logits:
            _cut_logits(model, len(package.decoder.layers))
        return runtime.compile_model(model, target, properties)
    except (RuntimeError, KeyError) as error:  # KeyError: a model without the layers that are cut
        raise DeviceError(f"OpenVINO {version()} cannot load '{path}' on {target}: {reason(error)}") from error


def version() -> str:
    """Such as "2026.4.1"."""
    return ov.get_version().partition("-")[0]


def reason(error: Exception) -> str:
    """What an exception of OpenVINO says, without the places in its sources."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not _PLACE.match(line)) or type(error).__name__


def cache_folder(options: OpenVINOOptions, target: str, driver: str) -> Path:
    """Where compiled models of this device, driver and version are kept."""
    if options.cache is not None:
        folder = options.cache
    else:
        from platformdirs import user_cache_path

        folder = user_cache_path("embedllm", appauthor=False)
    plain = re.sub(r"[^\w.-]+", "_", f"openvino-{version()}-{target}-{driver}".rstrip("-"))
    return folder / plain


def devices() -> list[Device]:
    """What OpenVINO can run on here; for an NPU or GPU that is not found, what it would need."""
    backend = f"openvino {version()}"
    targets = core().available_devices
    found: list[Device] = []
    for target in targets:
        if name := _name(target):
            description, lack = "", ""
            try:
                description = str(core().get_property(target, "FULL_DEVICE_NAME"))
            except RuntimeError as error:  # a device whose driver does not answer
                lack = f"OpenVINO lists it, but it does not tell its name ({reason(error)})"
            remedy = "update its driver: docs/devices.md" if lack else ""
            found.append(
                Device(
                    name=name, backend=backend, description=description, available=not lack, reason=lack, remedy=remedy
                )
            )
    lack = "" if "CPU" in targets else "OpenVINO has no CPU plugin here"
    checking = "the NPU's static shapes, run on the CPU; for checking"
    found.append(Device(name="npu-on-cpu", backend=backend, description=checking, available=not lack, reason=lack))
    names = {device.name for device in found}
    for name, lack, remedy in _ABSENT:
        if name not in names:
            found.append(
                Device(name=name, backend=backend, description="", available=False, reason=lack, remedy=remedy)
            )
    return found


_ABSENT = (
    ("openvino-gpu", "OpenVINO finds no Intel GPU, or no OpenCL driver for it",
     "install the driver: docs/devices.md#intel-gpu"),
    ("npu", "OpenVINO finds no NPU, or no driver for it", "install the driver: docs/devices.md#npu"),
)  # fmt: skip


def _name(target: str) -> str:
    """What a device of OpenVINO is called here; empty for one that needs no name."""
    plugin, _, index = target.partition(".")
    if plugin == "GPU":
        return "openvino-gpu" if index in ("", "0") else f"openvino-gpu.{index}"
    return {"CPU": "openvino", "NPU": "npu"}.get(plugin, "")


def facts(name: str) -> dict[str, str]:
    """What OpenVINO tells of a device that a report should have."""
    return _facts_of({"npu": "NPU", "npu-on-cpu": "CPU"}.get(name) or target_of(name))


def _facts_of(target: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in _FACTS:
        try:
            found[key] = str(core().get_property(target, key))
        except RuntimeError:
            continue  # not a property of this plugin
    return found


def target_of(name: str) -> str:
    """The device in OpenVINO's words: "GPU.1" for "openvino-gpu.1", "HETERO:GPU,CPU" for "openvino:HETERO:GPU,CPU"."""
    if name == "openvino":
        return "CPU"
    given = name.removeprefix("openvino:")
    return given if given != name else name.removeprefix("openvino-").upper()


class OvEngine:
    """A folder on an OpenVINO device. Weights are mapped from the file, then packed by the plugin."""

    chunk = CHUNK

    def __init__(
        self,
        package: Package,
        graph: Graph,
        device: Device,
        target: str,
        *,
        options: OpenVINOOptions | None = None,
        threads: int = 0,
        exact: bool = False,
    ) -> None:
        """target: the device in OpenVINO's words, such as "CPU", "GPU.1" or "HETERO:GPU,CPU"."""
        self.device = device
        self.package = package
        self.context = package.context
        self.remedy = LARGER_EXPORT
        options = options or OpenVINOOptions()
        self.last = 0  # tokens of the last whole step, of any session
        self._compiled: ov.CompiledModel | None = compile_folder(
            package, graph, target, _properties(target, options, threads, exact), cut_logits=True
        )

    @property
    def compiled(self) -> ov.CompiledModel:
        if self._compiled is None:
            raise ValueError("this model was closed")
        return self._compiled

    def open(self, capacity: int = 0) -> OvSession:
        return OvSession(self)

    def settle(self, cancelled: int) -> None:
        """To be called when a step of so many tokens was cancelled.

        All requests share one graph in the plugin (2026.4). After a cancelled step part of it is left with that step's
        shapes and takes those of the last whole step for current, so that one of the same size would fail. A step of
        another size puts it right.
        """
        other = next(count for count in (1, 2, 3) if count not in (cancelled, self.last))
        self.compiled.create_infer_request().infer(_inputs([0] * other, 0, -1))
        self.last = other

    def close(self) -> None:
        self._compiled = None


class OvSession:
    """One sequence. Its KV is the request's state, which grows by itself; a rewind copies what is kept."""

    def __init__(self, engine: OvEngine) -> None:
        self.position = 0
        self._engine = engine
        self._context = engine.context
        self._decoder = engine.package.decoder
        self._held = 0  # tokens in the state: more than `position` after a rewind, until the next feed
        self._request: ov.InferRequest | None = engine.compiled.create_infer_request()
        self._states = self._by_layer(self._request)
        self._stopping = False
        self._cancelled = False  # the running step was, even if nobody wants that any more

    @property
    def capacity(self) -> int:
        return self.position

    def feed(self, tokens: Sequence[int]) -> Row:
        return Row(self._run(tokens, logits_from=-1)[0, 0])

    def feed_all(self, tokens: Sequence[int]) -> F32:
        return self._run(tokens, logits_from=0)[0].copy()

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        self.position = position
        if not position:
            self._cut()  # gives the memory back

    def interrupt(self, stop: bool = True) -> None:
        self._stopping = stop
        request = self._request
        if stop and request is not None:
            self._cancelled = True
            request.cancel()

    def close(self) -> None:
        self._request = None
        self._states = []
        self.position = self._held = 0

    def export_state(self, start: int, stop: int) -> KeyValues:
        check_span(start, stop, self.position)
        return [(_held(key)[:, start:stop].copy(), _held(value)[:, start:stop].copy()) for key, value in self._states]

    def import_state(self, state: KeyValues) -> None:
        if self._request is None:
            raise ValueError("this session was closed")
        attentions = [layer.attention for layer in self._decoder.layers]
        count = check_state(state, [(a.kv_heads, a.head_dim) for a in attentions])
        check_room(self.position, count, limit=self._context, remedy=LARGER_EXPORT)
        kept = self.position
        self._held = -1  # until all is written: a failure in between must not pass for a whole state
        for variables, pair in zip(self._states, state, strict=True):
            for variable, new in zip(variables, pair, strict=True):
                _set(variable, np.concatenate([_held(variable)[:, :kept], new], axis=1) if kept else new)
        self.position = self._held = kept + count

    def _run(self, tokens: Sequence[int], *, logits_from: int) -> np.ndarray:
        """The logits, [1, T', V], valid until the next run."""
        if self._request is None:
            raise ValueError("this session was closed")
        check_tokens(
            tokens, self.position, vocabulary=self._decoder.vocabulary, limit=self._context, remedy=LARGER_EXPORT
        )
        if self._stopping:
            raise Interrupted
        self._cut()
        start, end = self.position, self.position + len(tokens)
        self._held = -1
        self._cancelled = False
        try:
            self._request.start_async(_inputs(tokens, start, logits_from))
            if self._stopping:  # asked for before there was anything to cancel
                self._cancelled = True
                self._request.cancel()
            self._request.wait()
        except RuntimeError as error:
            if self._cancelled:
                self._engine.settle(len(tokens))
                raise Interrupted from error
            raise DeviceError(f"OpenVINO failed at position {start}: {reason(error)}") from error
        self.position = self._held = end
        self._engine.last = len(tokens)
        return self._request.get_output_tensor(0).data

    def _cut(self) -> None:
        """Makes the state hold `position` tokens; of a step that was stopped, some layers have taken theirs already."""
        if self._request is None or self._held == self.position:
            return
        if not self.position:
            self._request.reset_state()
        else:
            for variables in self._states:
                for variable in variables:
                    held = _held(variable)
                    if held.shape[1] != self.position:
                        _set(variable, held[:, : self.position])
        self._held = self.position

    def _by_layer(self, request: ov.InferRequest) -> list[tuple[ov.VariableState, ov.VariableState]]:
        """(key, value) of every layer; the request gives them in an order of its own."""
        found: dict[tuple[int, str], ov.VariableState] = {}
        for variable in request.query_state():
            if match := _VARIABLE.match(variable.name):
                found[int(match[1]), match[2]] = variable
        return [(found[index, "key"], found[index, "value"]) for index in range(len(self._decoder.layers))]


def _inputs(tokens: Sequence[int], start: int, logits_from: int) -> dict[str, np.ndarray]:
    end = start + len(tokens)
    return {
        "input_ids": np.array([tokens], np.int64),
        "attention_mask": np.ones((1, end), np.int64),
        "position_ids": np.arange(start, end, dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
        "logits_from": np.array([logits_from], np.int64),
    }


def _held(variable: ov.VariableState) -> np.ndarray:
    """A copy of what a variable holds, [kv heads, T, D]."""
    return variable.state.data[0]


def _set(variable: ov.VariableState, values: np.ndarray) -> None:
    variable.state = ov.Tensor(np.ascontiguousarray(values[None], dtype=np.float32))


def _properties(target: str, options: OpenVINOOptions, threads: int, exact: bool) -> dict[str, object]:
    """The options in OpenVINO's words, for one device or for several behind one name (AUTO, HETERO)."""
    chosen: dict[str, object] = {"PERFORMANCE_HINT": options.hint.upper()}
    plugin = target.partition(".")[0]
    wishes = {
        "INFERENCE_PRECISION_HINT": options.precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": options.rounding_group,
        "KV_CACHE_PRECISION": options.kv,
    }
    chosen |= {key: value for key, value in wishes.items() if value is not None}
    if exact:
        chosen |= EXACT
    if plugin == "CPU" and (count := threads or compute_threads()):
        chosen["INFERENCE_NUM_THREADS"] = count
    if plugin == "GPU":  # minutes to compile
        driver = sha256(repr(_facts_of(target)).encode()).hexdigest()[:16]
        chosen["CACHE_DIR"] = os.fspath(cache_folder(options, target, driver))
    return chosen


def _cut_logits(model: ov.Model, layers: int) -> None:
    """From the last layer's output projection on, only the positions from `logits_from` are computed."""
    start = op.parameter([1], ov.Type.i64, name="logits_from")
    start.output(0).set_names({"logits_from"})
    named = {node.get_friendly_name(): node for node in model.get_ops()}
    bounds = [op.constant([value], ov.Type.i64) for value in (_TO_END, 1, 1)]
    context, total = named[OPENVINO_CONTEXT.format(layers - 1)].output(0), named[OPENVINO_SUM.format(layers - 1)]
    for place in [*context.get_target_inputs(), total.input(0)]:
        wanted = op.slice(place.get_source_output(), start, *bounds)
        place.replace_source_output(wanted.output(0))
    model.add_parameters([start])
    model.validate_nodes_and_infer_types()

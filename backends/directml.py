"""ONNX Runtime's DirectML provider: any GPU of Windows that has Direct3D 12.

Its attention reads no past: what was there before must lie in the buffers that it writes. It counts the past as
nothing when it is given several tokens. So the KV lies in fixed buffers that are past and present at once; a prompt is
read in one piece from the start, and what follows goes token by token (docs/directml.md).
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Sequence
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
from embedllm.backends.ort import first_line, left_to_the_cpu, ort
from embedllm.backends.resident import HEAVY
from embedllm.errors import DeviceError, DeviceUnavailable
from embedllm.export.dialects import DIRECTML
from embedllm.package import Graph, Package
from embedllm.rows import Row

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.export.decoder import Attention
    from embedllm.types import F32

PROVIDER = "DmlExecutionProvider"
_CPU = "CPUExecutionProvider"
_STEP = 1024  # tokens; capacities are multiples of it
_GROWTH = 2  # a growth copies the KV through the host
# how many tokens are read in the time in which one is made: 8 measured on a CPU, 210 on an H200, not known here
_READ_WHILE_MADE = 16
_UNKNOWN = -1  # in place of a token whose KV came from another session
_WINDOWS = sys.platform == "win32"
_QUIET = 4  # log severity "fatal": errors are raised here, and a library does not print
_INSTALL = "pip uninstall onnxruntime, then pip install onnxruntime-directml, which takes its place"


def devices() -> list[Device]:
    """The GPUs that a session can be made on; without the provider, one that says what to install."""
    backend = f"onnxruntime {ort.__version__}"
    if PROVIDER not in ort.get_available_providers():
        lack = f"the installed ONNX Runtime {ort.__version__} has no DirectML provider"
        remedy = _INSTALL if _WINDOWS else "DirectML is Windows only"
        return [Device(name="directml", backend=backend, description="", available=False, reason=lack, remedy=remedy)]
    names = _adapters()
    found: list[Device] = []
    for index in itertools.count():
        lack = _lack(index)
        if lack and index:
            break
        found.append(
            Device(
                name="directml" if index == 0 else f"directml:{index}",
                backend=backend,
                description=names.get(index, f"DirectML adapter {index}"),
                available=not lack,
                reason=lack,
                remedy="update the graphics driver; Direct3D 12 is needed" if lack else "",
            )
        )
        if lack:
            break
    return found


def index_of(name: str) -> int:
    """0 for "directml", 1 for "directml:1"."""
    return int(name.partition(":")[2] or 0)


class DirectMLEngine:
    """A folder's DirectML graph on one GPU."""

    def __init__(self, package: Package, graph: Graph, device: Device, *, provider: str = PROVIDER) -> None:
        """provider: "CPUExecutionProvider" runs the same graph and session without DirectML, for checking.

        Raises DeviceUnavailable for a model that DirectML cannot run, or when part of the work would run on the CPU.
        """
        self.device = device
        self.package = package
        self.context = package.context
        self.chunk = package.context  # a prompt goes in one piece
        self.remedy = LARGER_EXPORT
        self.index = index_of(device.name) if provider == PROVIDER else 0
        self.place = "dml" if provider == PROVIDER else "cpu"  # where the KV lies, in ONNX Runtime's words
        self.dtype = np.float16 if graph.activations == "float16" else np.float32
        self.lock = threading.RLock()  # the provider takes one run of a session at a time
        if lack := DIRECTML.lack(package.decoder):
            raise _unavailable(device, lack, "use another device")
        path = package.folder / graph.file
        try:
            self._session: ort.InferenceSession | None = _start(os.fspath(path), provider, self.index)
        except Exception as error:
            raise DeviceError(f"ONNX Runtime {ort.__version__} cannot load '{path}': {first_line(error)}") from error
        left = left_to_the_cpu(self._session, HEAVY) if provider == PROVIDER else []
        if left:
            raise _unavailable(device, f"ONNX Runtime gave {', '.join(left)} to the CPU", "please report it")

    @property
    def session(self) -> ort.InferenceSession:
        if self._session is None:
            raise ValueError("this model was closed")
        return self._session

    def open(self, capacity: int = 0) -> DirectMLSession:
        return DirectMLSession(self, capacity)

    def close(self) -> None:
        self._session = None

    def buffers(self, capacity: int) -> dict[str, ort.OrtValue]:
        """Keys and values of every layer, [1, kv heads, capacity, D] each, by "0.key"."""
        return {
            f"{at}.{part}": self.on_device(np.zeros((1, attention.kv_heads, capacity, attention.head_dim), self.dtype))
            for at, attention in enumerate(_attentions(self.package))
            for part in ("key", "value")
        }

    def on_device(self, array: np.ndarray) -> ort.OrtValue:
        return ort.OrtValue.ortvalue_from_numpy(array, self.place, self.index)


class DirectMLSession:
    """One sequence. A step appends in place, a rewind is a number."""

    def __init__(self, engine: DirectMLEngine, capacity: int) -> None:
        self.capacity = 0
        self._engine = engine
        self._context = engine.context
        self._vocabulary = engine.package.decoder.vocabulary
        self._session: ort.InferenceSession | None = engine.session
        self._binding: ort.IOBinding | None = engine.session.io_binding()
        self._options = ort.RunOptions()
        self._stopping = False
        self._tokens: list[int] = []  # those whose KV is held
        self._kv: dict[str, ort.OrtValue] = {}
        self._reserve(max(capacity, 1))

    @property
    def position(self) -> int:
        return len(self._tokens)

    def feed(self, tokens: Sequence[int]) -> Row:
        return Row(self._append(tokens, wanted=1)[-1])

    def feed_all(self, tokens: Sequence[int]) -> F32:
        return self._append(tokens, wanted=len(tokens))

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        del self._tokens[position:]

    def interrupt(self, stop: bool = True) -> None:
        self._stopping = stop
        self._options.terminate = stop

    def export_state(self, start: int, stop: int) -> KeyValues:
        self._bound()
        check_span(start, stop, self.position)
        arrays = {name: held[0, :, start:stop].copy() for name, held in self._on_host().items()}
        return [(arrays[f"{at}.key"], arrays[f"{at}.value"]) for at in range(len(arrays) // 2)]

    def import_state(self, state: KeyValues) -> None:
        self._bound()
        attentions = _attentions(self._engine.package)
        count = check_state(state, [(a.kv_heads, a.head_dim) for a in attentions])
        start, end = self.position, self.position + count
        check_room(start, count, limit=self._context, remedy=LARGER_EXPORT)
        self._reserve(end)
        grown = {name: held.copy() for name, held in self._on_host().items()}  # may be a view of the old memory
        for at, pair in enumerate(state):
            for part, new in zip(("key", "value"), pair, strict=True):
                grown[f"{at}.{part}"][0, :, start:end] = new
        self._use({name: self._engine.on_device(array) for name, array in grown.items()})
        self._tokens += [_UNKNOWN] * count

    def close(self) -> None:
        self._binding = None
        self._session = None  # the weights go with the last session that holds it
        self._kv = {}
        self._tokens = []
        self.capacity = 0

    def _append(self, tokens: Sequence[int], *, wanted: int) -> F32:
        """Reads tokens; the logits [wanted, V] of the last of them. After a failure nothing was appended."""
        self._bound()
        check_tokens(tokens, self.position, vocabulary=self._vocabulary, limit=self._context, remedy=LARGER_EXPORT)
        held, count = self._tokens, len(tokens)
        end = len(held) + count
        self._reserve(end)
        if self._reads_anew(count):
            logits = self._run([*held, *tokens], 0, wanted)
        else:
            steps = [self._run([token], len(held) + at, 1) for at, token in enumerate(tokens)]
            logits = np.concatenate(steps[-wanted:])
        self._tokens = [*held, *tokens]
        return logits

    def _reads_anew(self, count: int) -> bool:
        """Whether that many tokens, with all that are held before them, are read in one piece from the start."""
        if not self._tokens:
            return count > 1
        total = len(self._tokens) + count
        return count > 1 and count * _READ_WHILE_MADE >= total and _UNKNOWN not in self._tokens

    def _run(self, tokens: Sequence[int], start: int, wanted: int) -> F32:
        """The logits [wanted, V] of the last of some tokens, the first of which stands at `start`.

        The graph's own rule: several tokens stand at the start.
        """
        binding, count = self._bound(), len(tokens)
        if self._stopping:
            raise Interrupted
        end = start + count
        binding.bind_cpu_input("input_ids", np.array([tokens], np.int64))
        binding.bind_cpu_input("position_ids", np.arange(start, end, dtype=np.int64)[None])
        binding.bind_cpu_input("seqlens_k", np.array([end - 1], np.int32))
        binding.bind_cpu_input("total_sequence_length", np.array([self.capacity], np.int32))
        binding.bind_cpu_input("logits_at", np.arange(count - wanted, count, dtype=np.int64))
        binding.bind_output("logits")
        assert self._session is not None  # as long as there is a binding
        try:
            with self._engine.lock:
                self._session.run_with_iobinding(binding, self._options)
                logits = binding.get_outputs()[-1].numpy()  # bound last
        except Exception as error:
            if self._stopping:
                raise Interrupted from error
            raise DeviceError(f"ONNX Runtime failed at position {start}: {first_line(error)}") from error
        return logits[0].astype(np.float32, copy=False)

    def _bound(self) -> ort.IOBinding:
        if self._binding is None:
            raise ValueError("this session was closed")
        return self._binding

    def _reserve(self, tokens: int) -> None:
        """Makes room for that many tokens; the KV goes over through the host."""
        if tokens <= self.capacity:
            return
        wanted = max(tokens, self.capacity * _GROWTH)
        capacity = min(-(-wanted // _STEP) * _STEP, self._context)
        new = self._engine.buffers(capacity)
        if self._tokens:
            for name, held in self._on_host().items():
                grown = np.zeros((*held.shape[:2], capacity, held.shape[3]), held.dtype)
                grown[:, :, : self.position] = held[:, :, : self.position]
                new[name] = self._engine.on_device(grown)
        self._use(new)
        self.capacity = capacity

    def _on_host(self) -> dict[str, np.ndarray]:
        """The KV once all that was launched is done."""
        self._bound().synchronize_outputs()
        return {name: value.numpy() for name, value in self._kv.items()}

    def _use(self, kv: dict[str, ort.OrtValue]) -> None:
        """Binds each buffer as past and present."""
        binding = self._bound()
        binding.clear_binding_outputs()
        for name, value in kv.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)
        self._kv = kv


def _attentions(package: Package) -> list[Attention]:
    return [layer.attention for layer in package.decoder.layers]


def _unavailable(device: Device, lack: str, remedy: str) -> DeviceUnavailable:
    return DeviceUnavailable(f"'{device.name}' cannot run this model: {lack}.", [(device.name, lack, remedy)])


def _start(model: str | bytes, provider: str, index: int) -> ort.InferenceSession:
    """A session that falls back to nothing else."""
    options = ort.SessionOptions()
    options.log_severity_level = _QUIET
    options.enable_mem_pattern = False  # this and sequential execution: DirectML takes nothing else
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with_options = (provider, {"device_id": str(index)}) if provider == PROVIDER else _CPU
    return ort.InferenceSession(model, options, providers=[with_options], enable_fallback=0)


def _lack(index: int) -> str:
    """Why no session can be made on an adapter; empty when one was made."""
    try:
        _start(_NOTHING, PROVIDER, index)
    except Exception as error:  # noqa: BLE001 - whatever it is, the device cannot be used, and this says why
        return f"no session can be made on it: {first_line(error)}"
    return ""


def _adapters() -> dict[int, str]:
    """What Windows calls the GPUs, by their number for DirectML, as far as this ONNX Runtime lists them."""
    listed = getattr(ort, "get_ep_devices", list)()
    metadata = [entry.device.metadata for entry in listed if entry.ep_name == PROVIDER]
    return {
        int(known["DxgiAdapterNumber"]): known["Description"]
        for known in metadata
        if known.get("DxgiAdapterNumber", "").isdecimal() and "Description" in known
    }


# an ONNX model of one Neg of float32 [1], opset 21
_NOTHING = bytes.fromhex(
    "080a3a320a0b0a017812017922034e656712016e5a0f0a0178120a0a0808011204"
    "0a020801620f0a0179120a0a08080112040a02080142040a001015"
)

"""ONNX Runtime: one engine per folder and device, one session per sequence."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import (
    LARGER_EXPORT,
    Device,
    Interrupted,
    cannot_run,
    check_rewind,
    check_room,
    check_span,
    check_state,
    check_tokens,
)
from embedllm.backends.memory import on_huge_pages, return_freed_memory
from embedllm.backends.threads import compute_threads
from embedllm.errors import DeviceError
from embedllm.package import Graph, Package
from embedllm.rows import Row

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before the import, which otherwise writes to the home folder
import onnxruntime as ort

if not hasattr(ort, "InferenceSession"):  # a folder that one build left when it was removed beside another
    raise ImportError(f"what is in {list(ort.__path__)} is not whole; install it anew")

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.types import F32

CHUNK = 512  # tokens of a prompt fed at once: from here on prefill gets no faster, only larger (docs/performance.md)
_STEP = 256  # tokens; capacities are multiples of it
_GROWTH = 1.5  # each growth copies the KV once, so that a token costs a constant number of copies on average
_PLACE = re.compile(r"^/\S+\.(?:cc|h):\d+ .*?\) (?=[A-Z\[])")  # "/sources/file.cc:71 int f(const T&) What is wrong"
_OLDEST = (1, 31)  # the first with mlas.qnbit.force_fp32; it goes when no build without it is left (DirectML's: 1.24.4)
_QUIET = 4  # log severity "fatal": errors are raised here, and a library does not print
_log = logging.getLogger("embedllm")


def devices() -> list[Device]:
    """ONNX Runtime's CPU provider; other providers have modules of their own."""
    return [Device(name="cpu", backend=f"onnxruntime {ort.__version__}", description=_processor(), available=True)]


def age_lack(*, exact: bool, version: str = ort.__version__) -> tuple[str, str] | None:
    """Why this ONNX Runtime is too old for what is asked of its CPU provider, and what helps."""
    if not exact or not _is_old(version):
        return None
    reason = (
        f"ONNX Runtime {version} rounds activations on the CPU whatever is asked of it; 1.31 is the first that does not"
    )
    return reason, "load it without exact, or from an environment with onnxruntime 1.31 or newer"


def warn_of_age(version: str = ort.__version__) -> None:
    """Logs what an old ONNX Runtime does worse on the CPU: docs/devices.md#conflicts."""
    if _is_old(version):
        _log.warning(
            "ONNX Runtime %s is older than 1.31, with which this library is tested on the CPU; it cannot run exact",
            version,
        )


def _is_old(version: str) -> bool:
    parts = re.match(r"(\d+)\.(\d+)", version)
    return parts is not None and tuple(map(int, parts.groups())) < _OLDEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """How a session gets a provider other than the CPU's, and what has to run there."""

    add: Callable[[ort.SessionOptions], None]
    runs: Set[str]  # operators of which none may be left to the CPU
    model: Callable[[Path], bytes | None] = lambda path: None  # the graph in another form; None: the file as it is


class OrtEngine:
    """A folder's graph in ONNX Runtime, its KV in the memory of the host: on the CPU, or on a provider that copies.

    Weights are mapped from the file, then packed by the runtime.
    """

    chunk = CHUNK

    def __init__(
        self,
        package: Package,
        graph: Graph,
        device: Device,
        *,
        threads: int = 0,
        exact: bool = False,
        attachment: Attachment | None = None,
    ) -> None:
        """threads: 0 chooses the physical cores. exact: float activations, whatever the graph allows.

        attachment: of the provider to run on; None: the CPU's.
        Raises DeviceError; DeviceUnavailable when part of the work would run on the CPU instead.
        """
        self.device = device
        self.package = package
        self.context = package.context
        self.remedy = LARGER_EXPORT
        self.half = graph.activations == "float16"
        self.only_last = False  # the graph gives the logits of the last position only
        options = _session_options(threads, exact)
        path = package.folder / graph.file
        try:
            with on_huge_pages():
                self._session = self._start(path, options, attachment)
        except Exception as error:
            raise DeviceError(f"ONNX Runtime {ort.__version__} cannot load '{path}': {first_line(error)}") from error
        if attachment is not None and (left := left_to_the_cpu(self._session, attachment.runs)):
            raise cannot_run(device, f"ONNX Runtime gave {', '.join(left)} to the CPU", "use another device")

    def _start(self, path: Path, options: ort.SessionOptions, attachment: Attachment | None) -> ort.InferenceSession:
        if attachment is None:
            return ort.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"], enable_fallback=0)
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        attachment.add(options)
        model = attachment.model(path)
        if model is None:
            return ort.InferenceSession(os.fspath(path), options, enable_fallback=0)
        self.only_last = True
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.fspath(path.parent))
        return ort.InferenceSession(model, options, enable_fallback=0)

    @property
    def session(self) -> ort.InferenceSession:
        if self._session is None:
            raise ValueError("this model was closed")
        return self._session

    def open(self, capacity: int = 0) -> OrtSession:
        return OrtSession(self, capacity)

    def close(self) -> None:
        self._session = None
        return_freed_memory()


class OrtSession:
    """One sequence. Its KV lies in buffers that are past and present at once: a step appends, a rewind is a number."""

    def __init__(self, engine: OrtEngine, capacity: int) -> None:
        self.position = 0
        self.capacity = 0
        self._context = engine.package.context
        self._vocabulary = engine.package.decoder.vocabulary
        self._session: ort.InferenceSession | None = engine.session
        self._binding: ort.IOBinding | None = engine.session.io_binding()
        self._run_options = ort.RunOptions()
        self._stopping = False
        self._first: ort.OrtValue | None = None  # the value of logits_from
        self._only_last = engine.only_last
        self._dtype = np.float16 if engine.half else np.float32
        shapes = [(a.kv_heads, a.head_dim) for a in (layer.attention for layer in engine.package.decoder.layers)]
        self._kv = {
            f"{index}.{part}": np.empty((1, heads, 0, size), self._dtype)
            for index, (heads, size) in enumerate(shapes)
            for part in ("key", "value")
        }
        self._ones = np.ones((1, 0), np.int64)
        self._logits = np.empty((1, 1, self._vocabulary), self._dtype)
        self._binding.bind_output("logits")  # the first to be bound is the first of get_outputs()
        self._reserve(max(capacity, 1))

    def feed(self, tokens: Sequence[int]) -> Row:
        binding = self._prepare(tokens, logits_from=-1)
        binding.bind_ortvalue_output("logits", ort.OrtValue.ortvalue_from_numpy(self._logits))
        self._run(binding, len(tokens))
        return Row(self._logits[0, 0].astype(np.float32, copy=False))

    def feed_all(self, tokens: Sequence[int]) -> F32:
        if self._only_last:
            return self._feed_each(tokens)
        binding = self._prepare(tokens, logits_from=0)
        # without a buffer of ours, which would be checked against the one position that the graph declares
        binding.bind_output("logits")
        self._run(binding, len(tokens))
        return binding.get_outputs()[0].numpy()[0].astype(np.float32, copy=False)

    def _feed_each(self, tokens: Sequence[int]) -> F32:
        """As feed_all, where the graph gives one row at a time."""
        check_tokens(tokens, self.position, vocabulary=self._vocabulary, limit=self._context, remedy=LARGER_EXPORT)
        start, rows = self.position, np.empty((len(tokens), self._vocabulary), np.float32)
        try:
            for row, token in zip(rows, tokens, strict=True):
                self.feed([token])
                row[:] = self._logits[0, 0]
        except BaseException:
            self.position = start
            raise
        return rows

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        self.position = position

    def export_state(self, start: int, stop: int) -> KeyValues:
        check_span(start, stop, self.position)
        return [
            (self._kv[f"{index}.key"][0, :, start:stop].copy(), self._kv[f"{index}.value"][0, :, start:stop].copy())
            for index in range(len(self._kv) // 2)
        ]

    def import_state(self, state: KeyValues) -> None:
        if self._binding is None:
            raise ValueError("this session was closed")
        shapes = [(self._kv[f"{i}.key"].shape[1], self._kv[f"{i}.key"].shape[3]) for i in range(len(self._kv) // 2)]
        end = self.position + check_state(state, shapes)
        check_room(self.position, end - self.position, limit=self._context, remedy=LARGER_EXPORT)
        self._reserve(end)
        for index, pair in enumerate(state):
            for part, values in zip(("key", "value"), pair, strict=True):
                self._kv[f"{index}.{part}"][0, :, self.position : end] = values
        self.position = end

    def interrupt(self, stop: bool = True) -> None:
        self._stopping = stop
        self._run_options.terminate = stop

    def close(self) -> None:
        self._binding = None
        self._session = None  # the weights go with the last session that holds it
        self._kv.clear()
        self.capacity = self.position = 0

    def _prepare(self, tokens: Sequence[int], *, logits_from: int) -> ort.IOBinding:
        """Checks the tokens, makes room for them and binds the inputs."""
        if self._binding is None:
            raise ValueError("this session was closed")
        check_tokens(tokens, self.position, vocabulary=self._vocabulary, limit=self._context, remedy=LARGER_EXPORT)
        end = self.position + len(tokens)
        self._reserve(end)
        binding = self._binding
        binding.bind_cpu_input("input_ids", np.array([tokens], np.int64))
        binding.bind_cpu_input("attention_mask", self._ones[:, :end])
        if not self._only_last:
            # as a value: bind_cpu_input does not find an input that has a default (ONNX Runtime 1.31)
            # and kept by us: the binding of older versions (1.24 to 1.27) leaves it to be freed before the run
            self._first = ort.OrtValue.ortvalue_from_numpy(np.array([logits_from], np.int64))
            binding.bind_ortvalue_input("logits_from", self._first)
        return binding

    def _run(self, binding: ort.IOBinding, count: int) -> None:
        assert self._session is not None  # as long as there is a binding
        try:
            self._session.run_with_iobinding(binding, self._run_options)
        except Exception as error:
            if self._stopping:
                raise Interrupted from error
            raise DeviceError(f"ONNX Runtime failed at position {self.position}: {first_line(error)}") from error
        self.position += count

    def _reserve(self, tokens: int) -> None:
        """Makes room for that many tokens; buffers grow one by one, so that only one is there twice."""
        if tokens <= self.capacity or self._binding is None:
            return
        wanted = max(tokens, int(self.capacity * _GROWTH))
        capacity = min(-(-wanted // _STEP) * _STEP, self._context)
        for name, old in self._kv.items():
            _, heads, _, size = old.shape
            new = np.zeros((1, heads, capacity, size), self._dtype)
            new[:, :, : self.position] = old[:, :, : self.position]
            self._kv[name] = new
            value = ort.OrtValue.ortvalue_from_numpy(new)
            self._binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            self._binding.bind_ortvalue_output(f"present.{name}", value)
        self._ones = np.ones((1, capacity), np.int64)
        self.capacity = capacity


def _session_options(threads: int, exact: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or compute_threads()
    options.log_severity_level = _QUIET
    # a spinning pool eats the cores of the application around us and measured no faster (docs/performance.md)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if exact:
        options.add_session_config_entry("mlas.qnbit.force_fp32", "1")
    return options


def left_to_the_cpu(session: ort.InferenceSession, operators: Set[str]) -> list[str]:
    """Which of these operators run on ONNX Runtime's CPU provider; the session has to record its assignments."""
    return sorted(
        {
            node.op_type
            for part in session.get_provider_graph_assignment_info()
            if part.ep_name == "CPUExecutionProvider"
            for node in part.get_nodes()
            if node.op_type in operators
        }
    )


def first_line(error: Exception) -> str:
    """What an exception says, in a line, without the place in ONNX Runtime's sources that it may begin with."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _PLACE.sub("", lines[0])


def _processor() -> str:
    """The processor's name, in the words of the system."""
    if sys.platform == "linux":
        try:
            with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
        except OSError:
            name = ""
        if name:
            return f"{name}, {compute_threads()} threads"
    import platform

    return platform.processor() or platform.machine()

"""ONNX Runtime: one engine per folder and device, one session per sequence."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from embedllm.backends.base import Device, Unsupported
from embedllm.backends.images import ImageFeatures
from embedllm.backends.options import DEFAULT, RuntimeOptions
from embedllm.backends.ort.activation_replay import ReplayGraph
from embedllm.backends.ort.batch import MAX_BATCH, Batch
from embedllm.backends.ort.runtime import (
    RECORDS_ASSIGNMENTS,
    WEIGHTS_FOLDER,
    check_assignments,
    load_errors,
    ort,
    run_options,
)
from embedllm.backends.ort.session import OrtSession
from embedllm.backends.ort.vision import open_on_cpu
from embedllm.backends.sessions.hidden_rows import OF_PROMPT
from embedllm.backends.sessions.recurrent_session import StatefulSession, step_together
from embedllm.backends.sessions.sparse_memory import GIVES_BACK
from embedllm.backends.system.cpu_threads import compute_threads
from embedllm.backends.system.hardware import processor
from embedllm.backends.system.host_memory import HugePages, return_freed_memory
from embedllm.errors import DeviceError
from embedllm.files.command_line import graph_command
from embedllm.files.optional_packages import needs
from embedllm.package.entries import LATENT, Graph
from embedllm.package.graph_variants import (
    EAGLE,
    EAGLE_HIDDEN,
    FLOAT32,
    FUSED,
    HIDDEN,
    MTP,
    MULTIMODAL,
    QMOE,
    WITH_QMOE,
)
from embedllm.package.package import Package
from embedllm.package.recurrent_state import state_shapes
from embedllm.package.tensors import kv_windows
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.base import BatchRow, Cached, Session
    from embedllm.types import Logits

CHUNK = 512  # tokens of a prompt fed at once: from here on prefill gets no faster, only larger (docs/performance.md)
# Measured with the shape of Qwen3-0.6B, INT4, on two cores (a step of one sequence 31 ms, of eight 85 ms): a step and a
# piece of 4, 8, 16, 24, 32 tokens take 1.5, 1.6, 2.0, 2.8, 3.0 times a step of eight, and 2.3, 2.7, 3.8, 5.9, 6.3 times
# a step of one. Larger pieces are read hardly faster: 180 tokens a second by 16, 195 by 64.
PROMPT_BUDGET = 16
_OLDEST = (1, 31)  # the first with mlas.qnbit.force_fp32; it goes when no build without it is left (DirectML's: 1.24.4)
_NOT_CAUSAL = (1, 32)  # the first with GroupQueryAttention that is not causal
_HIDDEN_ROWS = {HIDDEN.name: OF_PROMPT, EAGLE_HIDDEN.name: OF_PROMPT, MTP.name: 1, EAGLE.name: 1}
_HIDDEN_ROWS |= {FUSED[name].name: rows for name, rows in _HIDDEN_ROWS.items() if name in FUSED}
_FIRST_QMOE = (1, 32)  # whose QMoE multiplies by packed experts on the CPU; before, it unpacked them at every step
_PAST = "past_key_values."
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
}
_SPIN_US = "20"  # ONNX Runtime 1.31 has this option, older ones only all or nothing
_QUIET = 4  # log severity "fatal": errors are raised here, and a library does not print
_log = logging.getLogger("embedllm")


def devices() -> list[Device]:
    """ONNX Runtime's CPU provider; other providers have modules of their own."""
    return [Device(name="cpu", backend=f"onnxruntime {ort.__version__}", description=_processor(), available=True)]


def unsupported_exact(*, exact: bool, version: str = ort.__version__) -> Unsupported | None:
    """Why this ONNX Runtime is too old for what is asked of its CPU provider, and what helps."""
    if not exact or not _is_old(version):
        return None
    reason = (
        f"ONNX Runtime {version} rounds activations on the CPU whatever is asked of it; 1.31 is the first that does not"
    )
    return Unsupported(reason, "load it without exact, or from an environment with onnxruntime 1.31 or newer")


def unsupported_graph(graph: Graph, runtime: RuntimeOptions, *, version: str = ort.__version__) -> str:
    """Why another graph of a folder has to be used on the CPU; empty for one that does what is asked."""
    if graph.variant == MULTIMODAL.name:
        return lacks_image_attention(version)
    if graph.variant not in WITH_QMOE:
        return ""
    if _is_older(version, _FIRST_QMOE):
        return f"ONNX Runtime {version} has no fast QMoE on the CPU; 1.32 is the first that has"
    return "QMoE rounds activations, which runtime.floats forbids" if runtime.floats else ""


def unsupported_latents(graph: Graph, *, version: str = ort.__version__) -> Unsupported | None:
    """Why this ONNX Runtime is too old for a graph that keeps latents, and what helps.

    Older ones have no GroupQueryAttention without new keys and without outputs for them (1.24.4).
    """
    if graph.kv != LATENT or not _is_old(version):
        return None
    reason = f"its graph keeps the latents of MLA, which takes ONNX Runtime 1.31; this is {version}"
    return Unsupported(reason, "load it from an environment with onnxruntime 1.31 or newer")


def warn_of_age(version: str = ort.__version__) -> None:
    """Logs what an old ONNX Runtime does worse on the CPU: docs/devices.md#conflicts."""
    if _is_old(version):
        _log.warning(
            "ONNX Runtime %s is older than 1.31, with which this library is tested on the CPU; it cannot run exact",
            version,
        )


def lacks_image_attention(version: str = ort.__version__) -> str:
    """Why this ONNX Runtime cannot let an image's tokens attend to one another; empty where it can."""
    if not _is_older(version, _NOT_CAUSAL):
        return ""
    return f"ONNX Runtime {version} has causal attention only, and the tokens of an image attend to one another"


def _is_old(version: str) -> bool:
    return _is_older(version, _OLDEST)


def _is_older(version: str, first: tuple[int, int]) -> bool:
    parts = re.match(r"(\d+)\.(\d+)", version)
    return parts is not None and tuple(map(int, parts.groups())) < first


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
    mixes_lengths = False
    prompt_budget = PROMPT_BUDGET

    def __init__(
        self,
        package: Package,
        graph: Graph,
        device: Device,
        *,
        runtime: RuntimeOptions = DEFAULT,
        exact: bool = False,
        attachment: Attachment | None = None,
        adapts: bool = False,
        weights_folder: Path | None = None,
    ) -> None:
        """exact: float activations, whatever the graph allows. weights_folder: None: the graph's own.

        attachment: of the provider to run on; None: the CPU's. adapts: its sessions take adapters; on the CPU only.
        Raises DeviceError; DeviceUnavailable when part of the work would run on the CPU instead.
        """
        self.device = device
        self.package = package
        self.graph = graph
        self.context = package.context
        self.remedy = package.larger_context
        self.half = graph.activations == "float16"
        self.only_last = False  # the graph gives the logits of the last position only
        self.adapts = adapts
        self._new_options = partial(session_options, runtime, exact)
        options = self._new_options()
        self.hidden_rows = _HIDDEN_ROWS.get(graph.variant, 0)
        path = package.folder / graph.file
        forgets = GIVES_BACK and attachment is None and not package.decoder.is_recurrent  # whose rewinds go far back
        self.windows = {
            f"{number}.{part}": window
            for number, window in enumerate(kv_windows(package.decoder) if forgets else ())
            for part in ("key", "value")
            if window is not None
        }
        self.replay_graph: ReplayGraph | None = None
        self.pages = HugePages()
        with load_errors(path), self.pages:
            self._session = self._start(path, options, attachment, weights_folder)
        self.images, self.images_unsupported = self._open_images(attachment)
        # not when exact: float products round by their number of rows, and a reply would depend on what runs beside it
        self.max_batch = MAX_BATCH if attachment is None and not exact else 1
        self._batches: list[Batch] = []  # one for each adapter that sessions step together with
        self._options = run_options()
        if attachment is not None:
            check_assignments(self._session, attachment.runs, device, "use another device")

    def _start(
        self, path: Path, options: ort.SessionOptions, attachment: Attachment | None, weights_folder: Path | None
    ) -> ort.InferenceSession:
        if attachment is None:
            model = self._changed_model(path)
            if model is None and weights_folder is not None:
                model = path.read_bytes()  # of a file, its own folder is that of the weights
            if model is not None:
                options.add_session_config_entry(WEIGHTS_FOLDER, os.fspath(weights_folder or path.parent))
            source = os.fspath(path) if model is None else model
            return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        options.add_session_config_entry(RECORDS_ASSIGNMENTS, "1")
        attachment.add(options)
        own = attachment.model(path)
        if own is None:
            return ort.InferenceSession(os.fspath(path), options, enable_fallback=0)
        self.only_last = True
        options.add_session_config_entry(WEIGHTS_FOLDER, os.fspath(path.parent))
        return ort.InferenceSession(own, options, enable_fallback=0)

    def _changed_model(self, path: Path) -> bytes | None:
        """The graph with inputs for adapters and outputs for activation replay; None: the file as it is."""
        model = None
        if self.adapts:
            with needs("onnx", "LoRA adapters on the CPU"):
                from embedllm.backends.ort.lora import with_adapters

            model = with_adapters(path, self.package.decoder)
        if self.package.decoder.is_recurrent:
            model = path.read_bytes() if model is None else model
            try:
                self.replay_graph = ReplayGraph(model, state_shapes(self.package.decoder), self._new_options)
            except KeyError:
                remedy = graph_command(self.package.folder, self.graph.variant)
                _log.info("'%s' is of an earlier version: accepted drafts are fed again. Run %s", path, remedy)
            else:
                model += self.replay_graph.extension()
        return model

    def _open_images(self, attachment: Attachment | None) -> tuple[ImageFeatures | None, Unsupported | None]:
        """The features of images for the graph; or why it takes none, though the model sees."""
        package = self.package
        if (
            package.decoder.vision is None or attachment is not None
        ):  # on other providers graphs have no inputs for them
            return None, None
        is_bidirectional = package.decoder.images_are_bidirectional
        if any(each.name == "image_positions" for each in self.session.get_overridable_initializers()):
            return ImageFeatures(
                lambda: open_on_cpu(package, self._new_options()), bidirectional=is_bidirectional
            ), None
        if self.graph.variant not in (FLOAT32.name, QMOE.name):
            reason = f"its graph '{self.graph.variant}' takes none"
            return None, Unsupported(reason, "load the model without kv and draft to give it images")
        if is_bidirectional and (lack := lacks_image_attention()):
            return None, Unsupported(lack, "install onnxruntime 1.32 or newer")
        variant = MULTIMODAL.name if is_bidirectional and self.graph.variant == FLOAT32.name else self.graph.variant
        reason = f"'{package.name}' has no graph for them, or one of an earlier version"
        return None, Unsupported(reason, f"run {graph_command(package.folder, variant)}")

    @property
    def session(self) -> ort.InferenceSession:
        if self._session is None:
            raise ValueError("this model was closed")
        return self._session

    def open(self, capacity: int = 0) -> OrtSession:
        session = OrtSession(self, capacity)
        return StatefulSession(self, session) if self.package.decoder.is_recurrent else session  # type: ignore[return-value]  # a Session, too

    def run_batch(self, rows: Sequence[BatchRow]) -> list[Logits]:
        """As RunsBatches; sessions with different adapters are fed by a run for each, and so are those with images."""
        if not self.package.decoder.is_recurrent:
            return self._run_all(rows)
        return step_together(self, rows, lambda session, token: True, self._run_all)

    def _run_all(self, rows: Sequence[BatchRow]) -> list[Logits]:
        by_adapter: dict[int, dict[OrtSession, int]] = {}
        for row in rows:
            session = cast("OrtSession", row.session)
            session.check(row.tokens)
            (token,) = row.tokens
            alike = session if session.has_own_positions else session.adapter
            by_adapter.setdefault(id(alike), {})[session] = token
        positions = {session: session.position for group in by_adapter.values() for session in group}
        logits: dict[Session, Logits] = {}
        try:
            for group in by_adapter.values():
                logits |= self._step(group)
        except BaseException as error:
            if not self.package.decoder.is_recurrent:  # else states have changed, too: step_together rewinds them
                for session, position in positions.items():
                    session.position = position
            if isinstance(error, MemoryError):
                raise DeviceError(f"there is no memory for the KV of {len(rows)} sequences in one run.") from error
            raise
        self._batches = [batch for batch in self._batches if batch.shared.members]
        return [logits[row.session] for row in rows]

    def _step(self, tokens: Mapping[OrtSession, int]) -> dict[OrtSession, Logits]:
        """One run, of sessions with one adapter."""
        if len(tokens) == 1:
            return {session: session.step(token, self._options) for session, token in tokens.items()}
        for session in tokens:
            session.begin_feed(1)
        adapter = next(iter(tokens)).adapter
        batch = next((one for one in self._batches if one.adapter is adapter), None)
        if batch is None:
            batch = Batch(self, adapter)
            self._batches.append(batch)
        rows = batch.step(list(tokens), list(tokens.values()))
        return {session: NumpyLogits(row) for session, row in zip(tokens, rows, strict=True)}

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Of the logits."""
        return np.dtype(np.float16 if self.half else np.float32)

    def empty_kv(self) -> dict[str, NDArray[Cached]]:
        """KV of no token, by name, [1, kv heads, 0, D] in the type that the graph keeps it in."""
        return {
            past.name.removeprefix(_PAST): np.empty((1, past.shape[1], 0, past.shape[3]), _TYPES[past.type])
            for past in self.session.get_inputs()
            if past.name.startswith(_PAST)
        }

    def close(self) -> None:
        self.pages.stop()
        self._session = None
        if self.images is not None:
            self.images.close()
        self._batches = []  # they hold it, too
        return_freed_memory()


def session_options(runtime: RuntimeOptions, exact: bool) -> ort.SessionOptions:
    """Of the CPU provider."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = runtime.threads or compute_threads()
    options.log_severity_level = _QUIET
    # planned again for every length of a sequence, for buffers that the arena has anyway; 40 MB (docs/performance.md)
    options.enable_mem_pattern = False
    # with all threads: half a second instead of three quarters for 0.6B parameters (docs/performance.md#load)
    options.add_session_config_entry("session.prepack.enable_parallel", "1")
    # as long as from one node to the next: a pool that spins for ONNX Runtime's own millisecond eats the cores of the
    # application around us, and is slower beside it (docs/performance.md#spinning)
    spins = runtime.spinning or not _is_old(ort.__version__)
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spins else "0")
    if not runtime.spinning:
        options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    if exact or runtime.floats:
        options.add_session_config_entry("mlas.qnbit.force_fp32", "1")
    return options


def _processor() -> str:
    """The processor's name, and how many threads suit it where the system tells."""
    count = compute_threads()
    return f"{processor()}, {count} threads" if count else processor()

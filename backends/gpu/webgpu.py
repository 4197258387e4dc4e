"""ONNX Runtime's WebGPU provider, a plug-in: KV and logits stay on the GPU, and steps are replayed as captured.

It runs on Vulkan, Direct3D 12 and Metal, through Dawn. There is one GPU of it in a process, which one thread at a time
may use.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from embedllm.backends.base import Device
from embedllm.backends.checks import cannot_run
from embedllm.backends.gpu.images import ImageDecoder, open_images
from embedllm.backends.gpu.recurrent_session import CapturedRecurrentSession, RecurrentSession
from embedllm.backends.gpu.unbatched_session import Buffers, UnbatchedSession
from embedllm.backends.gpu.webgpu_attention_check import SAFE, attends_to_many
from embedllm.backends.gpu.webgpu_batch import Batches
from embedllm.backends.gpu.webgpu_graph import with_next_token
from embedllm.backends.gpu.webgpu_guesses import Guesser, check_guesses
from embedllm.backends.gpu.webgpu_kv import KvCopier
from embedllm.backends.gpu.webgpu_pace import Pace
from embedllm.backends.gpu.webgpu_steps import SAMPLED_WAYS, CapturedSession, StepBuffers
from embedllm.backends.gpu.webgpu_vision import with_plain_attention
from embedllm.backends.ort import plugins
from embedllm.backends.ort.runtime import (
    HEAVY,
    WEIGHTS_FOLDER,
    check_assignments,
    device_errors,
    first_line,
    load_errors,
    ort,
    recording_options,
)
from embedllm.backends.sessions.recurrent_session import StatefulSession, step_together
from embedllm.errors import DeviceError, DeviceUnavailable
from embedllm.files.switches import switch
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import GPU_FLOAT32
from embedllm.package.package import Package

if TYPE_CHECKING:
    from embedllm.backends.base import BatchRow, Unsupported
    from embedllm.backends.gpu.webgpu_guesses import ForeseeingSession
    from embedllm.backends.images import ImageFeatures
    from embedllm.types import Logits

CHUNK = 512  # tokens of a prompt fed at once: short enough for a display driver's patience, and for an interrupt
# environment variable: "0" runs each step kernel by kernel, "greedy" lets only greedy steps run ahead
CAPTURE = "EMBEDLLM_WEBGPU_CAPTURE"
_SPARE = 2  # buffers of closed sessions that wait for the next one
_WARM_UP = (CHUNK, 32, 4, 1)  # tokens fed at once for which the provider has kernels of their own (docs/webgpu.md)
_HEAVY = HEAVY | {"GatherBlockQuantized", "LinearAttention", "CausalConvWithState"}
_TRIED, _TRIED_STEPS = 70, 6  # tokens: a wrong length shows from the 65th on (docs/webgpu.md#capture); captured ones
_NOT_CAPTURED = -1  # in place of the number of a captured graph
_TOLERANCE = 0.5  # standard deviations of logits: float16 stays below 0.1, a wrong length or position makes over 1
_NO_FLOAT16 = "requires f16"  # "... Program MatMulNBits requires f16 but the device does not support it."
_NUMBERS = {"tensor(float16)": np.float16, "tensor(float)": np.float32}


class WebGpuEngine:
    """A folder's float16 or float32 graph on the GPU."""

    mixes_lengths = False
    prompt_budget = CHUNK

    def __init__(
        self, package: Package, graph: Graph, device: Device, *, capture: bool | None = None, joins: bool = True
    ) -> None:
        """Loads the graph and runs it once, so that its shaders are compiled: the first time may take a minute.

        capture: replay decoding steps as they were captured, where that works and gives the same; None: as the
        environment says. joins: step several sequences together, where steps are captured.
        Raises DeviceUnavailable when the GPU cannot run this graph, or part of it would run on the CPU.
        """
        self.device = device
        self.package = package
        self.context = package.context
        self.remedy = package.larger_context
        self.dtype: type[np.floating] = np.float16 if graph.activations == "float16" else np.float32
        self.chunk = chunk()
        self.lock = LOCK
        self.graph_ids = itertools.count(1)
        self.captures = switch(CAPTURE, "greedy") != "off" if capture is None else capture
        self.guesser: Guesser | None = None
        self.pace: Pace | None = None
        self._spare: list[Buffers] = []
        self.copier = self._start_copier()
        self.images: ImageFeatures | None = None
        self.images_unsupported: Unsupported | None = None
        self.image_decoder = ImageDecoder(package, graph, device, lambda path: start(path, recording_options()))
        self._session: ort.InferenceSession | None = None
        self.batches: Batches | None = None
        path = package.folder / graph.file
        if self.captures:
            self.captures = self._starts_captured(path)
        if not self.captures:
            self._session = self._load(path)
        try:
            self.images, self.images_unsupported = open_images(
                package, graph, device, self.session, self._start_encoder, LOCK
            )
            if self.captures:
                self.guesser = self._start_guesser()
                self.pace = Pace("sampled steps", SAMPLED_WAYS)  # not before: what is checked runs ahead
                if joins and self.copier is not None:
                    self.batches = Batches(self, lambda graph: start(graph, recording_options()))
                return
            check_assignments(self.session, _HEAVY, device, "please report it")
            self._warm_up()
        except BaseException:
            self.close()
            raise

    @property
    def session(self) -> ort.InferenceSession:
        if self._session is None:
            raise ValueError("this model was closed")
        return self._session

    def open(self, capacity: int = 0) -> UnbatchedSession:
        if self.package.decoder.is_recurrent:
            plain = CapturedRecurrentSession(self, capacity) if self.captures else RecurrentSession(self, capacity)
            return StatefulSession(self, plain)  # type: ignore[return-value]  # a Session, too
        return CapturedSession(self, capacity) if self.captures else UnbatchedSession(self, capacity)

    @property
    def max_batch(self) -> int:
        return 1 if self.batches is None else self.batches.max_batch

    def run_batch(self, rows: Sequence[BatchRow]) -> Sequence[Logits]:
        """One token for each of 1 to max_batch sessions, in turns where they cannot step together."""
        assert self.batches is not None  # or nobody asks
        if self.package.decoder.is_recurrent:
            return step_together(self, rows, self.batches.joins, self.batches.run)
        positions = [(row.session, row.session.position) for row in rows]
        try:
            return self.batches.run(rows)
        except BaseException:
            for session, position in positions:
                session.rewind(position)
            raise

    def close(self) -> None:
        if self.batches is not None:
            self.batches.close()
        for spare in self._spare:
            spare.close()
        self._spare.clear()
        self._session = self.copier = self.guesser = None
        if self.images is not None:
            self.images.close()
        self.image_decoder.close()

    def replaying(self, graph_id: int | None) -> ort.RunOptions:
        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(_NOT_CAPTURED if graph_id is None else graph_id))
        return options

    def place(self, array: np.ndarray) -> ort.OrtValue:
        with LOCK, device_errors(self.device):
            return put(array)

    def write(self, value: ort.OrtValue, array: np.ndarray) -> None:
        with LOCK, device_errors(self.device):
            write(value, array)

    def read(self, value: ort.OrtValue) -> np.ndarray:
        with LOCK, device_errors(self.device):
            return get(value)

    def take(self, capacity: int) -> Buffers:
        """Buffers for `capacity` tokens: those of a closed session when they are large enough."""
        with LOCK:
            for spare in self._spare:
                if spare.capacity >= capacity:
                    self._spare.remove(spare)
                    return spare
            return StepBuffers(self, capacity) if self.captures else Buffers(self, capacity)

    def give_back(self, buffers: Buffers) -> None:
        with LOCK:
            if self._session is not None and len(self._spare) < _SPARE:
                self._spare.append(buffers)
            else:
                buffers.close()

    def _start_encoder(self, path: str) -> ort.InferenceSession:
        options, vision, file = recording_options(), self.package.decoder.vision, Path(path)
        assert vision is not None
        has_windows = isinstance(vision, DynamicVision) and vision.window > 0
        attends = _attends_to_many()
        if not vision.layers or (attends and not has_windows):
            return start(path, options)
        options.add_session_config_entry(WEIGHTS_FOLDER, os.fspath(file.parent))
        return start(with_plain_attention(file, vision.hidden, masked_only=attends), options)

    def _start_copier(self) -> KvCopier | None:
        """Copies KV on the GPU; None, where that fails."""
        attentions = self.package.decoder.kv_attentions
        shapes = [(attention.kv_heads, attention.head_dim) for attention in attentions for _ in ("key", "value")]
        try:
            with LOCK:
                copier = KvCopier(shapes, self.dtype, lambda graph: start(graph, recording_options()))
                if copier.works(put, get):
                    return copier
            reason = "numbers change on the way"
        except Exception as error:  # noqa: BLE001 - whatever it is, the host can copy too
            reason = first_line(error)
        _log.info("KV of '%s' is copied through the host: %s", self.package.name, reason)
        return None

    def _starts_captured(self, path: Path) -> bool:
        """Loads the graph for captured steps and tries them; False, and nothing is loaded, where they do not work."""
        try:
            model = with_next_token(path, self.package.decoder.vocabulary)
            options = recording_options()
            options.enable_mem_pattern = False  # capturing takes no others
            options.add_session_config_entry(WEIGHTS_FOLDER, os.fspath(path.parent))
            self._session = start(model, options, {"enableGraphCapture": "1"})
            self._warm_up()
            self._check_steps()
        except DeviceUnavailable:
            self.close()
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, steps run without it
            _log.info("steps of '%s' are not captured here: %s", self.package.name, first_line(error))
            self.close()
            return False
        except BaseException:
            self.close()
            raise
        return True

    def _check_steps(self) -> None:
        """Raises DeviceError where steps are not captured, or give other logits than the same tokens as a prompt."""
        buffers = self.take(0)  # those of the session that warmed up
        self.give_back(buffers)
        if isinstance(buffers, StepBuffers) and buffers.failure:
            raise DeviceError(buffers.failure)
        session = self.open()
        tokens = [token % self.package.decoder.vocabulary for token in range(1, min(_TRIED, self.context) + 1)]
        start = max(len(tokens) - _TRIED_STEPS, 1)
        try:
            expected = _values(session.feed(tokens))
            session.rewind(start)
            row = session.feed(tokens[: len(tokens) - start])  # others, so that steps need what they write themselves
            session.rewind(start)
            for token in tokens[start:]:
                row = session.feed([token])
            difference, spread = np.abs(_values(row) - expected).max(), expected.std()
        finally:
            session.close()
        if not difference <= _TOLERANCE * spread:
            raise DeviceError(f"captured steps differ by {difference:.3g}, where logits vary by {spread:.3g}")

    def _start_guesser(self) -> Guesser | None:
        """What lets sampled steps run ahead; None, where that does not work."""
        if switch(CAPTURE, "greedy") == "greedy":
            return None
        session = None
        try:
            self.guesser = Guesser(self, start)
            buffers = self.take(0)  # those of the session that warmed up
            self.give_back(buffers)
            if isinstance(buffers, StepBuffers) and (failure := buffers.guess().run.failure):
                raise DeviceError(failure)
            session = self.open()
            tokens = list(range(min(SAFE, self.context // 2, self.package.decoder.vocabulary)))
            check_guesses(cast("ForeseeingSession", session), tokens)
            return self.guesser
        except Exception as error:  # noqa: BLE001 - whatever it is, steps run one by one
            _log.info("sampled steps of '%s' do not run ahead here: %s", self.package.name, first_line(error))
            return None
        finally:
            if session is not None:
                session.close()

    def _load(self, path: Path) -> ort.InferenceSession:
        with load_errors(path):
            return start(os.fspath(path), recording_options())

    def _warm_up(self) -> None:
        start = time.monotonic()
        _log.info(
            "preparing '%s' for %s: the first time its shaders are compiled, which may take a minute; "
            "the driver keeps them", self.package.name, self.device.description,
        )  # fmt: skip
        session = self.open()
        try:
            for count in sorted({min(count, self.chunk, self.context) for count in _WARM_UP}):
                session.rewind(0)
                session.feed([0] * count)
        except DeviceError as error:
            if _NO_FLOAT16 not in str(error):
                raise
            lack, remedy = "the GPU has no 16-bit floats (shader-f16)", f"use the '{GPU_FLOAT32.name}' graph"
            raise cannot_run(self.device, lack, remedy) from error
        finally:
            session.close()
        _log.info("ready in %.1f s", time.monotonic() - start)


def start(
    model: str | bytes, options: ort.SessionOptions, settings: Mapping[str, str] | None = None
) -> ort.InferenceSession:
    """A session on the GPU, without falling back to another device. model: a file, or what is in one."""
    with LOCK, plugins.quiet():
        _attach(options, settings)
        return ort.InferenceSession(model, options, enable_fallback=0)


def put(array: np.ndarray) -> ort.OrtValue:
    """A copy of an array on the GPU. Called with the lock held."""
    value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, "webgpu")
    write(value, array)
    return value


def get(value: ort.OrtValue) -> np.ndarray:
    """A copy of what is on the GPU. Called with the lock held."""
    copy = ort.OrtValue.ortvalue_from_shape_and_type(value.shape(), _NUMBERS[value.data_type()])
    ort.copy_tensors([value], [copy])
    return copy.numpy()


def chunk() -> int:
    """Most tokens that attention may be given at once. Raises DeviceError when the provider does not run."""
    return CHUNK if _attends_to_many() else SAFE


def write(value: ort.OrtValue, array: np.ndarray) -> None:
    """Puts an array where another is on the GPU. Called with the lock held."""
    ort.copy_tensors([ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))], [value])


def _attach(options: ort.SessionOptions, settings: Mapping[str, str] | None = None) -> None:
    """Gives a session the provider."""
    options.add_provider_for_devices([plugins.devices(plugins.WEBGPU)[0].handle], dict(settings or {}))


def _values(logits: Logits) -> np.ndarray:
    return np.array(logits.values(range(logits.size)))


@cache
def _attends_to_many() -> bool:
    """Whether prompts may be fed in pieces of more than SAFE tokens."""
    try:
        with LOCK, plugins.quiet():
            right = attends_to_many(_attach)
    except Exception as error:
        raise DeviceError(f"ONNX Runtime {ort.__version__} cannot run on WebGPU: {first_line(error)}") from error
    if not right:
        _log.info("attention over many tokens is wrong here: prompts are fed by %d (docs/webgpu.md#faults)", SAFE)
    return right


_log = logging.getLogger("embedllm")
LOCK = threading.RLock()  # one GPU, one queue of its work, for all engines of the process

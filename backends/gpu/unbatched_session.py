"""One sequence in buffers of its own on a GPU, past and present at once; sequences take turns.

That of WebGPU: on CUDA sequences step together, in slots (io_binding_session.py). Prompts are fed in pieces where
attention takes a limited number of tokens. Steps are launched kernel by kernel; webgpu_steps.py has those that are
captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from embedllm.backends.checks import check_room, check_span, check_state
from embedllm.backends.gpu.images import (
    FEATURES,
    POSITIONS,
    ImageDecoder,
    SequenceTables,
    image_arrays,
    is_image,
    pieces_of,
    takes_tables,
)
from embedllm.backends.gpu.session import DeviceEngine, DeviceSession, bound_to, empty_kv
from embedllm.backends.gpu.webgpu_kv import GpuState, KvCopier, host_parts
from embedllm.backends.mrope import open_places
from embedllm.backends.ort.runtime import device_errors, ort
from embedllm.backends.sessions.kv_arrays import on_host
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.base import Device, KeyValues, Span
    from embedllm.backends.images import ImageFeatures
    from embedllm.types import F32, Logits

_STEP = 1024  # tokens; capacities are multiples of it


class Buffers:
    """What a step reads and writes, at fixed places on the GPU."""

    def __init__(self, gpu: Gpu, capacity: int, rows: int = 1) -> None:
        """capacity: tokens; it is rounded up. rows: sequences that step together."""
        self.capacity: int = rounded_capacity(capacity, gpu.context)
        self.kv: dict[str, ort.OrtValue] = empty_kv(gpu, self.capacity, rows)
        self.logits = gpu.place(np.zeros((rows, 1, gpu.package.decoder.vocabulary), gpu.dtype))
        self.binding = bound_to(self.kv, gpu.session)
        rope = gpu.package.decoder.rope
        has_tables = rope.mrope is not None and takes_tables(gpu.session)
        self.tables = SequenceTables(gpu, rope, self.capacity) if has_tables else None
        self.bind_tables(self.binding)

    def bind_tables(self, binding: ort.IOBinding) -> None:
        if self.tables is not None:
            self.tables.bind(binding)

    def close(self) -> None:
        """Releases what is not memory."""


def rounded_capacity(tokens: int, context: int) -> int:
    """The capacity of buffers that are to hold at least that number of tokens."""
    return min(-(-max(tokens, 1) // _STEP) * _STEP, context)


class Gpu(DeviceEngine[Buffers], Protocol):
    """What sessions need of an engine. Its lock is held while inputs are bound too, which copies them."""

    device: Device
    chunk: int  # most tokens that attention takes at once
    copier: KvCopier | None  # None: KV is copied through the host
    images: ImageFeatures | None  # None: it takes text only

    @property
    def image_decoder(self) -> ImageDecoder | None:
        """For images whose tokens attend to one another."""
        ...


class UnbatchedSession(DeviceSession[Buffers]):
    """One sequence. A step appends in place."""

    def __init__(self, gpu: Gpu, capacity: int) -> None:
        super().__init__(gpu, capacity)
        self._gpu = gpu
        self._images = gpu.images
        self._places = open_places(self._decoder, gpu.images)
        self._bound_inputs: dict[str, ort.OrtValue] = {}

    def feed(self, tokens: Sequence[int]) -> Logits:
        buffers = self._prepare(tokens)
        with self._whole():
            for piece in self._pieces(tokens):
                self._run_piece(buffers, piece, self._running)
        return NumpyLogits(self._gpu.read(buffers.logits)[0, 0].astype(np.float32, copy=False))

    def feed_all(self, tokens: Sequence[int]) -> F32:
        buffers = self._prepare(tokens)
        rows: list[np.ndarray] = []
        with self._whole():
            for piece in self._pieces(tokens):
                logits = self._run_piece(buffers, piece, self._running, is_all=True)
                rows.append(logits[0].astype(np.float32, copy=False))
        return np.concatenate(rows)

    def export_state(self, start: int, stop: int) -> KeyValues:
        return on_host(self.export_stored([(start, stop)])[0])

    def export_stored(self, spans: Sequence[Span]) -> list[KeyValues]:
        """KV that stays on the GPU. That of one call shares memory, which is freed with the last of it."""
        for span in spans:
            check_span(*span, self.position)
        start, stop = min(span[0] for span in spans), max(span[1] for span in spans)
        gpu, copier, buffers = self._gpu, self._gpu.copier, self._require_buffers()
        if copier is None or start == stop:
            return [self._exported(*span) for span in spans]
        with gpu.lock, device_errors(gpu.device):
            tensors = copier.copied(list(buffers.kv.values()), start, stop)
        states = [GpuState(tensors, a - start, b - start, copier, gpu.read) for a, b in spans]
        return cast("list[KeyValues]", states)  # what is asked of states and their arrays, these have

    def import_state(self, state: KeyValues) -> None:
        gpu, copier, start = self._gpu, self._gpu.copier, self.position
        self._require_buffers()
        count = check_state(state, [(a.kv_heads, a.head_dim) for a in self._decoder.kv_attentions])
        if copier is None or not count:
            return super().import_state(on_host(state))
        check_room(start, count, limit=self._context, remedy=self._gpu.remedy)
        buffers = self._reserve(start + count)
        with gpu.lock, device_errors(gpu.device):
            stored = cast("object", state)
            if isinstance(stored, GpuState) and stored.copier is copier:
                parts = stored.parts()
            else:
                parts = host_parts(state, copier.dtype)
            copier.write(list(buffers.kv.values()), start, parts)
        self.position = start + count

    def _copy_kv(self, old: Buffers, new: Buffers) -> None:
        gpu, copier = self._gpu, self._gpu.copier
        if copier is None:
            super()._copy_kv(old, new)
        elif self.position:
            with gpu.lock, device_errors(gpu.device):
                parts = copier.copied(list(old.kv.values()), 0, self.position)
                copier.write(list(new.kv.values()), 0, parts)

    def _pieces(self, tokens: Sequence[int]) -> list[Sequence[int]]:
        """What attention takes at once, one after the other; an image whose tokens attend to one another is one."""
        pieces: list[Sequence[int]] = []
        for part in pieces_of(tokens, self._images):
            size = len(part) if self._is_whole_image(part) else self._gpu.chunk
            pieces += [part[at : at + size] for at in range(0, len(part), size)]
        return pieces

    def _is_whole_image(self, tokens: Sequence[int]) -> bool:
        """Whether these are what another graph reads."""
        return self._images is not None and self._images.bidirectional and is_image(tokens[0])

    def _run_piece(
        self, buffers: Buffers, tokens: Sequence[int], options: ort.RunOptions, *, is_all: bool = False
    ) -> np.ndarray:
        """Appends tokens. The logits of the last one are in the buffers then; or it gives those of all."""
        with self._gpu.lock:
            decoder = self._gpu.image_decoder if self._is_whole_image(tokens) else None
            session = None if decoder is None else decoder.session()
            bind = self._bind if session is None else partial(UnbatchedSession._bind, self, session=session)
            binding = bind(buffers, tokens, logits_from=0 if is_all else -1)
            if is_all:
                binding.bind_output("logits")
            else:
                binding.bind_ortvalue_output("logits", buffers.logits)
            self._run(binding, options, self.position + len(tokens), session)
            return binding.get_outputs()[-1].numpy() if is_all else np.empty(0)  # bound last

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """All pieces of a feed, or none of them."""
        start = self.position
        try:
            yield
        except BaseException:
            self.position = start
            if self._places is not None:
                self._places.rewind(start)  # or steps behind it would have positions of images that are not there
            raise

    def _bind(
        self,
        buffers: Buffers,
        tokens: Sequence[int],
        *,
        logits_from: int,
        session: ort.InferenceSession | None = None,
    ) -> ort.IOBinding:
        """A binding that appends these tokens; its logits are to be bound yet. session: of another graph."""
        end = self.position + len(tokens)
        # on the host, which makes lengths of it
        inputs = {"attention_mask": np.ones((1, end), np.int64), "logits_from": np.array([logits_from], np.int64)}
        return self._bind_inputs(buffers, tokens, inputs, session)

    def rewind(self, position: int) -> None:
        super().rewind(position)
        if self._places is not None:
            self._places.rewind(position)

    def put_images(self, place: int, tokens: Sequence[int]) -> None:
        if self._places is not None:
            self._places.put(place, tokens)

    def _fit_tables(self, buffers: Buffers) -> None:
        """Makes the rotary tables those of this sequence: another one may have had the buffers before."""
        if buffers.tables is not None:
            buffers.tables.fit(self._places)

    def _bind_inputs(
        self,
        buffers: Buffers,
        tokens: Sequence[int],
        inputs: dict[str, NDArray[np.generic]],
        session: ort.InferenceSession | None = None,
    ) -> ort.IOBinding:
        """A binding with these tokens, their images and what else is given."""
        images = None if self._images is None else self._images.take(tokens, lambda: self._stopping)
        binding, ids = buffers.binding, tokens
        self.put_images(self.position, tokens)
        self._fit_tables(buffers)
        if images is not None:
            binding, ids = bound_to(buffers.kv, session or self._gpu.session), images.tokens
            buffers.bind_tables(binding)
            arrays = image_arrays(images.features, [(0, place) for place in images.places], self._gpu.dtype)
            inputs |= dict(zip((FEATURES, POSITIONS), arrays, strict=True))
        inputs["input_ids"] = np.array([ids], np.int64)
        # kept, as not every version's binding keeps what it was given
        self._bound_inputs = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
        for name, value in self._bound_inputs.items():
            binding.bind_ortvalue_input(name, value)
        return binding

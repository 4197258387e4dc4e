"""One sequence of a recurrent model on a GPU by WebGPU: its states stay there, beside its KV.

Wrapped by backends/sessions/recurrent_session.py, which rewinds it. Steps are launched kernel by kernel, or captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from embedllm.backends.gpu.unbatched_session import Buffers, Gpu, UnbatchedSession
from embedllm.backends.gpu.webgpu_guesses import GuessingGpu
from embedllm.backends.gpu.webgpu_states import GpuStates, copies_on_gpu, state_tensors
from embedllm.backends.gpu.webgpu_states import States as PlacedStates
from embedllm.backends.gpu.webgpu_steps import CapturedSession, StepBuffers
from embedllm.backends.ort.recurrent_state import KeptStates, States
from embedllm.backends.ort.runtime import device_errors
from embedllm.package.recurrent_state import state_shapes

if TYPE_CHECKING:
    from embedllm.backends.base import RecurrentStates
    from embedllm.backends.ort.runtime import ort
    from embedllm.package.lora.adapter import Adapter


class RecurrentSession(UnbatchedSession):
    """A session whose rewind leaves its states as they are, but for one to the beginning."""

    def __init__(self, gpu: Gpu, capacity: int) -> None:
        super().__init__(gpu, capacity)
        self._states = States(gpu.package.decoder, gpu)

    def rewind(self, position: int) -> None:
        super().rewind(position)
        if not position:
            self._states.reset()

    def states(self) -> KeptStates:
        return self._states.keep()

    def set_states(self, states: KeptStates) -> None:
        self._states.put(states)

    def copied(self, states: KeptStates) -> GpuStates:
        return GpuStates(states.buffers, self._gpu.dtype, self._gpu.read, owner=states)

    def take_states(self, states: RecurrentStates) -> None:
        gpu, names = self._gpu, list(state_shapes(self._decoder))
        with gpu.lock, device_errors(gpu.device):
            copies = copies_on_gpu(state_tensors(states, names, gpu.dtype), gpu.dtype)
        self._states.put(KeptStates(dict(zip(names, copies, strict=True))))

    def adapt(self, adapter: Adapter | None) -> None:
        if adapter is not None:
            raise ValueError("this device takes no adapters.")

    def close(self) -> None:
        super().close()
        self._states.close()

    def _bind(
        self,
        buffers: Buffers,
        tokens: Sequence[int],
        *,
        logits_from: int,
        session: ort.InferenceSession | None = None,
    ) -> ort.IOBinding:
        binding = super()._bind(buffers, tokens, logits_from=logits_from, session=session)
        self._states.bind(binding)
        return binding

    def _run(
        self, binding: ort.IOBinding, options: ort.RunOptions, end: int, session: ort.InferenceSession | None = None
    ) -> None:
        super()._run(binding, options, end, session)
        self._states.advance()


class CapturedRecurrentSession(CapturedSession):
    """The same with captured steps. Its states lie beside its KV, in places for turns."""

    def __init__(self, gpu: GuessingGpu, capacity: int) -> None:
        super().__init__(gpu, capacity)
        self._reset()  # another sequence may have had the buffers before

    def rewind(self, position: int) -> None:
        super().rewind(position)
        if not position:
            self._forget()
            self._reset()

    def states(self) -> PlacedStates:
        """Copies, on the GPU."""
        ring = self._steps().states
        with self._gpu.lock, device_errors(self._gpu.device):
            return ring.copies(self.place)

    def set_states(self, states: PlacedStates) -> None:
        self._forget()
        ring = self._steps().states
        with self._gpu.lock, device_errors(self._gpu.device):
            ring.write(self.place, states)

    def copied(self, states: PlacedStates) -> GpuStates:
        """These copies themselves."""
        tensors = dict(zip(state_shapes(self._decoder), states, strict=True))
        return GpuStates(tensors, self._gpu.dtype, self._gpu.read)

    def take_states(self, states: RecurrentStates) -> None:
        self.set_states(state_tensors(states, state_shapes(self._decoder), self._gpu.dtype))

    def adapt(self, adapter: Adapter | None) -> None:
        if adapter is not None:
            raise ValueError("this device takes no adapters.")

    def _reset(self) -> None:
        ring = self._steps().states
        with self._gpu.lock, device_errors(self._gpu.device):
            ring.reset(self.place)

    def _copy_kv(self, old: Buffers, new: Buffers) -> None:
        super()._copy_kv(old, new)
        before, after = (cast("StepBuffers", buffers).states for buffers in (old, new))
        with self._gpu.lock, device_errors(self._gpu.device):
            after.take(before, self.place)

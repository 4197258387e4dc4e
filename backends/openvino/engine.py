"""OpenVINO on CPU and GPU: one engine per folder and device, one session per sequence. The NPU is in npu.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import Device, Interrupted
from embedllm.backends.checks import check_change, check_rewind, check_room, check_span, check_state, check_tokens
from embedllm.backends.images import ImageFeatures, last_seen
from embedllm.backends.mrope import ImagePlaces, open_places
from embedllm.backends.openvino.logits_slice import GivenHidden, cut_positions
from embedllm.backends.openvino.lora import add_adapters, set_adapter
from embedllm.backends.openvino.properties import properties
from embedllm.backends.openvino.runtime import as_device_error, core, ov, reason
from embedllm.backends.openvino.vision import LAST_SEEN, OvVision, add_images, add_last_seen, image_inputs
from embedllm.backends.options import OpenVINOOptions
from embedllm.backends.sessions.chunk_check import CANNOT_BE_FED, difference
from embedllm.backends.sessions.hidden_rows import OF_PROMPT, HiddenRows
from embedllm.backends.sessions.recurrent_session import StatefulSession
from embedllm.errors import DeviceError
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import HIDDEN_FROM, LAST_HIDDEN_STATE
from embedllm.package.package import Package
from embedllm.package.recurrent_state import state_shapes, variable_name
from embedllm.package.tensors import kv_shapes
from embedllm.sampling.numpy_logits import NumpyLogits

op = ov.opset13

if TYPE_CHECKING:
    from openvino._pyopenvino import VariableState  # the package itself does not export it

    from embedllm.backends.base import KeyValues
    from embedllm.package.lora.adapter import Adapter
    from embedllm.types import F32

CHUNK = 1024  # tokens of a prompt fed at once (docs/performance.md)
# of the largest logit, between ways to feed: a product of bfloat16 or 8 bits rounds by a hundredth of it
_MOST_DIFFERENCE = 0.1
_VARIABLE = re.compile(r"past_key_values\.(\d+)\.(key|value)")


def compile_folder(
    package: Package,
    graph: Graph,
    target: str,
    properties: dict[str, object],
    *,
    cut_logits: bool,
    adapts: bool = False,
    takes_images: bool = False,
    hidden: GivenHidden | None = None,
) -> ov.CompiledModel:
    """Reads the folder's model over its weights file and compiles it. Raises DeviceError.

    cut_logits: adds the input `logits_from`, the first position whose logits are wanted. Not in the file, because
    openvino-genai takes four inputs and no more. adapts: adds those of adapters; takes_images: those of images.
    hidden: as cut_positions() has it.
    """
    path = package.folder / graph.file
    with as_device_error(f"cannot load '{path}' on {target}"):
        model = core().read_model(path, package.weights)
        if adapts:
            add_adapters(model, package.decoder)
        if takes_images:
            add_images(model, package.decoder)
            if package.decoder.images_are_bidirectional:
                add_last_seen(model, in_windows=package.decoder.images_are_whole_in_windows_only)
        if cut_logits:
            cut_positions(model, package.architecture, hidden=hidden)
        return core().compile_model(model, target, properties)


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
        adapts: bool = False,
        hidden: GivenHidden | None = None,
    ) -> None:
        """target: the device in OpenVINO's words, such as "CPU", "GPU.1" or "HETERO:GPU,CPU".

        adapts: its sessions take adapters. hidden: states that they keep for a draft head.
        """
        self.device = device
        self.package = package
        self.graph = graph
        self.context = package.context
        self.remedy = package.larger_context
        self.adapts = adapts
        self.gives_hidden = hidden is not None
        self.last = (0, 0)  # tokens of the last whole step, of any session, and what that held then
        chosen = properties(package, target, options or OpenVINOOptions(), threads, exact)
        self.images: ImageFeatures | None = None
        if package.external is None and package.decoder.vision is not None:
            self.images = ImageFeatures(
                lambda: OvVision(package, target, chosen), bidirectional=package.decoder.images_are_bidirectional
            )
        self._compiled: ov.CompiledModel | None = compile_folder(
            package, graph, target, chosen, cut_logits=True, adapts=adapts, takes_images=self.images is not None,
            hidden=hidden,
        )  # fmt: skip
        self._takes = {name for port in self._compiled.inputs for name in port.names}
        if package.external is not None and difference(self, package.external_graph) > _MOST_DIFFERENCE:
            raise DeviceError(f"'{package.folder / graph.file}' {CANNOT_BE_FED}")

    @property
    def compiled(self) -> ov.CompiledModel:
        if self._compiled is None:
            raise ValueError("this model was closed")
        return self._compiled

    def request(self) -> ov.InferRequest:
        """A new one, of the bare model."""
        request = self.compiled.create_infer_request()
        if self.adapts:
            set_adapter(request, self.package.decoder, None)
        return request

    def open(self, capacity: int = 0) -> OvSession:
        session = OvSession(self)
        return StatefulSession(self, session) if state_shapes(self.package.architecture) else session  # type: ignore[return-value]  # a Session, too

    def inputs(
        self,
        tokens: Sequence[int],
        start: int,
        logits_from: int,
        is_stopped: Callable[[], bool] = lambda: False,
        places: ImagePlaces | None = None,
    ) -> dict[str, np.ndarray]:
        """Of a step; a model of another exporter may take fewer. is_stopped: as ImageFeatures.take() has it.

        places: of the images of the sequence.
        """
        hidden: dict[str, np.ndarray] = {}
        if self.gives_hidden:
            hidden[HIDDEN_FROM] = np.array([-min(len(tokens), OF_PROMPT) if logits_from else 0], np.int64)
        if self.images is None:
            own = _inputs(tokens, start, logits_from) | hidden
            return {name: value for name, value in own.items() if name in self._takes}
        images, decoder = self.images.take(tokens, is_stopped), self.package.decoder
        ids = tokens if images is None else images.tokens.tolist()
        more = image_inputs(decoder, images, [(places, start, start + len(tokens))])
        if self.images.bidirectional:
            more[LAST_SEEN] = np.array(last_seen(tokens, start), np.int64)
        return _inputs(ids, start, logits_from) | hidden | more

    def settle(self, cancelled: tuple[int, int]) -> None:
        """To be called when a step was cancelled; its tokens, and what would have been held.

        All requests share one graph in the plugin (2026.4). After a cancelled step part of it is left with that step's
        shapes and takes those of the last whole step for current, so that one of the same size would fail. A step of
        other sizes puts it right.
        """
        if self._compiled is None:  # closed meanwhile; nobody will feed it
            return
        for count in (n for n in range(1, 8) if n not in (*cancelled, *self.last)):
            try:
                self.request().infer(self.inputs([0] * count, 0, -1))
            except RuntimeError:
                continue  # a size that part of the graph still has
            self.last = (count, count)
            return

    def close(self) -> None:
        if self.images is not None:
            self.images.close()
        self._compiled = None


class OvSession:
    """One sequence. Its KV is the request's state, which grows by itself; a rewind copies what is kept."""

    def __init__(self, engine: OvEngine) -> None:
        self.position = 0
        self._engine = engine
        self._places = None if engine.images is None else open_places(engine.package.decoder, engine.images)
        self._context = engine.context
        self._model = engine.package.architecture
        self._kv = kv_shapes(self._model, engine.graph.kv)
        self.hidden = HiddenRows(engine.package.decoder.hidden) if engine.gives_hidden else None
        self._adapter: Adapter | None = None
        self._length = 0  # tokens in the state: more than `position` after a rewind, until the next feed; -1: unknown
        with as_device_error("cannot make a session"):
            self._request: ov.InferRequest | None = engine.request()
            self._states = self._by_layer(self._request)
            self._recurrent = self._by_name(self._request)
        self._stopping = False
        self._is_running = False
        self._was_cancelled = False  # the running step, even if nobody wants that any more

    @property
    def capacity(self) -> int:
        return self.position

    def feed(self, tokens: Sequence[int]) -> NumpyLogits:
        return NumpyLogits(self._run(tokens, logits_from=-1)[0, -1])

    def feed_all(self, tokens: Sequence[int]) -> F32:
        return self._run(tokens, logits_from=0)[0].copy()

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        self.position = position
        if self._places is not None:
            self._places.rewind(position)
        if not position:
            self._cut()  # gives the memory back

    def put_images(self, place: int, tokens: Sequence[int]) -> None:
        if self._places is not None:
            self._places.put(place, tokens)

    def adapt(self, adapter: Adapter | None) -> None:
        check_change(adapter, self.position, can=self._engine.adapts)
        if self._engine.adapts and self._request is not None:
            with as_device_error("cannot take an adapter"):
                set_adapter(self._request, self._engine.package.decoder, adapter)
            self._adapter = adapter  # its arrays are set, not copied

    def interrupt(self, stop: bool = True) -> None:
        self._stopping = stop
        request = self._request
        if stop and self._is_running and request is not None:
            self._was_cancelled = True
            request.cancel()

    def close(self) -> None:
        self._request = None
        self._states = []
        self._recurrent = {}
        self.position = self._length = 0

    def states(self) -> dict[str, F32]:
        with as_device_error("cannot give the states away"):
            return {name: variable.state.data[0].astype(np.float32) for name, variable in self._recurrent.items()}

    def set_states(self, states: Mapping[str, F32]) -> None:
        with as_device_error("cannot take states"):
            for name, variable in self._recurrent.items():
                _set(variable, states[name])

    def copied(self, states: Mapping[str, F32]) -> Mapping[str, F32]:
        return states

    def take_states(self, states: Mapping[str, F32]) -> None:
        self.set_states(states)

    def export_state(self, start: int, stop: int) -> KeyValues:
        check_span(start, stop, self.position)
        if not self.position:  # the state of a new request has no shape yet
            sizes = [((heads, 0, key), (heads, 0, value)) for heads, key, value in self._kv]
            return [(np.empty(key, np.float32), np.empty(value, np.float32)) for key, value in sizes]
        with as_device_error("cannot give the KV away"):
            return [
                (_read(key)[:, start:stop].copy(), _read(value)[:, start:stop].copy()) for key, value in self._states
            ]

    def import_state(self, state: KeyValues) -> None:
        if self._request is None:
            raise ValueError("this session was closed")
        count = check_state(state, self._kv)
        check_room(self.position, count, limit=self._context, remedy=self._engine.remedy)
        start = self.position
        self._length = -1  # until all is written: a failure in between must not pass for a whole state
        with as_device_error("cannot take a KV"):
            for variables, pair in zip(self._states, state, strict=True):
                for variable, new in zip(variables, pair, strict=True):
                    _set(variable, np.concatenate([_read(variable)[:, :start], new], axis=1) if start else new)
        self.position = self._length = start + count
        if self.hidden is not None:
            self.hidden.clear()

    def _run(self, tokens: Sequence[int], *, logits_from: int) -> np.ndarray:
        """The logits, [1, T', V], valid until the next run."""
        if self._request is None:
            raise ValueError("this session was closed")
        check_tokens(
            tokens, self.position, vocabulary=self._model.vocabulary, limit=self._context, remedy=self._engine.remedy,
            images=self._engine.images,
        )  # fmt: skip
        if self._stopping:
            raise Interrupted
        self._cut()
        self._step(self._request, tokens, logits_from)
        return self._request.get_output_tensor(0).data

    def _step(self, request: ov.InferRequest, tokens: Sequence[int], logits_from: int) -> None:
        size = (len(tokens), self.position + len(tokens))
        self._length = -1
        self._was_cancelled = False
        self._is_running = True
        try:
            self.put_images(self.position, tokens)
            inputs = self._engine.inputs(tokens, self.position, logits_from, lambda: self._stopping, self._places)
            request.start_async(inputs)
            if self._stopping:  # asked for before there was anything to cancel
                self._was_cancelled = True
                request.cancel()
            request.wait()
        except RuntimeError as error:
            if self._was_cancelled:
                self._engine.settle(size)
                raise Interrupted from error
            raise DeviceError(f"OpenVINO failed at position {self.position}: {reason(error)}") from error
        finally:
            self._is_running = False
        self._engine.last = size
        self.position = self._length = size[1]
        if self.hidden is not None:
            self.hidden.put(self.position, request.get_tensor(LAST_HIDDEN_STATE).data[0, -OF_PROMPT:])

    def _cut(self) -> None:
        """Makes the state hold `position` tokens; of a step that was stopped, some layers have taken theirs already."""
        if self._request is None or self._length == self.position:
            return
        with as_device_error("cannot rewind"):
            if not self.position:
                self._request.reset_state()
                self._length = 0
                return
            for variable in (variable for variables in self._states for variable in variables):
                state = _read(variable)
                if state.shape[1] != self.position:
                    _set(variable, state[:, : self.position])
        self._length = self.position

    def _by_layer(self, request: ov.InferRequest) -> list[tuple[VariableState, VariableState]]:
        """(key, value) of every attention; the request gives them in an order of its own."""
        variables: dict[tuple[int, str], VariableState] = {}
        for variable in request.query_state():
            if match := _VARIABLE.match(variable.name):
                variables[int(match[1]), match[2]] = variable
        return [(variables[index, "key"], variables[index, "value"]) for index in range(len(self._kv))]

    def _by_name(self, request: ov.InferRequest) -> dict[str, VariableState]:
        """The states of layers without attention, by their names in embedllm/package/recurrent_state.py."""
        names = {variable_name(name): name for name in state_shapes(self._model)}
        return {names[variable.name]: variable for variable in request.query_state() if variable.name in names}


def _inputs(tokens: Sequence[int], start: int, logits_from: int) -> dict[str, np.ndarray]:
    end = start + len(tokens)
    return {
        "input_ids": np.array([tokens], np.int64),
        "attention_mask": np.ones((1, end), np.int64),
        "position_ids": np.arange(start, end, dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
        "logits_from": np.array([logits_from], np.int64),
    }


def _read(variable: VariableState) -> np.ndarray:
    """A copy of what a variable holds, [kv heads, T, D]."""
    return variable.state.data[0]


def _set(variable: VariableState, values: np.ndarray) -> None:
    variable.state = ov.Tensor(np.ascontiguousarray(values[None], dtype=np.float32))

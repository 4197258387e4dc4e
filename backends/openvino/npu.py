"""Intel's NPU through OpenVINO's NPUW: two models of fixed shapes, one that reads a prompt and one that continues.

NPUW (the NPU plugin's wrapper for what the NPU's compiler cannot take whole) makes both from the one stateful model. It
can also run them on the CPU, the device "npu-on-cpu": the same partition, shapes and session, which is how this file is
tested where there is no NPU.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

import numpy as np

from embedllm.backends.base import Device
from embedllm.backends.checks import check_rewind, check_tokens
from embedllm.backends.openvino.engine import compile_folder
from embedllm.backends.openvino.properties import EXACT
from embedllm.backends.openvino.runtime import as_device_error, cache_folder, core, ov, reason
from embedllm.backends.options import OpenVINOOptions
from embedllm.errors import DeviceError, DeviceUnavailable
from embedllm.package.entries import Graph
from embedllm.package.package import Package
from embedllm.sampling.numpy_logits import NumpyLogits

_PIECE = 8  # tokens that the continuing model takes at once, at the cost of a slower step for one: docs/performance.md
_READ_ANEW = 4  # pieces; more new tokens than that, and the prompt is read again from its start when it fits
_UNPACKED_GROUP = 64  # values; NPUW unpacks groups of a multiple of it only (OpenVINO 2026.4)
_LARGER = "load with larger OpenVINOOptions(prompt=..., reply=...), --openvino prompt=N"
_GUIDE = "docs/devices.md#npu"
_log = logging.getLogger("embedllm")


class NpuEngine:
    """A folder on the NPU, or on the CPU in the NPU's way."""

    def __init__(
        self,
        package: Package,
        graph: Graph,
        device: Device,
        *,
        options: OpenVINOOptions | None = None,
        on_cpu: bool = False,
        exact: bool = False,
    ) -> None:
        """Compiles for minutes the first time on a device; the result is kept in the cache folder.

        Raises DeviceUnavailable without a driver, DeviceError when compiling fails.
        """
        options = options or OpenVINOOptions()
        self.device = device
        self.package = package
        self.prompt = min(options.prompt, package.context)
        # NPUW holds one token less than it was asked for
        self.context = min(self.prompt + options.reply - 1, package.context)
        self.chunk = self.prompt
        self.remedy = package.larger_context if self.context == package.context else _LARGER
        properties = _properties(package, self.prompt, options, on_cpu=on_cpu, exact=exact)
        start = time.monotonic()
        _log.info(
            "compiling '%s' for %s: prompts of %d tokens, %d in all; takes up to minutes, unless it lies in %s",
            package.name, device.name, self.prompt, self.context, properties.get("CACHE_DIR", "no cache"),
        )  # fmt: skip
        self.holder: NpuSession | None = None  # whose tokens the wrapper holds: it has one KV for all requests
        self._compiled: ov.CompiledModel | None = compile_folder(package, graph, "NPU", properties, cut_logits=False)
        _log.info("compiled in %.1f s", time.monotonic() - start)

    def open(self, capacity: int = 0) -> NpuSession:
        return NpuSession(self)

    @property
    def compiled(self) -> ov.CompiledModel:
        if self._compiled is None:
            raise ValueError("this model was closed")
        return self._compiled

    def close(self) -> None:
        self._compiled = None


class NpuSession:
    """One sequence. After a rewind, or when another one was fed between, all is computed again with the next feed."""

    def __init__(self, engine: NpuEngine) -> None:
        self.position = 0
        self.capacity = self._limit = engine.context
        self._remedy = engine.remedy
        self._vocabulary = engine.package.decoder.vocabulary
        self._prompt = engine.prompt
        self._engine = engine
        self._request: ov.InferRequest | None = self._new_request()
        self._tokens: list[int] = []
        self._wrapper_tokens = 0  # tokens that the wrapper holds, which are the first of `_tokens`; 0 after a rewind
        self._has_run = False
        self._beam = np.zeros(1, np.int32)

    def feed(self, tokens: Sequence[int]) -> NumpyLogits:
        if self._request is None:
            raise ValueError("this session was closed")
        check_tokens(
            tokens,
            self.position,
            vocabulary=self._vocabulary,
            limit=self._limit,
            remedy=self._remedy,
        )
        everything = [*self._tokens, *tokens]
        logits = self._computed(everything)
        self._tokens = everything
        self.position = self._wrapper_tokens = len(everything)
        return NumpyLogits(logits)

    def _computed(self, everything: list[int]) -> np.ndarray:
        """The logits after the last token; what the wrapper holds of the others is not computed again."""
        if self._engine.holder is not self:
            self._wrapper_tokens = 0
            self._engine.holder = self
        start, end = self._wrapper_tokens, len(everything)
        # a prompt can be read from the start only; that costs as much as a few steps
        if end - start > _READ_ANEW * _PIECE and end <= self._prompt:
            start = 0
        self._wrapper_tokens = 0
        logits = np.empty(0, np.float32)
        while start < end:
            stop = min(end, start + (_PIECE if start else self._prompt))
            logits = self._infer(everything, start, stop)
            start = stop
        return logits

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        if position < self.position:
            del self._tokens[position:]
            self.position = position
            self._wrapper_tokens = 0

    def close(self) -> None:
        self._request = None
        if self._engine.holder is self:
            self._engine.holder = None
        self._tokens.clear()
        self.position = self._wrapper_tokens = 0

    def _new_request(self) -> ov.InferRequest:
        with as_device_error("cannot make a session"):
            return self._engine.compiled.create_infer_request()

    def _infer(self, tokens: list[int], start: int, stop: int) -> np.ndarray:
        """The logits after the last of the tokens from `start` to before `stop`."""
        if (
            stop == 1 and self._has_run
        ):  # one token is always taken for the next of a reply (2026.4, tests/backends/openvino/test_npu.py)
            self._request = self._new_request()
        self._has_run = True
        inputs = {
            "input_ids": np.array([tokens[start:stop]], np.int64),
            "attention_mask": np.ones((1, stop), np.int64),
            "position_ids": np.arange(start, stop, dtype=np.int64)[None],
            "beam_idx": self._beam,
        }
        assert self._request is not None  # as long as there are tokens to feed
        try:
            self._request.infer(inputs)
        except RuntimeError as error:
            raise DeviceError(f"OpenVINO's NPU plugin failed at position {start}: {reason(error)}") from error
        return self._request.get_tensor("logits").data[0, -1].astype(np.float32)


def _properties(
    package: Package, prompt: int, options: OpenVINOOptions, *, on_cpu: bool, exact: bool
) -> dict[str, object]:
    chosen: dict[str, object] = {
        "NPU_USE_NPUW": "YES",
        "NPUW_LLM": "YES",
        "NPUW_LLM_MAX_PROMPT_LEN": prompt,
        "NPUW_LLM_MIN_RESPONSE_LEN": options.reply,
        "NPUW_LLM_MAX_GENERATION_TOKEN_LEN": _PIECE,
    }
    groups = {entry.get("group_size") for entry in package.packing_entries.values()}
    if any(isinstance(group, int) and group % _UNPACKED_GROUP for group in groups):
        chosen |= {"NPUW_FOLD": "NO", "NPUW_HOST_GATHER": "NO"}  # nothing is unpacked outside of the models then
        if not on_cpu:
            _log.info(
                "'%s' has groups of fewer than %d weights; --target npu is made for it", package.name, _UNPACKED_GROUP
            )
    driver = "cpu" if on_cpu else driver_version()
    if on_cpu:
        chosen |= {"NPUW_DEVICES": "CPU", "NPUW_ONLINE_PIPELINE": "NONE"}
        chosen |= {key: EXACT[key] for key in ("INFERENCE_PRECISION_HINT", "DYNAMIC_QUANTIZATION_GROUP_SIZE") if exact}
    if not exact:  # what is read from the cache forgets that it was
        chosen["CACHE_DIR"] = os.fspath(cache_folder(options, "NPU", driver))
    return chosen


def driver_version() -> str:
    """The NPU driver's version. DeviceUnavailable when there is none."""
    try:
        return str(core().get_property("NPU", "NPU_DRIVER_VERSION"))
    except RuntimeError as error:
        lack = f"OpenVINO finds no NPU driver ({reason(error)})"
        remedy = f"install or update Intel's NPU driver: {_GUIDE}"
        raise DeviceUnavailable(f"'npu': {lack}; {remedy}.", [("npu", lack, remedy)]) from error

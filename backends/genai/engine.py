"""onnxruntime-genai as an engine, for folders of several graphs, which it alone knows how to feed.

It computes logits; which token comes next is decided here, as on every device.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from embedllm.backends.base import Device
from embedllm.backends.genai.session import GenaiSession, Generator
from embedllm.backends.ort.engine import CHUNK
from embedllm.backends.ort.external_graph.engine import MOST_DIFFERENCE
from embedllm.backends.ort.runtime import first_line
from embedllm.backends.sessions.chunk_check import CANNOT_BE_FED
from embedllm.backends.system.cpu_threads import compute_threads
from embedllm.backends.system.host_memory import return_freed_memory
from embedllm.errors import DeviceError
from embedllm.files.no_telemetry import without_ort_telemetry

with without_ort_telemetry():
    import onnxruntime_genai as og

if TYPE_CHECKING:
    from embedllm.backends.options import RuntimeOptions
    from embedllm.package.entries import Graph
    from embedllm.package.package import Package

_OG: Any = og  # it has no types
_NO_TOKEN = -1
_SEED = 20261122
_TRIED = 6  # tokens of the prompt that is fed at load
_log = logging.getLogger("embedllm")


def devices() -> list[Device]:
    return [
        Device(
            name="genai",
            backend=f"onnxruntime-genai {og.__version__}",
            description="what a folder's genai_config.json names",
            available=True,
        )
    ]


class GenaiEngine:
    """A folder's graphs, run by onnxruntime-genai on what its configuration names."""

    def __init__(self, package: Package, graph: Graph, device: Device, runtime: RuntimeOptions) -> None:
        """Raises DeviceError for a folder that it does not load, or that gives other logits for the same prompt."""
        assert package.external is not None  # no other folder has such a graph
        self.device = device
        self._window = package.external.window
        # what fills a window up is counted, too
        self.largest = package.external_graph.context
        self.context = min(package.context, self.largest - (self._window.size - 1 if self._window else 0))
        self.remedy = package.larger_context
        self.vocabulary = package.external_graph.vocabulary
        self.output = package.external.names.logits
        self.gives_all = True  # logits of every token of a piece, until it is found otherwise
        self.filler = self._window.filler if self._window else None
        path = package.folder / graph.file
        try:
            config = _OG.Config(str(package.folder))
            config.overlay(json.dumps({"model": self._overlay(runtime)}))
            self._model = _OG.Model(config)
            options = _OG.GeneratorParams(self._model).get_search_options()
        except Exception as error:
            raise DeviceError(
                f"{device.backend} cannot load '{path}': {first_line(error).rstrip('.')}. Correct that file, or "
                "install the build with the providers that it names (docs/guide-external-folders.md#several-graphs)."
            ) from error
        # a generator takes the memory of all the tokens that it has room for at once; with windows that is all
        self.is_shared = options["past_present_share_buffer"] and self._window is None
        self._try(MOST_DIFFERENCE[package.external.names.rounds], str(path))
        _log.info("'%s' takes tokens behind others %s", path, "in pieces" if self.appends else "one by one")

    def open(self, capacity: int = 0) -> GenaiSession:
        if self._model is None:
            raise ValueError("this model was closed")
        return GenaiSession(self, capacity)

    def close(self) -> None:
        self._model = None
        return_freed_memory()

    def generator(self, room: int) -> Generator:
        """A new one, whose sequence has room for `room` tokens."""
        params = _OG.GeneratorParams(self._model)
        params.set_search_options(max_length=room, batch_size=1, num_beams=1, num_return_sequences=1, do_sample=False,
                                  min_length=0, repetition_penalty=1.0)  # fmt: skip
        return _OG.Generator(self._model, params)

    def _overlay(self, runtime: RuntimeOptions) -> dict[str, object]:
        """What the configuration shall say otherwise."""
        # where it is made to choose a token, it stops at one that ends a reply: here at the last, which is seldom one
        overlay: dict[str, object] = {"eos_token_id": self.vocabulary - 1}
        # each graph has threads of its own: those that wait for work must not keep the others' cores busy
        options: dict[str, object] = {"session.intra_op.allow_spinning": str(int(runtime.spinning))}
        if threads := runtime.threads or compute_threads():
            options["intra_op_num_threads"] = threads
        overlay["decoder"] = {"session_options": options}
        if self._window is None:
            # Of a piece it gives the logits of the last token that is no padding, and where all are, what lies before
            # the first (0.18; tests/backends/genai/test_engine.py): here a padding token means what it says
            overlay["pad_token_id"] = _NO_TOKEN
        return overlay

    def _try(self, most: float, path: str) -> None:
        """Finds out how tokens are given behind others: appended, or one by one, by making it choose each.

        The latter on devices that do not append, and with windows, which it would fill up. Raises DeviceError where the
        logits are wrong in both ways.
        """
        failure = DeviceError(f"'{path}' {CANNOT_BE_FED}")
        for appends in (True, False) if self._window is None else (False,):
            self.appends = appends
            self.chunk = CHUNK if appends else self.context  # a prompt goes in whole where single tokens follow it
            try:
                if self._difference() <= most:
                    return
            except DeviceError as error:
                failure = error
        raise failure

    def _difference(self) -> float:
        """How far logits of a prompt in pieces are from those of the same one fed at once; of the largest logit."""
        count, differences = min(_TRIED, self.context), []
        drawn = np.random.default_rng(_SEED).integers(0, self.vocabulary - 1, 2 * count).tolist()
        tokens = [token for token in drawn if token != self.filler][:count]
        ends = sorted({max(1, count // 3), max(1, count // 2), count})
        pieces = GenaiSession(self, count)
        for start, end in zip([0, *ends], ends, strict=False):
            logits = pieces.logits(tokens[start:end], each=True)[-1]
            right = GenaiSession(self, count).logits(tokens[:end], each=False)[-1]
            differences.append(np.abs(logits - right).max() / np.abs(right).max())
        return float(np.max(differences))  # NaN where one is: that is no difference that is small enough

"""llama.cpp's server of one GGUF file, in this process: the package xllamacpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest


class LlamaCpp:
    """Answers as long as it is held.

    pooling: of a model that embeds texts, as xllamacpp calls it; empty: none. mmproj: the file of its vision encoder.
    threads: 0 for its default.
    """

    def __init__(
        self, file: Path, *, pooling: str = "", mmproj: Path | None = None, context: int = 128, threads: int = 0
    ) -> None:
        xllamacpp: Any = pytest.importorskip("xllamacpp")
        options = xllamacpp.CommonParams()
        options.model.path, options.n_ctx, options.n_parallel, options.warmup = str(file), context, 1, False
        if mmproj is not None:
            options.mmproj.path, options.mmproj_use_gpu = str(mmproj), False
        if threads:
            options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
        if pooling:
            options.embedding = True
            options.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{pooling}")
        self._server = xllamacpp.Server(options)

    def post(self, path: str, **body: object) -> Any:  # noqa: ANN401  # whatever JSON it answers
        kinds = {"Content-Type": "application/json"}
        request = Request(f"{self._server.listening_address}/{path}", json.dumps(body).encode(), kinds)
        with urlopen(request) as reply:
            return json.load(reply)

    @property
    def image_marker(self) -> str:
        """What stands for an image in a prompt."""
        with urlopen(f"{self._server.listening_address}/props") as reply:
            return json.load(reply)["media_marker"]

"""An engine in a process of its own, as the parent sees it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import IO, Any, Self

from embedllm.errors import EmbedError
from embedllm.profiling.bench.specs import Spec

_END_S = 10.0
_TAIL = 2000  # characters of what a process that ended said last


class Process:
    """A worker; a context manager. Every call raises EmbedError when the engine fails or its process ends."""

    def __init__(self, spec: Spec, *, threads: int, capacity: int, exact: bool, prefix_cache: bool) -> None:
        """Starts it; opened() waits until the engine is there."""
        config = {
            **asdict(spec),
            "threads": threads,
            "capacity": capacity,
            "exact": exact,
            "prefix_cache": prefix_cache,
        }
        self.spec = spec
        self._stderr: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - as long
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "embedllm.profiling.bench.worker", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            encoding="utf-8",
        )

    def opened(self) -> dict[str, Any]:
        """What the worker says first, and `start_s`: from the start of the process to an engine that is ready."""
        answer = self._read()
        return {**answer, "start_s": time.perf_counter() - self._started}

    def run(self, tokens: Sequence[int], count: int, *, do: str = "run") -> dict[str, Any]:
        """Runs one reply; see worker.answer()."""
        return self._ask({"do": do, "tokens": list(tokens), "count": count})

    def batch(self, prompts: Sequence[Sequence[int]], count: int) -> dict[str, Any]:
        """Runs several concurrent replies."""
        return self._ask({"do": "batch", "prompts": [list(prompt) for prompt in prompts], "count": count})

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # it ended before it read all
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # it may be in the middle of a run
            self._process.kill()
        self.close()

    def _ask(self, message: dict[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failure(f"it does not listen any more ({error.strerror or error})") from error
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure(f"its process ended with code {self._process.wait()}: {self._tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise self._failure(answer["error"])
        return answer

    def _failure(self, why: str) -> EmbedError:
        return EmbedError(f"'{self.spec.label}' cannot be measured: {why}")

    def _tail(self) -> str:
        self._stderr.seek(0)
        return " ".join(self._stderr.read()[-_TAIL:].split()) or "it said nothing"

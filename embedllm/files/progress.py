"""How far an export, or other long work, has come, and how its small files are written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One report."""

    # "weights", "graphs", "verify", "inputs", "calibration", "sensitivity"; "trace", optimum's; "draft", a text that
    # the model generates, with "draft-weights" of its own; "shards" of files that are cut; "copy" of a folder;
    # "download"; "hash" of a GGUF file; of an evaluation "text", "tasks"
    stage: str
    # bytes for "weights", "draft-weights", "shards", "copy", "download" and "hash", tokens for "draft", steps otherwise
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProgress:
    """How far the loading of one file has come in a browser: embedllm.web.Progress."""

    file: str
    loaded: int  # bytes
    total: int  # bytes; 0: not known
    phase: str  # "download", "check", "stored" (it was there already) or "compile"

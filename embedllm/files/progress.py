"""How far an export, or other long work, has come, and how its small files are written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One report."""

    # "weights", "graphs", "verify", "inputs", "calibration", "sensitivity"; "trace", optimum's; "draft", a text that
    # the model draws; "parts" of files that are cut; "copy" of a folder; "download"; "hash" of a GGUF file; of an
    # evaluation "text", "tasks"
    stage: str
    done: int  # bytes for "weights", "parts", "copy", "download" and "hash", steps otherwise
    total: int

"""How far an export, or other long work, has come, and how its small files are written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Progress:
    """One report."""

    # "weights", "graphs", "verify", "inputs", "calibration", "sensitivity"; "trace", optimum's; "draft", a text that
    # the model draws; "parts" of files that are cut; "copy" of a folder; "download"; "hash" of a GGUF file; of an
    # evaluation "text", "tasks"
    stage: str
    done: int  # bytes for "weights", "parts", "copy", "download" and "hash", steps otherwise
    total: int


def write_json(path: Path, data: object) -> None:
    """Readable JSON that appears whole; as UTF-8, since onnxruntime-genai's parser refuses \\u escapes."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)

"""embedllm in a browser: aload() gives the Model of the desktop, over what JavaScript computes. Pyodide only.

import embedllm

llm = await embedllm.aload("https://example.org/models/qwen3")
async for chunk in llm.astream([{"role": "user", "content": "list files by size"}]):
    print(chunk.text, end="")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedllm.files.progress import FileProgress as Progress

if TYPE_CHECKING:
    from embedllm.web.loading import adevices, aload, devices, load

__all__ = ["Progress", "adevices", "aload", "devices", "load"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from embedllm.web import loading  # what it imports is there in Pyodide only

    return getattr(loading, name)

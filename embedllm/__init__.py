"""Embed a language model in an application: one exported folder, every device, one loop, no torch.

    import embedllm

    with embedllm.load("demo") as llm:
        for chunk in llm.stream([{"role": "user", "content": "list files by size"}]):
            print(chunk.text, end="")

Importing this loads the standard library only; a runtime is loaded with the first model.
"""

from __future__ import annotations

import sys as _sys

from embedllm.backends.base import Device
from embedllm.backends.options import OpenVINOOptions
from embedllm.cancel import Cancel
from embedllm.conversation.conversation import Conversation
from embedllm.errors import (
    Busy,
    ContextFull,
    DeviceError,
    DeviceUnavailable,
    EmbedError,
    ExportError,
    HubError,
    PackageError,
    TemplateError,
    UnsupportedModel,
)
from embedllm.files.version import __version__ as __version__
from embedllm.generation.chunk import Chunk, Statistics
from embedllm.generation.completion import Completion
from embedllm.loading.tuning_results import Tuning
from embedllm.model.agent import ToolOutcome, ToolReply, arun_tools, run_tools
from embedllm.model.embeddings import Ranked
from embedllm.model.model import Model
from embedllm.profiling.tuning.tune import forget_tuning
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Picked
from embedllm.text.chat_template import Message, Tool
from embedllm.tools.calls import ToolCall

if _sys.platform == "emscripten":  # Pyodide, in a browser
    from embedllm.web.public import adevices, aload, devices, load, tune
else:
    from embedllm.loading.load import adevices, aload, devices, load
    from embedllm.profiling.tuning.tune import tune

__all__ = [
    "Busy",
    "Cancel",
    "Chunk",
    "Completion",
    "ContextFull",
    "Conversation",
    "Device",
    "DeviceError",
    "DeviceUnavailable",
    "EmbedError",
    "ExportError",
    "HubError",
    "Message",
    "Model",
    "OpenVINOOptions",
    "PackageError",
    "Picked",
    "Ranked",
    "Sampling",
    "Statistics",
    "TemplateError",
    "Tool",
    "ToolCall",
    "ToolOutcome",
    "ToolReply",
    "Tuning",
    "UnsupportedModel",
    "adevices",
    "aload",
    "arun_tools",
    "devices",
    "forget_tuning",
    "load",
    "run_tools",
    "tune",
]

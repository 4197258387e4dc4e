"""Embed a language model in an application: one exported folder, every device, one loop, no torch.

    import embedllm

    with embedllm.load("demo") as llm:
        for chunk in llm.stream([{"role": "user", "content": "list files by size"}]):
            print(chunk.text, end="")

Importing this loads the standard library only; a runtime is loaded with the first model.
"""

from __future__ import annotations

from embedllm.backends.base import Device
from embedllm.chat import Message, Tool
from embedllm.completion import Completion
from embedllm.conversation import Conversation
from embedllm.decode import Cancel, Chunk, Statistics
from embedllm.encoding import Ranked
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
from embedllm.model import Model
from embedllm.opening import adevices, aload, devices, load
from embedllm.openvino_options import OpenVINOOptions
from embedllm.sampling import Picked, Sampling
from embedllm.tool_calls import ToolCall
from embedllm.tool_loop import ToolOutcome, ToolReply, arun_tools, run_tools
from embedllm.tuning import Tuning
from embedllm.tuning_run import forget_tuning, tune

__version__ = "0.1.0"

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

"""Embed a language model in an application: one exported folder, every device, one loop, no torch.

    import embedllm

    with embedllm.load("demo") as llm:
        for chunk in llm.stream([{"role": "user", "content": "list files by size"}]):
            print(chunk.text, end="")

Importing this loads the errors only. Other names are imported when they are first used, and with them nothing but the
standard library; a runtime is loaded with the first model.
"""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import_module

from embedllm.errors import (
    Busy,
    ContextFull,
    DeviceError,
    DeviceUnavailable,
    EmbedError,
    ExportError,
    HubError,
    MissingPart,
    PackageError,
    TemplateError,
    UnsupportedModel,
)
from embedllm.files.version import __version__ as __version__

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from embedllm.backends.base import Device
    from embedllm.backends.options import OpenVINOOptions
    from embedllm.cancel import Cancel
    from embedllm.generation.chunk import Chunk, Statistics
    from embedllm.generation.completion import Completion
    from embedllm.loading.load import adevices, aload, devices, load
    from embedllm.loading.tuning_results import Tuning
    from embedllm.model.agent import arun_tools, run_tools
    from embedllm.model.conversation import Conversation
    from embedllm.model.embeddings import Ranked
    from embedllm.model.model import Model
    from embedllm.model.tool_reply import PausedRun, ToolOutcome, ToolReply
    from embedllm.profiling.tuning.tune import forget_tuning, tune
    from embedllm.sampling.options import Sampling
    from embedllm.sampling.sampler import Picked
    from embedllm.text.chat_template import Message, Tool
    from embedllm.text.function_schema import FunctionTool
    from embedllm.tools.calls import CallDelta, ToolCall

_MODULES = {  # of public names, which are imported when they are first used
    "CallDelta": "embedllm.tools.calls",
    "Cancel": "embedllm.cancel",
    "Chunk": "embedllm.generation.chunk",
    "Completion": "embedllm.generation.completion",
    "Conversation": "embedllm.model.conversation",
    "Device": "embedllm.backends.base",
    "FunctionTool": "embedllm.text.function_schema",
    "Message": "embedllm.text.chat_template",
    "Model": "embedllm.model.model",
    "OpenVINOOptions": "embedllm.backends.options",
    "PausedRun": "embedllm.model.tool_reply",
    "Picked": "embedllm.sampling.sampler",
    "Ranked": "embedllm.model.embeddings",
    "Sampling": "embedllm.sampling.options",
    "Statistics": "embedllm.generation.chunk",
    "Tool": "embedllm.text.chat_template",
    "ToolCall": "embedllm.tools.calls",
    "ToolOutcome": "embedllm.model.tool_reply",
    "ToolReply": "embedllm.model.tool_reply",
    "Tuning": "embedllm.loading.tuning_results",
    "adevices": "embedllm.loading.load",
    "aload": "embedllm.loading.load",
    "arun_tools": "embedllm.model.agent",
    "devices": "embedllm.loading.load",
    "forget_tuning": "embedllm.profiling.tuning.tune",
    "load": "embedllm.loading.load",
    "run_tools": "embedllm.model.agent",
    "tune": "embedllm.profiling.tuning.tune",
}
if _sys.platform == "emscripten":  # Pyodide, in a browser
    _MODULES |= dict.fromkeys(("adevices", "aload", "devices", "load", "tune"), "embedllm.web.public")

__all__ = [
    "Busy",
    "CallDelta",
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
    "FunctionTool",
    "HubError",
    "Message",
    "MissingPart",
    "Model",
    "OpenVINOOptions",
    "PackageError",
    "PausedRun",
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


if not TYPE_CHECKING:  # who would take every other name for an attribute, too

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'embedllm' has no attribute '{name}'")
        value = globals()[name] = getattr(_import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""ONNX Runtime as a module, imported the way that this library wants it, and what it says of itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from embedllm.backends.base import Device, Interrupted
from embedllm.backends.checks import cannot_run
from embedllm.errors import DeviceError, EmbedError
from embedllm.files.no_telemetry import without_ort_telemetry

with without_ort_telemetry():
    import onnxruntime as ort

if not hasattr(ort, "InferenceSession"):  # a folder that one build left when it was removed beside another
    raise ImportError(f"what is in {list(ort.__path__)} is not whole; install it again")

RECORDS_ASSIGNMENTS = "session.record_ep_graph_assignment_info"
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"  # of a graph that is given as bytes
# operators of our graphs that do the work: none of them may be left to the CPU
HEAVY = frozenset({"MatMul", "MatMulNBits", "GroupQueryAttention", "SimplifiedLayerNormalization",
                   "SkipSimplifiedLayerNormalization"})  # fmt: skip
_FATAL = 4  # log severity
_PLACE = re.compile(r"^/\S+\.(?:cc|h):\d+ .*?\) (?=[A-Z\[])")  # "/sources/file.cc:71 int f(const T&) What is wrong"


def left_to_the_cpu(session: ort.InferenceSession, operators: Set[str]) -> list[str]:
    """Which of these operators run on ONNX Runtime's CPU provider; the session has to record its assignments."""
    return sorted(
        {
            node.op_type
            for part in session.get_provider_graph_assignment_info()
            if part.ep_name == "CPUExecutionProvider"
            for node in part.get_nodes()
            if node.op_type in operators
        }
    )


def check_assignments(session: ort.InferenceSession, operators: Set[str], device: Device, remedy: str) -> None:
    """Raises DeviceUnavailable where some of these operators run on the CPU instead of on the device."""
    if left := left_to_the_cpu(session, operators):
        raise cannot_run(device, f"ONNX Runtime gave {', '.join(left)} to the CPU", remedy)


def recording_options() -> ort.SessionOptions:
    """Options of a session that records its assignments, and prints nothing: errors are raised here."""
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL
    options.add_session_config_entry(RECORDS_ASSIGNMENTS, "1")
    return options


def run_options() -> ort.RunOptions:
    """Options of runs on the CPU.

    They name the captured graph that is the default: ONNX Runtime 1.32 looks for the name in Python before each run,
    and where there is none, raising and catching an exception takes 40 us, 4 % of a step of the demo.
    """
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "0")
    return options


@contextmanager
def load_errors(path: Path) -> Iterator[None]:
    """What ONNX Runtime raises within the block, which loads that graph, as a DeviceError."""
    try:
        yield
    except Exception as error:
        raise DeviceError(f"ONNX Runtime {ort.__version__} cannot load '{path}': {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """What an exception says, in a line, without the place in ONNX Runtime's sources that it may begin with."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _PLACE.sub("", lines[0])


@contextmanager
def feed_errors(position: int, is_stopping: Callable[[], bool]) -> Iterator[None]:
    """What ONNX Runtime raises within the block, which feeds a session that holds that many tokens.

    Interrupted where the feed was stopped, else a DeviceError.
    """
    try:
        yield
    except Exception as error:
        if is_stopping():
            raise Interrupted from error
        raise DeviceError(f"ONNX Runtime failed at position {position}: {first_line(error)}") from error


@contextmanager
def device_errors(device: Device) -> Iterator[None]:
    """What ONNX Runtime raises within the block, as a DeviceError: that memory is short, that a device was lost."""
    try:
        yield
    except (EmbedError, Interrupted, ValueError):
        raise
    except Exception as error:
        raise DeviceError(f"'{device.name}' failed: {first_line(error)}") from error

"""Every error that embedllm raises on purpose; a caller's slip is a plain ValueError or TypeError.

EmbedError
  PackageError            not a usable folder: missing, damaged, or newer than this version
  TemplateError           the model has no chat template, or its template refuses the messages
  DeviceError
    DeviceUnavailable     nothing can run it; .tried says what was tried and why not
  ContextFull             more tokens than the folder holds; .tokens and .limit
  Busy                    too many calls wait already; .running and .waiting
  HubError                a model of the hub cannot be found, chosen or downloaded
  ExportError
    UnsupportedModel      a .model_type that has no description here
  MissingPart             a package, or a part of this one, that is not installed
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping, Sequence

# of C++ (Linux and macOS, Windows), of malloc and mmap, of ONNX Runtime, OpenVINO, CUDA, Vulkan and Direct3D, OpenCL
_NO_MEMORY = (
    r"bad_alloc|bad allocation|cannot allocate memory|(failed|unable) to allocate|can't alloc\b|"
    r"out[ _-]of[ _-](\w+[ _-])?memory|E_OUTOFMEMORY|8007000E|not enough memory|paging file is too small|"
    r"MEM_OBJECT_ALLOCATION_FAILURE|exceeded max size of memory"
)
_WINDOWS = (8, 1455)  # ERROR_NOT_ENOUGH_MEMORY, ERROR_COMMITMENT_LIMIT
_HELPS = (
    "Ask for fewer tokens, beams or requests at once, close other models, or load this one without draft= or with a "
    "smaller context (load(context=N))."
)


class EmbedError(Exception):
    """Base of all errors of this library. Each can be pickled, as a process pool does to hand it over."""

    def __reduce__(self) -> tuple[object, ...]:
        return _remade, (type(self), self.args, self.__dict__)  # Exception's own would leave out keyword arguments


class PackageError(EmbedError):
    """The folder is not a usable model package."""


class TemplateError(EmbedError):
    """Messages could not be turned into a prompt."""


class DeviceError(EmbedError):
    """A device failed."""


class DeviceUnavailable(DeviceError):
    """No device that was asked for can run the model.

    tried: (device, reason, remedy) for each one.
    """

    def __init__(self, message: str, tried: Sequence[tuple[str, str, str]] = ()) -> None:
        super().__init__(message)
        self.tried = tuple(tried)


class ContextFull(EmbedError):
    """The sequence does not fit into the context; nothing was cut off.

    tokens: how many there are, or would be. limit: how many the folder holds.
    """

    def __init__(self, message: str, *, tokens: int, limit: int) -> None:
        super().__init__(message)
        self.tokens = tokens
        self.limit = limit


class Busy(EmbedError):
    """Too many calls wait for others to end; nothing was begun, and the call can be made again.

    running: requests that have a slot. waiting: requests in the queue.
    """

    def __init__(self, message: str, *, running: int, waiting: int) -> None:
        super().__init__(message)
        self.running = running
        self.waiting = waiting


class HubError(EmbedError):
    """A model of the Hugging Face hub could not be found, chosen or downloaded; what is whole in the cache stays."""


class ExportError(EmbedError):
    """A model could not be exported; nothing was left under the name of the output."""


class UnsupportedModel(ExportError):
    """No description for this model_type, or for this variant of it.

    model_type: as config.json has it; empty where that was not read yet.
    """

    def __init__(self, message: str, *, model_type: str = "") -> None:
        super().__init__(message)
        self.model_type = model_type


class MissingPart(EmbedError, ImportError):
    """Something that is not installed: a package, or a part that embedllm-runtime leaves out. It says what to type."""


def ran_out(error: BaseException) -> bool:
    """Whether an error is of memory that was not there, or has such a cause."""
    return any(
        isinstance(one, MemoryError)
        or (isinstance(one, OSError) and (one.errno == errno.ENOMEM or getattr(one, "winerror", None) in _WINDOWS))
        or re.search(_NO_MEMORY, str(one), re.IGNORECASE) is not None
        for one in _causes(error)
    )


def out_of_memory(error: MemoryError) -> DeviceError:
    """The error of a request for which this process had no memory; `error` is its cause."""
    return _advised(f"the memory of this process is used up ({str(error) or 'MemoryError'})", error)


def with_advice(error: BaseException) -> BaseException:
    """The error of a request: where memory ran out, one that says what helps, and that has it as its cause."""
    if isinstance(error, MemoryError):
        return out_of_memory(error)
    if not isinstance(error, DeviceError) or _HELPS in str(error) or not ran_out(error):
        return error
    return _advised(f"memory ran out ({str(error).rstrip('.')})", error)


def _advised(message: str, cause: BaseException) -> DeviceError:
    raised = DeviceError(f"{message}. {_HELPS}")
    raised.__cause__ = cause
    return raised


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was raised from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _remade(kind: type[EmbedError], arguments: tuple[object, ...], values: Mapping[str, object]) -> EmbedError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(values)
    return error

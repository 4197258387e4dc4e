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

from collections.abc import Mapping, Sequence


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


def out_of_memory(error: MemoryError) -> DeviceError:
    """The error of a request for which this process had no memory; `error` is its cause."""
    raised = DeviceError(
        f"the memory of this process is used up ({str(error) or 'MemoryError'}). Ask for fewer tokens, beams or "
        "requests at once, or close other models."
    )
    raised.__cause__ = error
    return raised


def _remade(kind: type[EmbedError], arguments: tuple[object, ...], values: Mapping[str, object]) -> EmbedError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(values)
    return error

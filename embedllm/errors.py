"""Every error that embedllm raises on purpose; a caller's slip is a plain ValueError or TypeError.

EmbedError
  PackageError            not a usable folder: missing, damaged, or newer than this version
  TemplateError           the model has no chat template, or its template refuses the messages
  DeviceError
    DeviceUnavailable     nothing can run it; .tried says what was tried and why not
  ContextFull             more tokens than the folder holds
  ExportError
    UnsupportedModel      a model_type that has no description here
"""

from __future__ import annotations

from collections.abc import Sequence


class EmbedError(Exception):
    """Base of all errors of this library."""


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
    """The sequence does not fit into the context; nothing was cut off."""


class ExportError(EmbedError):
    """A model could not be exported; nothing was left under the name of the output."""


class UnsupportedModel(ExportError):
    """No description for this model_type."""

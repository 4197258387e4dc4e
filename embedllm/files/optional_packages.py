"""Packages that a small installation may lack: an error that says which, what for, and what to type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from embedllm.errors import MissingPart


@contextmanager
def needs(package: str, purpose: str) -> Iterator[None]:
    """Around imports that take a package. Raises MissingPart in place of ModuleNotFoundError for it.

    purpose: what cannot be done without it, such as "LoRA adapters on the CPU".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingPart(
            f"{purpose}: the package '{package}' is not installed. Install it: pip install {package}"
        ) from error

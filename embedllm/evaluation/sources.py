"""The models that take part: looked at before anything is loaded, then loaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

from embedllm.errors import DeviceUnavailable, PackageError
from embedllm.loading.load import load
from embedllm.loading.resolve import find_package
from embedllm.model.model import Model
from embedllm.package.package import Package, open_package
from embedllm.text.protocols import ModelCodec
from embedllm.text.tokenizer import Tokenizer
from embedllm.text.vocabulary import difference

Source: TypeAlias = str | os.PathLike[str] | Model
Wish: TypeAlias = str | Sequence[str] | None  # a device, as load() takes it

_log = logging.getLogger("embedllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A loaded model, and how the caller named it."""

    name: str
    model: Model
    exact: bool | None  # None: it was loaded by the caller


def described(source: Source) -> tuple[Package, ModelCodec]:
    """What can be known of a model without its weights. Raises PackageError."""
    if isinstance(source, Model):
        return source.package, source.tokenizer
    package = open_package(find_package(source), whole=False)
    return package, Tokenizer.open(package.folder)


def check_vocabularies(packages: Sequence[tuple[Package, ModelCodec]]) -> None:
    """Raises ValueError unless all mean the same by a token."""
    (package, tokenizer), *others = packages
    for other, its_own in others:
        if differs := difference(package, tokenizer, other, its_own):
            raise ValueError(
                f"'{other.name}' cannot be compared with '{package.name}': its vocabulary has {differs}. Take models "
                "of the same tokenizer, or evaluate each for itself."
            )


def open_model(stack: ExitStack, source: Source, *, device: Wish, threads: int, exact: bool) -> Opened:
    """A model that the stack closes, or the caller's own. Raises what load() raises."""
    if isinstance(source, Model):
        return Opened(name=source.name, model=source, exact=None)
    # not tuned: what is measured must not depend on the machine
    model = load(source, device=device, threads=threads, exact=exact, prefix_cache=0, tuned=False)
    return Opened(name=os.fspath(source), model=stack.enter_context(model), exact=exact)


def open_base(stack: ExitStack, source: Source, *, device: Wish, threads: int) -> Opened:
    """As open_model(), exact where the device and the folder can be that."""
    try:
        return open_model(stack, source, device=device, threads=threads, exact=True)
    except (DeviceUnavailable, PackageError) as error:
        _log.info("the base is not loaded as exact: %s", error)
        return open_model(stack, source, device=device, threads=threads, exact=False)

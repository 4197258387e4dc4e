"""What every device of this machine did with one model, to be pasted into a report about hardware we don't have."""

from __future__ import annotations

import platform
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from embedllm.backends.base import Device, Engine, Session
from embedllm.errors import EmbedError
from embedllm.files.version import __version__

if TYPE_CHECKING:
    from embedllm.package.package import Package

_PACKAGES = ("openvino", "numpy", "tokenizers")
_TOKENS = 48  # enough for every part of a model, few enough for the reference
_STEPS = 32
_SEED = 20261121


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one device did, or why it did nothing."""

    device: Device
    facts: dict[str, str]  # driver, architecture and so on, as the runtime tells them
    error: str = ""
    load_s: float = 0.0
    first_s: float = 0.0  # the first feed ever, which may still pack weights
    prefill_tokens_s: float = 0.0
    decode_tokens_s: float = 0.0
    max_difference: float = 0.0  # of the logits after the prompt, from the reference's
    max_logit: float = 0.0
    same_tokens: int = 0  # of the steps that follow: how many are the reference's, before the first that is not


def machine() -> dict[str, str]:
    """The system, and what is installed of what runs models."""
    from embedllm.backends.devices.drivers import python_packages
    from embedllm.backends.system.hardware import driver_stamp
    from embedllm.backends.system.ort_builds import builds

    versions = {"embedllm": __version__, "system": platform.platform(), "machine": platform.machine(),
                "python": sys.version.split()[0], "drivers": driver_stamp()}  # fmt: skip
    versions |= {build.name: build.version for build in builds()} or {"onnxruntime": "not installed"}
    for name in _PACKAGES:
        versions[name] = _version(name) or "not installed"
    return versions | {name: version for name in sorted(python_packages()) if (version := _version(name))}


def _version(distribution: str) -> str:
    """Of an installed distribution; empty for one that is not."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def trials(package: Package, on_device: Callable[[str], None] = lambda name: None) -> Iterator[Trial]:
    """Runs the package on every device but the reference, which says what is right."""
    from embedllm.backends.devices import registry

    prompt = [random.Random(_SEED + at).randrange(package.architecture.vocabulary) for at in range(_TOKENS)]
    prompt = prompt[: max(1, package.context - 2 * _STEPS - 1)]
    devices = registry.devices_for(package)
    reference = next(device for device in devices if device.name == "reference")
    on_device(reference.name)
    with closing(registry.open_engine(package, reference)) as engine:
        right, row = _continued(engine, prompt)
    for device in devices:
        if device is reference:
            continue
        on_device(device.name)
        facts = registry.facts(device)
        if device.available:
            yield _trial(package, device, facts, prompt, right, row)
        else:
            yield Trial(
                device=device, facts=facts, error=device.reason + (f" ({device.remedy})" if device.remedy else "")
            )


def _trial(
    package: Package, device: Device, facts: dict[str, str], prompt: list[int], right: list[int], row: list[float]
) -> Trial:
    from embedllm.backends.devices import registry

    try:
        start = time.perf_counter()
        with closing(registry.open_engine(package, device)) as engine:
            load_s = time.perf_counter() - start
            start = time.perf_counter()
            tokens, device_row = _continued(engine, prompt)
            first_s = time.perf_counter() - start
            prefill_s, decode_s = _timed(engine.open(), prompt)
    except EmbedError as error:
        return Trial(device=device, facts=facts, error=str(error))
    pairs = list(zip(tokens, right, strict=True))
    return Trial(
        device=device,
        facts=facts,
        load_s=load_s,
        first_s=first_s,
        prefill_tokens_s=len(prompt) / prefill_s,
        decode_tokens_s=_STEPS / decode_s,
        max_difference=max(abs(a - b) for a, b in zip(device_row, row, strict=True)),
        max_logit=max(abs(value) for value in row),
        same_tokens=next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs)),
    )


def _continued(engine: Engine, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The most probable continuation, and the logits after the prompt."""
    session = engine.open(len(prompt) + _STEPS)
    logits = session.feed(prompt)
    row = logits.values(range(logits.size))
    tokens = [logits.top(1).tokens[0]]
    for _ in range(_STEPS - 1):
        tokens.append(session.feed(tokens[-1:]).top(1).tokens[0])
    session.close()
    return tokens, row


def _timed(session: Session, prompt: list[int]) -> tuple[float, float]:
    """Seconds of the prompt and of the steps, by now with all in place."""
    start = time.perf_counter()
    session.feed(prompt)
    middle = time.perf_counter()
    for at in range(_STEPS):
        session.feed([at])
    end = time.perf_counter()
    session.close()
    return middle - start, end - middle

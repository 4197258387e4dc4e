"""tune(): measures how a model runs best on this machine, and remembers it for load()."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from embedllm.files.native_calls import native_call
from embedllm.loading.tuning_results import Tuning
from embedllm.package.package import open_package

if TYPE_CHECKING:
    from embedllm.profiling.tuning.search import Candidate, Timing

SECONDS = 60.0


def tune(
    path: str | os.PathLike[str] = "demo",
    *,
    devices: str | Sequence[str] = (),
    seconds: float = SECONDS,
    exact: bool = False,
    kv: str | None = None,
    on_trial: Callable[[str], None] | None = None,
) -> Tuning:
    """Measures on which device and how a model runs fastest here, and remembers it: load() does so from then on.

    Each device is opened, reads a prompt and makes some tokens, again and again in turn: with one thread or more, with
    threads that spin, with activations in float where they would be rounded. Nothing rounds more than its default does,
    and only what was clearly faster than the default is taken (docs/devices.md#tuning). One copy of the model is in
    memory at a time.
    path: as in load(). devices: a name or names as in load(), to measure these only; by default what "auto" chooses
    from, and `openvino`. exact, kv: as in load(); what is measured counts for loads with the same.
    seconds: about how long it may take; a trial that has begun is not ended.
    on_trial: called with a description of the next trial.
    Raises PackageError, DeviceUnavailable when nothing can run the model, ValueError for what makes no sense, and
    for a model that generates no text.
    """
    from embedllm.loading.options import check_kv
    from embedllm.loading.resolve import find_package

    if not (isinstance(seconds, int | float) and 0 < seconds < math.inf):
        raise ValueError(f"seconds is {seconds!r}; expected a positive number.")
    check_kv(kv, exact=exact, openvino=None)
    from embedllm.backends.devices import selection as select
    from embedllm.loading import tuning_record
    from embedllm.profiling.tuning import candidates as tuning_devices
    from embedllm.profiling.tuning import search as tuning_choice
    from embedllm.profiling.tuning.trial import Trial

    names = select.plain(devices) if devices else []

    package, began = open_package(find_package(path), whole=False), time.monotonic()
    package.check_generates()
    device_set = tuning_devices.Devices(package, exact=exact, kv=kv)
    with native_call():
        ready = device_set.usable([names] if isinstance(names, str) else names)
    trial = Trial(devices={one.name: (one, usable) for one, usable in ready}, exact=exact, kv=kv, seconds=seconds)

    def time_candidate(candidate: Candidate) -> Timing:
        if on_trial is not None:
            on_trial(f"{candidate.device}: {candidate.runtime}")
        return trial(candidate)

    candidates = tuning_devices.candidates(package, [one for one, _ in ready], exact=exact)
    trials = tuning_choice.measure(candidates, time_candidate, seconds=seconds - (time.monotonic() - began))
    choice = tuning_choice.choose(trials, automatic=device_set.automatic())
    tuning = Tuning(
        model=package.name,
        exact=exact,
        kv=kv,
        device=choice.device,
        measured=tuning_devices.measured(trials, choice),
        left_out=(*device_set.left_out, *tuning_devices.unmeasured(trials)),
        took_s=time.monotonic() - began,
        at=time.time(),
    )
    return replace(tuning, unkept=tuning_record.keep(package, tuning))


def forget_tuning(path: str | os.PathLike[str] = "demo") -> int:
    """Removes what tune() has remembered of a model; the number of records. path: as in load()."""
    from embedllm.loading import tuning_record
    from embedllm.loading.resolve import find_package

    return tuning_record.forget(open_package(find_package(path, local_files_only=True), whole=False))

"""One trial of tune(): a device is opened in one way, reads a prompt, makes some tokens, and is closed again."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from embedllm.backends.base import Device, Session
from embedllm.backends.options import DEFAULT, RuntimeOptions
from embedllm.backends.system.cpu_threads import compute_threads, usable
from embedllm.files.native_calls import check_not_ending, native_call
from embedllm.profiling.tuning.search import PROMPT, Candidate, Timing

if TYPE_CHECKING:
    from embedllm.loading.device_check import Usable
    from embedllm.package.package import Package

_STEPS = 16
_SLOW_PROMPT, _SLOW_STEPS = 32, 8  # of a model that would not get through a round with those
_SHARE = 1 / 25  # of all the time, that a prompt may take
_FIRST = 16  # tokens, by which that is estimated
_LEAST_S, _MOST_REPEATS = 0.4, 4  # a quick model is measured more than once in a trial
_SEED = 20261121
_ON_THREADS = {"cpu", "openvino"}  # devices that compute on threads of ours
_ONE_THREAD = 4  # threads up to which one alone may be as fast


def ways(package: Package, device: Device, *, exact: bool) -> list[RuntimeOptions]:
    """The ways to run a device that are worth trying, the most promising first: the default. None rounds more."""
    families = set(device.name.split("+"))
    if not families <= _ON_THREADS:
        return [DEFAULT]
    default = compute_threads() or usable()
    counts = {max(1, default // 2), usable(), *([1] if default <= _ONE_THREAD else [])} - {default}
    is_onnx = "cpu" in families
    return [
        DEFAULT,
        *([RuntimeOptions(spinning=True)] if is_onnx and default > 1 else []),
        *(RuntimeOptions(threads=count) for count in sorted(counts, reverse=True)),
        *([RuntimeOptions(floats=True)] if is_onnx and not exact and _can_be_nearer(package) else []),
    ]


def _can_be_nearer(package: Package) -> bool:
    """Whether there are products whose activations are rounded by default in ONNX Runtime."""
    from embedllm.backends.ort.engine import unsupported_exact

    recipe = package.manifest.get("recipe")
    is_exact = isinstance(recipe, dict) and recipe.get("exact")
    has_four_bits = any(entry.get("bits") == 4 for entry in package.packing_entries.values())
    return has_four_bits and not is_exact and unsupported_exact(exact=True) is None


@dataclass(slots=True, kw_only=True)
class Trial:
    """Measures candidates of one model, all with the same prompt."""

    devices: Mapping[str, tuple[Device, Usable]]  # by name, with what is opened there
    exact: bool
    kv: str | None
    seconds: float  # for all trials together
    _prompt: list[int] = field(default_factory=list)  # by the first trial, which finds out how slow the model is
    _steps: int = 0

    def __call__(self, candidate: Candidate) -> Timing:
        """Raises DeviceError when it cannot be opened or does not run."""
        from embedllm.backends.devices import registry

        device, found = self.devices[candidate.device]
        with native_call():
            engine = registry.open_engine(found.package, device, runtime=candidate.runtime, exact=self.exact,
                                          kv=self.kv, variants=found.variants)  # fmt: skip
            with closing(engine):  # so that the weights are in memory once
                session = engine.open(PROMPT + 1 + _STEPS)
                with closing(session):
                    return self._timed(session, found.package)

    def _timed(self, session: Session, package: Package) -> Timing:
        if not self._prompt:
            self._fit(session, package)
        session.rewind(0)
        _seconds(session, self._prompt)  # the first of its length may pack weights, or compile
        firsts: list[float] = []  # of the prompt and a step, with which a pair of devices hands the KV over
        steps: list[float] = []
        while sum(firsts) + sum(steps) < _LEAST_S and len(firsts) < _MOST_REPEATS:
            session.rewind(0)
            firsts.append(_seconds(session, self._prompt) + _seconds(session, self._prompt[:1]))
            steps += [_seconds(session, [token]) for token in self._prompt[: self._steps]]
        first_s, step_s, count = median(firsts), median(steps), len(self._prompt)
        return Timing(token_s=max((first_s - step_s) / count, first_s / (count + 1) / count), step_s=step_s)

    def _fit(self, session: Session, package: Package) -> None:
        """Chooses how long the prompt is."""
        numbers = random.Random(_SEED)
        room = package.context - _STEPS - 1
        tokens = [numbers.randrange(package.architecture.vocabulary) for _ in range(max(1, min(PROMPT, room)))]
        start = tokens[:_FIRST]
        _seconds(session, start)
        session.rewind(0)
        is_slow = _seconds(session, start) / len(start) * len(tokens) > self.seconds * _SHARE
        self._prompt = tokens[: _SLOW_PROMPT if is_slow else None]
        self._steps = min(_SLOW_STEPS if is_slow else _STEPS, len(self._prompt))  # each feeds one of its tokens


def _seconds(session: Session, tokens: Sequence[int]) -> float:
    check_not_ending()
    start = time.perf_counter()
    session.feed(tokens)
    return time.perf_counter() - start

"""Whether a device computes: a tiny model with known answers is run on it, by the engine that would run the user's.

Flags and version strings are not believed: drivers that are dead, that lack float16 or that compute wrongly are found.
The model is made by tools/make_probe.py. `python -m embedllm.backends.probe.probe DEVICE FILE` writes the outcome of a
probe.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from embedllm.backends.base import Device, Engine
from embedllm.backends.devices import registry
from embedllm.backends.devices.drivers import capabilities
from embedllm.backends.devices.selection import resolve
from embedllm.package.graph_variants import DIRECTML, FLOAT16, GPU_FLOAT32, WEBGPU_FLOAT16
from embedllm.package.package import Package, open_package

FOLDER = Path(__file__).parent / "model"
ANSWERS = FOLDER / "answers.json"
# (position to be at, tokens to feed there): a prompt, three steps of one token, after a rewind a second piece; a longer
# prompt with a step, for which providers have other kernels (WebGPU's from 32 tokens on: docs/webgpu.md)
STEPS: tuple[tuple[int, tuple[int, ...]], ...] = (
    (0, (72, 200, 5, 131, 17, 240, 99, 56)),
    (8, (180,)),
    (9, (23,)),
    (10, (145,)),
    (5, (61, 8, 222, 117, 90, 3)),
    (0, tuple(token * 89 % 256 for token in range(1, 46))),
    (45, (210,)),
)
_ADVICE = "update its driver; or set EMBEDLLM_PROBE=off to use it all the same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a probe went."""

    ok: bool
    variant: str = ""  # of the graph that ran and was right; "" for a device that reads the weights itself
    max_difference: float = 0.0  # of that graph's logits from the known ones
    seconds: float = 0.0
    reason: str = ""  # why not; or, when it is fine, why a better graph is not used
    remedy: str = ""
    is_wrong: bool = False  # each of its graphs gave wrong numbers, and will give them again
    ran_out_of_time: bool = False


def failed(
    reason: str, *, seconds: float = 0.0, remedy: str = _ADVICE, is_wrong: bool = False, ran_out_of_time: bool = False
) -> Outcome:
    """The outcome of a probe that did not come to an end, or not to the right one."""
    return Outcome(
        ok=False,
        reason=f"the probe {reason}",
        remedy=remedy,
        seconds=round(seconds, 3),
        is_wrong=is_wrong,
        ran_out_of_time=ran_out_of_time,
    )


def run(device: Device) -> Outcome:
    """Runs the tiny model on an available device, in this process; tries its graphs until one is right."""
    start = time.monotonic()
    package = open_package(FOLDER)
    troubles: list[str] = []
    computed = True
    for variant in variants(device) or ("",):
        difference, trouble = _tried(package, device, variant)
        if difference is not None and not trouble:
            return Outcome(
                ok=True,
                variant=variant,
                max_difference=difference,
                seconds=round(time.monotonic() - start, 3),
                reason=f"{'; '.join(troubles)}; '{variant}' is used" if troubles else "",
            )
        troubles.append(f"'{variant}': {trouble}" if variant else trouble)
        computed = computed and difference is not None
    return failed(f"failed: {'; '.join(troubles)}", seconds=time.monotonic() - start, is_wrong=computed)


def variants(device: Device) -> tuple[str, ...]:
    """A device's graphs that the tiny model has, in the order in which they are tried: it has no experts."""
    listed = {graph.variant for graph in open_package(FOLDER).listed}
    return tuple(one for one in capabilities(device).variants if one in listed)


def answers(engine: Engine) -> list[list[float]]:
    """The logits after each of the STEPS."""
    rows: list[list[float]] = []
    session = engine.open(46)
    try:
        for position, tokens in STEPS:
            if position != session.position:
                session.rewind(position)
            logits = session.feed(tokens)
            rows.append(logits.values(range(logits.size)))
    finally:
        session.close()
    return rows


def tolerance(variant: str) -> float:
    """The largest difference of a logit that is no fault, for the type and the rounding of a graph."""
    return _TOLERANCES.get(variant, _ROUNDED)


# Of logits up to 3.2. Measured (docs/devices.md#probes): 0.041 and 0.036 where activations are rounded to 8 or 16 bits,
# 0.0072 in float16, 0.000006 in float32. A fault of WebGPU's attention was 0.10 off, others are by 0.46 and more
# (tests/backends/probe/test_probe.py)
_ROUNDED = 0.15
_TOLERANCES = {GPU_FLOAT32.name: 0.02, FLOAT16.name: 0.06, WEBGPU_FLOAT16.name: 0.06, DIRECTML.name: 0.06}


def _tried(package: Package, device: Device, variant: str) -> tuple[float | None, str]:
    """The largest difference on one graph, None when it did not run, and what is wrong; "" when all is well."""
    try:
        engine = registry.open_engine(package, device, variants={device.name: (variant,)} if variant else None)
        with closing(engine):
            rows = answers(engine)
    except Exception as error:  # noqa: BLE001 - whatever it is, the device cannot be used, and this says why
        return None, str(error) or type(error).__name__
    difference = largest_difference(rows, known_answers())
    most = tolerance(variant)
    # not `>`: what is not a number is wrong
    wrong = "" if difference <= most else f"probe mismatch max|d|={difference:.3g}, expected at most {most:.3g}"
    return difference, wrong


def largest_difference(actual: Sequence[Sequence[float]], expected: Sequence[Sequence[float]]) -> float:
    """Of two tables of numbers; not a number when any of them is none."""
    gaps = [abs(a - b) for row, right in zip(actual, expected, strict=True) for a, b in zip(row, right, strict=True)]
    return next((gap for gap in gaps if gap != gap), max(gaps))


@cache
def known_answers() -> list[list[float]]:
    """The NumPy reference's logits after each of the STEPS."""
    return json.loads(ANSWERS.read_text(encoding="utf-8"))["logits"]


def main(name: str, file: str) -> int:
    """Writes the outcome for a device into a file, as JSON."""
    device = resolve(name, registry.DeviceCatalog(open_package(FOLDER)).lookup(name))
    if not isinstance(device, Device) or not device.available:
        outcome = failed(f"did not find the device: {device.reason}", remedy=device.remedy)
    else:
        outcome = run(device)
    Path(file).write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

"""What is remembered of probes: outcomes on disk, each under all that it depends on."""

from __future__ import annotations

import json
import logging
import math
import time
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from embedllm.backends.base import Device
from embedllm.backends.devices import registry
from embedllm.backends.devices.drivers import device_family
from embedllm.backends.probe import probe
from embedllm.backends.probe.probe import Outcome
from embedllm.backends.system import hardware
from embedllm.backends.system.ort_builds import builds
from embedllm.files.atomic import write_json
from embedllm.files.user_cache import user_cache
from embedllm.files.version import __version__

# for so long a probe that hung is not run again: it would cost each start of an application the whole time limit
HUNG_KEPT_S = 3600.0
_log = logging.getLogger("embedllm")


def recall(device: Device, *, limit_s: float = math.inf) -> Outcome | None:
    """The outcome of an earlier probe, when nothing changed since and it is still worth something.

    limit_s: what a probe may take now; one that ran out of less time counts no more.
    """
    key = _key(device)
    path = _path(device, key)
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        outcome, at = Outcome(**entry["outcome"]), float(entry["at"])
        if entry["key"] != key:
            return None
    except (OSError, ValueError, TypeError, KeyError):
        return None  # there is nothing, or nothing that can be read
    return outcome if _counts(outcome, age_s=time.time() - at, limit_s=limit_s) else None


def keep(device: Device, outcome: Outcome) -> None:
    """Remembers an outcome; forgets the earlier one when this one may be another next time.

    Whole or not at all; without a place to write, nothing is remembered.
    """
    key = _key(device)
    path = _path(device, key)
    if not _counts(outcome, age_s=0.0, limit_s=0.0):
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"key": key, "at": time.time(), "outcome": asdict(outcome)})
    except OSError as error:
        _log.info("the outcome of the probe is not remembered: %s", error)


def _counts(outcome: Outcome, *, age_s: float, limit_s: float) -> bool:
    """Whether a probe need not be run again.

    What was computed stays as it is. Out of memory, a busy GPU, a library that is missing: nothing in the key tells
    when that is over.
    """
    if outcome.ok or outcome.is_wrong:
        return True
    return outcome.ran_out_of_time and 0 <= age_s < HUNG_KEPT_S and limit_s <= outcome.seconds


def _key(device: Device) -> dict[str, str]:
    """All that an outcome depends on."""
    return {
        "device": device.name,
        "description": device.description,
        "backend": device.backend,
        "embedllm": __version__,
        "model": sha256((probe.FOLDER / "embedllm.json").read_bytes()).hexdigest(),
        "builds": " ".join(f"{build.name} {build.version}" for build in builds()),
        "provider": device_family(device).version(device),
        "driver": hardware.driver_stamp(),
        "facts": json.dumps(registry.facts(device), sort_keys=True),
    }


def _path(device: Device, key: dict[str, str]) -> Path:
    digest = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    family = device.name.partition(":")[0]
    return user_cache("probes", f"{family}-{digest}.json")

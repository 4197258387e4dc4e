"""Runs a probe so that nothing it does can harm the application, and remembers how it went.

In a process of its own, which may crash or hang; where there is no Python to start (an application that embeds or
freezes it), in a thread that is waited for only so long. An outcome is kept until device, driver or versions change.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from embedllm import __version__
from embedllm.backends import hardware, probe, registry
from embedllm.backends.base import Device
from embedllm.backends.distributions import builds
from embedllm.backends.drivers import known_driver
from embedllm.backends.probe import Outcome, failed

SWITCH, LIMIT = "EMBEDLLM_PROBE", "EMBEDLLM_PROBE_TIMEOUT"  # environment variables
_LIMIT_S = 120.0  # the first compilation of shaders was seen to take 100 s: docs/devices.md#probes
_log = logging.getLogger("embedllm")


def outcome_for(device: Device, *, anew: bool = False) -> Outcome | None:
    """How the probe of a device went, now or earlier; None for a device that needs none, or when probes are off.

    anew: what is remembered does not count.
    """
    if not registry.is_probed(device) or os.environ.get(SWITCH, "").strip().lower() in ("off", "0", "no"):
        return None
    key = _key(device)
    path = _path(device, key)
    if not anew and (known := _read(path, key)) is not None:
        return known
    _log.info("probing '%s' with a tiny model; the first time may take a while", device.name)
    outcome = in_process(command(device)) if can_start_python() else in_thread(device)
    _write(path, key, outcome)
    return outcome


def remembered(device: Device) -> Outcome | None:
    """How the last probe of a device went, when nothing changed since."""
    key = _key(device)
    return _read(_path(device, key), key)


def dialects(device: Device, outcome: Outcome | None) -> tuple[str, ...]:
    """The graphs that may be used after a probe: the one that was right, and those after it; () for no restriction."""
    if outcome is None or not outcome.dialect:
        return ()
    preferred = known_driver(device).dialects
    return preferred[preferred.index(outcome.dialect) :]


def can_start_python() -> bool:
    """Whether sys.executable is Python, and not an application that contains it."""
    if getattr(sys, "frozen", False) or not sys.executable or sys.platform in ("emscripten", "wasi", "ios", "android"):
        return False
    return Path(sys.executable).stem.lower().startswith(("python", "pypy"))


def command(device: Device) -> list[str]:
    """What runs a probe. -P: the working folder is not searched for modules."""
    return [sys.executable, "-P", "-m", "embedllm.backends.probe", device.name]


def in_process(arguments: Sequence[str], *, limit_s: float | None = None) -> Outcome:
    """Runs a command that prints an outcome; one that crashes, or takes too long and is ended, has failed."""
    limit_s = _limit() if limit_s is None else limit_s
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    start = time.monotonic()
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
            env=environment,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # or Windows opens one
        )
    except subprocess.TimeoutExpired:
        return _too_long(limit_s)
    except OSError as error:
        return failed(f"could not be started: {error}")
    try:
        return Outcome(**json.loads(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return failed(": ".join([f"crashed ({_ending(done.returncode)})", *said]), seconds=time.monotonic() - start)


def in_thread(device: Device, *, limit_s: float | None = None) -> Outcome:
    """Runs a probe beside the caller, who waits only so long. One that hangs goes on hanging."""
    limit_s = _limit() if limit_s is None else limit_s
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(probe.run(device)), daemon=True)
    thread.start()
    thread.join(limit_s)
    return outcomes[0] if outcomes else _too_long(limit_s)


def _too_long(limit_s: float) -> Outcome:
    remedy = f"{LIMIT}=SECONDS gives it longer, EMBEDLLM_PROBE=off uses the device all the same"
    return failed(f"took longer than {limit_s:g} s", seconds=limit_s, remedy=remedy)


def _ending(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}" if code < 1 << 16 else f"exit code {code:#x}"  # Windows: 0xc0000005


def _limit() -> float:
    given = os.environ.get(LIMIT, "")
    try:
        seconds = float(given or _LIMIT_S)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"{LIMIT} is '{given}'; expected seconds, such as {_LIMIT_S:g}.")
    return seconds


def _key(device: Device) -> dict[str, str]:
    """All that an outcome depends on."""
    return {
        "device": device.name,
        "description": device.description,
        "backend": device.backend,
        "embedllm": __version__,
        "model": sha256((probe.FOLDER / "embedllm.json").read_bytes()).hexdigest(),
        "builds": " ".join(f"{build.name} {build.version}" for build in builds()),
        "provider": _provider_version(device),
        "driver": hardware.driver_stamp(),
        "facts": json.dumps(registry.facts(device), sort_keys=True),
    }


def _provider_version(device: Device) -> str:
    """Of a plug-in: its distribution's version, or its file's size and date."""
    from importlib import metadata

    provider = known_driver(device).provider
    if provider is None or not provider.module:
        return ""
    path = Path(device.name.partition(":")[2])
    if provider.device == "plugin" and path.is_file():
        return f"{path.stat().st_size} {path.stat().st_mtime_ns}"
    try:
        return metadata.version(provider.module.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return ""


def _path(device: Device, key: dict[str, str]) -> Path:
    from platformdirs import user_cache_path

    digest = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    family = device.name.partition(":")[0]
    return user_cache_path("embedllm", appauthor=False) / "probes" / f"{family}-{digest}.json"


def _read(path: Path, key: dict[str, str]) -> Outcome | None:
    """What is remembered; None when there is nothing, or nothing that can be read."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        return Outcome(**entry["outcome"]) if entry["key"] == key else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(path: Path, key: dict[str, str], outcome: Outcome) -> None:
    """Whole or not at all; without a place to write, nothing is remembered."""
    partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"key": key, "outcome": asdict(outcome)}, indent=1), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        _log.info("the outcome of the probe is not remembered: %s", error)

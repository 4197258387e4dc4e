"""Runs a probe so that nothing it does can harm the application.

In a process of its own, which may crash or hang; where there is no Python to start (an application that embeds or
freezes it), in a thread that is waited for only so long. Outcomes are kept by backends/probe/cache.py.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from embedllm.backends.base import Device
from embedllm.backends.devices import registry
from embedllm.backends.devices.drivers import capabilities
from embedllm.backends.probe import cache as probe_memory
from embedllm.backends.probe import probe
from embedllm.backends.probe.probe import Outcome, failed
from embedllm.files.switches import switch

SWITCH, LIMIT = "EMBEDLLM_PROBE", "EMBEDLLM_PROBE_TIMEOUT"  # environment variables
_LIMIT_S = 120.0  # the first compilation of shaders was seen to take 100 s: docs/devices.md#probes
_LONGER = f"{LIMIT}=SECONDS gives it longer, {SWITCH}=off uses the device all the same"
_END_S = 5.0  # for a process that was killed; one that is stuck in a driver does not end
# python, python3.12, pythonw.exe, python3.13t; not PythonIDE.exe, which would be started a second time
_PYTHON = re.compile(r"(python|pypy)w?(\d+(\.\d+)?)?(t|w|_d)?(\.exe)?", re.IGNORECASE)
_log = logging.getLogger("embedllm")


def outcome_for(device: Device, *, again: bool = False, limit_s: float | None = None) -> Outcome | None:
    """How the probe of a device went, now or earlier; None for a device that needs none, or that cannot be probed.

    again: what is remembered does not count. limit_s: seconds that a probe may take; None: EMBEDLLM_PROBE_TIMEOUT.
    """
    if not _can_probe(device):
        return None
    limit_s = limit() if limit_s is None else limit_s
    if not again and (previous := probe_memory.recall(device, limit_s=limit_s)) is not None:
        return previous
    if limit_s <= 0:
        return failed("was not begun: those of other devices took all the time of one load", remedy=_LONGER)
    # an application that seems to hang is no matter of detail
    _log.log(
        logging.INFO if again else logging.WARNING,
        "trying '%s' for the first time, with a tiny model; this may take up to %.3g s", device.name, limit_s,
    )  # fmt: skip
    outcome = _run(device, limit_s)
    probe_memory.keep(device, outcome)
    return outcome


class Probes:
    """The probes of one load, for which EMBEDLLM_PROBE_TIMEOUT is one limit together."""

    def __init__(self) -> None:
        self._left_s = limit()

    def outcome_for(self, device: Device) -> Outcome | None:
        """As outcome_for(), in the time that is left; a device for which none is left has failed, this once."""
        start = time.monotonic()
        try:
            return outcome_for(device, limit_s=max(self._left_s, 0.0))
        finally:
            self._left_s -= time.monotonic() - start


def remembered(device: Device) -> Outcome | None:
    """How the last probe of a device went, when nothing changed since and probes are not off."""
    return probe_memory.recall(device, limit_s=limit()) if _can_probe(device) else None


def variants(device: Device, outcome: Outcome | None) -> tuple[str, ...]:
    """The graphs that may be used after a probe: the one that was right, those after it, and those that it cannot try;
    () for no restriction."""
    if outcome is None or not outcome.variant:
        return ()
    preferred = capabilities(device).variants
    tried = probe.variants(device)
    wrong = tried[: tried.index(outcome.variant)]
    return tuple(one for one in preferred if one not in wrong)


def can_start_python() -> bool:
    """Whether sys.executable is Python, and not an application that contains it."""
    if getattr(sys, "frozen", False) or not sys.executable or sys.platform in ("emscripten", "wasi", "ios", "android"):
        return False
    path = Path(sys.executable)
    return _PYTHON.fullmatch(path.name) is not None and path.is_file()


def command(device: Device) -> list[str]:
    """What runs a probe, but for the file of its outcome. -P: the working folder is not searched for modules."""
    return [sys.executable, "-P", "-m", "embedllm.backends.probe.probe", device.name]


def in_process(arguments: Sequence[str], *, limit_s: float | None = None) -> Outcome:
    """Runs a command that writes an outcome into the file that is its last argument.

    One that crashes, even after that, or that takes too long and is ended, has failed. OSError when it cannot start.
    """
    limit_s = limit() if limit_s is None else limit_s
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    start = time.monotonic()
    # files, not pipes: drivers write to stdout what they like, and what they start may hold a pipe open
    with tempfile.TemporaryDirectory(prefix="embedllm-probe-", ignore_cleanup_errors=True) as folder:
        file, errors = Path(folder, "outcome.json"), Path(folder, "stderr.txt")
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [*arguments, os.fspath(file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # or Windows opens one
            )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return _too_long(limit_s)
        finally:
            _end(process)
        outcome = _outcome_in(file) if code == 0 else None
        last_lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    if outcome is not None:
        return outcome
    return failed(": ".join([f"crashed ({_ending(code)})", *last_lines]), seconds=time.monotonic() - start)


def in_thread(device: Device, *, limit_s: float | None = None) -> Outcome:
    """Runs a probe beside the caller, who waits only so long. One that hangs goes on hanging."""
    limit_s = limit() if limit_s is None else limit_s
    outcomes: list[Outcome] = []

    def run() -> None:
        try:
            outcomes.append(probe.run(device))
        except Exception as error:  # noqa: BLE001 - whatever it is, the device cannot be used, and this says why
            outcomes.append(failed(f"failed: {str(error) or type(error).__name__}"))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    return outcomes[0] if outcomes else _too_long(limit_s)


def limit() -> float:
    """Seconds that a probe may take. ValueError when the environment says something else."""
    setting = os.environ.get(LIMIT, "")
    try:
        seconds = float(setting or _LIMIT_S)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ValueError(f"{LIMIT} is '{setting}'; expected seconds, such as {_LIMIT_S:g}.")
    return seconds


def _can_probe(device: Device) -> bool:
    """Whether a device needs a probe, and there is one to run."""
    if not registry.is_probed(device) or switch(SWITCH) == "off":
        return False
    if missing := [path for path in (probe.FOLDER / "embedllm.json", probe.ANSWERS) if not path.is_file()]:
        # an application that was packed without this library's data files
        _log.warning("'%s' is not probed: there is no '%s'; install embedllm with its data files", device.name,
                     missing[0])  # fmt: skip
        return False
    return True


def _run(device: Device, limit_s: float) -> Outcome:
    if can_start_python():
        try:
            return in_process(command(device), limit_s=limit_s)
        except OSError as error:
            _log.info("a process for the probe could not be started (%s); a thread runs it", error)
    return in_thread(device, limit_s=limit_s)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process, and waits for that no longer than is sensible."""
    if process.poll() is None:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)


def _outcome_in(file: Path) -> Outcome | None:
    try:
        return Outcome(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _too_long(limit_s: float) -> Outcome:
    return failed(f"took longer than {limit_s:.3g} s", seconds=limit_s, remedy=_LONGER, ran_out_of_time=True)


def _ending(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}" if code < 1 << 16 else f"exit code {code:#x}"  # Windows: 0xc0000005

"""What is remembered of tune(): a file for each model, kind of load and processor, in the user's cache folder."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from embedllm.backends.options import DEFAULT, RuntimeOptions
from embedllm.files.atomic import write_json
from embedllm.files.command_line import shell_word
from embedllm.files.switches import switch
from embedllm.files.user_cache import user_cache
from embedllm.loading.tuning_results import Measured, Tuning

if TYPE_CHECKING:
    from embedllm.package.package import Package

SWITCH = "EMBEDLLM_TUNED"  # environment variable: "off" loads as if nothing had been measured
_FORMAT = 1
_LATEST = 1 << 34  # seconds, in the year 2514: every system can tell the date of what is before
_log = logging.getLogger("embedllm")


@dataclass(frozen=True, slots=True)
class Recalled:
    """What is known of a model on this machine, or why nothing that counts is."""

    tuning: Tuning | None
    reason: str = ""
    is_stale: bool = False  # there is a record, which does not count

    @property
    def fastest(self) -> str:
        """The device that "auto" takes by it; empty: as without it."""
        return "" if self.tuning is None else self.tuning.device

    def runtime(self, device: str) -> RuntimeOptions:
        return DEFAULT if self.tuning is None else self.tuning.runtime(device)

    def describe(self, device: str, *, is_overruled: bool) -> str:
        """For people: how a device runs by it, or why not; logged where there is a record.

        is_overruled: by what the caller chose.
        """
        if self.tuning is None:
            return f"no: {self.reason}"
        chosen = self.tuning.chosen(device)
        if chosen is None:
            text = f"no: {device} was not measured"
        elif is_overruled:
            text = "no: threads were given"
        else:
            text = f"yes: {chosen.runtime}; measured on {self.tuning.date}: {chosen.speed}"
        _log.info("'%s' tuned: %s", self.tuning.model, text)
        return text


def recall(package: Package, *, exact: bool = False, kv: str | None = None) -> Recalled:
    """What was measured for such loads, when nothing that it depends on changed since."""
    if switch(SWITCH) == "off":
        return Recalled(None, f"{SWITCH}=off")
    path = _path(package, exact=exact, kv=kv)
    again = f"measure again with: embedllm tune {shell_word(package.folder)}"

    def stale(reason: str) -> Recalled:
        _log.info("'%s' runs untuned: %s", package.name, reason)
        return Recalled(None, f"{reason}; {again}", is_stale=True)

    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        if entry["format"] != _FORMAT:
            return stale("what was measured was written by another version of embedllm")
        then, tuning = dict(entry["key"]), _read(entry["tuning"])
    except FileNotFoundError:
        return Recalled(None, "not measured")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return stale(f"'{path}' cannot be read ({type(error).__name__}: {error})")
    now = _key(package)
    if changed := [name for name in now if then.get(name) != now[name]]:
        changes = " and ".join(f"{name} ({then.get(name) or 'none'}, now {now[name] or 'none'})" for name in changed)
        return stale(f"what was measured does not count any more, because of {changes}")
    if (tuning.exact, tuning.kv) != (exact, kv):
        return stale(f"'{path}' is of other loads than its name says")
    return Recalled(tuning)


def unused(*, is_wanted: bool) -> Recalled:
    """Of a load that nothing was measured for; is_wanted: as load(tuned=...) has it."""
    return Recalled(None, "nothing is measured with adapters or OpenVINOOptions" if is_wanted else "tuned=False")


def unwritable() -> str:
    """Why nothing can be remembered on this machine, or ""."""
    folder = _folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"'{folder}' cannot be written: {error.strerror or error}"


def keep(package: Package, tuning: Tuning) -> str:
    """Remembers a measurement, whole or not at all; why it cannot, or ""."""
    path = _path(package, exact=tuning.exact, kv=tuning.kv)
    entry = {"format": _FORMAT, "key": _key(package), "tuning": asdict(tuning)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, entry)
    except OSError as error:
        return f"'{path}' cannot be written: {error.strerror or error}"
    return ""


def forget(package: Package) -> int:
    """Removes all that is remembered of a model, whatever its loads and on whatever processor; how many files."""
    folder, count = _folder(), 0
    for path in folder.glob(f"{_weights(package)}-*.json"):
        path.unlink(missing_ok=True)
        count += 1
    return count


def _key(package: Package) -> dict[str, str]:
    """All that a measurement depends on, but for what the file is named by."""
    from embedllm.backends.devices.drivers import python_packages
    from embedllm.backends.system.cpu_threads import compute_threads, usable
    from embedllm.backends.system.hardware import drivers
    from embedllm.backends.system.ort_builds import builds, versions_of
    from embedllm.files.version import __version__

    others = versions_of({"openvino", *python_packages()})
    graphs = {graph.file: package.files[graph.file].sha256 for graph in package.graphs}
    return {
        "embedllm": __version__,
        "onnxruntime": " ".join(f"{build.name} {build.version}" for build in builds()),
        "other runtimes": " ".join(f"{name} {others[name]}" for name in sorted(others)),
        "cores": f"{compute_threads() or 'unknown'} of {usable()} threads",
        "graphs": sha256(json.dumps(graphs, sort_keys=True).encode()).hexdigest()[:16],
        "graphics drivers": "; ".join(drivers()),
    }


def _read(data: dict[str, object]) -> Tuning:
    """A record as it was written. ValueError, TypeError or KeyError for anything else."""
    measured = tuple(_read_measured(one) for one in _list(data["measured"]))
    left_out = tuple((str(name), str(why)) for name, why in data["left_out"])  # type: ignore[attr-defined]  # or TypeError
    tuning = Tuning(**{**data, "measured": measured, "left_out": left_out})  # type: ignore[arg-type]  # checked below
    texts, numbers = (tuning.model, tuning.device, tuning.unkept), (tuning.took_s, tuning.at)
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(one, float | int) for one in numbers):
        raise ValueError("values of other types than expected")
    if type(tuning.exact) is not bool or not isinstance(tuning.kv, str | None):
        raise ValueError("'exact' or 'kv' of another type than expected")
    if not 0 <= tuning.at < _LATEST:
        raise ValueError(f"'at' is {tuning.at}, which is no time since 1970")
    if tuning.device and tuning.chosen(tuning.device) is None:
        raise ValueError(f"the device '{tuning.device}' was not measured")
    return tuning


def _read_measured(data: object) -> Measured:
    if not isinstance(data, dict) or not isinstance(data.get("runtime"), dict):
        raise ValueError("no object with 'runtime' where one was expected")
    one = Measured(**{**data, "runtime": RuntimeOptions(**data["runtime"])})
    numbers = (one.prefill_tokens_s, one.decode_tokens_s, one.seconds, one.ratio, one.rounds)
    if not all(isinstance(number, float | int) and number > 0 for number in numbers):
        raise ValueError("times that are no positive numbers")
    if not isinstance(one.device, str) or type(one.is_chosen) is not bool:
        raise ValueError("values of other types than expected")
    return one


def _list(data: object) -> list[object]:
    if not isinstance(data, list):
        raise ValueError("no list where one was expected")
    return data


def _weights(package: Package) -> str:
    return package.stored.sha256[:16]


def _folder() -> Path:
    return user_cache("tuned")


def _path(package: Package, *, exact: bool, kv: str | None) -> Path:
    from embedllm.backends.system.hardware import processor

    kind = sha256(json.dumps([exact, kv, processor()]).encode()).hexdigest()[:16]
    return _folder() / f"{_weights(package)}-{kind}.json"

"""Which builds of ONNX Runtime are installed. They all are `import onnxruntime`, so that two overwrite each other."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from functools import cache
from typing import NamedTuple

# distributions that own the package `onnxruntime`, the most special first: a plug-in, such as onnxruntime-ep-webgpu, is
# none of them. onnxruntime-qnn was one before 2.0
_BUILDS = ("onnxruntime-gpu", "ort-nightly-gpu", "onnxruntime-directml", "ort-nightly-directml",
           "onnxruntime-windowsml", "onnxruntime-webgpu", "onnxruntime-openvino", "onnxruntime-migraphx",
           "onnxruntime-rocm", "onnxruntime-trt-rtx", "onnxruntime-cann", "onnxruntime-training", "onnxruntime-qnn",
           "ort-nightly", "onnxruntime")  # fmt: skip
_RECORD = ".dist-info"
_FIRST_PLUG_IN = {"onnxruntime-qnn": 2}  # major version


class Build(NamedTuple):
    """An installed distribution."""

    name: str
    version: str


@cache
def builds() -> list[Build]:
    """The builds of ONNX Runtime in the first folder of the path that has any, the most special first.

    That one is imported; a build in a later folder is hidden, not overwritten.
    """
    for folder in sys.path:
        by_name = {build.name: build for build in _in(folder or ".")}
        if here := owners([by_name[name] for name in _BUILDS if name in by_name]):
            return here
    return []


def versions_of(names: Collection[str]) -> dict[str, str]:
    """Of those that are installed; names: in small letters, with dashes."""
    entries = [build for folder in reversed(sys.path) for build in _in(folder or ".")]  # the first in the path is used
    return {build.name: build.version for build in entries if build.name in names}


def _in(folder: str) -> list[Build]:
    """What a folder has installed, by the names that installers give their records: "onnxruntime_gpu-1.31.1.dist-info".

    As importlib.metadata finds them, whose import alone would take 9 ms of every start.
    """
    try:
        names = os.listdir(folder)  # noqa: PTH208 - a path's iterdir makes an object of each of hundreds
    except OSError:
        return []  # a zip file, or nothing
    records = [name.removesuffix(_RECORD).partition("-") for name in names if name.endswith(_RECORD)]
    return [Build(name.lower().replace("_", "-"), version) for name, _, version in records if version]


def owners(installed: Sequence[Build]) -> list[Build]:
    """Those that bring the package `onnxruntime` itself, which later versions of some do not."""
    return [build for build in installed if not _is_plug_in(build)]


def conflict(installed: Sequence[Build]) -> tuple[str, str] | None:
    """What is wrong when more than one build is installed, and how to mend it; None when nothing is.

    installed: the most special first, which is the one that was probably wanted.
    """
    rivals = owners(installed)
    if len(rivals) < 2:
        return None
    reason = f"{named(rivals)} are installed and overwrite each other: all are `import onnxruntime`"
    # all of them, because what is left after one was removed lacks the files that they share
    uninstall = f"pip uninstall -y {' '.join(build.name for build in rivals)}"
    return reason, f"{uninstall}, then one of them again: {install_line(rivals[0].name)}"


def named(installed: Sequence[Build]) -> str:
    """Builds and their versions, in words."""
    return " and ".join(f"{build.name} {build.version}" for build in installed) or "of no known distribution"


def install_line(build: str) -> str:
    """How pip installs a build with all that it needs."""
    return f'pip install "{build}[cuda,cudnn]"' if build == "onnxruntime-gpu" else f"pip install {build}"


def _is_plug_in(build: Build) -> bool:
    first = _FIRST_PLUG_IN.get(build.name)
    major = build.version.partition(".")[0]
    return first is not None and major.isdecimal() and int(major) >= first

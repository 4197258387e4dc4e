"""Which builds of ONNX Runtime are installed. They all are `import onnxruntime`, so that two overwrite each other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import NamedTuple

# distributions that own the package `onnxruntime`, the most special first: a plug-in, such as onnxruntime-ep-webgpu, is
# none of them. onnxruntime-qnn was one before 2.0
_BUILDS = ("onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-webgpu", "onnxruntime-openvino",
           "onnxruntime-migraphx", "onnxruntime-rocm", "onnxruntime-trt-rtx", "onnxruntime-qnn", "ort-nightly",
           "onnxruntime")  # fmt: skip
_FIRST_PLUG_IN = {"onnxruntime-qnn": 2}  # major version


class Build(NamedTuple):
    """An installed distribution."""

    name: str
    version: str


@cache
def builds() -> list[Build]:
    """The builds of ONNX Runtime that are installed, the most special first."""
    found: list[Build] = []
    for name in _BUILDS:
        with suppress(metadata.PackageNotFoundError):
            found.append(Build(name, metadata.version(name)))
    return owners(found)


def owners(installed: Sequence[Build]) -> list[Build]:
    """Those that bring the package `onnxruntime` itself, which later versions of some do not."""
    return [build for build in installed if not _is_plug_in(build)]


def conflict(installed: Sequence[Build]) -> tuple[str, str] | None:
    """What is wrong when more than one build is installed, and how to mend it; None when nothing is.

    installed: the most special first, which is the one that was probably wanted.
    """
    found = owners(installed)
    if len(found) < 2:
        return None
    reason = f"{named(found)} are installed and overwrite each other: all are `import onnxruntime`"
    # all of them, because what is left after one was removed lacks the files that they share
    uninstall = f"pip uninstall -y {' '.join(build.name for build in found)}"
    return reason, f"{uninstall}, then one of them again: {install_line(found[0].name)}"


def named(installed: Sequence[Build]) -> str:
    """Builds and their versions, in words."""
    return " and ".join(f"{build.name} {build.version}" for build in installed) or "of no known distribution"


def install_line(build: str) -> str:
    """How pip installs a build with all that it needs."""
    return f'pip install "{build}[cuda]"' if build == "onnxruntime-gpu" else f"pip install {build}"


def _is_plug_in(build: Build) -> bool:
    first = _FIRST_PLUG_IN.get(build.name)
    major = build.version.partition(".")[0]
    return first is not None and major.isdecimal() and int(major) >= first

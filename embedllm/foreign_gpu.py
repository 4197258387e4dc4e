"""Which graph of a folder of transformers.js or optimum runs on a GPU, where several are there."""

from __future__ import annotations

import logging

from embedllm.errors import PackageError
from embedllm.foreign_onnx import FLOAT16_FIRST, FLOAT32_FIRST, best, in_order
from embedllm.package import Package, open_package

_log = logging.getLogger("embedllm")


def on_gpu(package: Package, *, has_float16: bool, memory: int) -> Package:
    """The folder with the graph that suits a GPU; as it is when no other suits better, or its graph was asked for.

    has_float16: the GPU computes in it. memory: bytes of its own; 0: the machine's.
    """
    foreign = package.foreign
    if foreign is None or foreign.is_asked or not foreign.passed_over:
        return package
    own = package.graphs[0].file
    names = sorted((own, *foreign.passed_over))
    paths = in_order([package.folder / name for name in names], FLOAT16_FIRST if has_float16 else FLOAT32_FIRST)
    path = best(paths, memory or None)
    if path is None or path == package.folder / own:
        return package
    try:
        return open_package(path)
    except PackageError as error:
        _log.info("'%s' is run instead of '%s': %s", own, path.name, error)
        return package

"""Which graph of a folder of transformers.js or optimum runs on a GPU, where several are there."""

from __future__ import annotations

import logging
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.package.external.onnx_folder import FLOAT16_FIRST, FLOAT32_FIRST, best, in_order
from embedllm.package.package import Package, open_package

_log = logging.getLogger("embedllm")


def on_gpu(package: Package, provider: str, *, has_float16: bool, memory: int) -> Package:
    """The folder with the graph that suits a GPU; as it is when no other suits better, or its graph was asked for.

    provider: by which it runs ("cuda"), that computes not every graph rightly. has_float16: the GPU computes in it.
    memory: bytes of its own; 0: the machine's.
    """
    external = package.external
    if external is None or external.is_asked or not external.passed_over:
        return package
    own = package.graphs[0].file
    names = sorted((own, *external.passed_over))
    paths = in_order([package.folder / name for name in names], FLOAT16_FIRST if has_float16 else FLOAT32_FIRST)
    opened: dict[Path, Package] = {}
    for path in paths:
        try:
            candidate = package if path == package.folder / own else open_package(path)
        except PackageError as error:
            _log.info("'%s' is not run: %s", path.name, error)
            continue
        if candidate.external is not None and provider not in candidate.external.faults:
            opened[path] = candidate
    chosen = best(list(opened), memory or None)
    if chosen is None:
        return package
    suited = opened[chosen]
    suited.limit_context(min(package.context, suited.context))  # which a load may have set
    return suited

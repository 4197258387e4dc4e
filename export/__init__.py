"""From a model's source to a package folder: convert(source, out, Recipe(...)).

The names are loaded when they are used: the descriptions in here are read at run time too, where onnx is not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedllm.export.pipeline import Progress, convert
    from embedllm.export.recipe import Recipe

__all__ = ["Progress", "Recipe", "convert"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from embedllm.export import pipeline

    return getattr(pipeline, name)

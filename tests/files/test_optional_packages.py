"""Packages that a small installation may lack."""

from __future__ import annotations

import pytest

from embedllm.errors import MissingPart
from embedllm.files.optional_packages import needs


def test_a_missing_package_is_named_with_what_to_type() -> None:
    wanted = r"LoRA: the package 'no_such_package'.*pip install no_such_package"
    with pytest.raises(MissingPart, match=wanted), needs("no_such_package", "LoRA"):
        import no_such_package.inner  # pyright: ignore[reportMissingImports] # noqa: F401


def test_another_missing_module_stays_what_it_is() -> None:
    with pytest.raises(ModuleNotFoundError) as raised, needs("onnx", "LoRA"):
        import no_such_package  # pyright: ignore[reportMissingImports] # noqa: F401
    assert not isinstance(raised.value, MissingPart)

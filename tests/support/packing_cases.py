"""Which cases of tests/support/decoder_cases.py are packed in a way of their own: one for each set of matrices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

import pytest
from _pytest.mark import ParameterSet

from embedllm.package.architecture.weights import Linear
from tests.support.decoder_cases import CASES, plain


def _matrices(value: object) -> Iterator[tuple[str, bool]]:
    """Name without numbers and whether there is a bias, of each matrix in a description."""
    if isinstance(value, Linear):
        yield re.sub(r"\d+", "", value.name), bool(value.bias)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _matrices(getattr(value, field.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from _matrices(part)


def _one_of_each() -> list[str]:
    found: dict[frozenset[tuple[str, bool]], str] = {}
    for name, change in CASES.items():
        found.setdefault(frozenset(_matrices(change(plain()))), name)
    return list(found.values())


PACKED = _one_of_each()


def with_recipes(recipes: Mapping[str, object], *, every: str) -> list[ParameterSet]:
    """(case, recipe): all cases with one recipe, and with the others those whose matrices no other case has.

    Slow but for one recipe of the latter.
    """
    return [
        pytest.param(case, recipe, marks=[] if recipe == every and case in PACKED else [pytest.mark.slow])
        for case in CASES
        for recipe in recipes
        if recipe == every or case in PACKED
    ]

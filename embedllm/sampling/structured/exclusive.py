"""Whether no value fulfils two schemas, as far as their types and constants show. Standard library only.

The same rules as bindings_web/src/grammar/one_of.js.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedllm.types import JSON

    Resolve = Callable[[JSON], JSON]


def exclude_each_other(schemas: Sequence[JSON], resolve: Resolve) -> bool:
    """Whether a value fulfils one of the schemas at most. resolve: the schema that a reference means."""
    parts = [resolve(schema) for schema in schemas]
    return all(_are_apart(one, other, resolve) for place, one in enumerate(parts) for other in parts[:place])


def _are_apart(one: JSON, other: JSON, resolve: Resolve) -> bool:
    if one is False or other is False:
        return True
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    if _differ(one, other):
        return True
    types, others = _types(one), _types(other)
    if types is None or others is None:
        return False
    return not types & others or (types & others == {"object"} and _differ_in_a_property(one, other, resolve))


def _types(schema: dict[str, JSON]) -> set[str] | None:
    """None: any."""
    types = schema.get("type")
    if types is None:
        return None
    return {"number" if kind == "integer" else str(kind) for kind in (types if isinstance(types, list) else [types])}


def _values(schema: dict[str, JSON]) -> list[JSON] | None:
    """None: any that its other keywords allow."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _differ(one: dict[str, JSON], other: dict[str, JSON]) -> bool:
    """Whether both have a list of values, and none in common."""
    left, right = _values(one), _values(other)
    return left is not None and right is not None and not any(value in right for value in left)


def _differ_in_a_property(one: dict[str, JSON], other: dict[str, JSON], resolve: Resolve) -> bool:
    """Whether a property that both objects must have differs, such as the "discriminator" of pydantic's unions."""
    left, right = one.get("properties"), other.get("properties")
    required, demanded = one.get("required"), other.get("required")
    if not (isinstance(left, dict) and isinstance(right, dict)):
        return False
    if not (isinstance(required, list) and isinstance(demanded, list)):
        return False
    for name in required:
        if name not in demanded or not isinstance(name, str):
            continue
        ours, theirs = resolve(left.get(name)), resolve(right.get(name))
        if isinstance(ours, dict) and isinstance(theirs, dict) and _differ(ours, theirs):
            return True
    return False

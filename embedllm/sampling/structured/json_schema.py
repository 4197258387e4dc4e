"""JSON schemas as the grammar engine shall have them: each keyword followed or refused by name, nothing without an end.

Standard library only. The engine itself leaves out keywords that it does not know, and runs into schemas that demand
themselves; what comes out of here has neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import unquote

from embedllm.sampling.structured.exclusive import exclude_each_other
from embedllm.sampling.structured.regex_classes import ecma_classes

if TYPE_CHECKING:
    from embedllm.text.chat_template import JSON

    Schema: TypeAlias = "dict[str, JSON] | bool"

_LEFT_OUT, _EXACT = 2.0**-20, 2**53  # of a range; numbers
DEEPEST = 64  # schemas in schemas; as in bindings_web/src/grammar/keywords.js
_MAPS = ("properties", "patternProperties")  # of names to schemas
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
_DEFINITIONS = ("$defs", "definitions")
_VALUES = (
    "type", "enum", "const", "required", "minProperties", "maxProperties", "minItems", "maxItems", "minLength",
    "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
)  # fmt: skip
_ANNOTATIONS = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator", "$schema",
    "$comment", "$defs", "definitions", "contentEncoding", "contentMediaType",
}  # fmt: skip


def followed(schema: JSON) -> dict[str, JSON] | Literal[True]:
    """The schema with nothing in it but what the engine follows; its "$defs" are those that it refers to.

    Raises ValueError that names keyword and path for what is not followed, and for a schema without a finite value.
    """
    reader = _Reader(schema)
    root = reader.read(schema, "#", 0)
    endless = _endless(root, reader.definitions)
    if root is False or id(root) in endless:
        raise ValueError(
            "JSON schema: no finite value fulfils it: it demands itself again and again, or something that nothing can "
            "be. Make the part that contains itself optional, and look for 'false'."
        )
    finite_schema = _without(root, endless)
    if not isinstance(finite_schema, dict):
        return True
    defined: dict[str, JSON] = {name: _without(one, endless) for name, one in reader.definitions.items()}
    return {**finite_schema, "$defs": defined} if defined else finite_schema


def closed(schema: JSON) -> JSON:
    """A schema without properties that its objects do not name, where it says nothing of them.

    So no name comes twice, and nothing that a class or a tool does not have. Keywords that are null are left out;
    OpenAPI's "nullable" becomes a choice of null.
    """
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts: dict[str, JSON] = {"additionalProperties": False} if schema.get("properties") is not None else {}
    for key, value in schema.items():
        if value is None and key != "const":
            continue
        if key in _MAPS + _DEFINITIONS and isinstance(value, dict):
            parts[key] = {name: closed(part) for name, part in value.items()}
        elif key in _SINGLE or (key in _LISTS and key != "allOf"):  # whose parts are closed as a whole
            parts[key] = closed(value)
        else:
            parts[key] = value
    if not isinstance(parts.get("nullable"), bool) or not parts.pop("nullable"):
        return parts
    if isinstance(kind := parts.get("type"), str) and "enum" not in parts and "const" not in parts:
        return {**parts, "type": [kind, "null"]}  # one type, not two schemas: more notations of calls can say it
    return {"anyOf": [parts, {"type": "null"}]} if parts else parts


class _Reader:
    """Copies schemas, the referred ones as definitions of their own."""

    def __init__(self, root: JSON) -> None:
        self._root = root
        self._names: dict[str, str] = {}  # reference -> name in definitions
        self.definitions: dict[str, Schema] = {}

    def read(self, schema: JSON, path: str, depth: int) -> Schema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise ValueError(f"JSON schema: {path} is {schema!r}; expected an object, true or false.")
        if depth > DEEPEST:
            raise ValueError(f"JSON schema: {path[:80]}... lies {depth} schemas deep; expected at most {DEEPEST}.")
        keywords: dict[str, JSON] = {}
        for keyword, value in schema.items():
            if keyword in _ANNOTATIONS or keyword.startswith("x-") or (keyword == "$id" and path == "#"):
                continue
            if keyword == "uniqueItems" and value is False:  # as without it
                continue
            part = self._part(keyword, value, path, depth + 1)
            is_apart = keyword == "oneOf" and isinstance(value, list) and exclude_each_other(value, self._resolved)
            # the same where nothing fulfils two of them; the engine does not look behind references
            keywords["anyOf" if is_apart and "anyOf" not in schema else keyword] = part
        _check_counts(keywords, path)
        return keywords | _narrowed(keywords)

    def _part(self, keyword: str, value: JSON, path: str, depth: int) -> JSON:
        place = f"{path}/{keyword}"
        if keyword == "pattern" and isinstance(value, str):
            return ecma_classes(value)
        if keyword in _VALUES:
            return value
        if keyword == "$ref":
            return self._reference(value, path)
        if keyword == "items" and isinstance(value, list):
            raise _refused(keyword, path, "is a list, as in drafts before 2020-12. Call it 'prefixItems'.")
        if keyword in _SINGLE:
            return self.read(value, place, depth)
        if keyword in _MAPS and isinstance(value, dict):
            names = {name: ecma_classes(name) if keyword == "patternProperties" else name for name in value}
            return {names[name]: self.read(part, f"{place}/{name}", depth) for name, part in value.items()}
        if keyword in _LISTS and isinstance(value, list):
            return [self.read(part, f"{place}/{at}", depth) for at, part in enumerate(value)]
        if keyword in _MAPS + _LISTS:
            raise _refused(keyword, path, f"is {value!r}; expected {'an object' if keyword in _MAPS else 'a list'}.")
        raise _refused(
            keyword, path, "is not supported. Leave it out and check the reply yourself, or say it otherwise."
        )

    def _reference(self, reference: JSON, path: str) -> str:
        if reference == "#":
            return "#"
        if not isinstance(reference, str) or not reference.startswith("#/"):
            raise _refused("$ref", path, f"is {reference!r}; expected '#' or '#/...', a place in this schema.")
        if reference not in self._names:
            name = self._names[reference] = str(len(self._names))
            self.definitions[name] = self.read(self._target(reference, path), reference, 0)
        return f"#/$defs/{self._names[reference]}"

    def _resolved(self, schema: JSON) -> JSON:
        """A schema itself, not a reference to it; what stands beside the reference is left out: it only narrows."""
        for _ in range(DEEPEST):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            reference = schema["$ref"]
            schema = self._root if reference == "#" else self._target(str(reference), "#")
        return True  # it leads back to itself

    def _target(self, reference: str, path: str) -> JSON:
        target: JSON = self._root
        for step in reference.removeprefix("#/").split("/"):
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            else:
                raise _refused("$ref", path, f"is {reference!r}, which is not there.")
        return target


def _refused(keyword: str, path: str, problem: str) -> ValueError:
    return ValueError(f"JSON schema: '{keyword}' at {path} {problem}")


def _check_counts(schema: dict[str, JSON], path: str) -> None:
    """Raises ValueError for a count that the engine would not keep: it tells apart no two names that are not listed."""
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    named = len(required) if isinstance(required, list) else 0
    if isinstance(least, int) and least > named + 1:
        raise _refused("minProperties", path, f"is {least}; with {named} properties in 'required' it can be "
                       f"{named + 1} at most. List more of them there.")  # fmt: skip


def _narrowed(schema: dict[str, JSON]) -> dict[str, JSON]:
    """Bounds in place of an excluded whole number that the engine would allow: the other bound is less than 1 off.

    They leave a millionth of the range out. llguidance 1.9.1 takes 3 where "exclusiveMinimum" is 3 and "maximum" 3.5.
    """
    above, below = _numbers(schema, "exclusiveMinimum"), _numbers(schema, "exclusiveMaximum")
    found: dict[str, JSON] = {}
    for whole in above:
        most = min(_numbers(schema, "maximum") + below, default=math.inf)
        if whole.is_integer() and 0 < most - whole < 1:
            found["minimum"] = max([*_numbers(schema, "minimum"), whole + (most - whole) * _LEFT_OUT])
    for whole in below:
        least = max(_numbers(schema, "minimum") + above, default=-math.inf)
        if whole.is_integer() and 0 < whole - least < 1:
            found["maximum"] = min([*_numbers(schema, "maximum"), whole - (whole - least) * _LEFT_OUT])
    return found


def _numbers(schema: dict[str, JSON], keyword: str) -> list[float]:
    """The number of a keyword, where it has one that is exact as a float."""
    value = schema.get(keyword)
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > _EXACT:
        return []
    return [float(value)]


def _endless(root: Schema, definitions: dict[str, Schema]) -> set[int]:
    """The ids of the schemas that no finite value fulfils."""
    schemas = [part for schema in (root, *definitions.values()) for part in _all(schema)]
    finite: set[int] = set()

    def is_finite(schema: JSON) -> bool:
        return schema is True or id(schema) in finite

    def target(reference: JSON) -> JSON:
        return root if reference == "#" else definitions[str(reference).rpartition("/")[2]]

    while True:
        added = {
            id(schema) for schema in schemas if id(schema) not in finite and _ends(schema, is_finite, target)
        }  # grows only, so it comes to an end
        if not added:
            return {id(schema) for schema in schemas} - finite
        finite |= added


def _all(schema: JSON) -> Iterator[dict[str, JSON]]:
    """The schema and all in it; true and false aside."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, value in schema.items():
        if keyword in _SINGLE:
            yield from _all(value)
        if keyword in _MAPS and isinstance(value, dict):
            for part in value.values():
                yield from _all(part)
        if keyword in _LISTS and isinstance(value, list):
            for part in value:
                yield from _all(part)


def _ends(schema: dict[str, JSON], is_finite: Callable[[JSON], bool], target: Callable[[JSON], JSON]) -> bool:
    """Whether some value that fulfils the schema is finite, if those parts have one of which it is known."""
    if "$ref" in schema and not is_finite(target(schema["$ref"])):
        return False
    for keyword, holds in (("allOf", all), ("anyOf", any), ("oneOf", any)):
        parts = schema.get(keyword)
        if isinstance(parts, list) and not holds(is_finite(part) for part in parts):
            return False
    if "const" in schema or "enum" in schema:
        return True
    types = schema.get("type", "string")
    kinds = types if isinstance(types, list) else [types]
    return any(_type_ends(str(kind), schema, is_finite) for kind in kinds)


def _type_ends(kind: str, schema: dict[str, JSON], is_finite: Callable[[JSON], bool]) -> bool:
    if kind == "object":
        properties, required = schema.get("properties"), schema.get("required")
        schemas = properties if isinstance(properties, dict) else {}
        other = schema.get("additionalProperties", True)
        names = required if isinstance(required, list) else []
        return all(is_finite(schemas.get(str(name), other)) for name in names)
    if kind == "array":
        least, first = schema.get("minItems", 0), schema.get("prefixItems")
        items = first if isinstance(first, list) else []
        count = least if isinstance(least, int) else 0
        rest = count <= len(items) or is_finite(schema.get("items", True))
        return rest and all(is_finite(item) for item in items[:count])
    return True


def _without(schema: JSON, endless: set[int]) -> Schema:
    """The schema with false in place of those parts that no finite value fulfils, which means the same."""
    if not isinstance(schema, dict):
        return bool(schema)
    if id(schema) in endless:
        return False
    finite_schema: dict[str, JSON] = {}
    for keyword, value in schema.items():
        if keyword in _SINGLE:
            value = _without(value, endless)
        elif keyword in _MAPS and isinstance(value, dict):
            value = {name: _without(part, endless) for name, part in value.items()}
        elif keyword in _LISTS and isinstance(value, list):
            value = [_without(part, endless) for part in value]
        finite_schema[keyword] = value
    return finite_schema

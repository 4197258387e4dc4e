"""JSON schemas for property tests: random ones that use each keyword that is followed, most of them satisfiable."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any] | bool
NAMES = st.sampled_from(["a", "name", "long name", "ü", '"', "\\", "", "0"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.sampled_from([0.5, -2.25]) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)


def optional(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


def between(least: str, most: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Two keywords in the right order, or one, or none."""
    both = st.tuples(values, values).map(sorted).map(lambda pair: {least: pair[0], most: pair[1]})
    return both | optional(**{least: values}) | optional(**{most: values})


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    properties = draw(st.dictionaries(NAMES, inner, max_size=3))
    required = draw(st.lists(st.sampled_from([*properties, "other"]), unique=True, max_size=3))
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    schema |= draw(optional(additionalProperties=inner | st.booleans()))
    if set(properties) <= set(required) and draw(st.booleans()):  # elsewhere it is refused
        schema["minProperties"] = draw(st.integers(0, len(required) + 1))
    return schema


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    schema = {"type": "array"} | draw(between("minItems", "maxItems", st.integers(0, 3)))
    return schema | draw(optional(items=inner | st.booleans(), prefixItems=st.lists(inner, max_size=2)))


LENGTHS = between("minLength", "maxLength", st.integers(0, 6))
STRINGS = LENGTHS | optional(pattern=st.sampled_from(["^[a-c]+$", "^x", r"^\d{2}-\w$", "^(é|日本)", "^$"]))
FORMATS = st.sampled_from(["date", "time", "date-time", "email", "uuid", "ipv4"]).map(lambda name: {"format": name})
BOUNDS = between("minimum", "maximum", st.integers(-200, 200)) | between(
    "exclusiveMinimum", "exclusiveMaximum", st.integers(-200, 200)
)
SCALARS: st.SearchStrategy[Schema] = st.one_of(
    st.sampled_from(["null", "boolean", "integer", "number", "string"]).map(lambda kind: {"type": kind}),
    (STRINGS | FORMATS).map(lambda schema: {"type": "string", **schema}),
    st.tuples(st.sampled_from(["integer", "number"]), BOUNDS).map(lambda both: {"type": both[0], **both[1]}),
    st.sampled_from([{"type": "integer", "multipleOf": 7}, {"type": ["string", "null"]}, True]),
    VALUES.map(lambda value: {"const": value}),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
)


def _extend(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        objects(inner),
        arrays(inner),
        several.map(lambda parts: {"anyOf": parts}),
        inner.map(lambda one: {"allOf": [one]}),
    )


PLAIN = st.recursive(SCALARS, _extend, max_leaves=8)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """One in two refers to definitions, one of which contains itself."""
    if draw(st.booleans()):
        return draw(PLAIN)
    node = {"type": "object", "properties": {"value": draw(SCALARS), "next": {"$ref": "#/$defs/node"}}}
    node |= {"required": draw(st.sampled_from([[], ["value"]])), "additionalProperties": False}
    references = st.sampled_from([{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/other"}])
    root = draw(_extend(references | SCALARS))
    return {**root, "$defs": {"node": node, "other": draw(PLAIN)}} if isinstance(root, dict) else root

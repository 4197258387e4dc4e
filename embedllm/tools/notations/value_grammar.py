"""Rules for the arguments of calls that are not JSON: as pairs, keyword arguments, Gemma's notation, or elements."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from embedllm.tools.formats import ToolFormat, mark_texts, parts
from embedllm.tools.notations.tree import ITEM
from embedllm.tools.notations.values import TYPES, kinds, referred, type_name

if TYPE_CHECKING:
    from embedllm.types import JSON

    Schema = Mapping[str, JSON]

_DEEPEST = 32
_KEY = "/[a-zA-Z_][a-zA-Z0-9_]{0,40}/"
_LIKE_A_VALUE = r"(?s:\s*(true|false|null|True|False|None|-?[0-9].*|[\{\[\"'(].*)\s*)"
_FORMATS = {
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
    "time": r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": r"((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])",
    "email": r"[a-zA-Z0-9._+-]{1,64}@[a-zA-Z0-9-]{1,63}(\.[a-zA-Z0-9-]{1,63})+",
}
_FORMATS["date-time"] = f"{_FORMATS['date']}T{_FORMATS['time']}"
_NOT_IN_ROOT = ("anyOf", "oneOf", "allOf", "minProperties", "maxProperties")


class ValueGrammar:
    """Collects rules. literal: a text in Lark. special: the id of a mark that is a special token."""

    def __init__(self, literal: Callable[[str], str], special: Callable[[str], int | None]) -> None:
        self._literal = literal
        self._special = special
        self.rules: dict[str, str] = {}
        self._rule_names: dict[tuple[str, str], str] = {}  # rules of values, by notation and schema

    def rule(self, body: str, prefix: str = "r") -> str:
        """A rule for this body. A name in capitals is a terminal's."""
        rule_name = next((name for name, rule_body in self.rules.items() if rule_body == body), None)
        if rule_name is None:
            rule_name = f"{prefix}{len(self.rules)}"
            self.rules[rule_name] = body
        return rule_name

    def json_rule(self, schema: Schema) -> str:
        """JSON by a schema."""
        return self.rule(f"%json {json.dumps(schema)}")

    def arguments(self, notation: str, root: Schema, written: ToolFormat) -> str:
        """All arguments. root: the schema of the arguments, as sampling.structured.json_schema.followed gives it."""
        for keyword in _NOT_IN_ROOT:
            if keyword in root:
                raise ValueError(
                    f"the tool's parameters have {keyword!r}, which this model's calls ('{written.name}') cannot be "
                    "held to. Leave it out, and check the arguments yourself."
                )
        if notation == "pairs":
            items = [(self._pair(name, schema, root, written), need) for name, schema, need in _members(root, root)]
            return self._sequence(items, "")
        if notation == "python":
            items = [
                (f"{self._literal(f'{name}=')} {self._python(schema, root)}", need)
                for name, schema, need in _members(root, root)
            ]
            return self._sequence(items, '", "')
        if notation == "gemma":
            return self._sequence(self._gemma_members(root, root, written.quote, 0), '","')
        return self._sequence(self._tree_members(root, root, written.pair.partition("<$key>")[0], 0), "")

    def text_without(self, mark: str, constraint: str = "(?s:.*)") -> str:
        """A text in which a mark does not stand; one that is a special token cannot."""
        if any(self._special(one) is not None for one in [mark, *mark_texts(mark)[:1]]):
            return self.rule(f"/{_slashed(constraint)}/", "T")
        return self.rule(f"/{_slashed(constraint)}/ & ~/(?s:.*){_slashed(re.escape(mark))}(?s:.*)/", "T")

    def _sequence(self, items: list[tuple[str, bool]], separator: str) -> str:
        """Items in their order; those that are not required may be left out."""
        if not separator:
            return " ".join(item if need else f"({item})?" for item, need in items) or '""'
        first, further = '""', '""'
        for item, need in reversed(items):
            rule = self.rule(item)
            first = self.rule(f"{rule} {further}" + ("" if need else f" | {first}"))
            further = self.rule(f"{separator} {rule} {further}" + ("" if need else f" | {further}"))
        return first

    def _pair(self, name: str, schema: JSON, root: Schema, written: ToolFormat) -> str:
        """One argument as a pair."""
        if re.search(r"[\"<>]", name):
            raise ValueError(f"the argument {name!r} cannot be named in this model's calls ('{written.name}').")
        closing = written.pair.partition("$value")[2].strip()
        allowed = kinds(schema, root)
        by_type: dict[str, list[str]] = {}
        for kind in TYPES:
            if kind in allowed:
                by_type.setdefault(written.types.get(kind, "") if written.types else "", []).append(kind)
        choices = []
        for type_mark, group in by_type.items():
            value = self._plain(schema, root, group, closing, is_typed=bool(written.types))
            pieces = []
            for hole, text in parts(written.pair):
                rules_by_hole = {"key": self._literal(name), "type": self._literal(type_mark), "value": value}
                pieces.append(rules_by_hole[hole] if hole else self._literal(text))
            choices.append(" ".join(pieces))
        return self.rule(" | ".join(choices))

    def _plain(self, schema: JSON, root: Schema, group: list[str], closing: str, *, is_typed: bool) -> str:
        """A value that stands as it is: a text, or JSON. group: the types that it may have."""
        others = [kind for kind in group if kind != "string"]
        choices = []
        if "string" in group:
            is_mixed = bool(others) and not is_typed
            choices.append(self._text(schema, root, closing, is_mixed=is_mixed))
        if others:
            choices.append(self.json_rule(_with_types(schema, root, others)))
        return self.rule(" | ".join(choices)) if len(choices) > 1 else choices[0]

    def _text(self, schema: JSON, root: Schema, closing: str, *, is_mixed: bool = False) -> str:
        """A text by the schema, in which what closes it does not stand. is_mixed: and that is read as nothing else."""
        choices: list[str] = []
        for one in _alternatives(schema, root, 0):
            values = one.get("enum", [one["const"]] if "const" in one else None)
            if isinstance(values, list):
                choices += [self._literal(text) for text in values if isinstance(text, str) and text] or []
                choices += ['""'] if "" in values else []
                continue
            rule = self.text_without(closing, _regex(one))
            if is_mixed:
                rule = self.rule(f"{self.rules[rule]} & ~/{_slashed(_LIKE_A_VALUE)}/", "T")
            choices.append(rule)
        if not choices:
            raise ValueError(f"no text fulfils the schema {json.dumps(schema)[:100]}.")
        return self.rule(" | ".join(choices)) if len(choices) > 1 else choices[0]

    def _python(self, schema: JSON, root: Schema) -> str:
        is_plain = kinds(schema, root) == {"boolean"} and isinstance(schema, dict) and set(schema) <= {"type"}
        return '("True" | "False")' if is_plain else self.json_rule(_with_root(schema, root))

    def _gemma_members(self, schema: JSON, root: Schema, quote: str, depth: int) -> list[tuple[str, bool]]:
        return [
            (f"{self._literal(f'{name}:')} {self._gemma(part, root, quote, depth + 1)}", need)
            for name, part, need in _members(schema, root)
        ]

    def _gemma(self, schema: JSON, root: Schema, quote: str, depth: int) -> str:
        """A value in Gemma's notation."""
        return self._nested(
            "gemma", schema, root, depth, lambda kind: self._gemma_kind(kind, schema, root, quote, depth)
        )

    def _gemma_kind(self, kind: str, schema: JSON, root: Schema, quote: str, depth: int) -> str:
        if kind == "string":
            return f"{self._literal(quote)} {self._text(schema, root, quote)} {self._literal(quote)}"
        if kind == "array":
            item = self._gemma(_items(schema, root), root, quote, depth + 1)
            return f'"[" {_repeated(item, schema, root, separator=chr(34) + "," + chr(34))} "]"'
        if kind == "object":
            if _part(schema, root, "properties") is None:
                member = f'{_KEY} ":" {self._gemma(_other(schema, root), root, quote, depth + 1)}'
                return f'"{{" ({member})? "}}"'
            inner = self._sequence(self._gemma_members(_resolved(schema, root), root, quote, depth), '","')
            return f'"{{" {inner} "}}"'
        return self.json_rule(_with_types(schema, root, [kind]))

    def _tree_members(self, schema: JSON, root: Schema, namespace: str, depth: int) -> list[tuple[str, bool]]:
        return [
            (self._element(name, self._tree(part, root, namespace, depth + 1), namespace), need)
            for name, part, need in _members(schema, root)
        ]

    def _element(self, name: str, value: str, namespace: str) -> str:
        return f"{self._literal(f'{namespace}<{name}>')} {value} {self._literal(f'{namespace}</{name}>')}"

    def _tree(self, schema: JSON, root: Schema, namespace: str, depth: int) -> str:
        """A value as elements; where a text or number may stand too, no list or object, which would look the same."""
        allowed = kinds(schema, root)
        plain = [kind for kind in TYPES if kind in allowed and kind not in ("array", "object")]
        if plain and (plain != ["null"] or len(allowed) == 1):
            return self._plain(schema, root, plain, namespace, is_typed=False)
        return self._nested(
            "tree", schema, root, depth, lambda kind: self._tree_kind(kind, schema, root, namespace, depth)
        )

    def _tree_kind(self, kind: str, schema: JSON, root: Schema, namespace: str, depth: int) -> str:
        if kind == "array":
            item = self._element(ITEM, self._tree(_items(schema, root), root, namespace, depth + 1), namespace)
            return _repeated(self.rule(item), schema, root, separator="")
        if kind == "null":
            return '"null"'
        if _part(schema, root, "properties") is None:
            return '""'
        return self._sequence(self._tree_members(_resolved(schema, root), root, namespace, depth), "") or '""'

    def _nested(self, notation: str, schema: JSON, root: Schema, depth: int, of: Callable[[str], str]) -> str:
        """A rule with a choice for each type, made once for each schema, so that schemas may refer to themselves."""
        key = (notation, json.dumps(schema, sort_keys=True))
        if key in self._rule_names:
            return self._rule_names[key]
        if depth > _DEEPEST:
            raise ValueError(f"the tool's parameters are nested more than {_DEEPEST} deep; make them flatter.")
        name = self._rule_names[key] = f"v{len(self._rule_names)}"
        allowed = kinds(schema, root)
        self.rules[name] = " | ".join(of(kind) for kind in TYPES if kind in allowed)
        return name


def _resolved(schema: JSON, root: Schema) -> JSON:
    for _ in range(_DEEPEST):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        schema = referred(str(schema["$ref"]), root)
    return schema


def _part(schema: JSON, root: Schema, keyword: str) -> JSON:
    """The value of a keyword of an array or object, which may be one of several choices."""
    resolved_schema = _resolved(schema, root)
    if isinstance(resolved_schema, dict):
        if keyword in resolved_schema:
            return resolved_schema[keyword]
        for choice in cast("list[JSON]", resolved_schema.get("anyOf") or resolved_schema.get("oneOf") or []):
            if (part := _part(choice, root, keyword)) is not None:
                return part
    return None


def _members(schema: JSON, root: Schema) -> list[tuple[str, JSON, bool]]:
    """Name, schema, and whether it is required, of each member of an object."""
    properties = _part(schema, root, "properties")
    required = _part(schema, root, "required")
    named = dict(properties) if isinstance(properties, dict) else {}
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return [(name, part, name in needed) for name, part in named.items() if part is not False] + [
        (name, {}, True) for name in needed if name not in named
    ]


def _items(schema: JSON, root: Schema) -> JSON:
    items = _part(schema, root, "items")
    return {} if items is None or isinstance(items, bool) else items


def _other(schema: JSON, root: Schema) -> JSON:
    additional = _part(schema, root, "additionalProperties")
    return {"type": "string"} if additional is None or isinstance(additional, bool) else additional


def _repeated(item: str, schema: JSON, root: Schema, *, separator: str) -> str:
    """As many items as an array may have."""
    least, most = _part(schema, root, "minItems"), _part(schema, root, "maxItems")
    low = int(cast("int", least or 0))
    further = f"{max(low - 1, 0)},{'' if most is None else max(int(cast('int', most)) - 1, 0)}"
    if most == 0:
        return '""'
    body = item if most == 1 else f"{item} ({separator} {item}){{{further}}}"
    return body if low else f"({body})?"


def _with_types(schema: JSON, root: Schema, names: list[str]) -> Schema:
    """The schema, of these types only."""
    if kinds(schema, root) == set(names):
        return _with_root(schema, root)
    resolved_schema = _resolved(schema, root)
    plain = dict(resolved_schema) if isinstance(resolved_schema, dict) else {}
    stated = plain.get("type")
    types = [stated] if isinstance(stated, str) else stated if isinstance(stated, list) else []
    if not any(keyword in plain for keyword in ("anyOf", "oneOf", "allOf", "enum", "const")):
        common_types = [name for name in types if ("number" if name == "integer" else name) in names] or names
        return _with_root({**plain, "type": cast("JSON", common_types)}, root)
    if isinstance(values := plain.get("enum"), list):
        return {"enum": [value for value in values if type_name(value) in names]}
    choices = _alternatives(schema, root, 0, names)
    return _with_root({"anyOf": cast("JSON", [_with_types(dict(one), root, names) for one in choices])}, root)


def _with_root(schema: JSON, root: Schema) -> Schema:
    plain = dict(schema) if isinstance(schema, dict) else {}
    return {**plain, "$defs": root["$defs"]} if "$defs" in root else plain


def _alternatives(schema: JSON, root: Schema, depth: int, names: list[str] | None = None) -> list[Schema]:
    """The schemas that a schema is a choice of, those for texts, or for other types."""
    types = set(names or ["string"])
    resolved_schema = _resolved(schema, root)
    if not isinstance(resolved_schema, dict):
        return [{}]
    if depth > _DEEPEST or not kinds(resolved_schema, root) & types:
        return []
    choices = resolved_schema.get("anyOf") or resolved_schema.get("oneOf")
    rest = {key: value for key, value in resolved_schema.items() if key not in ("anyOf", "oneOf", "allOf")}
    for one in cast("list[JSON]", resolved_schema.get("allOf") or []):
        rest = {**rest, **(dict(part) if isinstance(part := _resolved(one, root), dict) else {})}
    if not isinstance(choices, list):
        return [rest]
    return [{**rest, **one} for choice in choices for one in _alternatives(choice, root, depth + 1, names)]


def _regex(schema: Schema) -> str:
    """The texts of a schema as a regular expression."""
    if isinstance(pattern := schema.get("pattern"), str):
        return _unanchored(pattern)
    format_pattern = _FORMATS.get(str(schema.get("format")))
    if format_pattern is not None:
        return format_pattern
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return "(?s:.*)" if not least and most == "" else f"(?s:.{{{least},{most}}})"


def _unanchored(pattern: str) -> str:
    """A pattern of JSON Schema, which may be found anywhere in a text, as one of the whole text."""
    start, end = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[1 if start else 0 : len(pattern) - 1 if end else len(pattern)]
    bare = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "", inner)
    if "^" in bare or "$" in bare or ((start or end) and "|" in re.sub(r"\([^()]*\)", "", bare)):
        raise ValueError(f"the pattern {pattern!r} cannot be followed in this model's calls: write it as '^(?:...)$'.")
    return f"{'' if start else '(?s:.*)'}(?:{inner}){'' if end else '(?s:.*)'}"


def _slashed(pattern: str) -> str:
    """A pattern as it stands between slashes in Lark."""
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern).replace("\n", "\\n")

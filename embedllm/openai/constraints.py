"""What clients of llama.cpp's server and of vLLM write to hold a reply to a form, as response_format.

llama.cpp: json_schema. vLLM: structured_outputs, and before it guided_json, guided_regex and guided_choice. Grammars in
GBNF and EBNF are refused: a reply without them would be another one than the client reads. Source: tools/server of
llama.cpp; the structured outputs of vLLM (0.12).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from embedllm.openai.schema import OBJECT, STRING, STRINGS, InvalidRequest, Schema, one_of

CONSTRAINTS: dict[str, Schema] = {
    "json_schema": one_of(OBJECT, STRING),
    "guided_json": one_of(OBJECT, STRING),
    "guided_regex": STRING,
    "guided_choice": STRINGS,
    "grammar": STRING,
    "guided_grammar": STRING,
    "structured_outputs": OBJECT,
}
_KINDS = {"json_schema": "json", "guided_json": "json", "guided_regex": "regex", "guided_choice": "choice",
          "grammar": "grammar", "guided_grammar": "grammar"}  # fmt: skip
_FORMS = (
    "json",
    "json_object",
    "regex",
    "choice",
    "grammar",
    "structural_tag",
)  # of structured_outputs, beside options


def with_response_format(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A request's body with a response_format in the place of these. Empty ones count as not given.

    Raises InvalidRequest where more than one holds the reply to something, and for what is not followed.
    """
    asked = {name: (kind, body[name]) for name, kind in _KINDS.items() if body.get(name)}
    more = body.get("structured_outputs") or {}
    asked |= {f"structured_outputs.{kind}": (kind, more[kind]) for kind in _FORMS if more.get(kind)}
    rest = {name: value for name, value in body.items() if name not in CONSTRAINTS}
    if not asked:
        return rest
    (name, (kind, value)), *others = asked.items()
    if other := next((name for name, _ in others), "response_format" if "response_format" in rest else ""):
        raise InvalidRequest(f"'{name}' and '{other}' both hold the reply to a form; give one of them.", param=name)
    return rest | {"response_format": _response_format(name, kind, value)}


def _response_format(name: str, kind: str, value: object) -> object:
    if kind == "json":
        return {"type": "json_schema", "json_schema": {"schema": _schema(name, value)}}
    if kind == "json_object":
        return {"type": "json_object"}
    if kind == "regex":
        return {"type": "regex", "regex": value}
    if kind == "choice":
        return {"type": "choices", "choices": value}
    instead = 'a response_format {"type": "lark", "lark": ...}, {"type": "regex", ...} or a JSON schema'
    raise InvalidRequest(f"'{name}' is not followed; expected {instead}.", param=name)


def _schema(name: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"'{name}' is a text that is no JSON: {error}.", param=name) from None

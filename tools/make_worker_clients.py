"""Makes the clients in samples/worker_clients from the tables of embedllm/integrations/worker/methods.py.

python -m tools.make_worker_clients --write    writes openrpc.json, and the JavaScript and C# clients by it
python -m tools.make_worker_clients --check    names the files that are not current; a test does so, too

What is written by hand, how lines are sent and read, is in tools/worker_clients.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

from embedllm.files.version import __version__
from embedllm.integrations.worker.methods import METHODS, NOTIFICATIONS, OBJECTS, Method

ROOT = Path(__file__).parents[1]
TEMPLATES, CLIENTS = ROOT / "tools" / "worker_clients", ROOT / "samples" / "worker_clients"
_MADE = "// Made by `python -m tools.make_worker_clients --write`; change what that reads, not this file.\n"
_PREFIX = "#/components/schemas/"
_REPLIES = ("generate", "chat")  # in pieces
_OF_CLIENT = ("cancel",)  # of which the client takes care: it makes the ids


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object."""

    name: str
    schema: Mapping[str, Any]
    is_required: bool


def openrpc() -> dict[str, Any]:
    """The schema of the worker as an OpenRPC document, which all clients are made of."""
    notifications = {_pascal(name): schema for name, schema in NOTIFICATIONS.items()}
    return {
        "openrpc": "1.3.2",
        "info": {"title": "embedllm worker", "version": __version__, "license": {"name": "Apache-2.0"}},
        "methods": [_method(name, method) for name, method in METHODS.items()],
        "x-notifications": {name: {"$ref": f"{_PREFIX}{_pascal(name)}"} for name in NOTIFICATIONS},
        "components": {"schemas": {name: _referring(schema, but=name)
                                   for name, schema in {**OBJECTS, **notifications}.items()}},
    }  # fmt: skip


def _method(name: str, method: Method) -> dict[str, Any]:
    params = [{"name": param, "required": param in method.params.required, "schema": _referring(schema)}
              for param, schema in method.params.properties.items()]  # fmt: skip
    return {"name": name, "summary": method.summary, "paramStructure": "by-name", "params": params,
            "result": {"name": method.result, "schema": {"$ref": f"{_PREFIX}{method.result}"}}}  # fmt: skip


def _referring(found: Any, *, but: str = "") -> Any:  # noqa: ANN401  # JSON
    """The schema, with those that have a name by this name. but: its own."""
    name = next((name for name in ("Message", "Tool") if found is OBJECTS[name]), None)
    if name is not None and name != but:
        return {"$ref": f"{_PREFIX}{name}"}
    if isinstance(found, Mapping):
        return {key: _referring(value) for key, value in found.items()}
    return [_referring(one) for one in found] if isinstance(found, list) else found


def objects(document: Mapping[str, Any]) -> dict[str, list[Member]]:
    """The members of all objects by the names that the clients have for them: results, parameters, and those within."""
    found: dict[str, list[Member]] = {}
    for method in document["methods"]:
        if method["name"] not in _OF_CLIENT and method["params"]:
            found[_params(method)] = [Member(p["name"], p["schema"], p["required"]) for p in method["params"]]
    for name, schema in document["components"]["schemas"].items():
        if _has_members(schema) and name != "Cancelled":
            required = schema.get("required", ())
            found[name] = [Member(one, part, one in required) for one, part in schema["properties"].items()]
    for name in list(found):
        found |= _within(name, found[name])
    return found


def _within(name: str, members: list[Member]) -> Iterator[tuple[str, list[Member]]]:
    """Objects that are described where they stand, by the names of the members that they are."""
    for member in members:
        schema = _core(member.schema)
        inner = _core(schema["items"]) if schema.get("type") == "array" else schema
        if _has_members(inner):
            own = _inner_name(name, member.name)
            parts = [Member(one, part, one in inner.get("required", ())) for one, part in inner["properties"].items()]
            yield own, parts
            yield from _within(own, parts)


def _inner_name(owner: str, member: str) -> str:
    return owner + _pascal(member).removesuffix("s")


def _core(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without null as a choice."""
    choices = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return choices[0] if len(choices) == 1 else schema


def _has_members(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" and bool(schema.get("properties"))


def _params(method: Mapping[str, Any]) -> str:
    return f"{_pascal(method['name'])}Params"


def _pascal(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _result(method: Mapping[str, Any]) -> str:
    return method["result"]["schema"]["$ref"].removeprefix(_PREFIX)


def _typed_methods(document: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str, bool]]:
    """Each method, its result, "" where that is empty, and whether its parameters may be left out."""
    for method in document["methods"]:
        if method["name"] not in _OF_CLIENT:
            result = _result(method)
            yield method, "" if result == "Empty" else result, not any(param["required"] for param in method["params"])


# --- JavaScript


def javascript(document: Mapping[str, Any]) -> str:
    """embedllm_worker.mjs"""
    lines: list[str] = []
    for method, _, may_lack in _typed_methods(document):
        name, default = method["name"], " = {}" if may_lack else ""
        head = f"{name}(params{default}, options)" if method["params"] else f"{name}(options)"
        given = "params" if method["params"] else "{}"
        lines += [f"/** {method['summary']} */", f"{head} {{",
                  f'  return this.request("{name}", {given}, options);', "}", ""]  # fmt: skip
    return _filled("client.mjs", {"methods": "\n".join(lines[:-1])})


def typescript(document: Mapping[str, Any]) -> str:
    """embedllm_worker.d.mts"""
    methods: list[str] = []
    for method, result, may_lack in _typed_methods(document):
        options = f"options?: {'ReplyOptions' if method['name'] in _REPLIES else 'RequestOptions'}"
        given = [f"params{'?' * may_lack}: {_params(method)}"] if method["params"] else []
        methods += [f"/** {method['summary']} */",
                    f"{method['name']}({', '.join([*given, options])}): Promise<{result or 'object'}>;"]  # fmt: skip
    types: list[str] = []
    for name, members in objects(document).items():
        rows: list[str] = []
        for member in members:
            rows += [f"/** {text} */"] if (text := member.schema.get("description")) else []
            rows.append(f"{member.name}{'' if member.is_required else '?'}: {_ts_type(member.schema, name, member)};")
        rows += ["[name: string]: unknown;"] if name in _OPEN else []
        types += [f"export interface {name} {{", *(f"  {row}" for row in rows), "}", ""]
    return _filled("client.d.mts", {"methods": "\n".join(methods), "types": "\n".join(types[:-1])})


def _ts_type(schema: Mapping[str, Any], owner: str, member: Member) -> str:
    if "$ref" in schema:
        return schema["$ref"].removeprefix(_PREFIX)
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_ts_type(one, owner, member) for one in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(json.dumps(one) for one in schema["enum"])
    if schema["type"] == "array":
        inner = _ts_type(schema["items"], owner, member)
        return f"({inner})[]" if "|" in inner else f"{inner}[]"
    if schema["type"] != "object":
        return "number" if schema["type"] == "integer" else schema["type"]
    if _has_members(schema):
        return _inner_name(owner, member.name)
    values = schema.get("additionalProperties")
    return f"{{ [name: string]: {_ts_type(values, owner, member) if isinstance(values, Mapping) else 'unknown'} }}"


# --- C#

_OPEN = ("Message", "MessageToolCall", "Tool", "ToolFunction")  # may have members that are not named: they are kept


def csharp(document: Mapping[str, Any]) -> str:
    """EmbedllmWorker.cs"""
    methods: list[str] = []
    for method, result, may_lack in _typed_methods(document):
        name, piecewise = _pascal(method["name"]), method["name"] in _REPLIES
        given = [f"{_params(method)} parameters{' = null' * may_lack}"] if method["params"] else []
        given += ["Action<Chunk> onChunk = null"] * piecewise + [
            "CancellationToken cancellation = default(CancellationToken)"
        ]
        json_of = "new Dictionary<string, object>()"
        if method["params"]:
            json_of = f"parameters?.ToJson() ?? {json_of}" if may_lack else "parameters.ToJson()"
        asked = f'await RequestAsync("{method["name"]}", {json_of}, {"onChunk" if piecewise else "null"}, cancellation)'
        asked += ".ConfigureAwait(false)"
        methods += [f"/// <summary>{method['summary']}</summary>",
                    f"public async Task{f'<{result}>' if result else ''} {name}Async({', '.join(given)})", "{",
                    f"    return {result}.From({asked});" if result else f"    {asked};", "}", ""]  # fmt: skip
    classes = [_cs_class(name, members) for name, members in objects(document).items()]
    return _filled("client.cs", {"methods": "\n".join(methods[:-1]), "types": "\n\n".join(classes)})


_CLASS = """\
public sealed class {name} : IJson
{{
{properties}
    public static {name} From(IDictionary<string, object> json)
    {{
        return new {name}
        {{
{reads}
        }};
    }}

    public Dictionary<string, object> ToJson()
    {{
        var json = new Dictionary<string, object>({start});
{writes}
        return json;
    }}
}}"""
_MORE = """\
    /// <summary>What has no property of its own.</summary>
    public Dictionary<string, object> More { get; set; } = new Dictionary<string, object>();
"""


def _cs_class(name: str, members: list[Member]) -> str:
    properties, reads, writes = "", [], []
    for member in members:
        of, own = _cs_type(member.schema, name, member), _cs_name(member.name, name)
        choices = _core(member.schema).get("enum", ())
        words = [member.schema.get("description"), choices and f"One of {', '.join(choices)}."]
        if text := " ".join(filter(None, words)):
            properties += f"    /// <summary>{_escaped(text)}</summary>\n"
        properties += f"    public {of.name} {own} {{ get; set; }}\n"
        value = f'Json.Get(json, "{member.name}")'
        reads.append(f"            {own} = {of.read(value)},")
        writes.append(f'        Json.Put(json, "{member.name}", {own});')
    if name in _OPEN:
        properties += _MORE
        known = ", ".join(f'"{member.name}"' for member in members)
        reads.append(f"            More = Json.Rest(json, {known}),")
    return _CLASS.format(name=name, properties=properties, reads="\n".join(reads), writes="\n".join(writes),
                         start="More" if name in _OPEN else "")  # fmt: skip


@dataclass(frozen=True, slots=True)
class CsType:
    """A type of C#, and how it is read out of a JSON value."""

    name: str
    read: Callable[[str], str]


def _cs_type(schema: Mapping[str, Any], owner: str, member: Member) -> CsType:
    core = _core(schema)
    if "$ref" in core or _has_members(core):
        name = core["$ref"].removeprefix(_PREFIX) if "$ref" in core else _inner_name(owner, member.name)
        return CsType(name, lambda value: f"Json.Typed({value}, {name}.From)")
    if "anyOf" in core:
        return CsType("object", lambda value: value)
    if core["type"] == "array":
        item = _cs_type(core["items"], owner, member)
        return CsType(f"List<{item.name}>", lambda value: f"Json.Items({value}, one => {item.read('one')})")
    if core["type"] == "object":
        values = core.get("additionalProperties")
        if isinstance(values, Mapping):
            of = _cs_type(values, owner, member)
            return CsType(
                f"Dictionary<string, {of.name}>", lambda value: f"Json.Members({value}, one => {of.read('one')})"
            )
        return CsType("Dictionary<string, object>", lambda value: f"(Dictionary<string, object>){value}")
    if core["type"] == "number":
        return CsType("double?", lambda value: f"Json.Number({value})")
    name = {"string": "string", "integer": "long?", "boolean": "bool?"}[core["type"]]
    return CsType(name, lambda value: f"({name}){value}")


def _cs_name(name: str, owner: str) -> str:
    """A property may not have its class's name."""
    return f"{_pascal(name)}Value" if _pascal(name) == owner else _pascal(name)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


# --- files


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """The hand-written file with what is made in the places of its marks."""
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    for name, part in parts.items():
        before, mark, after = text.partition(f"// <{name}>\n")
        margin = before.rpartition("\n")[2]
        assert mark, f"{template} has no mark '// <{name}>'"
        text = before.removesuffix(margin) + indent(part, margin) + "\n" + after
    return _MADE + text


def clients() -> dict[Path, str]:
    """All files and what they have to hold."""
    document = openrpc()
    return {
        CLIENTS / "openrpc.json": json.dumps(document, indent=1) + "\n",
        CLIENTS / "embedllm_worker.mjs": javascript(document),
        CLIENTS / "embedllm_worker.d.mts": typescript(document),
        CLIENTS / "EmbedllmWorker.cs": csharp(document),
    }


def outdated() -> list[str]:
    """The names of the files that are not what they have to be."""
    return [path.name for path, text in clients().items()
            if not path.is_file() or path.read_text(encoding="utf-8") != text]  # fmt: skip


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        for path, text in clients().items():
            path.write_text(text, encoding="utf-8")
    elif names := outdated():
        sys.exit(f"not current: {', '.join(names)}; run python -m tools.make_worker_clients --write")

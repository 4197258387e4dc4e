"""Makes docs/reference-python.md from the docstrings of the public API.

python -m tools.make_python_reference            shows the page
python -m tools.make_python_reference --write    writes it; a test holds it to be current
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import cast

import embedllm
from embedllm.generation.options import PromptOptions
from embedllm.openai import client
from embedllm.openai import types as shapes

PAGE = Path(__file__).parents[1] / "docs" / "reference-python.md"
GROUPS: dict[str, tuple[str, ...]] = {  # every name of embedllm.__all__ is in one of these
    "Load a model": ("load", "aload", "devices", "adevices", "Device", "OpenVINOOptions"),
    "A model": ("Model",),
    "Options": ("Sampling", "Cancel"),
    "Replies": ("Completion", "Chunk", "Statistics", "Picked", "Ranked"),
    "Conversations": ("Conversation",),
    "Tools": (
        "run_tools", "arun_tools", "ToolReply", "ToolOutcome", "PausedRun", "FunctionTool", "ToolCall", "CallDelta",
    ),
    "Tuning": ("tune", "forget_tuning", "Tuning"),
    "Errors": (
        "EmbedError", "PackageError", "TemplateError", "DeviceError", "DeviceUnavailable", "ContextFull", "Busy",
        "HubError", "ExportError", "UnsupportedModel", "MissingPart",
    ),
}  # fmt: skip
ALIASES = {
    "Message": 'A mapping with a `"role"` and mostly a `"content"`, as OpenAI has it.',
    "Tool": "A JSON schema of a tool, as OpenAI has it, a Python function with annotations and a docstring, or a "
    "FunctionTool.",
}
OPENAI = (client.OpenAI, client.AsyncOpenAI, client.Completions, client.AsyncCompletions, client.Stream,
          client.AsyncStream)  # fmt: skip
SHAPES = (shapes.ChatCompletion, shapes.Choice, shapes.Message, shapes.ToolCall, shapes.Function, shapes.Usage,
          shapes.PromptTokensDetails, shapes.Logprobs, shapes.TokenLogprob, shapes.TopLogprob,
          shapes.ChatCompletionChunk, shapes.ChunkChoice, shapes.Delta, shapes.ToolCallDelta)  # fmt: skip
_WIDTH = 100  # columns of a signature
_INTRODUCTION = """\
# The Python API

Made from the docstrings by `python -m tools.make_python_reference --write`; change these, not this page. How things are
done is in [the guide](guide-python.md); the command line has [a page of its own](reference-cli.md).

All names are those of `embedllm`, if nothing else is said. `help(embedllm.Model.generate)` and the like show the same
texts. Arguments behind `*` are given by name.
"""
_SHAPES = """\
### Shapes of replies

In `embedllm.openai.types`. Each has `to_dict()`, `to_json()` and pydantic's names for them, `model_dump()` and
`model_dump_json()`.
"""
_ITEM = re.compile(r"^((?:[a-z][a-z_0-9]*)(?:, [a-z][a-z_0-9]*)*): ")


def reference_page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name, getattr(embedllm, name)) for name in names]
    parts.append("## Types of arguments\n")
    parts += [f"- `{name}`: {meaning}" for name, meaning in ALIASES.items()]
    parts.append("\n## embedllm.openai\n\nOpenAI's client over a model: [guide](guide-python.md#openais-client).\n")
    parts += [_entry(kind.__name__, kind) for kind in OPENAI]
    parts.append(_SHAPES)
    parts += [_entry(kind.__name__, kind, level="####", has_methods=False) for kind in SHAPES]
    return "\n".join(parts).rstrip() + "\n"


def _entry(name: str, value: object, *, level: str = "###", has_methods: bool = True) -> str:
    if not inspect.isclass(value):
        return f"{level} {name}\n\n{_signature(name, cast('Callable[..., object]', value))}\n{_text(value)}"
    parts = [f"{level} {name}\n", _text(value)]
    rows = list(_rows(value))
    if rows:
        parts += ["| | type | default | |\n| --- | --- | --- | --- |", *rows, ""]
    members = list(_members(value)) if has_methods else []
    properties = [(title, item) for title, item in members if isinstance(item, property)]
    for title, item in properties:
        parts.append(f"- `{title}`: {_first_line(item)}")
    parts += [""] if properties else []
    for title, item in members:
        if not isinstance(item, property):
            parts.append(f"#### {name}.{title}\n\n{_signature(title, item)}\n{_text(item)}")
    return "\n".join(parts)


def _rows(kind: type) -> Iterator[str]:
    """A row of a table for each attribute that has a docstring of its own."""
    defaults = {field.name: field for field in fields(kind) if field.init} if is_dataclass(kind) else None
    for name, annotation, value, text in _attributes(kind):
        if defaults is not None and name not in defaults:
            continue
        shown = f"`{value}`" if value else ""
        yield f"| `{name}` | {_cell(annotation)} | {shown.replace('|', chr(92) + '|')} | {_linked(_escaped(text))} |"


def _cell(annotation: str) -> str:
    return f"`{annotation}`".replace("|", "\\|") if annotation else ""


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text(encoding="utf-8"))


def _attributes(kind: type) -> Iterator[tuple[str, str, str, str]]:
    """Name, annotation, default and docstring of attributes: of a class's body, and of its __init__."""
    node = next(node for node in ast.walk(_tree(inspect.getsourcefile(kind) or ""))
                if isinstance(node, ast.ClassDef) and node.name == kind.__name__)  # fmt: skip
    inits = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    for body in (node.body, *(init.body for init in inits)):
        for item, after in pairwise(body):
            text = _string(after)
            if text is None or not isinstance(item, ast.AnnAssign | ast.Assign):
                continue
            target = item.target if isinstance(item, ast.AnnAssign) else item.targets[0]
            name = target.id if isinstance(target, ast.Name) else cast("ast.Attribute", target).attr
            is_field = isinstance(item, ast.AnnAssign) and isinstance(target, ast.Name)
            annotation = ast.unparse(item.annotation) if isinstance(item, ast.AnnAssign) else ""
            yield name, annotation, ast.unparse(item.value) if is_field and item.value else "", text


def _string(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value).replace("\n", " ")
    return None


def _members(kind: type) -> Iterator[tuple[str, Callable[..., object] | property]]:
    """The public methods and properties that the class itself defines, in the order of its source."""
    for name, item in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(item, classmethod | staticmethod):
            yield name, cast("Callable[..., object]", item.__func__)
        elif isinstance(item, property) or inspect.isfunction(item):
            yield name, item


def _signature(name: str, function: Callable[..., object]) -> str:
    """The signature as code, on one line where it fits."""
    parameters = []
    found = inspect.signature(function)
    is_named = False
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_named:
            parameters.append("*")
            is_named = True
        parameters.append(str(parameter).replace("'", "").replace("Unpack[", "").replace("Options]", "Options")
                          if parameter.kind is parameter.VAR_KEYWORD else _shown(parameter))  # fmt: skip
    result = _annotation(found.return_annotation)
    begin = "async def" if inspect.iscoroutinefunction(function) else "def"
    line = f"{begin} {name}({', '.join(parameters)}) -> {result}"
    if len(line) > _WIDTH:
        line = f"{begin} {name}(\n" + "".join(f"    {one},\n" for one in parameters) + f") -> {result}"
    return f"```text\n{line}\n```\n"


def _shown(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    return f"{star}{parameter.name}: {_annotation(parameter.annotation)}{default}"


def _annotation(annotation: object) -> str:
    return annotation.strip("'\"") if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _first_line(item: object) -> str:
    text = inspect.getdoc(item)
    assert text, f"{item} has no docstring"
    return _linked(_escaped(" ".join(text.split("\n\n")[0].split())))


def _text(item: object) -> str:
    """A docstring as Markdown: a line that begins with the name of an argument or option is an item of a list."""
    text = inspect.getdoc(item)
    assert text, f"{item} has no docstring"
    named = set(PromptOptions.__annotations__)
    named |= {name for name, *_ in _attributes(item)} if inspect.isclass(item) else set()
    named |= set(inspect.signature(item).parameters) if inspect.isfunction(item) else set()
    text, _, options = text.partition("\n\nOptions, which ")
    lines: list[str] = []
    is_item = False
    for line in text.split("\n"):
        if line.startswith("    "):  # code
            lines.append(line)
            continue
        starts = _ITEM.match(line)
        starts = starts if starts and named.issuperset(starts[1].split(", ")) else None
        if starts and not is_item and lines and lines[-1]:
            lines.append("")
        ends = line.startswith(("Raises ", "Returns ", "The options, "))
        if is_item and ends:
            lines.append("")
        is_item = starts is not None or (is_item and bool(line) and not ends)
        shown = _escaped(line)
        if starts:
            names = ", ".join(f"`{name}`" for name in starts[1].split(", "))
            shown = f"- {names}: {_escaped(line[starts.end() :])}"
        elif is_item:
            shown = f"  {shown}"
        lines.append(_linked(shown))
    return "\n".join([*lines, *(_options(options) if options else [])]) + "\n"


def _options(listed: str) -> list[str]:
    """What lists_options() has written, with links in the place of the fields of Sampling."""
    replies, _, draws = " ".join(listed.split()).partition(": ")[2].partition(" Fields of Sampling")
    more = " And the fields of [`Sampling`](#sampling)." if draws else ""
    return ["", *wrap(f"Options, [explained at `generate`](#modelgenerate): {replies}{more}", 116)]


def _escaped(text: str) -> str:
    """Without what Markdown would read, outside of code."""
    pieces = text.split("`")
    return "`".join(re.sub(r"([<>*|])", r"\\\1", piece) if at % 2 == 0 else piece for at, piece in enumerate(pieces))


def _linked(text: str) -> str:
    """References to pages as links: docs/x.md#y."""
    return re.sub(r"docs/([\w-]+\.md)(#[\w-]+)?", lambda found: f"[{found[1]}]({found[1]}{found[2] or ''})", text)


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(reference_page(), encoding="utf-8")
    else:
        sys.stdout.write(reference_page())

"""The ways in which families of models write tool calls, a row each, and which of them a chat template was written for.

Sources: the families' chat templates and model cards; docs.vllm.ai, features/tool_calling (0.22); for Harmony
github.com/openai/harmony docs/format.md; for FunctionGemma see tool_calls_gemma.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from embedllm.tools.body_parsers import (
    BodyReader,
    read_function_tag,
    read_json,
    read_mistral,
    read_named,
    read_python,
    read_xml,
)
from embedllm.tools.gemma import read_gemma


def _deepseek(words: str) -> str:
    """A mark, which DeepSeek spells with characters of its own."""
    return f"<\uff5c{words.replace(' ', chr(0x2581))}\uff5c>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a family writes its calls.

    A call goes from an opening mark to the closing one, the next opening one where there is none, or the end of the
    reply. A mark within a text in double quotes is part of that text.
    """

    name: str
    signs: tuple[str, ...]  # what a template for it holds, all of them
    opens: tuple[str, ...] = ()
    close: str | None = None
    read: BodyReader = read_json
    ignored: tuple[str, ...] = ()  # marks around calls that say nothing
    has_quotes: bool = True  # the body is JSON, or has texts in double quotes like it
    is_bare: bool = False  # a reply may be a call from its first character, without a mark
    is_certain: bool = True  # whether the mark alone says that it is a call, or a body like one besides
    has_channels: bool = False  # Harmony, which has a reader of its own
    arguments_as_text: bool = False  # what the template wants to be given
    one_call: bool = False  # its template has room for one call in a message

    @property
    def marks(self) -> tuple[str, ...]:
        """What may be special tokens, and is part of the text that is read."""
        return (*self.opens, *([self.close] if self.close else ()), *self.ignored, *self.inner_marks)

    @property
    def inner_marks(self) -> tuple[str, ...]:
        return _INNER.get(self.name, ())


HARMONY_MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
_INNER = {
    "harmony": HARMONY_MARKS,
    "mistral": ("[CALL_ID]", "[ARGS]"),
    "deepseek": (_deepseek("tool sep"),),
    "functiongemma": ("<escape>",),
    "gemma4": ('<|"|>',),
}

FORMATS = (  # the first whose signs a template has is the template's
    ToolFormat(name="harmony", signs=("<|channel|>",), has_channels=True, one_call=True),
    ToolFormat(name="mistral", signs=("[TOOL_CALLS]",), opens=("[TOOL_CALLS]",), read=read_mistral),
    ToolFormat(name="deepseek", signs=(_deepseek("tool call begin"),), opens=(_deepseek("tool call begin"),),
               close=_deepseek("tool call end"), ignored=(_deepseek("tool calls begin"), _deepseek("tool calls end")),
               read=partial(read_named, after=_deepseek("tool sep")), arguments_as_text=True),
    ToolFormat(name="functiongemma", signs=("<start_function_call>",), opens=("<start_function_call>",),
               close="<end_function_call>", read=partial(read_gemma, quote="<escape>"), has_quotes=False),
    ToolFormat(name="gemma4", signs=("<|tool_call>",), opens=("<|tool_call>",), close="<tool_call|>",
               read=partial(read_gemma, quote='<|"|>'), has_quotes=False),
    ToolFormat(name="qwen3_coder", signs=("<tool_call>", "<function=", "<parameter="), opens=("<tool_call>",),
               close="</tool_call>", read=read_xml, has_quotes=False),
    ToolFormat(name="hermes", signs=("<tool_call>",), opens=("<tool_call>",), close="</tool_call>"),
    ToolFormat(name="functionary", signs=("<function=",), opens=("<function=",), close="</function>",
               read=read_function_tag),
    ToolFormat(name="jamba", signs=("<tool_calls>",), opens=("<tool_calls>",), close="</tool_calls>"),
    ToolFormat(name="nemotron", signs=("<toolcall>",), opens=("<toolcall>",), close="</toolcall>"),
    ToolFormat(name="phi4", signs=("<|tool_call|>",), opens=("<|tool_call|>",), close="<|/tool_call|>"),
    ToolFormat(name="lfm2", signs=("<|tool_list_start|>",), opens=("<|tool_call_start|>",),
               close="<|tool_call_end|>", read=read_python),
    ToolFormat(name="command_r", signs=("Action:", "tool_name"), opens=("Action: ```json",), close="```"),
    ToolFormat(name="llama3", signs=("ipython",), opens=("<|python_tag|>",), is_bare=True, one_call=True),
    ToolFormat(name="json", signs=(), opens=("```json", "```tool_call"), close="```", is_bare=True, is_certain=False),
)  # fmt: skip


def format_of(templates: Iterable[str]) -> ToolFormat:
    """The way that a model's chat templates were written for; plain JSON where they have no sign of another."""
    text = "\n".join(templates)
    return next(row for row in FORMATS if all(sign in text for sign in row.signs))


def format_named(name: str) -> ToolFormat:
    """Raises ValueError for a name that is none."""
    for row in FORMATS:
        if row.name == name:
            return row
    raise ValueError(f"there is no tool format {name!r}; expected one of {', '.join(row.name for row in FORMATS)}.")

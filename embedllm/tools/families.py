"""The ways in which families of models write tool calls, a row each.

Sources: the families' chat templates and model cards; docs.vllm.ai, features/tool_calling (0.33); for Harmony
github.com/openai/harmony docs/format.md; for Gemma see notations/gemma.py. A model whose template shows calls otherwise
is read by what its template shows (learning.py).
"""

from __future__ import annotations

from embedllm.tools.formats import ToolFormat


def _deepseek(words: str) -> str:
    """A mark, which DeepSeek spells with characters of its own."""
    return f"<\uff5c{words.replace(' ', chr(0x2581))}\uff5c>"


_JSON = '{"name": "$name", "arguments": $arguments}'
_JSON_PARAMETERS = '{"name": "$name", "parameters": $arguments}'
_HERMES = f"<tool_call>\n{_JSON}\n</tool_call>"
_BEGIN, _SEPARATOR, _END = _deepseek("tool call begin"), _deepseek("tool sep"), _deepseek("tool call end")
_DSML = "\uff5cDSML\uff5c"
_DSML_CALL = f'<{_DSML}invoke name="$name">\n$pairs</{_DSML}invoke>'
_DSML_PAIR = f'<{_DSML}parameter name="$key" string="$type">$value</{_DSML}parameter>\n'
_IS_TEXT = {"string": "true"} | dict.fromkeys(("number", "boolean", "null", "array", "object"), "false")
_GLM_PAIR = "<arg_key>$key</arg_key>\n<arg_value>$value</arg_value>\n"
_NAMESPACE = "]<]minimax[>["
_KIMI_K3_TYPES = {name: name for name in ("string", "number", "boolean", "null", "array", "object")}
HARMONY_MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")

FORMATS = (  # of those whose signs a template has, the first that reads what it shows is the template's
    ToolFormat(name="harmony", signs=(("<|channel|>", "<|message|>"),), has_channels=True, ignored=HARMONY_MARKS,
               calls=("<|start|>assistant to=functions.$name<|channel|>commentary json<|message|>$arguments<|call|>",)),
    ToolFormat(name="muse", signs=(("<atem:invoke", "<|message|>"),), has_channels=True,
               ignored=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
               calls=('<|start|>assistant to=$name<|message|><atem:function_calls>\n<atem:invoke name="$name">\n$pairs'
                      "</atem:invoke>\n</atem:function_calls>",),
               pair='<atem:parameter name="$key">$value</atem:parameter>\n'),
    ToolFormat(name="mistral", signs=(("[TOOL_CALLS]", "[ARGS]"),),
               calls=("[TOOL_CALLS]$name[ARGS]$arguments", "[TOOL_CALLS]$name[CALL_ID]$id[ARGS]$arguments",
                      "[TOOL_CALLS]$name$arguments", f"[TOOL_CALLS]{_JSON}")),
    ToolFormat(name="mistral_id", signs=(("[TOOL_CALLS]", "[CALL_ID]"),),
               calls=("[TOOL_CALLS]$name[CALL_ID]$id[ARGS]$arguments", "[TOOL_CALLS]$name[ARGS]$arguments",
                      "[TOOL_CALLS]$name$arguments", f"[TOOL_CALLS]{_JSON}")),
    ToolFormat(name="mistral_list", signs=(("[TOOL_CALLS]",),), section=("[TOOL_CALLS] [", "]"),
               calls=('{"name": "$name", "arguments": $arguments, "id": "$id"}', "[TOOL_CALLS]$name[ARGS]$arguments",
                      "[TOOL_CALLS]$name[CALL_ID]$id[ARGS]$arguments", "[TOOL_CALLS]$name$arguments"), between=", "),
    ToolFormat(name="deepseek", signs=((_BEGIN, "```json"),),
               section=(_deepseek("tool calls begin"), _deepseek("tool calls end")), between="\n",
               calls=(f"{_BEGIN}function{_SEPARATOR}$name\n```json\n$arguments\n```{_END}",
                      f"{_BEGIN}$name{_SEPARATOR}$arguments{_END}")),
    ToolFormat(name="deepseek_v3_1", signs=((_BEGIN,),),
               section=(_deepseek("tool calls begin"), _deepseek("tool calls end")),
               calls=(f"{_BEGIN}$name{_SEPARATOR}$arguments{_END}",
                      f"{_BEGIN}function{_SEPARATOR}$name\n```json\n$arguments\n```{_END}")),
    ToolFormat(name="deepseek_v4", signs=((_DSML, "tool_calls"),), calls=(_DSML_CALL,), between="\n", pair=_DSML_PAIR,
               types=_IS_TEXT, section=(f"<{_DSML}tool_calls>\n", f"\n</{_DSML}tool_calls>"),
               ignored=(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>")),
    ToolFormat(name="deepseek_v3_2", signs=((_DSML,),), calls=(_DSML_CALL,), between="\n", pair=_DSML_PAIR,
               types=_IS_TEXT, section=(f"<{_DSML}function_calls>\n", f"\n</{_DSML}function_calls>"),
               ignored=(f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>")),
    ToolFormat(name="functiongemma", signs=(("<start_function_call>",),), quote="<escape>",
               calls=("<start_function_call>call:$name{$gemma}<end_function_call>",)),
    ToolFormat(name="gemma4", signs=(("<|tool_call>",),), quote='<|"|>',
               calls=("<|tool_call>call:$name{$gemma}<tool_call|>",)),
    ToolFormat(name="kimi_k3", signs=(("<|open|>", "<|sep|>"),),
               section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
               calls=('<|open|>call tool="$name" index="$index"<|sep|>$pairs<|close|>call<|sep|>',),
               pair='<|open|>argument key="$key" type="$type"<|sep|>$value<|close|>argument<|sep|>',
               types=_KIMI_K3_TYPES),
    ToolFormat(name="minimax_m3", signs=((_NAMESPACE, "<invoke name="),),
               section=(f"{_NAMESPACE}<tool_call>\n", f"{_NAMESPACE}</tool_call>"),
               calls=(f'{_NAMESPACE}<invoke name="$name">$tree{_NAMESPACE}</invoke>\n',),
               pair=f"{_NAMESPACE}<$key>$value{_NAMESPACE}</$key>"),
    ToolFormat(name="minimax_m2", signs=(("<minimax:tool_call>",),), between="\n",
               section=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
               calls=('<invoke name="$name">\n$pairs</invoke>',), pair='<parameter name="$key">$value</parameter>\n'),
    ToolFormat(name="minicpm5", signs=(("<function name=", "<param name="),), between="\n",
               calls=('<function name="$name">$pairs</function>',), pair='<param name="$key">$value</param>',
               verbatim=("<![CDATA[", "]]>")),
    ToolFormat(name="seed_oss", signs=(("<seed:tool_call>",),), between="\n",
               calls=("<seed:tool_call>\n<function=$name>\n$pairs</function>\n</seed:tool_call>",
                      "<function=$name>\n$pairs</function>"), pair="<parameter=$key>$value</parameter>\n"),
    ToolFormat(name="k2_horizon", signs=(("<ifm|tool_call>",),), between="\n",
               section=("<ifm|tool_calls>\n", "\n</ifm|tool_calls>"),
               calls=("<ifm|tool_call>$name\n$pairs</ifm|tool_call>",),
               pair="<ifm|arg_key>$key</ifm|arg_key>\n<ifm|arg_value>$value</ifm|arg_value>\n"),
    ToolFormat(name="glm4_5", signs=(("<tool_call>", "<arg_key>"),), between="\n",
               calls=("<tool_call>$name\n$pairs</tool_call>", _HERMES), pair=_GLM_PAIR),
    ToolFormat(name="qwen3_coder", signs=(("<tool_call>", "<function=", "<parameter="),), between="\n",
               calls=("<tool_call>\n<function=$name>\n$pairs</function>\n</tool_call>",
                      "<function=$name>\n$pairs</function>", _HERMES), pair="<parameter=$key>\n$value\n</parameter>\n"),
    ToolFormat(name="hermes", signs=(("<tool_call>",),), calls=(_HERMES,), between="\n"),
    ToolFormat(name="functionary", signs=(("<function=",),), calls=("<function=$name>$arguments</function>",)),
    ToolFormat(name="functionary_v3_2", signs=((">>>", "recipient"), (">>>all",)), calls=(">>>$name\n$arguments",),
               text_name="all"),
    ToolFormat(name="kimi_k2", signs=(("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),),
               section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
               calls=("<|tool_call_begin|>functions.$name:$index<|tool_call_argument_begin|>$arguments"
                      "<|tool_call_end|>",
                      "<|tool_call_begin|>$name:$index<|tool_call_argument_begin|>$arguments<|tool_call_end|>")),
    ToolFormat(name="solar", signs=(("<|tool_call:begin|>",),), section=("<|tool_calls|>", "<|calls|>"),
               calls=("<|tool_call:begin|>$id<|tool_call:name|>$name<|tool_call:args|>$arguments<|tool_call:end|>",)),
    ToolFormat(name="gigachat3", signs=(("function call", "<|role_sep|>"),),
               calls=(f"<|message_sep|>\n\nfunction call<|role_sep|>\n{_JSON}",), ignored=("<|message_sep|>",)),
    ToolFormat(name="gigachat3_1", signs=(("<|function_call|>",),), calls=(f"<|function_call|>{_JSON}",)),
    ToolFormat(name="apertus", signs=(("<|tools_prefix|>",),), between=", ",
               section=("<|tools_prefix|>[", "]<|tools_suffix|>"), calls=('{"$name": $arguments}',)),
    ToolFormat(name="command_r7b", signs=(("<|START_ACTION|>",),), between=",\n    ",
               section=("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>"),
               calls=('{"tool_call_id": "$index", "tool_name": "$name", "parameters": $arguments}',)),
    ToolFormat(name="command_r", signs=(("Action:", "tool_name"),), section=("Action: ```json\n[", "]```"),
               between=", ", calls=('{"tool_name": "$name", "parameters": $arguments}',),
               opens=("Action:\n```json", "Action:```json", "Action:\n\n```json"),
               no_tool=("directly_answer", "directly-answer")),
    ToolFormat(name="internlm2", signs=(("<|action_start|><|plugin|>",),),
               calls=(f"<|action_start|><|plugin|>\n{_JSON}<|action_end|>",)),
    ToolFormat(name="granite_20b", signs=(("<function_call>",),), calls=(f"<function_call> {_JSON}",), between="\n"),
    ToolFormat(name="firefunction", signs=(("functools[",),), is_certain=False, section=(" functools[", "]"),
               calls=(_JSON,), between=", "),
    ToolFormat(name="jamba", signs=(("<tool_calls>",),), section=("<tool_calls>[\n    ", "\n]</tool_calls>"),
               calls=(_JSON,), between=",\n    "),
    ToolFormat(name="nemotron", signs=(("<toolcall>",),), calls=(f"<toolcall> {_JSON} </toolcall>",), between="\n"),
    ToolFormat(name="nemotron_nano_v2", signs=(("<TOOLCALL>",),), section=("<TOOLCALL>[", "]</TOOLCALL>"),
               calls=(_JSON,), between=", "),
    ToolFormat(name="phi4", signs=(("<|tool_call|>",),), section=("<|tool_call|>[", "]<|/tool_call|>"), calls=(_JSON,),
               between=", "),
    ToolFormat(name="lfm2", signs=(("<|tool_list_start|>",), ("<|tool_call_start|>",), ("List of tools: [",)),
               section=("<|tool_call_start|>[", "]<|tool_call_end|>"), calls=("$name($python)",), between=", "),
    ToolFormat(name="pythonic", signs=(("func_name1(param",),), is_bare=True,
               section=("[", "]"), calls=("$name($python)",), between=", ", ignored=("<|python_start|>",
               "<|python_end|>", "<function_calls>", "</function_calls>")),
    ToolFormat(name="llama3", signs=(("ipython",), ("python_tag",)), is_bare=True, between="; ",
               ignored=("<|python_start|>", "<|python_end|>"),
               calls=(_JSON_PARAMETERS, f"<|python_tag|>{_JSON_PARAMETERS}")),
    ToolFormat(name="json", is_bare=True, is_certain=False,
               calls=(_JSON, f"```json\n{_JSON}\n```", f"```tool_call\n{_JSON}\n```", _HERMES)),
)  # fmt: skip
GENERIC = FORMATS[-1]


def formats_by_signs(template: str) -> list[ToolFormat]:
    """The formats whose signs the text of chat templates has, the likeliest first; plain JSON is the last."""
    return [row for row in FORMATS if any(all(s in template for s in signs) for signs in row.signs)] + [GENERIC]

"""The parameters of OpenAI's requests and this library's, as JSON schemas: one table, for the server and the worker."""

from __future__ import annotations

from typing import get_args

from embedllm.generation.options import Speculate
from embedllm.openai.schema import BOOLEAN, NUMBER, OBJECT, STRING, STRINGS, Schema, array, integer, nullable, one_of
from embedllm.sampling.option_table import SAMPLING_OPTIONS, Option

MOST_SECONDS = 86_400.0
_BY_TYPE: dict[type, Schema] = {float: NUMBER, int: integer(-(2**63), 2**64 - 1), str: STRING}


def _sampling(option: Option) -> Schema:
    values = _BY_TYPE[option.kind]
    return {**(array(values) if option.is_list else values), "description": option.text}


# of Sampling, by the names that the command line has for them, too
SAMPLING: dict[str, Schema] = {option.name: _sampling(option) for option in SAMPLING_OPTIONS} | {
    "logit_bias": {"type": "object", "additionalProperties": NUMBER}
}
LIMITS: dict[str, Schema] = {
    "max_tokens": integer(1),
    "min_tokens": integer(0),
    "stop": one_of(STRING, STRINGS),
    "stop_tokens": array(integer(0)),
    "n": integer(1, 1024),
    "timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_SECONDS},
    "priority": integer(0, 100),
    "speculate": {"type": "string", "enum": list(get_args(Speculate))},
    "response_format": one_of(OBJECT, STRINGS),
    "stream": BOOLEAN,
    "stream_options": {"type": "object", "properties": {"include_usage": BOOLEAN}},
    "model": STRING,
}
_TOOL_CALL: Schema = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "id": nullable(STRING),
        "type": STRING,
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": STRING, "arguments": one_of(STRING, OBJECT)},
        },
    },
}
MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": STRING,
        "content": one_of(STRING, array(OBJECT), {"type": "null"}),
        "reasoning_content": nullable(STRING),
        "tool_calls": nullable(array(_TOOL_CALL)),
        "tool_call_id": nullable(STRING),
        "name": nullable(STRING),
    },
}
TOOL: Schema = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "type": STRING,
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": STRING, "description": nullable(STRING), "parameters": nullable(OBJECT)},
        },
    },
}
TEMPLATE: dict[str, Schema] = {
    "tools": array(TOOL),
    "tool_choice": one_of(STRING, OBJECT),
    "chat_template_kwargs": OBJECT,  # vLLM's name
    "reasoning_effort": STRING,
    "documents": array(OBJECT),
}
CHAT_PARAMETERS: dict[str, Schema] = {
    **SAMPLING,
    **LIMITS,
    **TEMPLATE,
    "messages": array(MESSAGE, 1),
    "max_completion_tokens": integer(1),
    "logprobs": BOOLEAN,
    "top_logprobs": integer(0, 20),
    "parallel_tool_calls": BOOLEAN,
    "special": BOOLEAN,
    "functions": array(OBJECT),  # refused by name
    "function_call": one_of(STRING, OBJECT),
}
# for the books of a service
UNFOLLOWED = ("user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
              "service_tier", "verbosity")  # fmt: skip

USAGE: Schema = {
    "type": "object",
    "properties": {
        "prompt_tokens": integer(0),
        "completion_tokens": integer(0),
        "total_tokens": integer(0),
        "prompt_tokens_details": {"type": "object", "properties": {"cached_tokens": integer(0)}},
    },
}

"""OptionalCalls: holds replies that may be a call of a tool; a tool may have a schema that no grammar follows."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from embedllm.tools.tool_choice import optional_call_grammar

if TYPE_CHECKING:
    from embedllm.sampling.constraint import Constraint
    from embedllm.sampling.structured.response_format import Grammars
    from embedllm.tools.calls import Parameters
    from embedllm.tools.reply_parser import ReplyFormat

_log = logging.getLogger("embedllm")
_ANY_OBJECT = {"type": "object"}


class OptionalCalls:
    """Of one model, by optional_call_grammar().

    A tool whose schema cannot be followed may be called with any object, and a warning says so once: an agent offers
    all tools of its MCP servers with each request, and need not want a call of that one.
    """

    def __init__(
        self, name: str, written: ReplyFormat, special: Callable[[str], int | None], grammars: Grammars
    ) -> None:
        """name: of the model, for the warning. special: the id of a mark that is a special token."""
        self._name, self._written, self._special, self._grammars = name, written, special, grammars
        self._unfollowed: set[tuple[str, str]] = set()  # names of tools, and their schemas as JSON

    def constraint(self, parameters: Parameters, stop_tokens: frozenset[int]) -> Constraint | None:
        """Of a reply; None: it is not held. Raises ValueError where the tools cannot be followed together."""
        tools = {
            name: _ANY_OBJECT if (name, json.dumps(schema)) in self._unfollowed else schema
            for name, schema in parameters.items()
        }
        try:
            return self._compile(tools, stop_tokens)
        except ValueError:
            for name, schema in tools.items():
                try:
                    self._compile({name: schema}, stop_tokens)
                except ValueError as error:
                    self._unfollowed.add((name, json.dumps(schema)))
                    _log.warning("'%s' may call the tool '%s' with any arguments, as its schema cannot be followed: %s",
                                 self._name, name, str(error).partition("\n")[0])  # fmt: skip
                    tools[name] = _ANY_OBJECT
        return self._compile(tools, stop_tokens)

    def _compile(self, tools: Parameters, stop_tokens: frozenset[int]) -> Constraint | None:
        source = optional_call_grammar(self._written, tools, self._special)
        return None if source is None else self._grammars.constraint(source, stop_tokens)

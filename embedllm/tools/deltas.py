"""The arguments of a call as they become certain, as pieces of JSON text, while the model still writes it."""

from __future__ import annotations

import json
import re

from embedllm.tools.calls import CallDelta, Parameters, ToolCall, new_id
from embedllm.tools.formats import CallShape, ToolFormat
from embedllm.tools.notations.pairs import pair_value, scan_pairs

_SYMBOL = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)
_NAME = re.compile(r'\s*\[?\s*\{(?:\s*"\w+"\s*:\s*"[^"\\{}]*"\s*,)*?\s*"(?:tool_)?name"\s*:\s*"([^"\\]+)"')
_ARGUMENTS = re.compile(r'\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_KEYED = re.compile(r'\s*\[?\s*\{\s*"([^"\\]+)"\s*:\s*(?=\{)')


class ArgumentStream:
    """Follows the body of one call. Where several stand in one body, the first; the others come when all are whole.

    Arguments that are JSON come as they are written, others one by one. index: of the call in the reply.
    """

    def __init__(self, written: ToolFormat, parameters: Parameters, index: int) -> None:
        self._format = written
        self._parameters = parameters
        self._index = index
        self._id = new_id()
        self._name = ""
        self._arguments_text = ""  # JSON text so far
        self._json_at = -1  # where the arguments begin
        self._scanned = 0  # up to where they are known to be JSON
        self._depth = 0
        self._is_text = False  # within quotes
        self._is_whole = False

    def to_delta(self) -> CallDelta | None:
        """What was given so far; None when nothing was."""
        if not self._arguments_text:
            return None
        return CallDelta(index=self._index, id=self._id, name=self._name, arguments=self._arguments_text)

    def grown(self, shape: CallShape, body: str) -> list[CallDelta]:
        """What is certain now and was not before."""
        if shape.style == "pairs":
            return self._pairs(shape, body)
        if shape.style not in ("json", "named") or "$id" in shape.text:
            return []
        if self._json_at < 0 and not self._begins(shape, body):
            return []
        return self._more(self._json(body))

    def _begins(self, shape: CallShape, body: str) -> bool:
        """Finds name and arguments."""
        if shape.style == "json":
            match = (_KEYED if '"$name":' in shape.text else _NAME).match(body)
            at = match and (match if '"$name":' in shape.text else _ARGUMENTS.match(body, match.end()))
            if not match or not at:
                return False
            name, end = match[1], at.end()
        else:
            head = re.match(shape.head.pattern + r"(?=\{)", body)
            if head is None:
                return False
            name, end = head["name"], head.end()
        self._name, self._json_at, self._scanned = name.strip(), end, end
        return True

    def _json(self, body: str) -> str:
        """The further text of a JSON object, up to its end at most."""
        if self._is_whole:
            return ""
        start, at = self._scanned, len(body)
        for match in _SYMBOL.finditer(body, start):
            symbol = match[0]
            if symbol[0] == "\\":
                at = match.start() if len(symbol) == 1 else at  # the rest of the escape has to come
            elif symbol == '"':
                self._is_text = not self._is_text
            elif not self._is_text:
                self._depth += 1 if symbol in "{[" else -1
                if self._depth == 0:
                    self._is_whole = True
                    at = match.end()
                    break
        self._scanned = at
        return body[start:at]

    def _pairs(self, shape: CallShape, body: str) -> list[CallDelta]:
        head = re.match(shape.head.pattern + r"(?=[<\]])", body) if not self._name else shape.head.match(body)
        if head is None:
            return []
        self._name = head["name"].strip()
        parameters = self._parameters.get(self._name, {})
        try:
            members = [
                f"{json.dumps(pair.key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
                for pair in scan_pairs(self._format, body, head.end(), parameters).pairs
                for value in [pair_value(self._format, pair, parameters)]
            ]
        except ValueError:
            return []
        text = "{" + ", ".join(members)
        return self._more(text[len(self._arguments_text) :])

    def _more(self, text: str) -> list[CallDelta]:
        if not text:
            return []
        self._arguments_text += text
        return [CallDelta(index=self._index, id=self._id, name=self._name, arguments=text)]


def as_delta(call: ToolCall, index: int, sent_delta: CallDelta | None) -> list[CallDelta]:
    """The rest of a call that is whole; nothing where all of it came before. sent_delta: what came of it before."""
    if call.problem:
        return [CallDelta(index=index, id=call.id, name=call.name, problem=call.problem)]
    text = json.dumps(dict(call.arguments), ensure_ascii=False)
    before = sent_delta.arguments if sent_delta is not None else ""
    # what the model wrote as JSON is spaced in its own way
    rest = text[len(before) :] if text.startswith(before) else _closing(before)
    return [CallDelta(index=index, id=call.id, name=call.name, arguments=rest)] if rest else []


def _closing(text: str) -> str:
    """What is missing at the end of a JSON object that was given but for its last brace."""
    try:
        json.loads(text)
    except ValueError:
        return "}"
    return ""

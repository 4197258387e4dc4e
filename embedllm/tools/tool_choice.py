"""tool_choice: whether the model may, must or must not call a tool; a call that it must write follows a grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embedllm.sampling.structured.response_format import Source
from embedllm.tools.call_grammar import CallGrammar
from embedllm.tools.calls import Parameters
from embedllm.tools.reply_parser import ReplyFormat


def choice_name(choice: object) -> str:
    """What was chosen, of OpenAI's object for a tool the tool's name. Raises ValueError for anything else."""
    name = choice
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise ValueError(
            f"tool_choice is {choice!r}; expected 'auto', 'none', 'required', a tool's name, or "
            "{'type': 'function', 'function': {'name': ...}}."
        )
    return name


def is_forced(choice: str) -> bool:
    """Whether the model must call a tool."""
    return choice not in ("auto", "none")


def call_grammar(
    choice: str,
    written: ReplyFormat,
    parameters: Parameters | None,
    special: Callable[[str], int | None],
    *,
    prompt: str = "",
    stop_tokens: frozenset[int] = frozenset(),
) -> Source:
    """The grammar of one call, of any tool or of the one that is named; before it, reasoning that the prompt began.

    special: the id of a mark that is a special token. Raises ValueError where there is no such tool, and for a schema
    that cannot be followed.
    """
    names = list(parameters or {})
    if choice != "required" and choice not in names:
        tool_names = ", ".join(map(repr, names)) or "none"
        raise ValueError(
            f"tool_choice is {choice!r}; expected 'auto', 'none', 'required' or a tool's name: {tool_names}."
        )
    if not parameters:
        raise ValueError("tool_choice is 'required', and there are no tools; give tools=.")
    chosen = {name: parameters[name] for name in (names if choice == "required" else [choice])}
    thinks = written.reasoning
    is_open = thinks is not None and prompt.rstrip().endswith(thinks.opening.strip())
    thought = (thinks.opening, thinks.closing) if thinks and is_open else None
    return CallGrammar(written.calls, special, stop_tokens).source(chosen, prompt, thought)


def optional_call_grammar(
    written: ReplyFormat, parameters: Parameters, special: Callable[[str], int | None]
) -> Source | None:
    """The grammar of a reply that is one call, or text that does not begin as one.

    None for a model whose template shows calls, which it was trained to write, or that thinks before it answers.
    Raises ValueError for a schema that cannot be followed.
    """
    if not written.gaps.hides_calls or written.reasoning is not None:
        return None
    return CallGrammar(written.calls, special, frozenset()).source(parameters, "", None, or_text=True)

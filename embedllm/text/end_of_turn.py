"""The tokens that end a turn, of which few checkpoints and GGUF files list all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Source: llama-vocab.cpp of llama.cpp
_TEXTS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>",
    "<turn|>", "<|tool_response>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
})  # fmt: skip
_OF_A_MESSAGE = "<|end|>"
_OF_A_REPLY = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})  # with messages in it: gpt-oss, Solar Open


def end_of_turn_tokens(marks: Mapping[str, int], named: Iterable[int]) -> list[int]:
    """The tokens that the file itself names, then those whose text is known to end a turn, by their ids.

    marks: the control and user-defined tokens, or those that a tokenizer.json adds, by their texts.
    """
    by_text = sorted(marks[text] for text in _TEXTS & marks.keys())
    has_messages = any(marks.keys() >= texts for texts in _OF_A_REPLY)
    continuing = marks.get(_OF_A_MESSAGE) if has_messages else None
    return [token for token in dict.fromkeys([*named, *by_text]) if token != continuing]

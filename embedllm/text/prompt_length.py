"""Refuses a text that is far too long, before all of it is tokenized, and one with tokens that the model does not have.

Tokenizing takes 270 bytes of memory a character. Standard library only.
The twin of bindings_web/src/package/prompt_length.js.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from embedllm.errors import ContextFull
from embedllm.text.protocols import TextCodec

if TYPE_CHECKING:
    from embedllm.types import JSON

_BLOCK = 1 << 15  # characters that are counted in one call
_USUAL = 8  # characters a token; a text of fewer of them for each token of the context is tokenized as it is


def check_length(text: str, codec: TextCodec, context: int) -> None:
    """Raises ContextFull for a text that has more than twice as many tokens as the context holds.

    Blocks are counted, each for itself, until that is certain: their borders make a few tokens more.
    """
    if len(text) <= max(_BLOCK, _USUAL * context):
        return
    tokens = 0
    for start in range(0, len(text), _BLOCK):
        tokens += len(codec.encode(text[start : start + _BLOCK], special=False))
        if tokens > 2 * context:
            raise ContextFull(
                f"the prompt has {len(text):,} characters, more than {tokens} tokens; {context} can be held together "
                "with the reply. Shorten the prompt.",
                tokens=tokens,
                limit=context,
            )


def check_known(tokens: Sequence[int], codec: TextCodec, vocabulary: int, *, image_token: int | None = None) -> None:
    """Raises ValueError for a token of a text that the model's embedding has no row for, by its text.

    image_token: one that images take the place of.
    """
    if not tokens or max(tokens) < vocabulary:
        return
    token = next((token for token in tokens if token >= vocabulary and token != image_token), None)
    if token is not None:
        raise ValueError(
            f"the prompt has {codec.token_text(token)!r}, token {token} of the tokenizer; the model has {vocabulary} "
            f"tokens, 0 to {vocabulary - 1}. Leave it out, or export with the tokenizer that it was trained with."
        )


def message_text(message: Mapping[str, JSON]) -> str:
    """The text of one message, of all its parts."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return "\n".join(text for text in texts if isinstance(text, str))

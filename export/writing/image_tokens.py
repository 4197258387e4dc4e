"""The tokens around images, which other libraries look for in a tokenizer by their texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.text.tokenizer import Tokenizer


def check_image_tokens(folder: Path, texts: Sequence[str], image_token: int, *, library: str, option: str) -> Tokenizer:
    """The tokenizer of a folder.

    texts: of the tokens, the first of them that of a row of features. image_token: its id by config.json.
    library, option: for messages. Raises ExportError where the tokenizer has not what the library looks for.
    """
    tokenizer = Tokenizer.open(folder)
    if missing := [text for text in texts if tokenizer.token_id(text) is None]:
        raise ExportError(
            f"the tokenizer of '{folder.name}' has no {', '.join(map(repr, missing))}, which {library} looks for "
            f"around images. Export without {option}."
        )
    if (token_id := tokenizer.token_id(texts[0])) != image_token:
        raise ExportError(
            f"the token '{texts[0]}' is {token_id} in the tokenizer, and {image_token} in config.json. Fetch the "
            f"checkpoint again, or export without {option}."
        )
    return tokenizer

"""What a GGUF file says of its tokens, read and checked.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer; llama-vocab.cpp of llama.cpp for what is
meant where the file says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from embedllm.errors import ExportError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # types of tokens
PREFIX = "tokenizer.ggml."
# By the models' names, as in llama.cpp: marks of Phi-3 take the spaces behind them away, but for these
_TAKING, _NOT_TAKING = ("phi-3", "phi3"), ("<unk>", "<s>", "<|endoftext|>")
_ROLES = {"unk": "unknown_token_id", "pad": "padding_token_id", "sep": "seperator_token_id"}  # others as they are said


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What a file says of its tokens, checked."""

    place: str  # the file's name, for errors
    name: str  # of the model, "" where it has none
    kind: str  # of tokenizer: "gpt2", "llama", "gemma4", "bert", "t5"
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...] | None
    merges: tuple[str, ...] | None
    values: Mapping[str, object]  # all else, without "tokenizer.ggml."

    def special(self, role: str) -> int | None:
        """The token of a role; None where there is none, or none of the vocabulary."""
        token = self.values.get(_ROLES.get(role, f"{role}_token_id"))
        return token if type(token) is int and 0 <= token < len(self.tokens) else None

    def takes_spaces(self, token: str) -> bool:
        """Whether a mark takes away the spaces behind it; GGUF does not say it."""
        return any(name in self.name.lower() for name in _TAKING) and token not in _NOT_TAKING

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise ExportError(f"'{self.place}': '{PREFIX}{name}' is {value!r}; expected true or false.")
        return value


def read_vocabulary(metadata: Mapping[str, object], place: str) -> Vocabulary:
    """Raises ExportError for lists that are not there, or do not fit together."""
    own = {key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)}
    tokens, kind = own.pop("tokens", None), own.pop("model", None)
    if not isinstance(kind, str) or not isinstance(tokens, list) or not all(isinstance(each, str) for each in tokens):
        raise ExportError(
            f"'{place}' has no vocabulary ('{PREFIX}model' and '{PREFIX}tokens'); expected a whole model."
        )
    count = len(tokens)
    types, scores = (_numbers(own.pop(key, None), key, count, place) for key in ("token_type", "scores"))
    if types is not None and not all(type(each) is int for each in types):
        raise ExportError(f"'{place}': '{PREFIX}token_type' is a list of fractions; expected whole numbers.")
    merges = own.pop("merges", None)
    if merges is not None and (not isinstance(merges, list) or not all(isinstance(each, str) for each in merges)):
        raise ExportError(f"'{place}': '{PREFIX}merges' is no list of texts; expected one pair of tokens each.")
    if len(set(tokens)) != count:
        raise ExportError(f"'{place}': '{PREFIX}tokens' has some twice; expected {count} that differ.")
    return Vocabulary(
        place=place,
        name=str(metadata.get("general.name", "")),
        kind=kind,
        tokens=tuple(tokens),
        types=(NORMAL,) * count if types is None else tuple(int(each) for each in types),
        scores=scores,
        merges=None if merges is None else tuple(merges),
        values=own,
    )


def _numbers(values: object, key: str, count: int, place: str) -> tuple[float, ...] | None:
    if values is None:
        return None
    numbers = values.tolist() if hasattr(values, "tolist") else values  # type: ignore[union-attr]  # NumPy's array
    if (
        not isinstance(numbers, Sequence)
        or len(numbers) != count
        or any(isinstance(each, str | list) for each in numbers)
    ):
        description = f"{len(numbers)} entries" if isinstance(numbers, Sequence) else repr(numbers)
        raise ExportError(f"'{place}': '{PREFIX}{key}' has {description}; expected {count} numbers, one a token.")
    return tuple(cast("Sequence[float]", numbers))

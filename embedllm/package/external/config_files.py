"""What the small JSON files of a folder made by others say: the longest sequence, the vocabulary, the stop tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.files.json_object import read_json_object
from embedllm.types import JSON

_MOST = 2**31  # of anything that is counted
CONTEXTS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")


class Texts:
    """config.json and generation_config.json, the part of a model that generates text where there are several."""

    def __init__(self, folder: Path) -> None:
        """Raises PackageError for a file that is damaged."""
        self._folder = folder
        self._generation = read_json_object(folder / "generation_config.json")
        whole = read_json_object(folder / "config.json")
        part = whole.get("text_config")
        self._config: Mapping[str, JSON] = {**whole, **part} if isinstance(part, Mapping) else whole

    @property
    def model_type(self) -> str:
        return str(self._config.get("model_type", "unknown"))

    @property
    def vocabulary(self) -> int | None:
        return whole(self._config.get("vocab_size"))

    @property
    def kv(self) -> tuple[int | None, int | None]:
        """KV heads, and the size of each, as far as it says."""
        heads, hidden = (whole(self._config.get(key)) for key in ("num_attention_heads", "hidden_size"))
        size = whole(self._config.get("head_dim")) or (hidden // heads if heads and hidden else None)
        return whole(self._config.get("num_key_value_heads")) or heads, size

    def context(self, stated: object = None) -> int:
        """Most tokens of a sequence. stated: by another file, which goes first. PackageError when none says."""
        values = (whole(value) for value in (stated, *map(self._config.get, CONTEXTS)))
        limit = next((value for value in values if value is not None), None)
        if limit is None:
            raise PackageError(
                f"nothing in '{self._folder}' says how many tokens the model holds; expected one of "
                f"{', '.join(CONTEXTS)} in its config.json. Fetch that file from where the folder came from."
            )
        return limit

    def stop_tokens(self, vocabulary: int, stated: object = None) -> list[int]:
        """Those that end a reply. stated: by another file, which goes first. PackageError for one of no use."""
        values = (self._generation.get("eos_token_id"), self._config.get("eos_token_id"))
        config_value = next((value for value in (stated, *values) if value is not None), [])
        tokens: list[int] = []
        for token in config_value if isinstance(config_value, list) else [config_value]:
            if type(token) is not int or not 0 <= token < vocabulary:
                raise PackageError(
                    f"a stop token of '{self._folder}' is {token!r}; expected 0 to {vocabulary - 1}, a token of the "
                    "model. Correct 'eos_token_id' in its config.json or generation_config.json."
                )
            tokens.append(token)
        return tokens


def whole(value: object) -> int | None:
    """A number of things as a configuration states it; None for anything else."""
    return value if type(value) is int and 0 < value < _MOST else None

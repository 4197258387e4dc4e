"""BatchGenerator and BatchEmbedder: models as stages of a Ray Data pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from embedllm.errors import EmbedError
from embedllm.generation.options import PromptOptions
from embedllm.loading.load import open_model
from embedllm.loading.options import LoadOptions

if TYPE_CHECKING:
    from embedllm.generation.completion import Completion
    from embedllm.text.chat_template import Message

# Ray Data gives a batch as one NumPy array a column
Column: TypeAlias = "NDArray[np.generic]"
Batch: TypeAlias = "dict[str, Column]"


class BatchGenerator:
    """Replies to a column of prompts, for `Dataset.map_batches`: each worker loads the model once.

    ds.map_batches(
        BatchGenerator, fn_constructor_kwargs={"model": "demo", "max_tokens": 64}, batch_size=32, concurrency=2
    )

    Adds the columns "reply", "finish_reason", "prompt_tokens", "completion_tokens" and "error". A row that fails, such
    as a prompt that is too long, has an empty reply, the finish_reason "error" and its message; it does not end the
    job. A failure of the device does.
    """

    def __init__(
        self,
        model: str,
        *,
        column: str = "prompt",
        is_chat: bool = True,
        system: str | None = None,
        load_options: LoadOptions | None = None,
        **options: Unpack[PromptOptions],
    ) -> None:
        """model: what embedllm.load() takes; each worker must be able to open it. load_options: as of load().

        column: of texts, or of conversations, each a list of messages.
        is_chat: a text is a user's message; False: it is continued as it stands. system: a message before each text.
        options: of Model.generate().
        """
        if system is not None and not is_chat:
            raise ValueError(
                "system goes with is_chat=True; a text that is continued as it stands has no system message."
            )
        self._model = open_model(model, load_options or LoadOptions())
        self._column, self._is_chat, self._system, self._options = column, is_chat, system, options

    def __call__(self, batch: Batch) -> Batch:
        """The batch with its replies."""
        prompts = [self._prompt(value) for value in _column(batch, self._column).tolist()]
        replies = self._replies(prompts)
        done = [None if isinstance(reply, str) else reply for reply in replies]
        added: dict[str, Sequence[object]] = {
            "reply": ["" if reply is None else reply.text for reply in done],
            "finish_reason": ["error" if reply is None else reply.finish_reason for reply in done],
            "prompt_tokens": [0 if reply is None else reply.statistics.prompt_tokens for reply in done],
            "completion_tokens": [0 if reply is None else len(reply.tokens) for reply in done],
            "error": [reply if isinstance(reply, str) else None for reply in replies],
        }
        return {**batch, **{name: _as_column(values) for name, values in added.items()}}

    def _prompt(self, value: object) -> str | list[Message]:
        if isinstance(value, np.ndarray | list | tuple):  # Arrow gives lists as arrays
            return [cast("Message", message) for message in value]
        if not isinstance(value, str):
            raise ValueError(f"a row of '{self._column}' is a {type(value).__name__}; expected a text or messages.")
        if not self._is_chat:
            return value
        before: list[Message] = [] if self._system is None else [{"role": "system", "content": self._system}]
        return [*before, {"role": "user", "content": value}]

    def _replies(self, prompts: list[str | list[Message]]) -> list[Completion | str]:
        """A reply, or what is wrong with it, for each prompt."""
        errors: dict[int, str] = {}
        for place, prompt in enumerate(prompts):
            try:
                self._model.request(prompt, **self._options)
            except (EmbedError, ValueError) as error:
                errors[place] = str(error)
        good = [prompt for place, prompt in enumerate(prompts) if place not in errors]
        replies = iter(self._model.generate_batch(good, **self._options))
        return [errors[place] if place in errors else next(replies) for place in range(len(prompts))]


class BatchEmbedder:
    """Vectors of a column of texts, for `Dataset.map_batches`; adds the column "embedding", float32 [rows, values]."""

    def __init__(
        self,
        model: str,
        *,
        column: str = "text",
        kind: str | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
        load_options: LoadOptions | None = None,
    ) -> None:
        """model: an embedding model, which each worker must be able to open. load_options: as of load().

        column: of texts. kind, dimensions, truncate: as of Model.embed().
        """
        self._model = open_model(model, load_options or LoadOptions())
        self._column, self._kind, self._dimensions, self._truncate = column, kind, dimensions, truncate

    def __call__(self, batch: Batch) -> Batch:
        """The batch with its vectors. Raises ContextFull for a text that is too long, unless `truncate`."""
        texts = [str(text) for text in _column(batch, self._column).tolist()]
        vectors = self._model.embed(texts, kind=self._kind, dimensions=self._dimensions, truncate=self._truncate)
        return {**batch, "embedding": vectors}


def _column(batch: Mapping[str, Column], name: str) -> Column:
    if name not in batch:
        raise ValueError(
            f"the dataset has no column '{name}'; expected one of {', '.join(batch)}. Name it by `column`."
        )
    return batch[name]


def _as_column(values: Sequence[object]) -> Column:
    """Texts as objects: NumPy's own texts have one width, and lose trailing zero characters."""
    return np.array(values, dtype=object if any(not isinstance(value, int) for value in values) else np.int64)

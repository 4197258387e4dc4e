"""Embedding and reranker (cross-encoder) models: texts become tokens, within the limit, then vectors or scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.errors import ContextFull
from embedllm.files.native_calls import check_not_ending, native_call
from embedllm.generation.request import is_whole
from embedllm.text.prompt_length import check_known

if TYPE_CHECKING:
    from embedllm.backends.reference.encoder_engine import EncoderEngine, Tokens
    from embedllm.package.architecture.encoder import Encoder
    from embedllm.package.package import Package
    from embedllm.text.tokenizer import Tokenizer
    from embedllm.types import F32

_COMMON = ("query", "document")  # kinds that any model may be asked for, whether it has a prompt for them or not


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A document's place in the list that rerank() was given, and how well it fits the query."""

    index: int
    """The document's place in what was given."""
    score: float
    """How well it fits the query; higher is better. Its range is the model's."""


class Encoding:
    """Runs the calls of one model. May be used from several threads."""

    def __init__(self, package: Package, tokenizer: Tokenizer, engine: EncoderEngine) -> None:
        self._package, self._tokenizer, self._engine = package, tokenizer, engine
        encoder = package.encoder
        assert encoder is not None
        self._encoder: Encoder = encoder
        self._prompts = {prompt.name: prompt.text for prompt in encoder.prompts}

    @property
    def can_do(self) -> str:
        """In words, for who asks for something else."""
        if self._encoder.score_activation:
            return "is a reranker: rerank() scores documents"
        return "is an embedding model: embed() gives vectors of texts"

    def embed(
        self,
        texts: Sequence[str],
        *,
        kind: str | None,
        dimensions: int | None,
        normalize: bool | None,
        truncate: bool,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> F32:
        """See Model.embed()."""
        from embedllm.backends.reference.encoder_layers import shortened

        if self._encoder.score_activation:
            raise ValueError(f"'{self._package.name}' {self.can_do}; it has no vectors.")
        texts = listed_texts(texts, "texts")
        most = self._engine.dimensions
        if dimensions is not None and not (is_whole(dimensions) and 1 <= dimensions <= most):
            raise ValueError(
                f"dimensions is {dimensions!r}; expected 1 to {most}, what the vectors of this model have."
            )
        vectors = self._vectors(self._of_texts(texts, kind, truncate), is_cancelled)
        is_normalised = self._encoder.normalize if normalize is None else normalize
        return shortened(vectors, dimensions, normalised=is_normalised)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top: int | None,
        truncate: bool,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> list[Ranked]:
        """See Model.rerank()."""
        if not self._encoder.score_activation:
            raise ValueError(f"'{self._package.name}' {self.can_do}; it does not score pairs. Use a reranker.")
        if not isinstance(query, str):
            raise ValueError(f"query is {query!r}; expected a text.")
        documents = listed_texts(documents, "documents")
        if top is not None and not (is_whole(top) and top >= 1):
            raise ValueError(f"top is {top!r}; expected 1 or more, or None for all documents.")
        scores = self._vectors(self._of_pairs(query, documents, truncate), is_cancelled)[:, 0].tolist()
        ranked = [Ranked(index=index, score=score) for index, score in enumerate(scores)]
        return sorted(ranked, key=lambda one: -one.score)[:top]

    def count_tokens(self, texts: Sequence[str], *, kind: str | None, query: str | None, truncate: bool) -> int:
        """See Model.count_tokens()."""
        texts = listed_texts(texts, "texts")
        if query is None:
            return sum(len(tokens.ids) for tokens in self._of_texts(texts, kind, truncate))
        return sum(len(tokens.ids) for tokens in self._of_pairs(query, texts, truncate))

    def _vectors(self, texts: Sequence[Tokens], is_cancelled: Callable[[], bool]) -> F32:
        """As EncoderEngine.vectors(), which has no engine loop."""

        def is_stopped() -> bool:
            check_not_ending()
            return is_cancelled()

        with native_call():
            return self._engine.vectors(texts, is_stopped)

    def _of_texts(self, texts: Sequence[str], kind: str | None, truncate: bool) -> list[Tokens]:
        prompt = self._prompt(kind)
        return [self._tokens(f"text {place}", [prompt + text], truncate) for place, text in enumerate(texts)]

    def _of_pairs(self, query: str, documents: Sequence[str], truncate: bool) -> list[Tokens]:
        return [self._tokens(f"document {place}, with the query,", [query, document], truncate)
                for place, document in enumerate(documents)]  # fmt: skip

    def _prompt(self, kind: str | None) -> str:
        """What comes in front of texts of this kind."""
        if kind is None:
            return self._prompts.get(self._encoder.prompt, "")
        if not isinstance(kind, str) or (kind not in self._prompts and kind not in _COMMON):
            kinds = ", ".join(repr(name) for name in dict.fromkeys([*_COMMON, *self._prompts]))
            raise ValueError(f"kind is {kind!r}; '{self._package.name}' knows {kinds}.")
        return self._prompts.get(kind, "")

    def _tokens(self, what: str, texts: Sequence[str], truncate: bool) -> Tokens:
        """Of a text or a pair. Raises ContextFull for too many, ValueError for none."""
        from embedllm.backends.reference.encoder_engine import Tokens

        limit = self._package.context
        ids, types = self._tokenizer.encode_whole(texts, limit=limit if truncate else None)
        if not ids:
            raise ValueError(f"{what} has no tokens: it is empty. Leave it out.")
        if len(ids) > limit:
            raise ContextFull(
                f"{what} has {len(ids)} tokens; '{self._package.name}' reads {limit} at most. Cut it into pieces, or "
                "pass truncate=True (--truncate) to have its end left out.",
                tokens=len(ids),
                limit=limit,
            )
        check_known(ids, self._tokenizer, self._package.architecture.vocabulary)
        return Tokens(ids, types)


def present(encoding: Encoding | None, name: str, purpose: str) -> Encoding:
    """The encoding of a model that has one. Raises ValueError for a model that generates text."""
    if encoding is None:
        is_reranker = "rerank" in purpose
        example = "BAAI/bge-reranker-v2-m3" if is_reranker else "Qwen/Qwen3-Embedding-0.6B"
        task = "rerank" if is_reranker else "embed"
        raise ValueError(
            f"'{name}' generates text and was not exported as {purpose}. Export one that is, such as {example}, or a "
            f"checkpoint of such a model with: embedllm export SOURCE OUT --task {task}"
        )
    return encoding


def listed_texts(texts: Iterable[str], what: str) -> list[str]:
    """The texts, which may come from a generator. Raises ValueError for one text, and for what is none."""
    if not isinstance(texts, Iterable) or isinstance(texts, str | Mapping):
        found = "one text" if isinstance(texts, str) else f"a {type(texts).__name__}"
        raise ValueError(f"{what} is {found}; expected a list of texts, if only of one.")
    listed = list(texts)
    for place, text in enumerate(listed):
        if not isinstance(text, str):
            raise ValueError(f"{what} has {type(text).__name__} at {place}; expected texts.")
    return listed

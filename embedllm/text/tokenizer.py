"""Text and tokens: the tokenizer of a folder, text out of a stream of tokens, stop strings in a stream of text."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.errors import PackageError
from embedllm.text.content_marks import RenderedPrompt
from embedllm.text.end_of_turn import end_of_turn_tokens
from embedllm.text.lone_surrogates import check_text, replace_surrogates
from embedllm.text.token_bytes import REPLACEMENT, Decoder, appends_texts, is_byte_token, token_bytes
from embedllm.text.tokenizer_config import AddedToken, TokenizerConfig, read_tokenizer_config

if TYPE_CHECKING:
    import tokenizers

_OLDER_FORMATS = ("tokenizer.model", "tekken.json", "tiktoken.model", "spiece.model", "vocab.json", "merges.txt")
# characters from which a text is encoded as a batch of one, which leaves Python's lock to other threads meanwhile; not
# shorter ones, as the library warns in a child process that is forked after its first batch
_LONG = 4096
_MOST_IDS = 1 << 32  # the type of a token id in the library that encodes


class Tokenizer:
    """The tokenizer in a folder's tokenizer.json, run by the package `tokenizers`.

    named: the special tokens that have a role, by its name: {"eos_token": "</s>", ...}.
    added_tokens: those that tokenizer.json lists beside its model, by their texts; the special ones are of them.
    """

    def __init__(self, engine: tokenizers.Tokenizer, *, named: Mapping[str, str], split_special: bool = False) -> None:
        engine.no_truncation()  # text is never cut off silently
        engine.no_padding()
        engine.encode_special_tokens = split_special
        added = engine.get_added_tokens_decoder()
        self._engine = engine
        self._splits_special = split_special
        self._literal: _LiteralEngine | None = None
        self.named = dict(named)
        self.size = max([engine.get_vocab_size(with_added_tokens=True), *(token + 1 for token in added)])
        self.added_tokens = {entry.content: token for token, entry in added.items()}
        self.special_tokens = frozenset(token for token, entry in added.items() if entry.special)
        self.bos = self.token_id(named["bos_token"]) if "bos_token" in named else None
        self.eos = self.token_id(named["eos_token"]) if "eos_token" in named else None
        self._appends = appends_texts(_decoder(engine))
        self._appended: dict[int, str | None] = dict.fromkeys(added)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, serialized: str | None = None) -> Tokenizer:
        """The tokenizer of a folder, with the special tokens that its small files name.

        serialized: what counts in place of the folder's tokenizer.json.
        Raises PackageError when tokenizer.json is missing or damaged, or its path not UTF-8.
        """
        from tokenizers import Tokenizer as Engine

        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise PackageError(_no_tokenizer(path.parent))
        if replace_surrogates(str(path)) != str(path):  # neither this library nor a runtime opens such files
            raise PackageError(
                f"{str(path)!r} cannot be opened: its path has a byte that is not UTF-8. Rename the folder; if other "
                "programs show its name as it should be, set PYTHONUTF8=1 before Python starts."
            )
        config = read_tokenizer_config(path.parent)
        try:
            engine = Engine.from_file(str(path)) if serialized is None else Engine.from_str(serialized)
            _add_tokens(engine, config)
        except Exception as error:  # the package raises nothing narrower
            raise PackageError(
                f"'{path}' is not a tokenizer that can be read: {error}. Fetch the file again; a newer one may need "
                "a newer 'tokenizers' (pip install -U tokenizers)."
            ) from error
        named = {name: token.content for name, token in config.named.items()}
        return cls(engine, named=named, split_special=config.split_special)

    @property
    def ends(self) -> list[int]:
        """The tokens that end a turn: its own EOS token, then those whose text says so."""
        return end_of_turn_tokens(self.added_tokens, [] if self.eos is None else [self.eos])

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text; see TextCodec.

        Raises ValueError for what check_text() refuses, PackageError for a character that the vocabulary has no token
        for where it has none for unknown ones, either.
        """
        check_text(text)
        return _encode(self._engine, text, special=special).ids

    def encode_prompt(self, prompt: RenderedPrompt) -> list[int]:
        """The tokens of what a chat template wrote; see TextCodec."""
        check_text(prompt.text)
        if self._splits_special or not prompt.literal:
            return self.encode(prompt.text, special=False)
        written = _encode(self._engine, prompt.marked)
        if self._literal is None:
            self._literal = _LiteralEngine(self._engine)
        return self._literal.encode(prompt.text, zip(written.ids, written.offsets, strict=True))

    def encode_whole(self, texts: Sequence[str], *, limit: int | None) -> tuple[list[int], list[int]]:
        """The tokens of a text or a pair as a model that reads whole texts wants them, and which of both each is of.

        limit: tokens at most, with the special ones; the ends of longer texts are left out, of the longer one first.
        """
        for text in texts:
            check_text(text)
        parts = [_encode(self._engine, text) for text in texts]
        if limit is not None:
            room = limit - self._engine.num_special_tokens_to_add(len(parts) > 1)
            for part, count in zip(parts, _shares([len(part.ids) for part in parts], max(room, 0)), strict=True):
                part.truncate(count)
        whole = self._engine.post_process(parts[0], parts[1] if len(parts) > 1 else None)
        return whole.ids, whole.type_ids

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; see TextCodec."""
        return self._engine.decode(tokens, skip_special_tokens=not special)

    def token_text(self, token: int) -> str | None:
        """The vocabulary's own spelling of a token; see TextCodec."""
        return self._engine.id_to_token(token) if 0 <= token < _MOST_IDS else None

    def appended_text(self, token: int) -> str | None:
        """What a token adds to any text; see TextCodec."""
        if token not in self._appended:
            self._appended[token] = self._text_behind_itself(token)
        return self._appended[token]

    def _text_behind_itself(self, token: int) -> str | None:
        """What a token adds to its own text, where no byte of a character is missing."""
        spelling, text = self.token_text(token), self.decode([token])
        if not self._appends or spelling is None or is_byte_token(spelling) or REPLACEMENT in text:
            return None
        return self.decode([token, token]).removeprefix(text)

    def token_id(self, text: str) -> int | None:
        """The token that the vocabulary spells exactly like this, such as "<|im_end|>"."""
        return self._engine.token_to_id(text)

    def tokens_from(self, first: int) -> dict[int, str]:
        """The tokens with this id and higher ones, and their texts, in the order of their ids."""
        if self.size <= first:
            return {}
        vocabulary = {**self._engine.get_vocab(with_added_tokens=True), **self.added_tokens}
        return dict(sorted((token, text) for text, token in vocabulary.items() if token >= first))

    def token_bytes(self) -> list[bytes]:
        """The bytes of each token by its id, for grammars; see embedllm/text/token_bytes.py."""
        added = {token: entry.content for token, entry in self._engine.get_added_tokens_decoder().items()}
        return token_bytes(self._engine.get_vocab(with_added_tokens=True), added, _decoder(self._engine))


class _LiteralEngine:
    """A copy of a tokenizer that takes special tokens for plain text, and aliases of them for special tokens.

    What stands around a token is split, normalized and merged as it is beside the special token itself.
    """

    def __init__(self, engine: tokenizers.Tokenizer) -> None:
        from tokenizers import AddedToken as EngineToken

        self._engine = engine.from_str(engine.to_str())
        self._engine.encode_special_tokens = True
        special = {token: entry.content for token, entry in engine.get_added_tokens_decoder().items() if entry.special}
        nonce = secrets.token_hex(16)  # so that no text can hold an alias
        self._spelling = special
        self._alias = {token: f"\ue000{nonce}{token}\ue001" for token in special}
        tokens = [EngineToken(alias, special=False, normalized=False) for alias in self._alias.values()]
        self._engine.add_tokens(tokens)
        self._token = {self._engine.token_to_id(alias): token for token, alias in self._alias.items()}

    def encode(self, text: str, occurrences: Iterable[tuple[int, tuple[int, int]]]) -> list[int]:
        """The tokens of a text. occurrences: tokens and where they stand; of these the special ones are special."""
        parts: list[str] = []
        offset = 0
        for token, (start, stop) in occurrences:
            if token in self._alias and text[start:stop].strip() == self._spelling[token].strip():
                parts += (text[offset:start], self._alias[token])
                offset = stop
        parts.append(text[offset:])
        tokens = _encode(self._engine, "".join(parts)).ids
        return [self._token.get(token, token) for token in tokens]


def _encode(engine: tokenizers.Tokenizer, text: str, *, special: bool = False) -> tokenizers.Encoding:
    """What an engine makes of a text; its errors as PackageError."""
    try:
        if len(text) > _LONG:
            return engine.encode_batch([text], add_special_tokens=special)[0]
        return engine.encode(text, add_special_tokens=special)
    except Exception as error:  # the package raises nothing narrower
        if "unk" not in str(error).lower():
            raise PackageError(f"tokenizer.json cannot encode this text: {error}. Fetch the file again.") from error
        raise PackageError(
            "the text has a character that the model's vocabulary has no token for, and its unknown token is not in "
            f"the vocabulary either ({error}). Fetch tokenizer.json again, or leave the character out."
        ) from error


def _decoder(engine: tokenizers.Tokenizer) -> Decoder | None:
    """The object "decoder" of tokenizer.json."""
    decoder: tokenizers.decoders.Decoder | None = engine.decoder
    return None if decoder is None else json.loads(decoder.__getstate__())


def _shares(counts: Sequence[int], room: int) -> list[int]:
    """How many tokens of each text are kept: a short one whole, of two long ones the same number."""
    if sum(counts) <= room or len(counts) == 1:
        return [min(count, room) for count in counts]
    half, (first, second) = room // 2, counts
    first_share = min(first, max(half, room - second))
    return [first_share, min(second, room - first_share)]


def _no_tokenizer(folder: Path) -> str:
    """What to say of a folder without tokenizer.json."""
    names = [name for name in _OLDER_FORMATS if (folder / name).is_file()]
    if not names:
        return f"'{folder}' has no tokenizer.json. Copy it from the model that the folder was made of."
    return (
        f"'{folder}' has no tokenizer.json, only {' and '.join(repr(name) for name in names)}, an older format that is "
        "not read here. Convert it once where transformers is installed: "
        "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
    )


def _add_tokens(engine: tokenizers.Tokenizer, config: TokenizerConfig) -> None:
    """Give an engine the tokens that only the configuration knows, as transformers 5.24 does."""
    from tokenizers import AddedToken as EngineToken

    present = {entry.content: _flags(entry) for entry in engine.get_added_tokens_decoder().values()}
    tokens = {token.content: token for token in config.added}
    tokens |= {token.content: token for token in config.legacy if token.content not in present}
    for token in config.named.values():
        same_text = tokens.get(token.content) or present.get(token.content)
        tokens[token.content] = dataclasses.replace(same_text, special=True) if same_text else token
    for token in config.extra:
        if token.content not in present:
            tokens.setdefault(token.content, token)
    missing = [token for token in tokens.values() if token != present.get(token.content)]
    if missing:
        engine.add_tokens([EngineToken(**dataclasses.asdict(token)) for token in missing])


def _flags(entry: tokenizers.AddedToken) -> AddedToken:
    return AddedToken(**{field.name: getattr(entry, field.name) for field in dataclasses.fields(AddedToken)})

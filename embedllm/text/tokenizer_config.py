"""What the small files beside tokenizer.json say: special tokens, their flags, chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.files.json_object import as_object, read_json_object
from embedllm.types import JSON

_ROLES = {f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """One token beyond the model's vocabulary, with the flags that tokenizer.json stores for it."""

    content: str
    special: bool = True
    normalized: bool = False  # looked for in the normalized text rather than in the raw one
    lstrip: bool = False  # takes the spaces on its left
    rstrip: bool = False
    single_word: bool = False  # not inside a word


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """tokenizer_config.json, special_tokens_map.json and added_tokens.json, joined as transformers 5 joins them."""

    named: Mapping[str, AddedToken]  # "bos_token", "eos_token", "image_token", ...
    extra: tuple[AddedToken, ...]  # special tokens without a name
    added: tuple[AddedToken, ...]  # added_tokens_decoder, in the order of its ids
    legacy: tuple[AddedToken, ...]  # added_tokens.json, of checkpoints without an added_tokens_decoder, likewise
    split_special: bool  # special tokens in a text are read as plain text
    chat_template: str | Mapping[str, str] | None  # one template, or several by name


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """The tokenizer's configuration; a file that is not there counts as empty.

    add_bos_token and add_eos_token are not read: transformers 5 drops both where there is a tokenizer.json, whose
    post-processor alone decides (tests/text/test_tokenizer.py compares).
    Raises PackageError when a file is damaged.
    """
    config = read_json_object(folder / "tokenizer_config.json")
    is_legacy = "added_tokens_decoder" not in config
    if is_legacy:  # the older files count only where the newer one cannot know
        config |= read_json_object(folder / "special_tokens_map.json")
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    tokens = {name: value for name, value in config.items() if name.endswith("_token")}
    if isinstance(extra, dict):
        tokens |= extra
        extra = []
    try:
        named = {name: _added_token(value) for name, value in tokens.items() if isinstance(value, str | dict)}
        more = tuple(_added_token(value) for value in _list(extra))
        special = {named[role].content for role in _ROLES & named.keys()} | {token.content for token in more}
        return TokenizerConfig(
            named=named,
            extra=more,
            added=_added_tokens(config.get("added_tokens_decoder") or {}),
            legacy=_legacy_tokens(folder / "added_tokens.json", special) if is_legacy else (),
            split_special=config.get("split_special_tokens") is True,
            chat_template=_chat_template(config.get("chat_template")),
        )
    except (TypeError, ValueError, KeyError) as error:
        raise PackageError(
            f"'{folder / 'tokenizer_config.json'}' is not a tokenizer configuration: {error!r}. Fetch the folder's "
            "small files again."
        ) from error


def _added_tokens(decoder: JSON) -> tuple[AddedToken, ...]:
    entries = sorted(as_object(decoder).items(), key=lambda item: int(item[0]))
    return tuple(_added_token(value, special=False) for _, value in entries)


def _legacy_tokens(path: Path, special: Set[str]) -> tuple[AddedToken, ...]:
    """special: the texts of tokens that are."""
    ids: dict[str, int] = {}
    for text, token in read_json_object(path).items():
        if type(token) is not int:
            raise PackageError(f"'{path}' has the id {token!r} for {text!r}; expected a whole number.")
        ids[text] = token
    return tuple(_added_token(text, special=text in special) for text in sorted(ids, key=lambda text: ids[text]))


def _added_token(value: JSON, *, special: bool = True) -> AddedToken:
    """special: whether the place it stands in makes it special, whatever its own flag says."""
    if isinstance(value, str):
        return AddedToken(content=value, special=special, normalized=not special)
    entry = as_object(value)
    content = entry["content"]
    if not isinstance(content, str):
        raise TypeError(f"a token's 'content' is a {type(content).__name__}, expected text")
    special = special or entry.get("special") is True
    return AddedToken(
        content=content,
        special=special,
        normalized=bool(entry.get("normalized", not special)),
        lstrip=entry.get("lstrip") is True,
        rstrip=entry.get("rstrip") is True,
        single_word=entry.get("single_word") is True,
    )


def _chat_template(value: JSON) -> str | dict[str, str] | None:
    if isinstance(value, list):
        entries = [as_object(entry) for entry in value]
        return {str(entry["name"]): str(entry["template"]) for entry in entries}
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"'chat_template' is a {type(value).__name__}, expected text or a list")


def _list(value: JSON) -> list[JSON]:
    if not isinstance(value, list):
        raise TypeError(f"found a {type(value).__name__} in the place of a list")
    return value

"""The tokenizer.json that a GGUF file's vocabulary amounts to: byte-level BPE, or SentencePiece's BPE.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer; llama-vocab.cpp of llama.cpp for what is
meant where the file says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from embedllm.errors import ExportError
from embedllm.export.gguf_splits import SPLITS, Splits
from embedllm.export.nearest import nearest

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # types of tokens
_SPACE = "\u2581"  # in SentencePiece's tokens
_PREFIX = "tokenizer.ggml."
# By the models' names, as in llama.cpp: marks of Phi-3 take the spaces behind them away, but for these
_TAKING, _NOT_TAKING = ("phi-3", "phi3"), ("<unk>", "<s>", "<|endoftext|>")
_ROLES = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What a file says of its tokens, checked."""

    place: str  # the file's name, for errors
    name: str  # of the model, "" where it has none
    kind: str  # of tokenizer: "gpt2", "llama"
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...] | None
    merges: tuple[str, ...] | None
    values: Mapping[str, object]  # all else, without "tokenizer.ggml."

    def special(self, role: str) -> int | None:
        """The token of a role; None where there is none, or none of the vocabulary."""
        found = self.values.get(_ROLES.get(role, f"{role}_token_id"))
        return found if type(found) is int and 0 <= found < len(self.tokens) else None

    def takes_spaces(self, token: str) -> bool:
        """Whether a mark takes away the spaces behind it; GGUF does not say it."""
        return any(name in self.name.lower() for name in _TAKING) and token not in _NOT_TAKING

    def flag(self, name: str, default: bool) -> bool:
        found = self.values.get(name, default)
        if not isinstance(found, bool):
            raise ExportError(f"'{self.place}': '{_PREFIX}{name}' is {found!r}; expected true or false.")
        return found


def read_vocabulary(metadata: Mapping[str, object], place: str) -> Vocabulary:
    """Raises ExportError for lists that are not there, or do not fit together."""
    own = {key.removeprefix(_PREFIX): value for key, value in metadata.items() if key.startswith(_PREFIX)}
    tokens, kind = own.pop("tokens", None), own.pop("model", None)
    if not isinstance(kind, str) or not isinstance(tokens, list) or not all(isinstance(each, str) for each in tokens):
        raise ExportError(
            f"'{place}' has no vocabulary ('{_PREFIX}model' and '{_PREFIX}tokens'); expected a whole model."
        )
    count = len(tokens)
    types, scores = (_numbers(own.pop(key, None), key, count, place) for key in ("token_type", "scores"))
    if types is not None and not all(type(each) is int for each in types):
        raise ExportError(f"'{place}': '{_PREFIX}token_type' is a list of fractions; expected whole numbers.")
    merges = own.pop("merges", None)
    if merges is not None and (not isinstance(merges, list) or not all(isinstance(each, str) for each in merges)):
        raise ExportError(f"'{place}': '{_PREFIX}merges' is no list of texts; expected one pair of tokens each.")
    if len(set(tokens)) != count:
        raise ExportError(f"'{place}': '{_PREFIX}tokens' has some twice; expected {count} that differ.")
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


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, object]:
    """Raises ExportError for a kind, or a way of cutting texts, that is not known here: none is ever guessed."""
    if vocabulary.kind == "gpt2":
        return _byte_level(vocabulary)
    if vocabulary.kind == "llama":
        return _sentencepiece(vocabulary)
    raise ExportError(
        f"'{vocabulary.place}' has a tokenizer of the kind '{vocabulary.kind}', which is not read; known: gpt2, llama. "
        "Try the checkpoint that the file was made from."
    )


def _byte_level(vocabulary: Vocabulary) -> dict[str, object]:
    splits = _splits(vocabulary)
    if vocabulary.merges is None:
        raise ExportError(f"'{vocabulary.place}' has no '{_PREFIX}merges', which a tokenizer of this kind is made of.")
    cuts: list[object] = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in splits.regexes
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    cuts.append({**level, "use_regex": splits.as_gpt2})
    model = {"ignore_merges": splits.whole_words, "byte_fallback": False, "unk_token": None, "fuse_unk": False}
    return _json(
        vocabulary,
        model | {"merges": list(vocabulary.merges)},
        normalizer={"type": splits.normalizer} if splits.normalizer else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": cuts},
        decoder={**level, "add_prefix_space": True, "use_regex": True},
        starts=splits.starts,
    )


def _splits(vocabulary: Vocabulary) -> Splits:
    name = vocabulary.values.get("pre")
    if not isinstance(name, str) or name not in SPLITS:
        said = "does not say how texts are cut" if name is None else f"cuts texts by the rules '{name}'"
        raise ExportError(
            f"'{vocabulary.place}' {said} ('{_PREFIX}pre'), which is not known here and is not guessed; known: "
            f"{', '.join(SPLITS)}.{nearest(str(name), SPLITS)} Take a newer file of the model, or the checkpoint that "
            "it was made from."
        )
    return SPLITS[name]


def _sentencepiece(vocabulary: Vocabulary) -> dict[str, object]:
    spaced = vocabulary.flag("add_space_prefix", True)
    steps: list[object] = [{"type": "Prepend", "prepend": _SPACE}] if spaced else []
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
    back: list[object] = [{"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}]
    back += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if spaced:
        back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = next((at for at, kind in enumerate(vocabulary.types) if kind == UNKNOWN), vocabulary.special("unk"))
    merges = list(vocabulary.merges) if vocabulary.merges is not None else _merges(vocabulary)
    model = {"ignore_merges": False, "byte_fallback": True, "fuse_unk": True, "merges": merges}
    return _json(
        vocabulary,
        model | {"unk_token": None if unknown is None else vocabulary.tokens[unknown]},
        normalizer={"type": "Sequence", "normalizers": steps},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": back},
        starts=True,
    )


def _merges(vocabulary: Vocabulary) -> list[list[str]]:
    """SentencePiece joins the pair that gives the token with the highest score; here each pair has a place in a list.

    Pairs of one token, and of tokens with one score, are in the order that transformers gives them.
    """
    scores = vocabulary.scores
    if scores is None or len(set(scores)) < 2:
        raise ExportError(
            f"'{vocabulary.place}' has neither '{_PREFIX}merges' nor scores that tell its tokens apart "
            f"('{_PREFIX}scores'); expected one of them. Try the checkpoint that the file was made from."
        )
    known = {text: at for at, text in enumerate(vocabulary.tokens) if vocabulary.types[at] == NORMAL}
    found: list[tuple[float, int, int, list[str]]] = []
    for text, at in known.items():
        pairs = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        pairs = sorted((pair for pair in pairs if pair[0] in known and pair[1] in known),
                       key=lambda pair: (known[pair[0]], known[pair[1]]))  # fmt: skip
        found += [(scores[at], len(first), len(second), [first, second]) for first, second in pairs]
    return [each[3] for each in sorted(found, key=lambda each: each[:3], reverse=True)]


def _json(vocabulary: Vocabulary, model: Mapping[str, object], *, normalizer: object, pre_tokenizer: object,
          decoder: object, starts: bool) -> dict[str, object]:  # fmt: skip
    """starts: whether a BOS comes first where the file does not say it."""
    added = [
        {"id": at, "content": vocabulary.tokens[at], "single_word": False, "lstrip": False,
         "rstrip": vocabulary.takes_spaces(vocabulary.tokens[at]), "normalized": False,
         "special": kind != USER_DEFINED}
        for at, kind in enumerate(vocabulary.types) if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]  # fmt: skip
    used = {text: at for at, text in enumerate(vocabulary.tokens) if vocabulary.types[at] != UNUSED}
    parts = {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, **model}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _around(vocabulary, starts=starts),
        "decoder": decoder,
        "model": {"type": "BPE", **parts, "vocab": used},
    }


def _around(vocabulary: Vocabulary, *, starts: bool) -> dict[str, object] | None:
    """What puts a BOS in front of a text, and an EOS behind it."""
    bos = vocabulary.special("bos") if vocabulary.flag("add_bos_token", starts) else None
    eos = vocabulary.special("eos") if vocabulary.flag("add_eos_token", False) else None
    if bos is None and eos is None:
        return None
    named = {vocabulary.tokens[at]: at for at in (bos, eos) if at is not None}

    def single(sequence: str, part: int) -> list[object]:
        def special(at: int | None) -> list[object]:
            return [] if at is None else [{"SpecialToken": {"id": vocabulary.tokens[at], "type_id": part}}]

        return [*special(bos), {"Sequence": {"id": sequence, "type_id": part}}, *special(eos)]

    return {
        "type": "TemplateProcessing",
        "single": single("A", 0),
        "pair": single("A", 0) + single("B", 1),
        "special_tokens": {text: {"id": text, "ids": [at], "tokens": [text]} for text, at in named.items()},
    }


def _numbers(values: object, key: str, count: int, place: str) -> tuple[float, ...] | None:
    if values is None:
        return None
    found = values.tolist() if hasattr(values, "tolist") else values  # type: ignore[union-attr]  # NumPy's array
    if not isinstance(found, Sequence) or len(found) != count or any(isinstance(each, str | list) for each in found):
        said = f"{len(found)} entries" if isinstance(found, Sequence) else repr(found)
        raise ExportError(f"'{place}': '{_PREFIX}{key}' has {said}; expected {count} numbers, one a token.")
    return tuple(cast("Sequence[float]", found))

"""What a tokenizer.json has besides its model, of a GGUF file's vocabulary: marks, and what is put around texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embedllm.export.gguf.tokenizers.vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary

Piece = tuple[int | str, int]  # a token, or "A" or "B" for a text, and which part of a pair it belongs to


def whole_json(vocabulary: Vocabulary, model: Mapping[str, object], *, normalizer: object, pre_tokenizer: object,
               decoder: object, post_processor: object) -> dict[str, object]:  # fmt: skip
    added = [
        {"id": at, "content": vocabulary.tokens[at], "single_word": False, "lstrip": False,
         "rstrip": vocabulary.takes_spaces(vocabulary.tokens[at]), "normalized": False,
         "special": kind != USER_DEFINED}
        for at, kind in enumerate(vocabulary.types) if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }


def ends(vocabulary: Vocabulary, *, adds_bos: bool, adds_eos: bool = False) -> tuple[list[int], list[int]]:
    """The BOS in front of a text and the EOS behind it, each if there is one and the file wants it.

    adds_bos, adds_eos: whether they are there where the file does not say it.
    """
    bos = vocabulary.special("bos") if vocabulary.flag("add_bos_token", adds_bos) else None
    eos = vocabulary.special("eos") if vocabulary.flag("add_eos_token", adds_eos) else None
    return [] if bos is None else [bos], [] if eos is None else [eos]


def around(
    vocabulary: Vocabulary, *, adds_bos: bool, adds_eos: bool = False, pair_eos: int = 0
) -> dict[str, object] | None:
    """What puts them there. adds_bos, adds_eos: as ends() has it.

    pair_eos: number of EOS tokens between two texts, of which only the first has a BOS; 0, or without both: the
    second text has its own.
    """
    bos, eos = ends(vocabulary, adds_bos=adds_bos, adds_eos=adds_eos)
    if not bos and not eos:
        return None

    def single(text: str, part: int) -> list[Piece]:
        return [(piece, part) for piece in (*bos, text, *eos)]

    second = (
        [(piece, 0) for piece in (*eos * (pair_eos - 1), "B", *eos)] if pair_eos and bos and eos else single("B", 1)
    )
    return template(vocabulary, single("A", 0), single("A", 0) + second)


def template(vocabulary: Vocabulary, single: Sequence[Piece], pair: Sequence[Piece]) -> dict[str, object]:
    """What makes of a text, or of two, the pieces that are given."""

    def entry(piece: int | str, part: int) -> dict[str, object]:
        if isinstance(piece, str):
            return {"Sequence": {"id": piece, "type_id": part}}
        return {"SpecialToken": {"id": vocabulary.tokens[piece], "type_id": part}}

    named = {vocabulary.tokens[at]: at for at, _ in single if isinstance(at, int)}
    return {
        "type": "TemplateProcessing",
        "single": [entry(*piece) for piece in single],
        "pair": [entry(*piece) for piece in pair],
        "special_tokens": {text: {"id": text, "ids": [at], "tokens": [text]} for text, at in named.items()},
    }

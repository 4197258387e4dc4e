"""The tokenizer.json that a GGUF file's vocabulary amounts to; here byte-level BPE and SentencePiece's BPE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from embedllm.errors import ExportError
from embedllm.export.gguf.tokenizers.components import around, whole_json
from embedllm.export.gguf.tokenizers.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from embedllm.export.gguf.tokenizers.unigram import unigram
from embedllm.export.gguf.tokenizers.vocabulary import NORMAL, PREFIX, UNKNOWN, UNUSED, Vocabulary
from embedllm.export.gguf.tokenizers.wordpiece import word_piece
from embedllm.files.nearest import nearest

_MOST_CHARACTERS = 1024  # of a token that SentencePiece made; the longest of published models have some dozens
_SPACE = "\u2581"  # in SentencePiece's tokens


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, object]:
    """Raises ExportError for a kind of tokenizer, or a pre-tokenizer, that is not known here: there is no default."""
    make = _KINDS.get(vocabulary.kind)
    if make is None:
        raise ExportError(
            f"'{vocabulary.place}' has a tokenizer of the kind '{vocabulary.kind}', which is not read; known: "
            f"{', '.join(_KINDS)}. Try the checkpoint that the file was made from."
        )
    return make(vocabulary)


def _byte_level(vocabulary: Vocabulary) -> dict[str, object]:
    rules = _pre_tokenizer(vocabulary)
    if rules.as_gemma4:
        return _gemma4(vocabulary)
    if vocabulary.merges is None:
        raise ExportError(f"'{vocabulary.place}' has no '{PREFIX}merges', which a tokenizer of this kind is made of.")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    pieces = [*_splits(rules.regexes), {**level, "use_regex": rules.as_gpt2}, *_splits(rules.byte_regexes)]
    model = {"ignore_merges": rules.ignore_merges, "byte_fallback": False, "unk_token": None, "fuse_unk": False}
    return _bpe(
        vocabulary,
        model | {"merges": list(vocabulary.merges)},
        normalizer={"type": rules.normalizer} if rules.normalizer else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": pieces},
        decoder={**level, "add_prefix_space": True, "use_regex": True},
        adds_bos=rules.adds_bos,
        pair_eos=rules.pair_eos,
    )


def _splits(regexes: Sequence[str]) -> list[dict[str, object]]:
    return [{"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
            for regex in regexes]  # fmt: skip


def _pre_tokenizer(vocabulary: Vocabulary) -> PreTokenizer:
    name = vocabulary.values.get("pre")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        problem = "no pre-tokenizer" if name is None else f"unknown pre-tokenizer '{name}'"
        raise ExportError(
            f"'{vocabulary.place}': {problem} ({PREFIX}pre); known: {', '.join(PRE_TOKENIZERS)}."
            f"{nearest(str(name), PRE_TOKENIZERS)} Take a newer file of the model, or the checkpoint that it was "
            "made from."
        )
    return PRE_TOKENIZERS[name]


def _sentencepiece(vocabulary: Vocabulary, *, spaced: bool = True) -> dict[str, object]:
    """spaced: whether a text gets a space in front where the file does not say it."""
    spaced = vocabulary.flag("add_space_prefix", spaced)
    steps: list[object] = [{"type": "Prepend", "prepend": _SPACE}] if spaced else []
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
    back: list[object] = [{"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}]
    back += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if spaced:
        back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = next((at for at, kind in enumerate(vocabulary.types) if kind == UNKNOWN), vocabulary.special("unk"))
    merges = list(vocabulary.merges) if vocabulary.merges is not None else _merges(vocabulary)
    model = {"ignore_merges": False, "byte_fallback": True, "fuse_unk": True, "merges": merges}
    return _bpe(
        vocabulary,
        model | {"unk_token": None if unknown is None else vocabulary.tokens[unknown]},
        normalizer={"type": "Sequence", "normalizers": steps},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": back},
        adds_bos=True,
    )


def _merges(vocabulary: Vocabulary) -> list[list[str]]:
    """SentencePiece joins the pair that gives the token with the highest score; here each pair has a place in a list.

    Pairs of one token, and of tokens with one score, are in the order that transformers gives them.
    """
    scores = vocabulary.scores
    if scores is None or len(set(scores)) < 2:
        raise ExportError(
            f"'{vocabulary.place}' has neither '{PREFIX}merges' nor scores that tell its tokens apart "
            f"('{PREFIX}scores'); expected one of them. Try the checkpoint that the file was made from."
        )
    token_ids = {text: at for at, text in enumerate(vocabulary.tokens) if vocabulary.types[at] == NORMAL}
    merges: list[tuple[float, int, int, list[str]]] = []
    for text, at in token_ids.items():
        if len(text) > _MOST_CHARACTERS:  # all cuts of it are tried
            raise ExportError(
                f"token {at} of '{vocabulary.place}' has {len(text):,} characters; expected {_MOST_CHARACTERS:,} at "
                "most. The file is damaged, or is no model."
            )
        pairs = ((text[:cut], text[cut:]) for cut in range(1, len(text)))
        pairs = sorted((pair for pair in pairs if pair[0] in token_ids and pair[1] in token_ids),
                       key=lambda pair: (token_ids[pair[0]], token_ids[pair[1]]))  # fmt: skip
        merges += [(scores[at], len(first), len(second), [first, second]) for first, second in pairs]
    return [each[3] for each in sorted(merges, key=lambda each: each[:3], reverse=True)]


def _bpe(vocabulary: Vocabulary, model: Mapping[str, object], *, normalizer: object, pre_tokenizer: object,
         decoder: object, adds_bos: bool, pair_eos: int = 0) -> dict[str, object]:  # fmt: skip
    """adds_bos, pair_eos: as around() has them."""
    used = {text: at for at, text in enumerate(vocabulary.tokens) if vocabulary.types[at] != UNUSED}
    parts = {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, **model}
    return whole_json(vocabulary, {"type": "BPE", **parts, "vocab": used}, normalizer=normalizer,
                      pre_tokenizer=pre_tokenizer, decoder=decoder,
                      post_processor=around(vocabulary, adds_bos=adds_bos, pair_eos=pair_eos))  # fmt: skip


def _gemma4(vocabulary: Vocabulary) -> dict[str, object]:
    """SentencePiece's BPE from merges; its scores say nothing."""
    if vocabulary.merges is None:
        raise ExportError(f"'{vocabulary.place}' has no '{PREFIX}merges', which a tokenizer of this kind is made of.")
    return _sentencepiece(vocabulary, spaced=False)


_KINDS: Mapping[str, Callable[[Vocabulary], dict[str, object]]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "gemma4": _gemma4,
    "bert": word_piece,
    "t5": unigram,
}

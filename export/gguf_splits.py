"""How texts are cut before a GGUF file's byte-level BPE, by the names in 'tokenizer.ggml.pre'.

Each is what the tokenizer.json of the models has that a name was given for; llama.cpp writes the same with other
regexes. Source: llama-vocab.cpp of llama.cpp (the names, and the original regexes in its comments).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (r"[^\r\n\p{L}\p{N}]?" + _UPPER + "*" + _LOWER + "+", r"[^\r\n\p{L}\p{N}]?" + _UPPER + "+" + _LOWER + "*")
_LATIN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_SIGNS = r" ?[\p{P}\p{S}]+[\r\n]*"
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

_ONE_DIGIT = rf"{_ENDINGS}|{_WORDS}|\p{{N}}|{_MARKS}[\r\n]*|{_SPACES}"
_THREE_DIGITS = rf"{_ENDINGS}|{_WORDS}|\p{{N}}{{1,3}}|{_MARKS}[\r\n]*|{_SPACES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """One name's rules: the text is cut at what each regex finds, and around it; then, if so, as GPT-2 does."""

    regexes: tuple[str, ...] = ()
    as_gpt2: bool = False
    normalizer: str = ""  # of the text before: "NFC"
    whole_words: bool = False  # a piece that is a token is not merged from its parts
    starts: bool = False  # the BOS comes first unless the file says otherwise


_LLAMA3 = Splits(regexes=(_THREE_DIGITS,), whole_words=True, starts=True)
_QWEN2 = Splits(regexes=(_ONE_DIGIT,))
_GPT2 = Splits(as_gpt2=True)
_DIGITS_GPT2 = Splits(regexes=(r"\p{N}",), as_gpt2=True)
_DEEPSEEK3 = Splits(regexes=(r"\p{N}{1,3}", _HAN_KANA, f"{_LATIN}|{_SIGNS}|{_SPACES}"))
_GPT4O = Splits(regexes=(rf"{_CASED[0]}{_ENDINGS}?|{_CASED[1]}{_ENDINGS}?|\p{{N}}{{1,3}}|{_MARKS}[\r\n/]*|{_SPACES}",))
_TEKKEN = Splits(
    regexes=(rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_MARKS}[\r\n/]*|{_SPACES}",), whole_words=True, starts=True
)
_QWEN35 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_SEED = rf"{_ENDINGS}|{_WORDS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"

SPLITS: Mapping[str, Splits] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
                    _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Splits(regexes=(_THREE_DIGITS,))),
    "qwen2": Splits(regexes=(_ONE_DIGIT,), normalizer="NFC"),
    "qwen35": Splits(regexes=(_QWEN35,), normalizer="NFC"),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "solar-open", "kormo"), _QWEN2),
    **dict.fromkeys(("gpt-2", "phi-2", "jais", "gigachat", "a.x-4.0", "mellum", "exaone4", "trillion",
                     "granite-docling"), _GPT2),
    **dict.fromkeys(("olmo", "mpt"), Splits(as_gpt2=True, normalizer="NFC")),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"),
                    _DIGITS_GPT2),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3),
    "deepseek-coder": Splits(regexes=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}")),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O),
    "tekken": _TEKKEN,
    "seed-coder": Splits(regexes=(_SEED,)),
}  # fmt: skip

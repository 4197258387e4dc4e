"""Pre-tokenizer regexes of a GGUF file's byte-level BPE, by the names of 'tokenizer.ggml.pre'.

Each is what the tokenizer.json of the models has that a name was given for; llama.cpp writes the same with other
regexes. Source: llama-vocab.cpp of llama.cpp (the names, and the original regexes in its comments).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (r"[^\r\n\p{L}\p{N}]?" + _UPPER + "*" + _LOWER + "+", r"[^\r\n\p{L}\p{N}]?" + _UPPER + "+" + _LOWER + "*")
_LATIN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_SIGNS = r" ?[\p{P}\p{S}]+[\r\n]*"
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
# cased letters, as DeepSeek's first tokenizer lists them: not those that Unicode has had since, and not all it had then
_LISTED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_LISTED_SIGNS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_STOPS = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"  # all up to commas and full stops
_HAN_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

_ONE_DIGIT = rf"{_ENDINGS}|{_WORDS}|\p{{N}}|{_MARKS}[\r\n]*|{_SPACES}"
_THREE_DIGITS = rf"{_ENDINGS}|{_WORDS}|\p{{N}}{{1,3}}|{_MARKS}[\r\n]*|{_SPACES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """The text is split at the matches of each regex, which are pieces too; then as GPT-2 does it, if so."""

    regexes: tuple[str, ...] = ()
    as_gpt2: bool = False
    byte_regexes: tuple[str, ...] = ()  # after that, of the letters that stand for bytes
    as_gemma4: bool = False  # no byte-level BPE: SentencePiece's, as the kind "gemma4" has it
    normalizer: str = ""  # of the text before: "NFC"
    ignore_merges: bool = False  # a piece that is a token is taken as it is
    adds_bos: bool = False  # unless the file says otherwise
    pair_eos: int = 0  # EOS tokens between the texts of a pair; 0: each text has its own ones


_LLAMA3 = PreTokenizer(regexes=(_THREE_DIGITS,), ignore_merges=True, adds_bos=True)
_QWEN2 = PreTokenizer(regexes=(_ONE_DIGIT,))
_GPT2 = PreTokenizer(as_gpt2=True)
_DIGITS_GPT2 = PreTokenizer(regexes=(r"\p{N}",), as_gpt2=True)
_DEEPSEEK3 = PreTokenizer(regexes=(r"\p{N}{1,3}", _HAN_KANA, f"{_LATIN}|{_SIGNS}|{_SPACES}"))
_GPT4O = PreTokenizer(
    regexes=(rf"{_CASED[0]}{_ENDINGS}?|{_CASED[1]}{_ENDINGS}?|\p{{N}}{{1,3}}|{_MARKS}[\r\n/]*|{_SPACES}",)
)
_TEKKEN = PreTokenizer(
    regexes=(rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_MARKS}[\r\n/]*|{_SPACES}",), ignore_merges=True, adds_bos=True
)
_QWEN35 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_SEED = rf"{_ENDINGS}|{_WORDS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_DEEPSEEK = (r"[\r\n]", rf"\s?[{_LISTED}]+", rf"\s?[{_LISTED_SIGNS}]+", r"\s+$", _HAN_HANGUL, r"\p{N}+")
_NOT_HAN = [f"{part[:-1]}&&[^\\p{{Han}}]]" for part in (_UPPER, _LOWER)]
_KIMI = "|".join((
    r"\p{Han}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_NOT_HAN[0]}*{_NOT_HAN[1]}+{_ENDINGS}?",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_NOT_HAN[0]}+{_NOT_HAN[1]}*{_ENDINGS}?", r"\p{N}{1,3}", rf"{_MARKS}[\r\n]*", _SPACES,
))  # fmt: skip
_BAILING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
            r"|\s+(?!\S)|\s+")  # fmt: skip
_PHRASES = r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"  # letters with single spaces among them
_EXAONE = rf"{_ENDINGS}|{_PHRASES}|\p{{N}}|{_MARKS}[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
_RUNS = "|".join([*(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")), r"\s{1}"])
_JAIS = rf"{_ENDINGS}|{_WORDS}|\p{{N}}{{1,3}}|{_MARKS}[\r\n]*|\s*[\r\n]+|{_RUNS}"
# the letters of East Asian scripts and the signs of these, as Youtu's tokenizer lists them
_YOUTU = ("[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
          "\ufe30-\ufe4f]+|[\u3105-\u312f]+|" + _HAN_KANA)  # fmt: skip
# scripts without spaces between words
_UNSPACED = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_NUMBERS = rf"{_ENDINGS}|{_WORDS}|\p{{N}}+|{_MARKS}[\r\n]*|{_SPACES}"

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
                     "jina-v5-nano"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), PreTokenizer(regexes=(_THREE_DIGITS,))),
    **dict.fromkeys(("qwen2", "f2llmv2"), PreTokenizer(regexes=(_ONE_DIGIT,), normalizer="NFC")),
    "qwen35": PreTokenizer(regexes=(_QWEN35,), normalizer="NFC"),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "solar-open", "kormo", "grok-2"), _QWEN2),
    **dict.fromkeys(("gpt-2", "phi-2", "jais", "gigachat", "a.x-4.0", "mellum", "exaone4", "trillion",
                     "granite-docling"), _GPT2),
    **dict.fromkeys(("olmo", "mpt"), PreTokenizer(as_gpt2=True, normalizer="NFC")),
    "modern-bert": PreTokenizer(as_gpt2=True, normalizer="NFC", pair_eos=1),
    "roberta-bpe": PreTokenizer(as_gpt2=True, pair_eos=2),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"),
                    _DIGITS_GPT2),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "deepseek-coder": PreTokenizer(regexes=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}")),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"), _GPT4O),
    "granite-embed-multi-97m": replace(_GPT4O, ignore_merges=True),
    "tekken": _TEKKEN,
    "seed-coder": PreTokenizer(regexes=(_SEED,)),
    "deepseek-llm": PreTokenizer(regexes=_DEEPSEEK),
    "kimi-k2": PreTokenizer(regexes=(_KIMI,)),
    # digits in threes from the end of a number
    **dict.fromkeys(("tiny_aya", "cohere2moe"),
                    PreTokenizer(regexes=(r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT4O.regexes))),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), PreTokenizer(regexes=(_BAILING,))),
    "exaone-moe": PreTokenizer(regexes=(_EXAONE,)),
    "jais-2": PreTokenizer(regexes=(_JAIS,)),
    "minicpm5": PreTokenizer(regexes=(r"\p{N}{1,3}", _NUMBERS), ignore_merges=True),
    "laguna": PreTokenizer(regexes=(r"[^\n]+|[\n]+", _ONE_DIGIT)),
    "falcon": PreTokenizer(regexes=(r"[\p{P}$+<=>^~|`]+",), as_gpt2=True, byte_regexes=(r"\p{N}+", "[0-9]{3}")),
    "ufakzeka": PreTokenizer(regexes=(rf"{_WORDS}|\p{{N}}|{_MARKS}[\r\n]*|{_SPACES}",)),
    # numbers are cut into threes from their end, also in what follows letters
    "superbpe": PreTokenizer(regexes=(r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "afmoe": PreTokenizer(
        regexes=(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _UNSPACED, f"{_LATIN}|{_SIGNS}|{_SPACES}")
    ),
    "spark2_5": PreTokenizer(
        regexes=(r"\p{N}{1,3}", _HAN_KANA, rf"{_LATIN}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")
    ),
    "youtu": PreTokenizer(
        regexes=(
            _YOUTU,
            rf"{_CASED[0]}{_ENDINGS}?|{_CASED[1]}{_ENDINGS}?|\p{{N}}|{_MARKS}[\r\n/]*|{_SPACES}",
        ),
        ignore_merges=True,
    ),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m", "sarvam-moe"), PreTokenizer(as_gemma4=True)),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), PreTokenizer(regexes=(_STOPS,))),
    "viking": PreTokenizer(regexes=(_STOPS, r"\p{N}")),
}  # fmt: skip

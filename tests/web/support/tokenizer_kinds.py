"""Tiny tokenizers of the kinds that model families use, and strings that trouble tokenizers."""

# ruff: noqa: RUF001 # letters that look like others are what is wanted here

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.support.gguf_tokenizers import CHARSMAP, train_unigram, train_word_piece

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, isn't it? I'll say we've DON'T.",
    "Ein Igel läuft über die Straße, naïvely. ÅNGSTRÖM Ångström",
    "日本語の文章です。東京へ行きます。 한국어 문장입니다. Привет, мир! مرحبا بالعالم नमस्ते दुनिया",
    "Emoji: 😀😃 👩‍👩‍👧‍👦 🇩🇪 👍🏽 and so on ❤️",
    "    indented\n\tif code(x) == 'y':  # twice  spaced\r\n        return [1, 23, 456, 7890][0]\n\n\n",
    "½ ² Ⅷ ٣٤ ① 12345678901234567890 3.14e-10 0xFF",
    "fi ﬀ Ω Å é e\u0301 ｆｕｌｌ　ｗｉｄｔｈ ﷺ Ǆ \u1e9b\u0323",
    "a\u00a0b\u2003c\u200bd\ufeffe\u0085f\u2028g\u3000h\x0bi\x0cj\x1fk\x00l\u180em\u00adn",
    "a genuine replacement \ufffd\ufffd character; ſomething K (kelvin) we'ſ I'ſ",
    "<s> </s> <unk> <|im_start|>user<|im_end|> <tool_call>x</tool_call> <pad><mask> two words  twowords",
    "▁ ▁▁ Ġ Ċ <0x41> <0xE6><0x97> ##ing  $& $1 \\d",
]
ALPHABET = sorted(set("".join(SENTENCES)))
SPECIAL = [
    "<s>",
    "</s>",
    "<unk>",
    "<|im_start|>",
    "<|im_end|>",
    "<pad>",
    "<mask>",
    "<tool_call>",
    "two words",
    "▁x",
    "é",
]
SPACES = " \t\n\r\x0b\x0c\x1c\x1f\x85\u00a0\u1680\u2003\u2028\u2029\u202f\u3000\u200b\ufeff\u180e"
JOINED = [
    "👩‍👩‍👧‍👦",
    "🇩🇪",
    "👍🏽",
    "e\u0301\u0323",
    "\u0301",
    "\u200d",
    "각",
    "\u1112\u1161\u11ab",
    "ﬃ",
    "'ll",
    "'S",
    "ſ",
]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
    r"\s*[\r\n]|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace("{1,3}", "")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!-/:-~]?[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]


def strings(seed: int, count: int) -> Iterator[str]:
    """The sentences, and random mixtures of what is in them."""
    chance = random.Random(seed)
    yield from [
        "",
        " ",
        "  ",
        "\n",
        "a",
        "😀",
        "x" * 3000,
        "ab " * 700,
        " " * 500 + "x",
        "9" * 50,
        *SENTENCES,
        *SPECIAL,
    ]
    parts = [*SENTENCES, *JOINED, *SPECIAL, *"".join(SENTENCES).split(), *ALPHABET, *SPACES, *SPACES]
    for _ in range(count):
        piece = "".join(
            chance.choice(parts)[: chance.choice([1, 3, 10, 99])] if chance.random() < 0.6 else chance.choice(ALPHABET)
            for _ in range(chance.randint(1, 25))
        )
        yield "".join(letter for letter in piece if not "\ud800" <= letter <= "\udfff")


def byte_level(pre_tokenizer: pre_tokenizers.PreTokenizer | None = None, *, ignore_merges: bool = False) -> Tokenizer:
    """As GPT-2's: every token is a run of bytes."""
    engine = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    engine.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    engine.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=500, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
        ),
    )
    return engine


def split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    """Patterns one after the other, then bytes, as Llama 3's and its likes'."""
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2() -> Tokenizer:
    engine = byte_level()
    engine.add_tokens(["<tool_call>", "two words", "é"])
    engine.post_processor = processors.ByteLevel(trim_offsets=False)
    return engine


def gpt2_prefix() -> Tokenizer:
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))


def llama3() -> Tokenizer:
    engine = byte_level(split(LLAMA3), ignore_merges=True)
    engine.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    template = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)])
    engine.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return engine


def qwen() -> Tokenizer:
    engine = byte_level(split(QWEN))
    engine.normalizer = normalizers.NFC()
    engine.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    engine.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return engine


def o200k() -> Tokenizer:
    return byte_level(split(O200K))


def cl100k() -> Tokenizer:
    return byte_level(split(CL100K))


def bailing() -> Tokenizer:
    """Endings without case in a class: of the letters there two have a third form."""
    return byte_level(split(r"'(?i:[sdmt]|ll|ve|re|[k-l])|\p{L}+|\p{N}|[^\p{L}\p{N}]"))


def deepseek() -> Tokenizer:
    return byte_level(split(*DEEPSEEK))


def starcoder() -> Tokenizer:
    """Digits apart, then bytes."""
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return byte_level(pre_tokenizers.Sequence(steps))


def falcon() -> Tokenizer:
    steps = [
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    ]
    return byte_level(pre_tokenizers.Sequence(steps))


def pieces_of_bytes(*, prepend: bool, fuse: bool = True) -> Tokenizer:
    """As Llama 2's: "▁" for spaces, unknown characters as byte tokens."""
    letters = [letter for letter in ALPHABET if (letter.isalpha() and ord(letter) < 256) or letter in ".,日語の\n"]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trained.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    merges = [tuple(merge) for merge in json.loads(trained.to_str())["model"]["merges"]]
    kept = [(a, b) for a, b in merges if set(a + b) <= {*letters, "▁"}]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = dict.fromkeys(
        ["<unk>", "<s>", "</s>", *byte_tokens, "▁", *letters, *(a + b for a, b in kept), "\ufffd"]
    )
    engine = Tokenizer(
        models.BPE(
            vocab={piece: token for token, piece in enumerate(vocabulary)},
            merges=kept,
            unk_token="<unk>",
            fuse_unk=fuse,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    engine.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prepend else spaces
    strip = [decoders.Strip(" ", 1, 0)] if prepend else []
    engine.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    engine.add_special_tokens(["<unk>", "<s>", "</s>"])
    engine.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return engine


def llama2() -> Tokenizer:
    return pieces_of_bytes(prepend=True)


def gemma() -> Tokenizer:
    engine = pieces_of_bytes(prepend=False)
    engine.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    engine.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("▁▁", normalized=False)])
    return engine


def mistral(scheme: str = "first") -> Tokenizer:
    """Metaspace in the place of the normalizer, as newer conversions have it."""
    engine = pieces_of_bytes(prepend=True)
    engine.normalizer = None  # pyright: ignore[reportAttributeAccessIssue] # None takes it away
    engine.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=scheme == "always")
    return engine


def mistral_always() -> Tokenizer:
    engine = mistral("always")
    engine.decoder = decoders.Metaspace()
    return engine


def without_bytes() -> Tokenizer:
    """Characters, the unknown ones as <unk>, each for itself."""
    engine = pieces_of_bytes(prepend=False, fuse=False)
    data = json.loads(engine.to_str())
    data["model"]["byte_fallback"] = False
    return Tokenizer.from_str(json.dumps(data))


def fused_unknown() -> Tokenizer:
    data = json.loads(without_bytes().to_str())
    data["model"]["fuse_unk"] = True
    return Tokenizer.from_str(json.dumps(data))


def unigram() -> Tokenizer:
    """As T5's."""
    engine = Tokenizer(models.Unigram())
    engine.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.decoder = decoders.Metaspace()
    engine.train_from_iterator(
        SENTENCES,
        trainers.UnigramTrainer(
            vocab_size=200, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
        ),
    )
    return engine


def unigram_bytes() -> Tokenizer:
    """With byte tokens for what is unknown."""
    data = json.loads(unigram().to_str())
    data["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    data["model"]["byte_fallback"] = True
    engine = Tokenizer.from_str(json.dumps(data))
    engine.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return engine


def word_piece() -> Tokenizer:
    """As BERT's, lower case."""
    engine = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    engine.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()])
    engine.decoder = decoders.WordPiece()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    engine.train_from_iterator(
        SENTENCES, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    engine.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return engine


def bert() -> Tokenizer:
    return train_word_piece(lowercase=True)


def bert_cased() -> Tokenizer:
    """As BERT's with accents kept and Han characters in their words."""
    engine = train_word_piece(lowercase=False)
    engine.normalizer = normalizers.BertNormalizer(handle_chinese_chars=False, lowercase=False)  # type: ignore[assignment]
    return engine


def xlm_roberta() -> Tokenizer:
    """SentencePiece's map of characters, and words with a space in front."""
    return train_unigram()


def t5_mapped() -> Tokenizer:
    """The map of characters among other steps, as newer conversions have it."""
    engine = unigram()
    steps = [
        normalizers.Strip(left=False, right=True),
        normalizers.Nmt(),
        normalizers.Precompiled(CHARSMAP),
        normalizers.NFKD(),
        normalizers.Replace(Regex(" {2,}"), "▁"),
    ]
    engine.normalizer = normalizers.Sequence(steps)  # type: ignore[assignment]
    return engine


def smollm() -> Tokenizer:
    """Digits apart, then bytes, of which the vocabulary lacks some; nothing stands for what is unknown."""
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Sequence(steps)  # type: ignore[assignment]
    engine.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False)
    engine.train_from_iterator(SENTENCES[:1] * 2 + SENTENCES[3:5] * 2, trainer)
    return engine


def mpt() -> Tokenizer:
    """As GPT-NeoX's: composed letters, runs of spaces as added tokens, and bytes that no text has left out."""
    engine = smollm()
    engine.normalizer = normalizers.NFC()  # type: ignore[assignment]
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    engine.add_tokens([AddedToken(" " * count) for count in range(9, 1, -1)])
    return engine


def bytes_first() -> Tokenizer:
    """Bytes in place of letters before the text is cut."""
    engine = byte_level(pre_tokenizers.Split(Regex("Ġ"), "merged_with_next"))
    engine.normalizer = normalizers.ByteLevel()  # type: ignore[assignment]
    return engine


def unknown_unknown() -> Tokenizer:
    """With the name of an unknown token that is none; all that texts hold is known."""
    engine = pieces_of_bytes(prepend=False)
    data = json.loads(engine.to_str())
    data["model"]["unk_token"] = "<nothing>"
    return Tokenizer.from_str(json.dumps(data))


def flags() -> Tokenizer:
    """Added tokens with every flag, some of them of one text with others' beginnings."""
    engine = byte_level(split(LLAMA3))
    engine.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()])
    engine.add_tokens(
        [
            AddedToken("<mask>", lstrip=True, special=True),
            AddedToken("<pad>", rstrip=True, normalized=False),
            AddedToken("fox", single_word=True),
            AddedToken("the", single_word=True, normalized=False, lstrip=True, rstrip=True),
            AddedToken("two words"),
            AddedToken("twowords", normalized=False),
            AddedToken("Straße", normalized=True),
            AddedToken("<tool", normalized=False),
            AddedToken("<tool_call>", normalized=False, special=True),
            AddedToken("ſ", normalized=True),
            AddedToken("  ", normalized=False),
        ]
    )
    return engine


CONFIGS: dict[str, dict[str, object]] = {
    "qwen": {"eos_token": "<|im_end|>", "additional_special_tokens": ["<new>"], "image_token": "<image>"},
    "llama3": {"bos_token": "<s>", "eos_token": "<|im_end|>", "split_special_tokens": True},
    "llama2": {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": True}, "add_bos_token": False},
    "starcoder": {"added_tokens_decoder": {"7": {"content": "<pad>"}, "3": {"content": "<mask>", "special": True}}},
    "flags": {"eos_token": "<tool_call>", "pad_token": "dog", "extra_special_tokens": {"sound_token": "<sound>"}},
}
KINDS: tuple[Callable[[], Tokenizer], ...] = (
    gpt2, gpt2_prefix, llama3, qwen, o200k, cl100k, bailing, deepseek, starcoder, falcon, llama2, gemma, mistral,
    mistral_always, without_bytes, fused_unknown, unigram, unigram_bytes, word_piece, bert, bert_cased, xlm_roberta,
    t5_mapped, smollm, mpt, bytes_first, unknown_unknown, flags,
)  # fmt: skip

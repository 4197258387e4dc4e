"""Tokenizer, token stream and stop strings, on tiny tokenizers trained here."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import embedllm
from embedllm.errors import PackageError
from embedllm.text.stream import StopStrings, TextStream, text_after
from embedllm.text.tokenizer import Tokenizer
from tests.web.support.tokenizer_kinds import KINDS

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Ein Igel läuft über die Straße, naïvely.",
    "日本語の文章です。東京へ行きます。",
    "Emoji: 😀😃 👩‍👩‍👧‍👦 🇩🇪 and so on 😀",
    "    indented\n\tcode(x) == 'y'  # twice  spaced",
    "a genuine replacement \ufffd\ufffd character",
]


def byte_level() -> tokenizers.Tokenizer:
    """As GPT-2's, Llama 3's, Qwen's: every token is a run of bytes."""
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    engine.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=400, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
        ),
    )
    engine.add_tokens(["<tool_call>", "two words"])
    return engine


def byte_fallback() -> tokenizers.Tokenizer:
    """As Llama 2's: "▁" for spaces, one put in front and taken away again, unknown characters as byte tokens."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [*sorted(set("".join(SENTENCES[:2])) - {" "}), "▁", "\ufffd", "th", "▁th", "▁▁"]
    engine = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: token for token, piece in enumerate(pieces)},
            merges=[("t", "h"), ("▁", "th"), ("▁", "▁")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    engine.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    engine.add_special_tokens(["<unk>", "<s>", "</s>"])
    engine.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return engine


def metaspace() -> tokenizers.Tokenizer:
    """As T5's and many Unigram tokenizers'."""
    engine = tokenizers.Tokenizer(models.Unigram())
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.decoder = decoders.Metaspace()
    engine.train_from_iterator(
        SENTENCES,
        trainers.UnigramTrainer(
            vocab_size=120, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
        ),
    )
    return engine


def word_piece() -> tokenizers.Tokenizer:
    """As BERT's: a space before every token that does not continue a word."""
    engine = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    engine.train_from_iterator(
        SENTENCES, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    )
    return engine


BUILDERS = (byte_level, byte_fallback, metaspace, word_piece)
TOKENIZERS = {build.__name__: Tokenizer(build(), named={}) for build in BUILDERS}


def folder_of(engine: tokenizers.Tokenizer, folder: Path, **files: object) -> Path:
    """A model folder with this tokenizer; files: the content of NAME.json."""
    engine.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


# --- Tokenizer


def test_importing_text_loads_the_standard_library_only() -> None:
    code = "import sys, embedllm.text.tokenizer; print(*{'tokenizers', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_encode_adds_bos_only_when_special(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = Tokenizer.open(folder_of(byte_fallback(), tmp_path, tokenizer_config=config))
    plain = tokenizer.encode("the fox", special=False)
    assert tokenizer.encode("the fox", special=True) == [1, *plain]
    assert (tokenizer.bos, tokenizer.eos) == (1, 2)
    assert tokenizer.decode([1, *plain]) == "the fox"
    assert tokenizer.decode([1, *plain], special=True) == "<s> the fox"
    assert tokenizer.token_text(plain[0]) == "▁th"
    assert tokenizer.token_text(10**6) is None
    assert tokenizer.token_id("</s>") == 2
    assert tokenizer.size == len(byte_fallback().get_vocab())


def test_a_long_text_leaves_python_to_other_threads_while_it_is_encoded() -> None:
    tokenizer, text = Tokenizer.open(Path(embedllm.__file__).parent / "demo"), "list all files by size, "
    short = tokenizer.encode(text * 100, special=False)
    is_done, turns = threading.Event(), 0

    def encode() -> None:
        found.append(tokenizer.encode(text * 30_000, special=False))
        is_done.set()

    found: list[Sequence[int]] = []
    thread = threading.Thread(target=encode)
    thread.start()
    while not is_done.wait(0.001):
        turns += 1
    thread.join()
    assert list(found[0][: len(short) - 1]) == list(short[:-1])
    assert turns > 20  # one or two where the lock is held from the beginning to the end


@pytest.mark.parametrize("flag", [True, False])
def test_add_bos_token_is_ignored_beside_tokenizer_json(tmp_path: Path, flag: bool) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": flag, "add_eos_token": flag}
    tokenizer = Tokenizer.open(folder_of(byte_level(), tmp_path, tokenizer_config=config))
    assert tokenizer.encode("dog", special=True) == tokenizer.encode("dog", special=False)


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path: Path) -> None:
    engine = byte_level()
    engine.enable_truncation(2)
    engine.enable_padding(length=50)
    tokenizer = Tokenizer.open(folder_of(engine, tmp_path))
    text = SENTENCES[0]
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text
    assert tokenizer.eos is None


def test_a_named_token_is_special_whatever_tokenizer_json_says(tmp_path: Path) -> None:
    config = {"eos_token": "<tool_call>", "pad_token": {"content": "<pad>"}, "additional_special_tokens": ["<extra>"]}
    tokenizer = Tokenizer.open(folder_of(byte_level(), tmp_path, tokenizer_config=config))
    assert tokenizer.eos in tokenizer.special_tokens
    assert tokenizer.decode(tokenizer.encode("dog<tool_call><pad><extra>", special=False)) == "dog"


def test_a_missing_tokenizer_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"no tokenizer\.json\. Copy it"):
        Tokenizer.open(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(PackageError, match=r"only 'vocab\.json' and 'merges\.txt'.*save_pretrained"):
        Tokenizer.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": "1.0"}', b"\xff\xfe"])
def test_a_damaged_tokenizer_is_a_package_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(PackageError, match=r"tokenizer\.json' is not a tokenizer"):
        Tokenizer.open(tmp_path)


@pytest.mark.parametrize(
    "config",
    ["", "[]", '{"eos_token": {"id": 3}}', '{"added_tokens_decoder": {"x": {}}}', '{"extra_special_tokens": 3}'],
)
def test_a_damaged_tokenizer_config_is_a_package_error(tmp_path: Path, config: str) -> None:
    folder = folder_of(byte_level(), tmp_path)
    (folder / "tokenizer_config.json").write_text(config)
    with pytest.raises(PackageError, match="tokenizer_config"):
        Tokenizer.open(folder)


# --- TextStream


def pieces_of(tokenizer: Tokenizer, tokens: list[int], *, special: bool = False) -> list[str]:
    stream = TextStream(tokenizer, special=special)
    return [*(stream.push(token) for token in tokens), stream.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data(), special=st.booleans())
def test_the_pieces_of_any_tokens_are_together_their_text(name: str, data: st.DataObject, special: bool) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = data.draw(st.lists(st.integers(0, tokenizer.size + 2), max_size=60))
    assert "".join(pieces_of(tokenizer, tokens, special=special)) == tokenizer.decode(tokens, special=special)


WITH_KINDS = TOKENIZERS | {build.__name__: Tokenizer(build(), named={}) for build in KINDS}


@pytest.mark.parametrize("name", WITH_KINDS)
@given(data=st.data(), special=st.booleans())
def test_a_prompt_and_its_continuation_are_the_text_of_all_tokens(
    name: str, data: st.DataObject, special: bool
) -> None:
    tokenizer = WITH_KINDS[name]
    prompt, reply = (data.draw(st.lists(st.integers(0, tokenizer.size + 2), max_size=30)) for _ in range(2))
    before = tokenizer.decode(prompt, special=special)
    whole = tokenizer.decode([*prompt, *reply], special=special)
    assume(not before.endswith("\ufffd"))  # it may end within a character, which the reply then completes
    assume(whole.startswith(before))  # bytes of the reply may make no text of bytes of the prompt
    assert before + text_after(tokenizer, prompt, reply, special=special) == whole


@given(data=st.data())
def test_the_pieces_of_any_bytes_are_together_their_text(data: st.DataObject) -> None:
    # Bytes that nearly are UTF-8, drawn far more often than whole vocabularies would give them.
    encoded = ["é", "日", "😀", "\ufffd", "a", " "]
    parts = st.sampled_from([text.encode()[:size] for text in encoded for size in range(1, 5)] + [b"\xff", b"\x98"])
    stream = b"".join(data.draw(st.lists(parts, max_size=40)))
    fallback = TOKENIZERS["byte_fallback"]
    tokens = [fallback.token_id(f"<0x{byte:02X}>") for byte in stream]
    between = data.draw(st.lists(st.sampled_from([0, 1, 2, *range(259, fallback.size)]), max_size=5))
    tokens = [token for token in tokens if token is not None]
    for token in between:
        tokens.insert(data.draw(st.integers(0, len(tokens))), token)
    assert "".join(pieces_of(fallback, tokens)) == fallback.decode(tokens)
    level = TOKENIZERS["byte_level"]
    letters = byte_letters()
    tokens = [token for byte in stream if (token := level.token_id(letters[byte])) is not None]
    assert len(tokens) == len(stream)
    assert level.decode(tokens) == stream.decode(errors="replace")
    assert "".join(pieces_of(level, tokens)) == stream.decode(errors="replace")


def byte_letters() -> dict[int, str]:
    """The character that stands for each byte in a byte-level vocabulary. Source: GPT-2's encoder."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(other)}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_text_comes_at_once_where_no_character_is_open(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode(SENTENCES[0], special=False)
    pieces = pieces_of(tokenizer, tokens)
    assert pieces[-1] == ""
    assert all(pieces[1:-1])


def test_a_character_split_over_tokens_comes_whole() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    tokens = tokenizer.encode("日 o", special=False)  # "▁", three byte tokens, "▁", "o"
    assert pieces_of(tokenizer, tokens) == ["", "", "", "", "日 ", "o", ""]


def test_a_genuine_replacement_character_is_kept() -> None:
    for tokenizer in (TOKENIZERS["byte_fallback"], TOKENIZERS["byte_level"]):
        text = "a \ufffd\ufffd b\ufffd"
        assert "".join(pieces_of(tokenizer, tokenizer.encode(text, special=False))) == text


def test_the_cost_of_a_token_does_not_grow_with_the_text() -> None:
    tokenizer = TOKENIZERS["byte_level"]

    class Counting:
        """The tokenizer, noting the longest sequence that it is asked to decode."""

        longest = decoded = 0
        size, bos, eos, special_tokens = tokenizer.size, tokenizer.bos, tokenizer.eos, tokenizer.special_tokens
        encode, token_text, appended_text = tokenizer.encode, tokenizer.token_text, tokenizer.appended_text

        def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
            self.decoded += 1
            self.longest = max(self.longest, len(tokens))
            return tokenizer.decode(tokens, special=special)

    for token in ("a", "\u00ff"):  # the letter, and a byte that is never valid
        counting = Counting()
        stream = TextStream(counting)
        number = tokenizer.token_id(token)
        assert number is not None
        text = "".join([*(stream.push(number) for _ in range(2000)), stream.flush()])
        assert text == tokenizer.decode([number] * 2000)
        assert counting.longest <= 16
        assert counting.decoded < 10 or token != "a"  # a token of whole characters is not decoded with those before it


# --- StopStrings


def naive(text: str, strings: list[str]) -> tuple[str, str | None]:
    """The text before the first match, and the match: all of the text is at hand."""
    for start in range(len(text)):
        for string in sorted(strings, key=len):
            if text.startswith(string, start):
                return text[:start], string
    return text, None


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=5), max_size=4), st.data())
def test_stop_strings_find_what_a_search_of_the_whole_text_finds(
    text: str, strings: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    stop = StopStrings(strings)
    given_out = "".join([*(stop.push(piece) for piece in pieces), stop.flush()])
    assert (given_out, stop.matched) == naive(text, strings)


def test_only_the_text_that_could_become_a_match_is_held_back() -> None:
    stop = StopStrings(["\nUser:", "###"])
    assert stop.push("Hello\nUse") == "Hello"
    assert stop.push("ful #") == "\nUseful "
    assert stop.push("#") == ""
    assert stop.push("x") == "##x"
    assert stop.matched is None
    assert stop.push("bye\nUser: more") == "bye"
    assert stop.matched == "\nUser:"
    assert stop.push("never") == ""
    assert stop.flush() == ""


def test_the_match_that_begins_first_wins_though_another_ends_first() -> None:
    stop = StopStrings(["bc", "abcd"])
    assert stop.push("xabc") == "x"
    assert stop.matched is None
    assert stop.push("d") == ""
    assert stop.matched == "abcd"


@pytest.mark.parametrize("strings", [[""], ["a", ""], "abc", [3]])
def test_stop_strings_that_cannot_be_meant_are_refused(strings: list[str]) -> None:
    with pytest.raises(ValueError, match="stop strings"):
        StopStrings(strings)


# --- against transformers


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True},
        {"bos_token": "<s>", "eos_token": "<tool_call>", "add_bos_token": False},
        {"eos_token": "the", "additional_special_tokens": ["<new>"], "image_token": "<image>"},
    ],
)
def test_tokens_and_text_are_those_of_transformers(
    tmp_path: Path, build: Callable[[], tokenizers.Tokenizer], config: dict[str, object]
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = folder_of(build(), tmp_path, tokenizer_config={**config, "tokenizer_class": "PreTrainedTokenizerFast"})
    ours, theirs = Tokenizer.open(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs.special_tokens_map == ours.named
    assert (ours.bos, ours.eos) == (theirs.bos_token_id, theirs.eos_token_id)
    for text in [*SENTENCES, "the<tool_call><new>two words</s>", ""]:
        for special in (True, False):
            assert ours.encode(text, special=special) == theirs.encode(text, add_special_tokens=special)
    for start in range(0, ours.size, 7):
        tokens = list(range(start, min(start + 13, ours.size)))
        for special in (True, False):
            assert ours.decode(tokens, special=special) == theirs.decode(tokens, skip_special_tokens=not special)

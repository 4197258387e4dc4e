"""The bytes of tokens are those of the text that the tokenizer decodes them to."""

from __future__ import annotations

import pytest

from embedllm.errors import PackageError
from embedllm.text.token_bytes import token_bytes
from embedllm.text.tokenizer import Tokenizer


def test_gpt2s_alphabet_is_bytes_and_what_is_not_of_it_is_itself() -> None:
    found = token_bytes({"a": 0, "Ġb": 1, "ÃĊ": 2, "Ċ": 3, "日": 4}, {6: "<é>"}, {"type": "ByteLevel"})
    assert found == [b"a", b" b", b"\xc3\n", b"\n", "日".encode(), b"", "<é>".encode()]


def test_byte_fallback_and_metaspace_are_read() -> None:
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    decoder = {"type": "Sequence", "decoders": steps}
    assert token_bytes({"<0xE6>": 0, "▁a▁": 1, "<0xzz>": 2}, {}, decoder) == [b"\xe6", b" a ", b"<0xzz>"]
    assert token_bytes({"▁a": 0, "<0xE6>": 1}, {}, {"type": "Metaspace"}) == [b" a", b"<0xE6>"]


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece"}])
def test_another_decoder_is_an_error(decoder: dict[str, object] | None) -> None:
    with pytest.raises(PackageError, match=r"the tokenizer's decoder is (missing|WordPiece); a grammar reads"):
        token_bytes({"a": 0}, {}, decoder)


def test_the_bytes_of_the_demo_models_tokens_are_those_of_its_decoder() -> None:
    from embedllm.loading.resolve import package_folder

    tokenizer = Tokenizer.open(package_folder("demo"))
    found = tokenizer.token_bytes()
    assert len(found) == tokenizer.size
    for token in range(0, tokenizer.size, 7):
        assert found[token].decode(errors="replace") == tokenizer.decode([token], special=True), token

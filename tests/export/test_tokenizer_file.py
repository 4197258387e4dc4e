"""What a package's tokenizer has of the files beside tokenizer.json, and what is said of one that lacks something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import embedllm
from embedllm.errors import ExportError
from embedllm.export import Recipe, convert, encoders
from embedllm.export.architectures import families
from embedllm.export.writing import tokenizer_class
from embedllm.export.writing.tokenizer_class import byte_level_class
from embedllm.export.writing.tokenizer_file import read_tokenizer
from embedllm.package.package import open_package
from embedllm.text.tokenizer import Tokenizer
from tests.support.tiny import tiny_checkpoint, write_tokenizer

NEAREST = Recipe(method="nearest")
TEXTS = ("hello, world", " two  spaces", "a<|im_end|>b <note>c", "x<note>", "東京 1 2")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def edit(path: Path, **changed: object) -> None:
    """Sets keys of a JSON file; None removes one."""
    found = {**(json.loads(path.read_text()) if path.exists() else {}), **changed}
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))


def ending_by(checkpoint: Path, eos: object = None) -> Path:
    """The checkpoint with this eos_token_id in config.json, and without generation_config.json."""
    (checkpoint / "generation_config.json").unlink(missing_ok=True)
    edit(checkpoint / "config.json", eos_token_id=eos)
    return checkpoint


# Stop tokens


@pytest.mark.parametrize(
    ("config", "eos", "stop"),
    [
        (None, "<|im_end|>", (2, 0)),
        (1, "<|im_end|>", (1, 2, 0)),
        ([2, 5], "<|im_end|>", (2, 5, 0)),
        (None, {"content": "a", "lstrip": False}, (67, 0, 2)),
        (None, None, (0, 2)),
    ],
)
def test_a_reply_ends_at_the_tokens_of_the_config_of_the_tokenizer_and_of_known_texts(
    config: object, eos: object, stop: tuple[int, ...], tmp_path: Path
) -> None:
    checkpoint = ending_by(tiny_checkpoint(tmp_path / "checkpoint"), config)
    edit(checkpoint / "tokenizer_config.json", eos_token=eos)
    assert open_package(convert(checkpoint, tmp_path / "package", NEAREST)).stop_tokens == stop


def renamed(checkpoint: Path, **texts: str) -> None:
    """Gives tokens of tokenizer.json other texts."""
    path = checkpoint / "tokenizer.json"
    written = path.read_text()
    for old, new in texts.items():
        written = written.replace(f"<|{old}|>", f"<|{new}|>")
    path.write_text(written)


def test_a_model_whose_replies_have_messages_goes_on_at_their_ends(tmp_path: Path) -> None:
    """gpt-oss thinks in one message and answers in the next, even where its tokenizer calls "<|end|>" the EOS token."""
    checkpoint = ending_by(tiny_checkpoint(tmp_path / "checkpoint"))
    renamed(checkpoint, endoftext="return", im_start="end", im_end="call")
    edit(checkpoint / "tokenizer_config.json", eos_token="<|end|>", pad_token=None)
    assert read_tokenizer(checkpoint).tokenizer.ends == [0, 2]


def test_an_export_says_that_no_stop_token_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = ending_by(tiny_checkpoint(tmp_path / "checkpoint"))
    renamed(checkpoint, endoftext="pad", im_end="im_stop")
    edit(checkpoint / "tokenizer_config.json", eos_token=None, pad_token=None)
    assert open_package(convert(checkpoint, tmp_path / "package", NEAREST)).stop_tokens == ()
    assert "no stop token is known: a reply goes on up to max_tokens" in caplog.text


def test_a_tokenizer_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint")
    (checkpoint / "tokenizer.json").write_text("{}")
    with pytest.raises(ExportError, match=f"the tokenizer of '{checkpoint}' cannot be used"):
        convert(checkpoint, tmp_path / "package", NEAREST)


# add_prefix_space


def spaced(checkpoint: Path, model_type: str, pre_tokenizer: object = BYTE_LEVEL, **tokenizer_config: object) -> bool:
    """Whether a text gets a space in front."""
    edit(checkpoint / "config.json", model_type=model_type)
    edit(checkpoint / "tokenizer.json", pre_tokenizer=pre_tokenizer)
    edit(checkpoint / "tokenizer_config.json", **tokenizer_config)
    tokenizer = read_tokenizer(checkpoint).tokenizer
    return tokenizer.decode(tokenizer.encode("world", special=False)) == " world"


SPACED = [
    ("llama", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, True),
    ("llama", {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True}, True),
    ("llama", {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}, False),
    ("llama", {"tokenizer_class": "GPT2Tokenizer"}, False),
    ("llama", {"add_prefix_space": True}, False),
    ("gpt2", {"add_prefix_space": True}, True),
    ("qwen3", {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}, False),
    ("qwen2", {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}, True),
    ("qwen2", {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": True}, True),
    ("granite", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, False),
    ("mistral", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, False),
]


@pytest.mark.parametrize(("model_type", "tokenizer_config", "has_space"), SPACED)
def test_a_space_is_put_in_front_by_the_classes_of_transformers_that_do(
    model_type: str, tokenizer_config: dict[str, object], has_space: bool, tmp_path: Path
) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint")
    assert spaced(checkpoint, model_type, **tokenizer_config) is has_space


def test_such_a_class_takes_the_space_of_tokenizer_json_away(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint")
    leading = {**BYTE_LEVEL, "add_prefix_space": True}
    assert not spaced(checkpoint, "gpt2", leading, tokenizer_class="GPT2Tokenizer", add_prefix_space=False)
    assert spaced(checkpoint, "llama", leading, tokenizer_class="PreTrainedTokenizerFast", add_prefix_space=False)


def test_the_package_has_what_counts_and_one_without_a_change_the_file_as_it_is(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "qwen2")
    same = convert(checkpoint, tmp_path / "same", NEAREST)
    assert (same / "tokenizer.json").read_bytes() == (checkpoint / "tokenizer.json").read_bytes()
    split = {"type": "Split", "pattern": {"Regex": r"\s?\w+"}, "behavior": "Isolated", "invert": False}
    sequence = {"type": "Sequence", "pretokenizers": [split, {**BYTE_LEVEL, "use_regex": False}]}
    assert spaced(checkpoint, "qwen2", sequence, add_prefix_space=True)
    package = convert(checkpoint, tmp_path / "package", NEAREST)
    tokenizer = Tokenizer.open(package)
    assert tokenizer.decode(tokenizer.encode("world", special=False)) == " world"


# added_tokens.json


def test_a_token_that_only_added_tokens_json_has_is_known(tmp_path: Path) -> None:
    checkpoint, size = tiny_checkpoint(tmp_path / "checkpoint", vocab_size=312), 307
    write_tokenizer(checkpoint, size)
    edit(checkpoint / "tokenizer_config.json", eos_token="<end>")
    (checkpoint / "added_tokens.json").write_text(json.dumps({"<end>": size + 1, "<note>": size, "<|im_start|>": 1}))
    package = convert(ending_by(checkpoint), tmp_path / "package", NEAREST)
    tokenizer = Tokenizer.open(package)
    assert [tokenizer.token_id(text) for text in ("<note>", "<end>", "<|im_start|>")] == [size, size + 1, 1]
    assert tokenizer.encode("<note><end>", special=False) == [size, size + 1]
    assert {size, size + 1} & tokenizer.special_tokens == {size + 1}
    assert Tokenizer.open(checkpoint).encode("a<note>", special=False)[1:] == [size]
    assert open_package(package).stop_tokens[0] == size + 1
    assert not (package / "added_tokens.json").exists()


def test_added_tokens_json_counts_for_nothing_beside_added_tokens_decoder(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint")
    edit(checkpoint / "tokenizer_config.json", added_tokens_decoder={})
    (checkpoint / "added_tokens.json").write_text(json.dumps({"<note>": 300}))
    assert read_tokenizer(checkpoint).tokenizer.token_id("<note>") is None


def test_a_damaged_added_tokens_json_is_named(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint")
    for content in ("[]", '{"<note>": "300"}'):
        (checkpoint / "added_tokens.json").write_text(content)
        with pytest.raises(ExportError, match=r"added_tokens\.json"):
            read_tokenizer(checkpoint)


# Tokens without a row


def test_tokens_whose_rows_an_export_leaves_out_are_those_of_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Apertus 1.5's codes of images and audio: another tokenizer, which the warning tells to take, would not help."""
    pytest.importorskip("torch")
    from tests.support.families import FAMILIES, make_checkpoint

    checkpoint = tmp_path / "checkpoint"
    make_checkpoint(checkpoint, FAMILIES["apertus1p5_text"])  # 307 tokens that it writes, of 320
    edit(checkpoint / "tokenizer_config.json", additional_special_tokens=[f"<{n}>" for n in range(13)])
    convert(checkpoint, tmp_path / "package", NEAREST)
    assert "embedding rows" not in caplog.text
    edit(checkpoint / "tokenizer_config.json", additional_special_tokens=[f"<{n}>" for n in range(14)])
    convert(checkpoint, tmp_path / "other", NEAREST)
    assert "has 321 tokens and the model's embedding rows for 320: a prompt with '<13>' (320) will" in caplog.text


def test_tokens_that_the_embedding_has_no_row_for_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint, size = tiny_checkpoint(tmp_path / "checkpoint"), 307
    convert(checkpoint, tmp_path / "whole", NEAREST)
    assert "embedding rows" not in caplog.text
    edit(checkpoint / "tokenizer_config.json", additional_special_tokens=[f"<{n}>" for n in range(7)])
    package = convert(checkpoint, tmp_path / "package", NEAREST)
    assert f"the tokenizer has {size + 7} tokens and the model's embedding rows for {size}: a prompt" in caplog.text
    assert f"with '<0>' ({size}), '<1>' ({size + 1})," in caplog.text
    assert f"'<4>' ({size + 4}) or another of them will be refused" in caplog.text
    with (
        embedllm.load(package, device="reference") as model,
        pytest.raises(ValueError, match=rf"the prompt has '<0>', token {size} of the tokenizer; the model has {size}"),
    ):
        model.generate("hi <0>", max_tokens=1)


# Against transformers


def test_every_model_type_has_the_class_that_transformers_gives_it() -> None:
    auto = pytest.importorskip("transformers.models.auto.tokenization_auto")
    for model_type in {*families(), *encoders.families(), *tokenizer_class._OF_MODELS, *tokenizer_class._AS_IT_IS}:
        registered = auto.TOKENIZER_MAPPING_NAMES.get(model_type)
        expected = registered if registered in tokenizer_class._BYTE_LEVEL else None
        assert byte_level_class({"model_type": model_type}, {}) == expected, model_type
        takes_any = registered not in ("TokenizersBackend", "MistralCommonBackend")
        assert (model_type not in tokenizer_class._AS_IT_IS) == takes_any, model_type
        is_forced = model_type in auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS and expected is not None
        assert (model_type in tokenizer_class._ALWAYS) == is_forced, model_type


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model_type", "tokenizer_config", "_"), SPACED)
@pytest.mark.parametrize("legacy", [False, True])
def test_tokens_of_an_export_are_those_of_transformers(
    model_type: str, tokenizer_config: dict[str, object], _: bool, legacy: bool, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint")
    if tokenizer_config.get("tokenizer_class") == "Qwen2Tokenizer" or model_type == "qwen2":
        pre_tokenizer = transformers.Qwen2Tokenizer()._tokenizer.pre_tokenizer  # what that class splits by
        edit(checkpoint / "tokenizer.json", pre_tokenizer=json.loads(pre_tokenizer.__getstate__()))
    if legacy:
        size = Tokenizer.open(checkpoint).size
        added = {"<note>": size, "<mark>": size + 1}
        (checkpoint / "added_tokens.json").write_text(json.dumps(added))
        edit(checkpoint / "tokenizer_config.json", eos_token="<mark>")
    edit(checkpoint / "config.json", model_type=model_type)
    edit(checkpoint / "tokenizer_config.json", **tokenizer_config)
    ours, theirs = read_tokenizer(checkpoint).tokenizer, transformers.AutoTokenizer.from_pretrained(checkpoint)
    for text in TEXTS:
        assert ours.encode(text, special=False) == theirs.encode(text, add_special_tokens=False), text
    assert ours.eos == theirs.eos_token_id

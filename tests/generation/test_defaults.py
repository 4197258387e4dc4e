"""A model's own defaults, as transformers reads them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from embedllm.errors import PackageError
from embedllm.generation.defaults import Defaults, read_defaults
from embedllm.sampling.options import Sampling

GREEDY = Sampling(temperature=0)


def write(folder: Path, content: object) -> Path:
    (folder / "generation_config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_without_a_file_a_model_is_greedy_and_has_no_limit(tmp_path: Path) -> None:
    assert read_defaults(tmp_path) == Defaults(sampling=GREEDY, max_tokens=None)


@pytest.mark.parametrize(
    ("content", "sampling"),
    [
        ({}, GREEDY),
        ({"do_sample": False, "temperature": 0.7, "top_p": 0.8}, GREEDY),
        ({"temperature": 0.7}, GREEDY),  # transformers' do_sample is False when nothing is said
        ({"repetition_penalty": 1.1}, Sampling(temperature=0, repetition_penalty=1.1)),
        ({"do_sample": True}, Sampling(top_k=50)),
        ({"do_sample": True, "top_k": 0}, Sampling()),
        ({"do_sample": None, "repetition_penalty": None}, GREEDY),
        ({"do_sample": True, "top_k": None, "top_p": None}, Sampling(top_k=50)),
        (  # Qwen/Qwen3-0.6B
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [151645, 151643]},
            Sampling(temperature=0.6, top_k=20, top_p=0.95),
        ),
        (
            {"do_sample": True, "min_p": 0.05, "typical_p": 0.9, "repetition_penalty": 1.3, "top_k": 7},
            Sampling(min_p=0.05, typical_p=0.9, repetition_penalty=1.3, top_k=7),
        ),
        (
            {"no_repeat_ngram_size": 3, "bad_words_ids": [[5, 6]], "suppress_tokens": [7]},
            Sampling(temperature=0, no_repeat_ngram=3, bad_words=[[5, 6]], logit_bias={7: -math.inf}),
        ),
    ],
)
def test_options_are_those_that_transformers_would_use(
    tmp_path: Path, content: dict[str, object], sampling: Sampling
) -> None:
    assert read_defaults(write(tmp_path, content)) == Defaults(sampling=sampling, max_tokens=None)


def test_what_calls_have_to_ask_for_themselves_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "embedllm")
    read_defaults(write(tmp_path, {"num_beams": 4, "min_length": 0, "stop_strings": ["END"]}))
    (message,) = caplog.messages
    assert "num_beams, stop_strings" in message


def test_the_limit_is_max_new_tokens(tmp_path: Path) -> None:
    assert read_defaults(write(tmp_path, {"max_new_tokens": 2048, "max_length": 20})).max_tokens == 2048
    assert read_defaults(write(tmp_path, {"max_new_tokens": None})).max_tokens is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Expecting value"),
        ("[]", "no JSON object"),
        ('{"do_sample": true,}', "generation_config"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
        ({"do_sample": True, "temperature": -1}, "temperature is -1"),
        ({"do_sample": True, "temperature": "warm"}, "temperature is 'warm'"),
        ({"do_sample": True, "top_k": 2.5}, "top_k is 2.5"),
        ({"suppress_tokens": 5}, "not iterable"),
        ({"repetition_penalty": [1]}, r"repetition_penalty is \[1\]"),
    ],
)
def test_a_damaged_file_or_a_value_out_of_range_is_a_package_error(
    tmp_path: Path, content: object, message: str
) -> None:
    with pytest.raises(PackageError, match=message) as caught:
        read_defaults(write(tmp_path, content))
    assert "generation_config.json" in str(caught.value)


def test_bytes_that_are_no_text_are_a_package_error(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(PackageError, match=r"generation_config\.json"):
        read_defaults(tmp_path)


def test_a_folder_in_the_file_s_place_is_a_package_error(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").mkdir()
    with pytest.raises(PackageError, match=r"generation_config\.json"):
        read_defaults(tmp_path)

"""The table of the worker's parameters, against the library that it speaks for."""

from __future__ import annotations

import pytest

from embedllm.backends.devices import selection as select
from embedllm.backends.options import MOST_THREADS, RuntimeOptions
from embedllm.generation.options import PromptOptions, SamplingOptions
from embedllm.loading.options import check_kv
from embedllm.sampling.option_table import SAMPLING_OPTIONS
from embedllm.worker.parameters import PARAMETERS, checked, load_params, reply_params
from embedllm.worker.protocol import RpcError


@pytest.mark.parametrize("threads", [-1, 0, 1, MOST_THREADS, MOST_THREADS + 1])
def test_the_table_takes_the_threads_that_load_takes(threads: int) -> None:
    """What load() refuses only after the held model was freed would cost the host its model."""
    try:
        RuntimeOptions(threads=threads)
    except ValueError:
        assert not is_taken("load", threads=threads)
    else:
        assert is_taken("load", threads=threads)


@pytest.mark.parametrize("device", ["cpu", "", " ", [], ["auto", "cpu"], ["cpu", ""], ["\t"], ["npu:NPU 4000"]])
def test_the_table_takes_the_devices_that_load_takes(device: str | list[str]) -> None:
    try:
        select.plain(device)
    except ValueError:
        assert not is_taken("load", device=device)
    else:
        assert is_taken("load", device=device)


@pytest.mark.parametrize("kv", ["int8", "int4", "int2", 8])
@pytest.mark.parametrize("exact", [True, False])
def test_what_load_takes_for_kv_is_taken(kv: str | int, exact: bool) -> None:
    expected = True
    try:
        check_kv(kv, exact=exact, openvino=None)  # type: ignore[arg-type]  # wrong ones, too
    except ValueError:
        expected = False
    try:
        load_params({"kv": kv, "exact": exact})
    except RpcError:
        assert not expected
    else:
        assert expected


def test_every_option_of_a_reply_has_a_place() -> None:
    """Those of Model.chat, but for what only a program can give; requests of a worker take turns as they come."""
    known = PARAMETERS["chat"].keys() - {option.name for option in SAMPLING_OPTIONS} - {"messages", "system"}
    options = PromptOptions.__optional_keys__ - SamplingOptions.__optional_keys__
    assert known == options - {"stop_tokens", "logprobs", "documents", "continue_final_message", "special", "priority",
                               "timeout"}  # fmt: skip


def test_of_a_chat_s_parameters_each_goes_where_it_belongs() -> None:
    asked = {"messages": [{"role": "user", "content": "a"}], "system": "s", "dry_breakers": ["x"], "top_k": 3,
             "response_format": ["a", "b"], "tools": [{"name": "f"}], "min_tokens": 2}  # fmt: skip
    found = reply_params("chat", asked)  # type: ignore[arg-type]  # JSON
    assert found.prompt == [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    assert found.sampling == {"dry_breakers": ["x"], "top_k": 3}
    assert found.options == {"response_format": ["a", "b"], "tools": [{"name": "f"}], "min_tokens": 2}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("response_format", "json", "an object with a 'type', or a list of texts"),
        ("response_format", [1], "a list of texts"),
        ("speculate", "guess", "one of auto, lookup, draft, off"),
        ("tools", [1], "a list of objects"),
        ("bad_words", "a", "a list of texts"),
        ("mirostat", 1.5, "a whole number"),
        ("min_tokens", "1", "a whole number"),
    ],
)
def test_wrong_values_are_refused_with_what_was_expected(name: str, value: object, words: str) -> None:
    with pytest.raises(RpcError, match=words):
        checked("chat", {"messages": [{"role": "user", "content": "a"}], name: value})  # type: ignore[dict-item]


def is_taken(method: str, **params: int | str | list[str]) -> bool:
    try:
        checked(method, params)  # type: ignore[arg-type]  # a list of texts is JSON
    except RpcError:
        return False
    return True

"""The table of the worker's methods, against the library that it speaks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from embedllm.backends.devices import selection as select
from embedllm.backends.options import MOST_THREADS, RuntimeOptions
from embedllm.generation.options import PromptOptions
from embedllm.integrations.worker.methods import METHODS, load_params, reply_params
from embedllm.loading.options import check_kv
from embedllm.openai.parameters import CHAT_PARAMETERS
from embedllm.openai.schema import InvalidRequest


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
    try:
        check_kv(kv, exact=exact, openvino=None)  # type: ignore[arg-type]  # wrong ones, too
    except ValueError:
        with pytest.raises(ValueError, match="kv"):
            load_params(checked("load", kv=kv, exact=exact))
    else:
        assert load_params(checked("load", kv=kv, exact=exact)).options.kv == kv


def test_every_option_of_a_reply_has_a_place() -> None:
    """Those of Model.chat, but for what only a program can give; requests of a worker take turns as they come."""
    known = METHODS["chat"].params.properties.keys() - {"messages", "system", "reasoning_effort"}
    assert known == PromptOptions.__optional_keys__ - {"logprobs", "continue_final_message", "priority", "processors",
                                                       "order"}  # fmt: skip


@pytest.mark.parametrize("method", ["generate", "chat"])
def test_the_options_are_the_server_s(method: str) -> None:
    own = {"prompt", "messages", "system", "variables", "adapter"}
    for name, schema in METHODS[method].params.properties.items():
        assert name in own or schema is CHAT_PARAMETERS[name]


def test_of_a_chat_s_parameters_each_goes_where_it_belongs() -> None:
    asked = checked("chat", messages=[{"role": "user", "content": "a"}], system="s", dry_breakers=["x"], top_k=3,
                    response_format=["a", "b"], tools=[{"function": {"name": "f"}}], min_tokens=2, variables={"v": 1},
                    reasoning_effort="low", logit_bias={"5": -1.5})  # fmt: skip
    found = reply_params("chat", asked)
    assert found.prompt == [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    assert found.options == {"dry_breakers": ["x"], "top_k": 3, "response_format": ["a", "b"], "min_tokens": 2,
                             "tools": [{"function": {"name": "f"}}], "logit_bias": {5: -1.5},
                             "variables": {"reasoning_effort": "low", "v": 1}}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("response_format", "json", "expected the type object or array"),
        ("response_format", [1], "expected the type string"),
        ("speculate", "guess", 'one of \\["auto", "lookup", "draft", "off"'),
        ("tools", [1], "expected the type object"),
        ("bad_words", "a", "expected the type array"),
        ("mirostat", 1.5, "expected the type integer"),
        ("min_tokens", "1", "expected the type integer"),
        ("tempratur", 1, "'chat' has no parameter 'tempratur'. The nearest is 'temperature'."),
    ],
)
def test_wrong_values_are_refused_with_what_was_expected(name: str, value: object, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as found:
        checked("chat", messages=[{"role": "user", "content": "a"}], **{name: value})
    assert found.value.param is not None
    assert found.value.param.startswith(name)


def checked(method: str, **params: object) -> Mapping[str, Any]:
    return METHODS[method].params.check(params)  # type: ignore[arg-type]  # JSON, mostly


def is_taken(method: str, **params: object) -> bool:
    try:
        checked(method, **params)
    except InvalidRequest:
        return False
    return True

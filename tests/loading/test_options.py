"""The options of load(), as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

import embedllm
from embedllm.backends.options import OpenVINOOptions, RuntimeOptions
from embedllm.loading.options import LoadOptions


@pytest.mark.parametrize("function", [embedllm.load, embedllm.aload])
def test_load_takes_each_option_by_its_default(function: Callable[..., object]) -> None:
    _, *parameters = inspect.signature(function).parameters.values()
    assert [(one.name, one.default) for one in parameters] == [(one.name, one.default) for one in fields(LoadOptions)]
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in parameters)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": -1}, "threads is -1; expected 0 .number of physical cores. to"),
        ({"max_sequences": 0}, "max_sequences is 0; expected a whole number from 1 on, or None."),
        ({"threaded": False, "max_sequences": 2}, "threaded=False computes one call at a time; leave out"),
        ({"max_waiting": 1.0}, "max_waiting is 1.0; expected a whole number from 0 on, or None."),
        ({"openvino": {"kv": "u8"}}, "openvino is {'kv': 'u8'}; expected an OpenVINOOptions."),
        ({"kv": "int2"}, "kv is 'int2'; expected None or one of int8, int4."),
        ({"kv": "int8", "exact": True}, "kv='int8' rounds what was read, and exact=True asks for no rounding; leave"),
        (
            {"kv": "int4", "openvino": OpenVINOOptions(kv="u8")},
            "kv='int4' and OpenVINOOptions.kv='u8'. are both given; leave out one of them.",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_read(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        embedllm.load(tmp_path / "not there", **options)  # type: ignore[arg-type]  # wrong on purpose


async def _aload(**options: object) -> None:
    await embedllm.aload("demo", **options)  # type: ignore[arg-type]  # wrong on purpose


def test_aload_takes_no_other_option() -> None:
    import asyncio

    with pytest.raises(TypeError, match="speed"):
        asyncio.run(_aload(speed=3))


def test_a_browser_refuses_what_it_does_not_have() -> None:
    LoadOptions(device="wasm", threads=2, chat_template="", urls={"ort": "x"}, tuned=False).check_for_browser()
    with pytest.raises(ValueError, match="exact and token cannot be chosen in a browser; leave out what does not run"):
        LoadOptions(exact=True, token="hf_x").check_for_browser()
    known = {"device", "threads", "context", "on_progress", "urls", "chat_template", "parse_special"}  # of web.aload()
    known |= {"prefix_cache", "cache_dir_bytes", "tuned", "threaded"}  # without effect there
    for name in {field.name for field in fields(LoadOptions)} - known:
        with pytest.raises(ValueError, match=f"^{name} cannot be chosen"):
            LoadOptions(**{name: _VALUES.get(name, "x")}).check_for_browser()  # type: ignore[arg-type]  # by name


_VALUES = {"exact": True, "kv": "int8", "openvino": OpenVINOOptions(), "max_sequences": 2,
           "max_waiting": 2, "local_files_only": True}  # fmt: skip


def test_a_saved_kv_is_known_by_all_that_its_values_depend_on() -> None:
    usual, floats = RuntimeOptions(threads=2), RuntimeOptions(floats=True)
    assert LoadOptions().kv_key(usual) == "exact=False kv=None openvino=None"  # of caches on disk
    assert LoadOptions(kv="int8", adapters={}).kv_key(floats) == "exact=False kv=int8 openvino=None adapters floats"
    assert LoadOptions(threads=3, device="cpu", cache_dir="x").kv_key(usual) == LoadOptions().kv_key(usual)


def test_a_draft_is_loaded_like_its_model_but_untuned_and_without_a_cache() -> None:
    options = LoadOptions(threads=3, exact=True, token="hf_x", local_files_only=True, cache_dir="x", max_sequences=4)
    expected = LoadOptions(
        device="cpu", threads=3, exact=True, token="hf_x", local_files_only=True, prefix_cache=0, tuned=False
    )
    assert options.of_draft("cpu") == expected

"""load(kv=...): which devices keep a quantized KV, what they answer, and why others refuse."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import embedllm
from embedllm import DeviceUnavailable, OpenVINOOptions, Sampling
from embedllm.backends.ort.engine import OrtEngine
from embedllm.export.graphs import write_variant
from embedllm.package.graph_variants import INT4_KV, INT8_KV

MakePackage = Callable[..., Path]
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def folder(tiny_package: MakePackage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copied = Path(shutil.copytree(tiny_package("qwen3"), tmp_path_factory.mktemp("kv") / "package"))
    for variant in (INT8_KV, INT4_KV):
        write_variant(copied, variant.name, tokens=list(range(100)))
    return copied


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_the_cpu_keeps_it(kv: str, folder: Path) -> None:
    with embedllm.load(folder, device="cpu", kv=kv) as model:
        engine = model.runner.engine
        assert isinstance(engine, OrtEngine)
        assert {str(array.dtype) for array in engine.open().kv.values()} == {{"int8": "int8", "int4": "uint8"}[kv]}
        assert model.generate("hello", GREEDY, max_tokens=8).statistics.tokens == 8


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_it_is_moved_and_stored_as_any_other(kv: str, folder: Path, tmp_path: Path) -> None:
    prompt = [3 + at * 7 % 290 for at in range(100)]
    options = {"device": "cpu", "kv": kv, "cache_dir": tmp_path}
    with embedllm.load(folder, **options) as model:  # type: ignore[arg-type]  # of these types
        replies = [model.generate(tokens, GREEDY, max_tokens=4) for tokens in (prompt, [5] * 50, prompt)]
    with embedllm.load(folder, **options) as model:  # type: ignore[arg-type]
        replies.append(model.generate(prompt, GREEDY, max_tokens=4))
    assert [reply.statistics.cached_tokens for reply in replies] == [0, 0, 99, 64]
    assert replies[0].tokens == replies[2].tokens == replies[3].tokens


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_its_keys_cannot_be_turned_so_a_shift_is_refused_and_turns_are_dropped(kv: str, folder: Path) -> None:
    with embedllm.load(folder, device="cpu", kv=kv) as model:
        with pytest.raises(ValueError, match=r"when_full='shift' .*found quantized u?int8 keys.*Load without kv="):
            model.conversation(when_full="shift")
        with model.conversation(when_full="drop-oldest") as talk:
            replies = [talk.say("list all files", GREEDY, max_tokens=20) for _ in range(5)]
        assert replies[-1].statistics.dropped_tokens > 0


def test_openvino_rounds_its_8_bits_again_and_shifts(folder: Path) -> None:
    pytest.importorskip("openvino")
    with embedllm.load(folder, device="openvino", kv="int8") as model, model.conversation(when_full="shift") as talk:
        reply = talk.say("hello", GREEDY, max_tokens=200, stop_tokens=())
        assert (len(reply.tokens), reply.statistics.dropped_tokens > 0) == (200, True)


def test_a_folder_without_the_graph_is_told_the_command(tiny_package: MakePackage) -> None:
    with pytest.raises(DeviceUnavailable, match=r"has no 'int8-kv' graph .*embedllm graph .* --variant int8-kv"):
        embedllm.load(tiny_package("qwen3"), device="cpu", kv="int8")


@pytest.mark.parametrize("name", ["reference", "npu-on-cpu"])
def test_a_device_that_has_none_refuses_with_the_reason(name: str, folder: Path) -> None:
    if name != "reference":
        pytest.importorskip("openvino")
    with pytest.raises(DeviceUnavailable, match=f"{name}.*its KV cannot be kept as int8 .*use the device 'cpu'"):
        embedllm.load(folder, device=name, kv="int8")


def test_two_devices_at_once_refuse(folder: Path) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(DeviceUnavailable, match="two devices at once share their KV as floats"):
        embedllm.load(folder, device="openvino+cpu", kv="int8")


def test_openvino_keeps_it_in_a_type_of_its_own(folder: Path) -> None:
    pytest.importorskip("openvino")
    from embedllm.backends.openvino.paged_engine import PagedEngine

    with embedllm.load(folder, device="openvino", kv="int8") as model:
        engine = model.runner.engine
        assert isinstance(engine, PagedEngine)
        assert engine.compiled.get_property("KV_CACHE_PRECISION").to_string() == "u8"
    with pytest.raises(DeviceUnavailable, match="its KV cannot be kept as int4"):
        embedllm.load(folder, device="openvino", kv="int4")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kv": "int3"}, "kv is 'int3'; expected None or one of int8, int4"),
        ({"kv": "int8", "exact": True}, "leave out one of them"),
        ({"kv": "int8", "openvino": OpenVINOOptions(kv="f16")}, "are both given"),
    ],
)
def test_what_makes_no_sense_is_a_slip(options: dict[str, object], told: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=told):
        embedllm.load(folder, **options)  # type: ignore[arg-type]  # on purpose

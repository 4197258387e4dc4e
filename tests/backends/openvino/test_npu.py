"""The NPU's way of running a model, on the CPU: device "npu-on-cpu" against "openvino", small shapes, no hardware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import embedllm
from embedllm.backends.devices import registry
from embedllm.backends.openvino import npu
from embedllm.backends.openvino import runtime as ov_runtime
from embedllm.backends.openvino.npu import NpuEngine, NpuSession
from embedllm.backends.openvino.runtime import cache_folder, version
from embedllm.backends.options import OpenVINOOptions
from embedllm.errors import ContextFull, DeviceError, DeviceUnavailable
from embedllm.export import Recipe
from embedllm.package.package import open_package
from embedllm.types import Logits
from tests.support.openings import npu_engine, ov_engine

MakePackage = Callable[..., Path]
ATOL = 0.01  # of logits up to 5: its KV is float16, 0.003 measured; rounded activations give 0.03 on these models
GREEDY = embedllm.Sampling(temperature=0)
MESSAGES = [{"role": "user", "content": "list all files"}]


def options(tmp_path: Path, *, prompt: int = 64) -> OpenVINOOptions:
    return OpenVINOOptions(prompt=prompt, reply=32, cache=tmp_path)


def some_tokens(count: int, seed: int = 3) -> list[int]:
    return np.random.default_rng(seed).integers(3, 307, count).tolist()


def values(logits: Logits) -> Sequence[float]:
    return logits.values(range(logits.size))


@pytest.fixture(scope="module")
def folder(tiny_package: MakePackage) -> Path:
    return tiny_package("qwen3", Recipe(group_size=64, symmetric=True), max_position_embeddings=600)


@pytest.fixture(scope="module")
def engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> NpuEngine:
    """Prompts of 64 tokens, 95 in all."""
    return npu_engine(folder, tmp_path_factory.mktemp("cache"))


# --- what it computes


@pytest.mark.slow
@pytest.mark.parametrize("group", [32, 64])  # groups of 32 are not unpacked outside of the models, those of 64 are
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_greedy_replies_are_those_of_openvino(
    family: str, group: int, tiny_package: MakePackage, tmp_path: Path
) -> None:
    folder = tiny_package(family, Recipe(group_size=group, symmetric=True))
    prompt = some_tokens(40)
    with (
        embedllm.load(folder, device="openvino", exact=True) as one,
        embedllm.load(folder, device="npu-on-cpu", exact=True, openvino=options(tmp_path)) as other,
    ):
        ours, theirs = (llm.generate(prompt, GREEDY, max_tokens=32, stop_tokens=[]).tokens for llm in (one, other))
    assert len(ours) == 32
    assert ours == theirs


@pytest.mark.slow
def test_the_demo_replies_as_on_openvino(tmp_path: Path) -> None:
    with (
        embedllm.load(device="openvino", exact=True) as one,
        embedllm.load(device="npu-on-cpu", exact=True, openvino=options(tmp_path, prompt=128)) as other,
    ):
        for text in ("list all files", "how much disk space is free?"):
            prompt = [{"role": "user", "content": text}]
            ours, theirs = (llm.generate(prompt, GREEDY, max_tokens=32, stop_tokens=[]).tokens for llm in (one, other))
            assert len(ours) == 32
            assert ours == theirs


@pytest.mark.parametrize("lengths", [[1], [64], [63, 1, 1], [65], [80, 8], [10, 30, 40], [3, 1, 9, 1, 17]])
def test_any_pieces_give_the_logits_of_openvino(lengths: list[int], folder: Path, engine: NpuEngine) -> None:
    """A prompt longer than 64 tokens goes on in small steps; more than 32 new ones are read again with the old."""
    plain = ov_engine(folder).open()
    session, tokens = engine.open(), some_tokens(sum(lengths))
    for end in np.cumsum(lengths).tolist():
        piece = tokens[session.position : end]
        np.testing.assert_allclose(values(session.feed(piece)), values(plain.feed(piece)), atol=ATOL)
        assert session.position == end


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([10, 1], [(0, 10), (10, 11)]),
        ([10, 20], [(0, 10), (10, 18), (18, 26), (26, 30)]),  # in steps of eight
        ([10, 33], [(0, 10), (0, 43)]),  # more than four steps: all is read again, while the prompt model can
        ([20, 45], [(0, 20), (20, 28), (28, 36), (36, 44), (44, 52), (52, 60), (60, 65)]),
        ([70], [(0, 64), (64, 70)]),
    ],
)
def test_what_comes_after_a_prompt_is_read_by_the_cheaper_way(
    lengths: list[int], expected: list[tuple[int, int]], engine: NpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    infer = NpuSession._infer

    def noted(self: NpuSession, tokens: list[int], start: int, stop: int) -> np.ndarray:
        seen.append((start, stop))
        return infer(self, tokens, start, stop)

    monkeypatch.setattr(NpuSession, "_infer", noted)
    session = engine.open()
    for length in lengths:
        session.feed(some_tokens(length))
    assert seen == expected


def test_rewind_then_feed_equals_a_fresh_session(folder: Path, engine: NpuEngine) -> None:
    session, plain = engine.open(), ov_engine(folder).open()
    session.feed(some_tokens(70, 1))
    plain.feed(some_tokens(70, 1))
    for position, count in ((70, 2), (66, 1), (40, 5), (20, 50), (0, 3), (3, 1)):
        for one in (session, plain):
            one.rewind(position)
        assert session.position == position
        new = some_tokens(count, position)
        np.testing.assert_allclose(values(session.feed(new)), values(plain.feed(new)), atol=ATOL)


def test_a_prompt_of_one_token_does_not_see_what_came_before(folder: Path, engine: NpuEngine) -> None:
    session, plain = engine.open(), ov_engine(folder).open()
    session.feed(some_tokens(20))
    session.rewind(0)
    for token in (5, 9):
        np.testing.assert_allclose(values(session.feed([token])), values(plain.feed([token])), atol=ATOL)


@pytest.mark.slow
def test_a_conversation_of_several_turns_equals_fresh_prompts(tmp_path: Path) -> None:
    asked = ["list all files", "only the large ones", "and delete them"]
    with embedllm.load(device="npu-on-cpu", exact=True, openvino=options(tmp_path, prompt=256)) as llm:
        chat, history = llm.conversation(), []
        for text in asked:
            said = chat.say(text, GREEDY, max_tokens=12).text
            history.append({"role": "user", "content": text})
            llm.release()
            assert said == llm.generate(history, GREEDY, max_tokens=12).text
            history.append({"role": "assistant", "content": said})


def test_sessions_do_not_see_each_other(folder: Path, engine: NpuEngine) -> None:
    plain = ov_engine(folder).open()
    expected = [values(plain.feed(piece)) for piece in (some_tokens(20), [5], [6])]
    one, other = engine.open(), engine.open()
    for piece, logits in zip((some_tokens(20), [5], [6]), expected, strict=True):
        np.testing.assert_allclose(values(one.feed(piece)), logits, atol=ATOL)
        other.feed([9, 9, 9])


# --- its limits


def test_a_full_capacity_is_refused_whole(folder: Path, engine: NpuEngine) -> None:
    session = engine.open()
    assert (engine.context, session.capacity) == (95, 95)
    session.feed(some_tokens(64))
    with pytest.raises(
        ContextFull, match=r"64 tokens are held and 32 more were given; 95 can be held\..*prompt="
    ) as caught:
        session.feed(some_tokens(32))
    assert (caught.value.tokens, caught.value.limit, session.position) == (96, 95, 64)
    plain = ov_engine(folder).open()
    plain.feed(some_tokens(64))
    np.testing.assert_allclose(
        values(session.feed(some_tokens(31))), values(plain.feed(some_tokens(31))), atol=ATOL
    )  # to the last place
    assert session.position == 95


def test_a_reply_that_fills_it_ends_as_context(folder: Path, tmp_path: Path) -> None:
    with embedllm.load(folder, device="npu-on-cpu", openvino=options(tmp_path)) as llm:
        assert llm.context == 95
        reply = llm.generate(some_tokens(64), GREEDY, max_tokens=500, stop_tokens=[])
        assert (reply.finish_reason, 31 <= len(reply.tokens) <= 32) == ("context", True)
        with pytest.raises(ContextFull, match=r"OpenVINOOptions\(prompt=..., reply=...\)") as caught:
            llm.generate(some_tokens(96), GREEDY)
        assert caught.value.limit == 95


def test_a_small_package_is_the_limit_itself(tiny_package: MakePackage, tmp_path: Path) -> None:
    opened = npu_engine(tiny_package("qwen3", Recipe(group_size=64, symmetric=True)), tmp_path, prompt=1024, reply=512)
    assert (opened.chunk, opened.context, opened.remedy) == (128, 128, "export with a larger --context")
    session = opened.open()
    session.feed(some_tokens(127))
    session.feed([5])
    assert session.position == 128


@pytest.mark.parametrize(
    ("tokens", "message"), [([], "at least one"), ([-1], "-1 is outside"), ([5, 307], "307 is outside")]
)
def test_tokens_outside_the_vocabulary_are_refused(tokens: list[int], message: str, engine: NpuEngine) -> None:
    session = engine.open()
    with pytest.raises(ValueError, match=message):
        session.feed(tokens)
    assert session.position == 0


@pytest.mark.parametrize("position", [-1, 4])
def test_a_rewind_goes_back_only(position: int, engine: NpuEngine) -> None:
    session = engine.open()
    session.feed([1, 2, 3])
    with pytest.raises(ValueError, match=f"cannot rewind to {position}; the session holds 3"):
        session.rewind(position)


def test_closed_things_say_so(folder: Path, tmp_path: Path) -> None:
    opened = npu_engine(folder, tmp_path)
    session = opened.open()
    session.feed([1, 2])
    session.close()
    session.close()
    assert session.position == 0
    with pytest.raises(ValueError, match="session was closed"):
        session.feed([1])
    opened.close()
    opened.close()
    with pytest.raises(ValueError, match="model was closed"):
        opened.open()


# --- what is refused


def test_zero_points_are_refused_with_what_to_do(tiny_package: MakePackage, tmp_path: Path) -> None:
    folder = tiny_package("qwen3", Recipe(symmetric=False))
    with pytest.raises(DeviceUnavailable, match=r"the weights of 'package' have zero points.*--target npu") as caught:
        embedllm.load(folder, device="npu-on-cpu", openvino=options(tmp_path))
    assert caught.value.tried[0][0] == "npu-on-cpu"
    assert caught.value.tried[0][2] == "export it with --target npu"
    assert list(tmp_path.iterdir()) == []


def test_a_list_goes_on_behind_a_device_that_the_package_does_not_suit(tiny_package: MakePackage) -> None:
    folder = tiny_package("qwen3", Recipe(symmetric=False))
    with embedllm.load(folder, device=["npu-on-cpu", "cpu"]) as model:
        assert model.device.name == "cpu"


def test_a_list_goes_on_behind_a_device_that_does_not_open(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    unusable = OpenVINOOptions(cache=tmp_path / "file" / "cache")
    with embedllm.load(folder, device=["npu-on-cpu", "cpu"], openvino=unusable) as model:
        assert model.device.name == "cpu"
    with pytest.raises(DeviceError, match="cannot load"):
        embedllm.load(folder, device="npu-on-cpu", openvino=unusable)


def test_the_npu_itself_is_never_exact(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = [replace(d, available=True, reason="", remedy="") for d in ov_runtime.devices()]
    monkeypatch.setattr(ov_runtime, "devices", lambda: there)
    found = {d.name: d for d in registry.devices_for(open_package(folder), ["npu", "npu-on-cpu"], exact=True)}
    assert (found["npu"].available, found["npu"].remedy) == (False, "load it without exact")
    assert "float16" in found["npu"].reason
    assert found["npu-on-cpu"].available
    assert {d.name: d for d in registry.devices_for(open_package(folder), ["npu"])}["npu"].available


def test_an_npu_that_is_not_there_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutNpu:
        available_devices = ("CPU",)

        def get_property(self, target: str, name: str) -> str:
            if target == "NPU":
                raise RuntimeError("Device NPU is not registered")
            return "a processor"

    monkeypatch.setattr(ov_runtime, "core", WithoutNpu)
    with pytest.raises(DeviceUnavailable) as caught:
        embedllm.load(folder, device="npu")
    (tried,) = caught.value.tried
    assert tried[0] == "npu"
    assert "no NPU" in tried[1]
    assert "docs/devices.md#npu" in tried[2]
    with pytest.raises(DeviceUnavailable, match=r"no NPU driver .*docs/devices.md#npu"):
        npu.driver_version()


# --- compiled models are kept


def test_a_second_load_is_served_from_the_cache(folder: Path, tmp_path: Path) -> None:
    first = npu_engine(folder, tmp_path, exact=False)
    (kept,) = tmp_path.iterdir()
    assert kept.name == f"openvino-{version()}-NPU-cpu"
    files = {path: path.stat().st_mtime_ns for path in kept.iterdir()}
    assert files
    second = npu_engine(folder, tmp_path, exact=False)
    assert second.compiled.get_property("LOADED_FROM_CACHE")
    assert not first.compiled.get_property("LOADED_FROM_CACHE")
    assert {path: path.stat().st_mtime_ns for path in kept.iterdir()} == files
    tokens = some_tokens(70)
    ours, theirs = (values(one.open().feed(tokens)) for one in (first, second))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_exact_is_kept_by_a_load_from_the_cache(before: bool, folder: Path, tmp_path: Path) -> None:
    npu_engine(folder, tmp_path, exact=before)
    tokens = some_tokens(70)
    found = values(npu_engine(folder, tmp_path, exact=True).open().feed(tokens))
    np.testing.assert_allclose(found, values(ov_engine(folder).open().feed(tokens)), atol=ATOL)


def test_other_shapes_are_not_taken_from_the_cache(folder: Path, tmp_path: Path) -> None:
    npu_engine(folder, tmp_path, exact=False)
    assert npu_engine(folder, tmp_path, prompt=48, exact=False).context == 79
    assert len([path for kept in tmp_path.iterdir() for path in kept.iterdir()]) >= 2


def test_the_cache_folder_names_version_device_and_driver(tmp_path: Path) -> None:
    options = OpenVINOOptions(cache=tmp_path)
    assert cache_folder(options, "NPU", "1.2/3 beta") == tmp_path / f"openvino-{version()}-NPU-1.2_3_beta"
    assert cache_folder(options, "GPU.1", "") == tmp_path / f"openvino-{version()}-GPU.1"
    assert cache_folder(OpenVINOOptions(), "NPU", "x").parent.name == "embedllm"


def test_small_groups_are_remarked_for_the_npu_only(folder: Path, tiny_package: MakePackage, tmp_path: Path,
                                                    caplog: pytest.LogCaptureFixture,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(npu, "driver_version", lambda: "7")
    caplog.set_level("INFO", logger="embedllm")
    small = open_package(tiny_package("qwen3", Recipe(group_size=32, symmetric=True)))
    for package, on_cpu, said in ((small, True, 0), (open_package(folder), False, 0), (small, False, 1)):
        caplog.clear()
        chosen = npu._properties(package, 64, options(tmp_path), on_cpu=on_cpu, exact=False)
        assert len(caplog.messages) == said
        assert ("NPUW_FOLD" in chosen) == (package is small)
        assert ("NPUW_DEVICES" in chosen) == on_cpu

"""Images whose tokens attend to one another (Gemma 3), where prompts are cut, kept and read beside others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import embedllm
from embedllm import Model
from embedllm.backends.openvino.engine import OvEngine
from embedllm.backends.ort import engine as ort_engine
from embedllm.backends.ort.engine import lacks_image_attention
from embedllm.errors import DeviceError
from embedllm.export import Recipe, convert
from embedllm.export.graphs import write_variant
from embedllm.export.verify import verify_folder
from embedllm.generation.chunk import Chunk
from tests.support.peft_folders import ALL, config_of, merged_checkpoint, shapes_of, write_factors
from tests.support.vision import TILE_TOKENS, Image, gemma_checkpoint, image, seeing_logits, seeing_request

DEVICES = ("cpu", "openvino")
TOLERANCE = 1e-4  # of the spread: all compute in float32
ONE, TWO = image(1), image(2)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gemma")
    return convert(gemma_checkpoint(root / "checkpoint", window=50), root / "package", Recipe(bits=32))


@pytest.fixture(scope="module", params=DEVICES)
def llm(request: pytest.FixtureRequest, package: Path) -> Iterator[Model]:
    with embedllm.load(package, device=request.param, exact=True) as opened:
        yield opened


def reply(llm: Model, *parts: Image | list[int]) -> list[float]:
    return logprobs(llm.runner.stream(seeing_request(llm, *parts, tokens=6), embedllm.Cancel()))


def logprobs(chunks: Iterable[Chunk]) -> list[float]:
    """Of the tokens of a reply, in which differences show that the tokens of a random model hide."""
    return [chunk.logprob for chunk in chunks if chunk.logprob is not None]


def equal(reply: list[float], within: float = 1e-3) -> object:
    """What is equal to a reply but for rounding."""
    return pytest.approx(reply, abs=within)


@pytest.mark.parametrize("device", DEVICES)
def test_windows_may_be_shorter_than_an_image(tmp_path: Path, device: str) -> None:
    checkpoint = gemma_checkpoint(tmp_path / "checkpoint", window=TILE_TOKENS // 2)
    package = convert(checkpoint, tmp_path / "package", Recipe(bits=32))
    with embedllm.load(package, device="reference") as reference:
        expected = seeing_logits(reference, [5] * 9, ONE, [6, 7], TWO, [8])
    with embedllm.load(package, device=device, exact=True) as llm:
        assert isinstance(llm.runner.engine, OvEngine) == (device == "openvino")  # paged attention ignores such windows
        assert np.abs(seeing_logits(llm, [5] * 9, ONE, [6, 7], TWO, [8]) - expected).max() <= TOLERANCE * expected.std()


def test_an_image_is_read_whole_however_small_the_pieces_of_a_prompt_are(llm: Model) -> None:
    expected = reply(llm, [5, 6], ONE, [7], TWO, [8, 9])
    llm.release()
    engine, chunk = llm.runner.engine, llm.runner.engine.chunk
    engine.chunk = 5
    try:
        assert reply(llm, [5, 6], ONE, [7], TWO, [8, 9]) == equal(expected)
    finally:
        engine.chunk = chunk


def test_a_prompt_that_ends_with_an_image_may_be_given_again(llm: Model) -> None:
    """Of what is fed again, all tokens of the image see each other."""
    llm.release()
    expected = reply(llm, [5], ONE)
    assert reply(llm, [5], ONE) == equal(expected)
    llm.release()
    longer = reply(llm, [5], ONE, [6])
    llm.release()
    reply(llm, [5], ONE)
    assert reply(llm, [5], ONE, [6]) == equal(longer)


def test_neighbouring_prompts_of_a_run_do_not_see_each_other(package: Path) -> None:
    prompts: list[tuple[Image | list[int], ...]] = [([5], ONE), (TWO, [6]), (ONE,), ([5, 6, 7],), (TWO, [7], ONE)]
    with embedllm.load(package, device="openvino") as llm:  # not exact, or each would have runs of its own
        requests = [seeing_request(llm, *prompt) for prompt in prompts]
        alone: list[list[float]] = []
        for request in requests:
            llm.release()
            alone.append(logprobs(llm.runner.stream(request, embedllm.Cancel())))
        llm.release()
        together = [logprobs(chunks) for chunks in llm.runner.run_all(requests, embedllm.Cancel())]
    for found, expected in zip(together, alone, strict=True):
        assert found == equal(expected, within=0.03)  # the KV has 8 bits: 0.011 measured


def test_kv_on_disk_that_ends_within_an_image_is_gone_on_from(package: Path, tmp_path: Path) -> None:
    prompt = ([5] * 56, ONE, [6] * 60)  # a block has 64 tokens
    with embedllm.load(package, device="cpu") as llm:
        expected = reply(llm, *prompt)
        llm.release()
        other = reply(llm, [5] * 56, ONE, [7] * 4)  # has the first block only
    for _ in range(2):
        with embedllm.load(package, device="cpu", cache_dir=tmp_path / "cache") as llm:
            assert reply(llm, *prompt) == equal(expected)
            assert reply(llm, [5] * 56, ONE, [7] * 4) == equal(other)


def test_a_kv_of_integers_has_no_graph_for_images(tmp_path: Path, package: Path) -> None:
    folder = convert(package.parent / "checkpoint", tmp_path / "package", Recipe(bits=32))
    write_variant(folder, "int8-kv")
    with embedllm.load(folder, device="cpu", kv="int8") as llm:
        assert llm.generate([5, 6, 7], max_tokens=2).tokens
        with pytest.raises(DeviceError, match="without kv"):
            reply(llm, [5], ONE)


def test_an_older_onnxruntime_reads_text_and_says_what_images_need(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort_engine, "lacks_image_attention", lambda version="": lacks_image_attention("1.31.4"))
    with embedllm.load(package, device="cpu") as llm:
        assert llm.generate([5, 6, 7], max_tokens=2).tokens
        with pytest.raises(DeviceError, match=r"install onnxruntime 1\.32 or newer"):
            reply(llm, [5], ONE)
    folder = convert(package.parent / "checkpoint", tmp_path / "package", Recipe(bits=32))
    assert "1.31.4" in str(verify_folder(folder)["model.multimodal.onnx"])


def test_an_adapter_is_part_of_what_an_image_becomes(package: Path, tmp_path: Path) -> None:
    """As if it were merged into the matrices, in the graph for images, too."""
    checkpoint = package.parent / "checkpoint"
    shapes = {name: shape for name, shape in shapes_of(checkpoint).items() if name.startswith("language_model.")}
    adapter = write_factors(tmp_path / "adapter", shapes, config_of(ALL, 4, 4.0))
    merged = merged_checkpoint(checkpoint, adapter, tmp_path / "merged")
    with embedllm.load(convert(merged, tmp_path / "package", Recipe(bits=32)), device="cpu", exact=True) as llm:
        expected = reply(llm, [5], ONE, [6])
    with embedllm.load(package, device="cpu", exact=True, adapters={"own": adapter}) as llm:
        plain = seeing_request(llm, [5], ONE, [6], tokens=6)
        own = replace(plain, adapter=llm.request([5], adapter="own").adapter)
        found = [logprobs(llm.runner.stream(each, embedllm.Cancel())) for each in (plain, own)]
    assert found[1] == equal(expected)
    assert found[0] != equal(expected)

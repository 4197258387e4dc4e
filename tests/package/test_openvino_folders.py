"""Folders of optimum-intel: made by hand of ours, whose OpenVINO model has the same inputs and states."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import embedllm
from embedllm.backends.openvino import engine as backend
from embedllm.backends.openvino.engine import OvEngine, OvSession
from embedllm.backends.openvino.logits_slice import cut_positions
from embedllm.backends.openvino.runtime import devices, ov
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import DeviceUnavailable, PackageError
from embedllm.package.package import open_package
from tests.support.external_folders import optimum_intel

TOKENS = np.random.default_rng(3).integers(3, 300, 40).tolist()
GREEDY = embedllm.Sampling(temperature=0)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from embedllm.export import Recipe, convert
    from tests.support.tiny import tiny_checkpoint

    folder = tmp_path_factory.mktemp("ours")
    return convert(tiny_checkpoint(folder / "checkpoint", "qwen3"), folder / "package", Recipe(bits=8))


@pytest.fixture(scope="module")
def folder(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return optimum_intel(package, tmp_path_factory.mktemp("theirs") / "model")


def opened(folder: Path) -> OvSession:
    found = open_package(folder)
    device = next(device for device in devices() if device.name == "openvino")
    session = OvEngine(found, found.graphs[0], device, "CPU", exact=True).open()
    assert isinstance(session, OvSession)
    return session


def test_it_gives_the_logits_of_the_reference(package: Path, folder: Path) -> None:
    session, reference = opened(folder), ReferenceEngine(open_package(package)).open()
    right = reference.feed_all(TOKENS)
    np.testing.assert_allclose(session.feed_all(TOKENS), right, atol=2e-3)
    session.rewind(9)
    assert session.feed(TOKENS[9:20]).top(1).tokens[0] == right[19].argmax()
    state = session.export_state(0, 15)
    session.rewind(0)
    session.import_state(state)
    np.testing.assert_allclose(session.feed_all(TOKENS[15:]), right[15:], atol=2e-3)


def test_the_whole_library_runs_it(package: Path, folder: Path) -> None:
    replies = []
    for path in (package, folder):
        with embedllm.load(path, device="openvino", exact=True) as model:
            replies.append(model.generate(TOKENS[:12], GREEDY, max_tokens=20, stop_tokens=()).tokens)
            replies.append(model.generate(TOKENS[:9], GREEDY, max_tokens=20, stop_tokens=()).tokens)
    assert replies[:2] == replies[2:]
    with embedllm.load(folder) as model:
        assert model.device.name == "openvino"
    with pytest.raises(DeviceUnavailable, match=r"optimum-intel wrote for other devices .*use the device 'openvino'"):
        embedllm.load(folder, device="cpu")


def test_it_computes_the_logits_of_the_last_token_alone(folder: Path) -> None:
    model = backend.core().read_model(folder / "openvino_model.xml")
    cut_positions(model, open_package(folder).architecture)
    request = backend.core().compile_model(model, "CPU").create_infer_request()
    request.infer(backend._inputs(TOKENS, 0, -1))
    assert request.get_output_tensor(0).shape == ov.Shape([1, 1, open_package(folder).external_graph.vocabulary])


def changed(folder: Path, pattern: str, given: str) -> None:
    path = folder / "openvino_model.xml"
    text, count = re.subn(pattern, given, path.read_text())
    assert count
    path.write_text(text)


@pytest.mark.parametrize(
    ("pattern", "given", "said"),
    [
        ('name="beam_idx" (.*?)names="beam_idx"', r'name="past" \1names="past"', "takes .*'past'; expected input_ids"),
        ("past_key_values.0.keypresent.0.key", "cache_params.conv.0", "keeps the state 'cache_params.conv.0'"),
        ('variable_shape="[^"]*"', 'variable_shape="?,?,?,?"', "expected keys and values"),
        ("<net", "net", "is no OpenVINO model that can be read"),
    ],
)
def test_models_that_cannot_be_fed_say_why(package: Path, tmp_path: Path, pattern: str, given: str, said: str) -> None:
    folder = optimum_intel(package, tmp_path / "model")
    changed(folder, pattern, given)
    with pytest.raises(PackageError, match=said):
        open_package(folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("openvino_model.bin", r"cannot read '.*openvino_model\.bin'.*Fetch that file too"),
        ("tokenizer.json", r"has no tokenizer\.json"),
        ("config.json", "how many tokens"),
    ],
)
def test_a_file_that_is_missing_is_named(package: Path, tmp_path: Path, name: str, said: str) -> None:
    folder = optimum_intel(package, tmp_path / "model")
    (folder / name).unlink()
    with pytest.raises(PackageError, match=said):
        embedllm.load(folder)


def test_a_model_that_heeds_no_mask_is_refused(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = optimum_intel(package, tmp_path / "model")
    made: Callable[..., dict[str, np.ndarray]] = backend._inputs

    def short(tokens: list[int], start: int, logits_from: int) -> dict[str, np.ndarray]:
        """Positions that start again with every piece."""
        return {**made(tokens, start, logits_from), "position_ids": np.arange(len(tokens))[None]}

    monkeypatch.setattr(backend, "_inputs", short)
    with pytest.raises(DeviceUnavailable, match="gives other logits for a prompt that is fed at once"):
        embedllm.load(folder, device="openvino")

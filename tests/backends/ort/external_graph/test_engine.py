"""Models whose graph another exporter has traced: made by hand here; tests/export/optimum has optimum's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import embedllm
from embedllm.backends.base import Interrupted
from embedllm.backends.ort.engine import devices
from embedllm.backends.ort.external_graph.engine import ExternalGraphEngine, ExternalGraphSession
from embedllm.backends.ort.external_graph.placement import on_host
from embedllm.cli.main import cli
from embedllm.errors import ContextFull, DeviceUnavailable, ExportError, PackageError, UnsupportedModel
from embedllm.export import Recipe, convert, describe
from embedllm.export.optimum import convert as fallback
from embedllm.package.package import open_package
from tests.support.traced_models import CONTEXT, VOCABULARY, expected, weights, write_checkpoint, write_graph

TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 40).tolist()
Exports = Callable[..., Path]


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Exports:
    """A function that exports the model, optimum's part of the work done by hand: export(recipe, mask=, beside=)."""
    source = write_checkpoint(tmp_path / "source")

    def make(recipe: Recipe | None = None, *, mask: str = "right", beside: bool = False, **config: object) -> Path:
        monkeypatch.setattr(fallback, "_check_installed", lambda: None)
        monkeypatch.setattr(fallback, "_version", lambda: "0")
        monkeypatch.setattr(fallback, "_trace", lambda _, folder: write_graph(folder, mask=mask, beside=beside))
        if config:
            (source / "config.json").write_text(json.dumps(config))
        return convert(source, tmp_path / "out", recipe, exporter="optimum", replace=True)

    return make


def opened(folder: Path, *, exact: bool = True) -> ExternalGraphSession:
    package = open_package(folder)
    return ExternalGraphEngine(package, package.graphs[0], on_host(devices()[0], exact=exact)).open()


@pytest.mark.parametrize("beside", [False, True])
def test_at_32_bits_its_logits_are_those_of_its_formula(export: Exports, beside: bool) -> None:
    session = opened(export(Recipe(bits=32), beside=beside))
    right = expected(weights(), TOKENS)
    np.testing.assert_allclose(session.feed_all(TOKENS), right, atol=1e-4)
    session.rewind(7)
    np.testing.assert_allclose(session.feed_all(TOKENS[7:30]), right[7:30], atol=1e-4)
    last = session.feed(TOKENS[30:31])
    assert last.top(1).tokens[0] == right[30].argmax()


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(symmetric=True),
        Recipe(bits=8),
        Recipe(symmetric=False),
        Recipe(group_size=16, exact=True, symmetric=True),
        Recipe(bits=16),
    ],
)
def test_rounded_weights_are_what_the_graph_computes_with(export: Exports, recipe: Recipe) -> None:
    folder = export(recipe)
    found = weights()
    for name in ("q", "k", "v", "o", "table"):
        turned = name != "table"
        given = found[name].T if turned else found[name]
        rounded = stored(folder, name, recipe)
        assert np.abs(rounded - given).max() < 0.2
        found[name] = rounded.T if turned else rounded
    found["head"] = found["table"].T  # one table: the tied head is not stored twice
    right = expected(found, TOKENS)
    exact = recipe.body_bits != 8  # whose products round their activations
    np.testing.assert_allclose(opened(folder).feed_all(TOKENS), right, atol=1e-3 if exact else 0.3)


def stored(folder: Path, name: str, recipe: Recipe) -> np.ndarray:
    """A matrix as the file has it, unpacked here."""
    from safetensors.numpy import load_file

    tensors = load_file(folder / "weights.safetensors")
    weight = tensors[f"{name}.weight"]
    if recipe.body_bits >= 16:
        return weight.astype(np.float32)
    rows, groups, _ = weight.shape
    scale = tensors[f"{name}.scale"].astype(np.float32)[:, :, None]
    if recipe.body_bits == 8:
        return ((weight.astype(np.float32) - 128) * scale).reshape(rows, -1)
    values = np.stack([weight & 15, weight >> 4], axis=-1).reshape(rows, groups, -1).astype(np.float32)
    zero: np.ndarray | float = 8.0
    if not recipe.symmetric:
        packed = tensors[f"{name}.zero"]
        pairs = np.stack([packed & 15, packed >> 4], axis=-1).reshape(rows, -1)[:, :groups]
        zero = pairs.astype(np.float32)[:, :, None]
    return ((values - zero) * scale).reshape(rows, -1)


def test_the_whole_library_runs_it(export: Exports) -> None:
    folder = export(Recipe(bits=32))
    with embedllm.load(folder) as model:
        assert model.device.name == "cpu"
        prompt = "list files"
        reply = model.generate(prompt, embedllm.Sampling(temperature=0), max_tokens=6, stop_tokens=())
        tokens = list(model.tokenizer.encode(prompt, special=True))
        for _ in range(6):
            tokens.append(int(expected(weights(), tokens)[-1].argmax()))
        again = model.generate(prompt, embedllm.Sampling(temperature=0), max_tokens=6, stop_tokens=())
    assert reply.text == again.text == model.tokenizer.decode(tokens[-6:])


def test_a_graph_that_is_wrong_for_pieces_is_fed_token_by_token_behind_others(export: Exports) -> None:
    folder = export(Recipe(bits=32), mask="whole")
    assert not open_package(folder).external_graph.in_pieces
    session, right = opened(folder), expected(weights(), TOKENS)
    session.feed(TOKENS[:10])
    np.testing.assert_allclose(session.feed_all(TOKENS[10:]), right[10:], atol=1e-4)


def test_a_graph_that_is_wrong_for_single_tokens_is_refused(export: Exports, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="other logits for a prompt that is fed at once than token by token"):
        export(Recipe(bits=32), mask="wrong")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_state_is_moved(export: Exports) -> None:
    folder = export(Recipe(bits=32))
    session, other, right = opened(folder), opened(folder), expected(weights(), TOKENS)
    session.feed(TOKENS[:20])
    other.import_state(session.export_state(0, 5))
    other.import_state(session.export_state(5, 20))
    assert (other.position, other.capacity) == (20, 20)
    np.testing.assert_allclose(other.feed_all(TOKENS[20:]), right[20:], atol=1e-4)


def test_what_fails_appends_nothing(export: Exports) -> None:
    session = opened(export())
    session.feed(TOKENS[:3])
    with pytest.raises(ContextFull):
        session.feed([1] * (CONTEXT - 2))
    with pytest.raises(ValueError, match="outside the vocabulary"):
        session.feed([VOCABULARY])
    session.interrupt()
    with pytest.raises(Interrupted):
        session.feed([1])
    session.interrupt(False)
    assert session.position == 3
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.feed([1])


def test_other_devices_and_wishes_are_refused_with_the_reason(export: Exports) -> None:
    folder = export()
    for device in ("openvino", "reference"):
        with pytest.raises(DeviceUnavailable, match="without an architecture description"):
            embedllm.load(folder, device=device)
    with pytest.raises(DeviceUnavailable, match="keeps its KV as floats"):
        embedllm.load(folder, device="cpu", kv="int8")
    with pytest.raises(PackageError, match="without an architecture description"):
        embedllm.load(folder, adapters={})


def test_choices_that_take_a_description_are_refused(export: Exports, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="'gptq'"):
        export(Recipe(method="gptq"))
    with pytest.raises(ExportError, match="'rotate'"):
        export(Recipe(rotate=True))
    with pytest.raises(ExportError, match="calibration"):
        convert(tmp_path / "source", tmp_path / "out", exporter="optimum", calibration=tmp_path / "text")
    with pytest.raises(ValueError, match="exporter is 'other'"):
        convert(tmp_path / "source", tmp_path / "out", exporter="other")


def test_a_context_is_asked_for_where_the_config_has_none(export: Exports) -> None:
    with pytest.raises(ExportError, match="--context"):
        export(model_type="undescribed")
    assert open_package(export(Recipe(context=64), model_type="undescribed")).context == 64
    with pytest.raises(ExportError, match="context is 97 tokens; expected 1 to 96"):
        export(Recipe(context=97), model_type="undescribed", n_positions=96)


def test_without_optimum_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (describe, fallback):
        monkeypatch.setattr(module, "DISTRIBUTION", "a-distribution-that-is-not-there")
    source = write_checkpoint(tmp_path / "source")
    with pytest.raises(UnsupportedModel, match=r"pip install 'embedllm\[optimum\]'"):
        convert(source, tmp_path / "out")
    with pytest.raises(ExportError, match=r"pip install 'embedllm\[optimum\]'"):
        convert(source, tmp_path / "out", exporter="optimum")
    monkeypatch.setattr(describe, "DISTRIBUTION", "numpy")
    with pytest.raises(UnsupportedModel, match="optimum is installed"):
        convert(source, tmp_path / "out")


def test_inspecting_it_says_why_there_is_little_to_see(export: Exports) -> None:
    done = CliRunner().invoke(cli, ["inspect", str(export())])
    assert done.exit_code == 1
    assert "without an architecture description" in done.stderr

"""Folders of onnxruntime-genai with several graphs, read without it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import embedllm
from embedllm.backends import genai
from embedllm.errors import DeviceUnavailable, PackageError
from embedllm.package.graph_variants import GENAI
from embedllm.package.package import open_package
from tests.cli.test_commands import embed
from tests.support.genai_folders import combined, pictures, pipeline
from tests.support.traced_models import CONTEXT, HEADS, SIZE, VOCABULARY


def changed(folder: Path, *keys: str, **values: object) -> Path:
    """The folder, whose configuration says otherwise in the section that the keys lead to."""
    path = folder / "genai_config.json"
    config = json.loads(path.read_text())
    section = config["model"]
    for key in keys:
        section = section[key]
    section.update(values)
    path.write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("as_object", [False, True])
def test_what_a_pipeline_is_follows_from_its_configuration_and_graphs(tmp_path: Path, as_object: bool) -> None:
    folder = pipeline(tmp_path / "model")
    if as_object:
        stages = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]["pipeline"]
        changed(folder, "decoder", pipeline={name: stage for one in stages for name, stage in one.items()})
    package = open_package(folder)
    graphs = ["embeddings.onnx", "transformer.onnx", "lm_head.onnx"]
    assert list(package.files) == ["genai_config.json", *graphs]
    assert package.stored.bytes == sum((folder / name).stat().st_size for name in package.files)
    assert (package.context, package.stop_tokens) == (CONTEXT, (7, 9))
    assert (package.external_graph.vocabulary, package.external_graph.kv) == (VOCABULARY, ((HEADS, SIZE),))
    assert [(graph.file, graph.variant) for graph in package.graphs] == [("genai_config.json", GENAI)]
    assert package.external is not None
    assert package.external.devices == ("genai",)


def test_a_model_with_pictures_is_all_of_its_graphs(tmp_path: Path) -> None:
    package = open_package(pictures(tmp_path / "model"))
    assert list(package.files) == ["genai_config.json", "embedding.onnx", "vision.onnx", "text.onnx"]


def test_a_graph_with_states_of_its_own_is_for_its_maker(tmp_path: Path) -> None:
    package = open_package(combined(tmp_path / "model"))
    assert list(package.files) == ["genai_config.json", "model.onnx"]
    assert package.external is not None
    assert package.external.devices == ("genai",)


def test_inspect_tells_what_runs_it(tmp_path: Path) -> None:
    shown = json.loads(embed("inspect", str(pipeline(tmp_path / "model")), "--json").stdout)
    assert (shown["graph"], shown["variant"]) == ("genai_config.json", GENAI)
    assert shown["files"].keys() == {"genai_config.json", "embeddings.onnx", "transformer.onnx", "lm_head.onnx"}


@pytest.mark.parametrize(
    ("keys", "values", "said"),
    [
        (("decoder",), {"pipeline": []}, r"'pipeline' .* is \[\]; expected stages"),
        (("decoder",), {"pipeline": [3]}, r"'pipeline' .* is \[3\]; expected stages"),
        (("decoder",), {"pipeline": [{"a": 3}]}, "'a' .* is 3; expected an object"),
        (("decoder",), {"pipeline": [{"a": {}}]}, "'filename' .* is None; expected a text"),
        (("decoder",), {"pipeline": [{"a": {"filename": "../a.onnx"}}]}, "names the file"),
        (("decoder",), {"pipeline": [{"a": {"filename": "none.onnx"}}]}, "none.onnx"),
        (("decoder",), {"num_hidden_layers": 0}, "'num_hidden_layers' .* is 0; expected a number from 1 on"),
        (("decoder",), {"session_options": {"custom_ops_library": "a.so"}}, "'custom_ops_library', which loads code"),
        (("decoder",), {"sliding_window": {"window_size": 0}}, "'window_size' .* is 0; expected a number from 1 on"),
        (("decoder",), {"sliding_window": {"window_size": 1}}, "'window_size' .* is 1 tokens; expected 2 or more"),
        (("decoder",), {"sliding_window": {"window_size": 97}}, "'window_size' .* is 97 tokens, more than the 96"),
        ((), {"pad_token_id": None}, "'pad_token_id' .* is None; expected a token"),
        ((), {"vocab_size": None}, "'vocab_size' .* is None; expected a number"),
        ((), {"encoder": {"filename": "a.onnx"}}, "the section 'encoder', .*pip install onnxruntime-genai"),
        ((), {"draft": {"filename": "a.onnx"}}, "the section 'draft'"),
        ((), {"eos_token_id": VOCABULARY}, "a stop token .* is 307; expected 0 to 306"),
    ],
)
def test_what_a_configuration_lacks_is_said(
    tmp_path: Path, keys: tuple[str, ...], values: dict[str, object], said: str
) -> None:
    folder = changed(pipeline(tmp_path / "model"), *keys, **values)
    with pytest.raises(PackageError, match=said):
        open_package(folder)


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", None)
    monkeypatch.delitem(sys.modules, "embedllm.backends.genai.engine", raising=False)
    monkeypatch.delattr(genai, "engine", raising=False)
    with pytest.raises(DeviceUnavailable, match=r"(?s)cannot be imported.*pip install embedllm\[genai\]"):
        embedllm.load(pipeline(tmp_path / "model"))

"""Graphs and configurations that would never end, or that no reader expects: refused by our errors, at once."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import embedllm
from embedllm.errors import ExportError, PackageError
from embedllm.export import convert
from embedllm.export.architectures import describe, families
from embedllm.export.architectures.config import Config
from embedllm.package.package import open_package
from tests.export.architectures.test_refused import config
from tests.support.external_folders import Edit, optimum_intel, transformers_js
from tests.support.tiny import tiny_checkpoint

LEAST_S = 5.0  # far above what any of these takes, far below a loop of 2^62 rounds


def loop() -> onnx.NodeProto:
    """2^62 rounds of nothing."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["still"])],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("still", TensorProto.BOOL, [])],
    )
    return helper.make_node("Loop", ["rounds", "yes"], [], body=body)


def in_graph(edit: Edit) -> None:
    edit.graph.node.insert(0, loop())


def in_branch(edit: Edit) -> None:
    inner = helper.make_graph([loop()], "inner", [], [])
    edit.graph.node.insert(0, helper.make_node("If", ["yes"], [], then_branch=inner, else_branch=inner))


def in_function(edit: Edit) -> None:
    opset = [helper.make_opsetid("", 17)]
    edit.model.functions.append(helper.make_function("ours", "Endless", ["rounds", "yes"], [], [loop()], opset))
    edit.graph.node.insert(0, helper.make_node("Endless", ["rounds", "yes"], [], domain="ours"))


@pytest.mark.parametrize("place", [in_graph, in_branch, in_function])
def test_a_graph_that_may_never_end_is_refused_at_once(tmp_path: Path, place: Callable[[Edit], None]) -> None:
    folder = transformers_js(tmp_path / "model")
    edit = Edit(folder / "onnx" / "model.onnx")
    edit.constant("rounds", np.int64(2**62))
    edit.constant("yes", np.bool_(True))
    place(edit)
    edit.save()
    started_s = time.monotonic()
    with pytest.raises(PackageError, match="has the operator 'Loop', whose number of rounds is not bounded"):
        embedllm.load(folder, device="cpu")
    assert time.monotonic() - started_s < LEAST_S


@pytest.fixture(scope="module")
def xml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openvino")
    return optimum_intel(convert(tiny_checkpoint(folder / "checkpoint"), folder / "package"), folder / "model")


def with_text(xml: Path, folder: Path, change: Callable[[str], str]) -> Path:
    folder.mkdir()
    for path in xml.iterdir():
        if path.suffix != ".xml":
            (folder / path.name).symlink_to(path)
    text = change((xml / "openvino_model.xml").read_text(encoding="utf-8"))
    (folder / "openvino_model.xml").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('type="ReadValue"', 'type="Loop"', "has the operation 'Loop', whose number of rounds is not bounded"),
        ("<?xml", '<?xml encoding="zzz" ', "is no OpenVINO model that can be read"),
        ('variable_id="', 'id2="', "is no OpenVINO model that can be read"),
        ("past_key_values.0.", "past_key_values." + "9" * 5000 + ".", "keeps the state"),
        ('variable_shape="?,2,', 'variable_shape="?,' + "9" * 5000 + ",", "keeps the state"),
        ('variable_shape="?,2,', 'variable_shape="?,two,', "keeps the state"),
        ('variable_shape="?,2,', 'variable_shape="?,0,', "keeps the state"),
    ],
    ids=["loop", "encoding", "no id", "layer", "heads", "no number", "no heads"],
)
def test_an_openvino_model_that_cannot_be_meant_is_refused(
    xml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    monkeypatch.setenv("EMBEDLLM_FOLLOW_LINKS", "1")

    def change(text: str) -> str:
        if old == "<?xml":
            return '<?xml version="1.0" encoding="zzz"?>' + text.partition("?>")[2]
        assert old in text
        return text.replace(old, new)

    with pytest.raises(PackageError, match=message):
        open_package(with_text(xml, tmp_path / "model", change))


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_no_damaged_openvino_model_gives_another_error(
    xml: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    def change(text: str) -> str:
        values = [*re.finditer(r'"[^"<>]*"', text)]
        for match in reversed(data.draw(st.lists(st.sampled_from(values), max_size=3, unique=True))):
            wrong = data.draw(st.sampled_from(["", "-1", "0", "?", "x", "9" * 5000, "1,2,3", "ReadValue", "Const"]))
            text = f'{text[: match.start()]}"{wrong}"{text[match.end() :]}'
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMBEDLLM_FOLLOW_LINKS", "1")
        with suppress(PackageError):
            open_package(with_text(xml, tmp_path_factory.mktemp("damaged") / "model", change))


@pytest.mark.parametrize(
    ("key", "value", "most"),
    [("num_hidden_layers", 2**31 - 1, 1000), ("num_hidden_layers", 1001, 1000), ("num_local_experts", 10**6, 50_000)],
)
def test_what_is_listed_one_by_one_is_bounded(key: str, value: int, most: int) -> None:
    found = Config({"num_hidden_layers": 2, key: value})
    with pytest.raises(ExportError, match=f"'{key}' is {value}; expected a whole number up to {most}"):
        found.integer(key)


@pytest.mark.parametrize("value", [1000, 2**31 - 1])
def test_no_number_of_a_configuration_takes_for_ever(value: int) -> None:
    """Each by itself, of one family of a kind: what is not refused is described in time that grows with the layers."""
    for family in ("llama", "gemma3n_text", "lfm2_moe", "cohere2"):
        assert family in families()
        tiny = config(family)
        for key in [key for key, number in tiny.items() if type(number) is int]:
            started_s = time.monotonic()
            with suppress(ExportError):
                describe(Config({**tiny, key: value}), None)
            assert time.monotonic() - started_s < LEAST_S, (family, key)


def test_a_vocabulary_of_two_billion_is_refused_at_once(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "checkpoint")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": 2**31 - 1}))
    started_s = time.monotonic()
    with pytest.raises(ExportError, match=r"vocab_size|embed_tokens"):
        convert(folder, tmp_path / "out")
    assert time.monotonic() - started_s < LEAST_S

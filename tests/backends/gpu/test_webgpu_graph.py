"""Graphs for captured steps and for copies of KV on WebGPU, run on the CPU. No GPU is needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.gpu.webgpu_graph import KEPT, NUMBERS, with_next_token
from embedllm.backends.gpu.webgpu_kv import scatter_graph, slice_graph
from embedllm.backends.ort.runtime import ort
from embedllm.export import Recipe, convert
from embedllm.package.graph_variants import GPU_FLOAT32
from embedllm.package.package import Package, open_package
from tests.support.tiny_recurrent import tiny_qwen3_5

TOKENS = [5, 9, 3, 7]


def gpu_graph(package: Package) -> Path:
    graph = package.graph(GPU_FLOAT32.name)
    assert graph is not None
    return package.folder / graph.file


def on_cpu(model: str | bytes, folder: Path | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def empty_kv(session: ort.InferenceSession) -> dict[str, np.ndarray]:
    return {one.name: np.zeros((1, one.shape[1], 0, one.shape[3]), np.float32)
            for one in session.get_inputs() if one.name.startswith("past_key_values.")}  # fmt: skip


@pytest.mark.parametrize("vocabulary", [307, 320])  # 307 is prime: rows are filled up
def test_a_rewritten_graph_gives_the_same_logits_and_the_next_step(
    vocabulary: int, tiny_package: Callable[..., Path]
) -> None:
    package = open_package(tiny_package("llama", vocab_size=vocabulary))
    path = gpu_graph(package)
    plain, rewritten = on_cpu(str(path)), on_cpu(with_next_token(path, vocabulary), path.parent)
    kv, ids, last = empty_kv(plain), np.array([TOKENS]), np.array([-1])
    mask = np.ones((1, len(TOKENS)), np.int64)
    expected = np.asarray(
        plain.run(["logits"], {"input_ids": ids, "attention_mask": mask, "logits_from": last, **kv})[0]
    )[0, 0]
    before = np.arange(KEPT * NUMBERS, dtype=np.float32).reshape(KEPT, NUMBERS)
    lengths = {"seqlens_k": np.array([3], np.int32), "total_sequence_length": np.array([4], np.int32)}
    names = ["logits", "next_ids", "next_seqlens_k", "next_found"]
    given = {"input_ids": ids, "logits_from": last, "found": before, **lengths, **kv}
    logits, next_ids, next_length, found = (np.asarray(value) for value in rewritten.run(names, given))
    np.testing.assert_allclose(logits[0, 0], expected, atol=1e-5, rtol=0)
    assert next_ids.tolist() == [[int(expected.argmax())]]
    assert next_length.tolist() == [4]
    np.testing.assert_array_equal(found[:-1], before[1:])
    total = np.exp(expected - expected.max()).sum()
    np.testing.assert_allclose(found[-1], [expected.argmax(), expected.max(), total], rtol=1e-5)


@pytest.mark.parametrize("model", ["llama", "qwen3_5"])
def test_positions_follow_from_the_length_where_attention_does_not_rotate(
    model: str, tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    """Of a prompt, and of a step behind it."""
    if model == "llama":
        folder = tiny_package("llama", partial_rotary_factor=0.5, rotates_parts=True)
    else:
        folder = convert(tiny_qwen3_5(tmp_path / "checkpoint"), tmp_path / "package", Recipe())
    path = gpu_graph(open_package(folder))
    plain, rewritten = on_cpu(str(path)), on_cpu(with_next_token(path, 307), path.parent)
    assert "lengths.positions" in path.read_bytes().decode(errors="ignore")  # it has some
    names = [one.name for one in plain.get_outputs()]
    held = {one.name: np.zeros([{"batch": 1}.get(size, 0) if isinstance(size, str) else size for size in one.shape],
                               np.float32)
            for one in plain.get_inputs() if one.name.startswith("past_")}  # fmt: skip
    end = 0
    for tokens in (TOKENS, [11]):
        end += len(tokens)
        given = {"input_ids": np.array([tokens]), "logits_from": np.array([0]), **held}
        masked = given | {"attention_mask": np.ones((1, end), np.int64)}
        expected = [np.asarray(each) for each in plain.run(names, masked)]
        given["seqlens_k"], given["total_sequence_length"] = np.array([[end - 1], [end]], np.int32)
        given["found"] = np.zeros((KEPT, NUMBERS), np.float32)
        logits = np.asarray(rewritten.run(["logits"], given)[0])
        np.testing.assert_allclose(logits, expected[names.index("logits")], atol=1e-5, rtol=0)
        held = {past_of(name): value for name, value in zip(names, expected, strict=True) if name != "logits"}


def past_of(present: str) -> str:
    return re.sub(r"^present(?=\.)", "past_key_values", present).replace("present_", "past_")


def test_a_graph_whose_attention_has_a_window_is_refused(tiny_package: Callable[..., Path]) -> None:
    package = open_package(tiny_package("mistral", sliding_window=16))
    with pytest.raises(ValueError, match="its attention has a window"):
        with_next_token(gpu_graph(package), 307)


def test_a_graph_that_asks_the_mask_for_more_is_refused(tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    import onnx
    from onnx import helper

    model = onnx.load(str(gpu_graph(open_package(tiny_package("llama")))), load_external_data=False)
    model.graph.node.append(helper.make_node("Identity", ["attention_mask"], ["copy_of_mask"]))
    onnx.save(model, str(tmp_path / "model.onnx"))
    with pytest.raises(ValueError, match="uses the attention mask for more than lengths"):
        with_next_token(tmp_path / "model.onnx", 307)


def test_copies_of_kv_take_and_put_only_the_tokens_that_are_asked_for() -> None:
    shapes, dtype = [(2, 4), (3, 8)], np.dtype(np.float32)
    random = np.random.default_rng(0)
    kv = {
        f"kv.{at}": random.standard_normal((3, heads, 6, size), np.float32) for at, (heads, size) in enumerate(shapes)
    }
    spans = {"start": np.array([2, 1]), "stop": np.array([3, 3])}
    copies = on_cpu(slice_graph(shapes, dtype)).run(None, {**kv, **spans})
    for values, copy in zip(kv.values(), copies, strict=True):
        np.testing.assert_array_equal(copy, values[2:, :, 1:3])
    places = {f"places.{heads}": np.array([[[[1, head, at] for at in (4, 5)] for head in range(heads)]])
              for heads, _ in shapes}  # fmt: skip
    parts = {f"part.{at}": np.asarray(copy) for at, copy in enumerate(copies)}
    written = on_cpu(scatter_graph(shapes, dtype)).run(None, {**kv, **parts, **places})
    for values, new in zip(kv.values(), written, strict=True):
        values[1, :, 4:] = values[2, :, 1:3]
        np.testing.assert_array_equal(new, values)

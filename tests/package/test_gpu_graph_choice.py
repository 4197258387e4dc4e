"""Folders made by others on GPUs, for real: pytest -m gpu, or .ci/lavapipe.sh pytest -m webgpu, of this file.

WebGPU's are skipped, with the reason, where no device is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from onnxruntime.quantization import quantize_dynamic

import embedllm
from embedllm.backends.base import Device
from embedllm.backends.devices import registry
from embedllm.backends.ort.external_graph.engine import ExternalGraphEngine
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import DeviceUnavailable
from embedllm.package.package import Package, open_package
from tests.package.test_onnx_folders import GREEDY, TOKENS, greedy
from tests.support.external_folders import (
    in_float16,
    stripped,
    transformers_js,
    with_angles,
    with_branch,
    with_few_logits,
    with_half_kv,
    with_last_logits,
    with_narrow_masks,
    without_positions,
)
from tests.support.traced_models import VOCABULARY, expected, weights

ATOL = {"float32": 2e-3, "float16": 0.15}  # of logits up to 17
HALF = "model.fp16.onnx"
CHANGES: dict[str, Sequence[Callable[[Path], None]]] = {
    "as optimum writes it": (),
    "without positions": (without_positions,),
    "a merged decoder": (with_branch,),
    "angles from positions": (with_angles,),
    "angles without positions": (with_angles, without_positions),
    "few logits": (with_few_logits,),
    "the last logits": (with_last_logits,),
    "32-bit masks": (with_narrow_masks,),
    "16-bit KV": (with_half_kv,),
    "float16": (in_float16,),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param("cuda", marks=pytest.mark.gpu), pytest.param("webgpu", marks=pytest.mark.webgpu)],
)
def device(request: pytest.FixtureRequest) -> Device:
    found = next(one for one in registry.DeviceCatalog().lookup(request.param) if one.name == request.param)
    if request.param == "webgpu" and not found.available:
        pytest.skip(f"no WebGPU: {found.reason}")
    return found


def opened(package: Package, device: Device) -> ExternalGraphEngine:
    engine = registry.open_engine(package, device)
    assert isinstance(engine, ExternalGraphEngine)
    return engine


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_graphs_of_other_exporters_give_the_logits_of_their_formula(
    device: Device, tmp_path: Path, changes: Sequence[Callable[[Path], None]]
) -> None:
    folder = transformers_js(tmp_path / "model")
    for change in changes:
        change(folder / "onnx" / "model.onnx")
    package = open_package(folder)
    engine, right = opened(package, device), expected(weights(), TOKENS)
    assert engine.external_graph.in_pieces
    session, atol = engine.open(), ATOL[package.graphs[0].activations]
    np.testing.assert_allclose(session.feed_all(TOKENS), right, atol=atol)
    session.rewind(7)
    np.testing.assert_allclose(session.feed(TOKENS[7:20]).values(range(VOCABULARY)), right[19], atol=atol)
    np.testing.assert_allclose(session.feed_all(TOKENS[20:]), right[20:], atol=atol)
    state = session.export_state(0, 25)
    session.rewind(0)
    session.import_state(state)
    np.testing.assert_allclose(session.feed_all(TOKENS[25:]), right[25:], atol=atol)


def genai_folder(ours: Path, folder: Path, graph: str) -> Package:
    """A package of ours as onnxruntime-genai would have it, with one of its graphs."""
    config = json.loads((stripped(ours, folder) / "genai_config.json").read_text())
    config["model"]["decoder"]["filename"] = graph
    (folder / "genai_config.json").write_text(json.dumps(config))
    return open_package(folder)


@pytest.mark.parametrize("graph", ["model.onnx", HALF])
def test_attention_that_appends_goes_on_where_its_buffers_end(
    device: Device, graph: str, tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    ours = tiny_package("llama", max_position_embeddings=600)
    package = genai_folder(ours, tmp_path / "model", graph)
    assert package.external is not None
    assert package.external.names.appends
    if device.name == "cuda" and graph != HALF:  # its attention takes no float32
        with pytest.raises(DeviceUnavailable, match=r"gave GroupQueryAttention of 'model\.onnx' to the CPU"):
            opened(package, device)
        return
    tokens = np.random.default_rng(5).integers(3, 200, 300).tolist()
    right, session = ReferenceEngine(open_package(ours)).open().feed_all(tokens), opened(package, device).open()
    np.testing.assert_allclose(session.feed_all(tokens), right, atol=0.1)  # more than the first buffers hold
    session.rewind(250)
    np.testing.assert_allclose(session.feed_all(tokens[250:]), right[250:], atol=0.1)
    state = session.export_state(0, 290)
    session.rewind(0)
    session.import_state(state)
    np.testing.assert_allclose(session.feed_all(tokens[290:]), right[290:], atol=0.1)


@pytest.mark.parametrize("appends", [False, True])
def test_keys_and_values_stay_on_the_device(
    device: Device, appends: bool, tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    from embedllm.backends.ort.external_graph.kv import AppendedKv, CopiedKv

    folder = tmp_path / "model"
    package = genai_folder(tiny_package("llama"), folder, HALF) if appends else open_package(transformers_js(folder))
    engine = opened(package, device)
    names, count = engine.names.pairs(len(engine.external_graph.kv)), len(engine.external_graph.kv)
    shapes = engine.inputs.kv(engine.external_graph.kv)
    kv = AppendedKv(shapes, 8, engine.placement) if appends else CopiedKv(shapes, engine.placement)
    binding = engine.session.io_binding()
    with engine.placement.lock:
        for name, value in engine.inputs.feeds([3, 4], 0, each=False, length=kv.reserve(2)):
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(engine.names.logits)
        kv.bind(binding, names)
        engine.session.run_with_iobinding(binding)
        found = binding.get_outputs()[1:]
    assert [value.device_name().lower() for value in found] == [engine.placement.where[0]] * 2 * count


def test_the_whole_library_runs_it_there(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDLLM_PROBE", "off")  # tests/backends/probe/test_probe.py has it
    folder = transformers_js(tmp_path / "model")
    with embedllm.load(folder, device=device.name) as model:
        assert model.device.name == device.name
        reply = model.generate("list files", GREEDY, max_tokens=6, stop_tokens=())
        prompt = model.tokenizer.encode("list files", special=True)
        assert reply.tokens == greedy(prompt, 6)
        again = model.generate(prompt, GREEDY, max_tokens=6, stop_tokens=())
        assert (again.tokens, again.statistics.cached_tokens) == (reply.tokens, len(prompt) - 1)


def test_a_graph_in_float16_goes_first(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDLLM_PROBE", "off")
    folder = transformers_js(tmp_path / "model", "model.onnx", "model_q4.onnx", "model_fp16.onnx")
    in_float16(folder / "onnx" / "model_fp16.onnx")
    with embedllm.load(folder, device=device.name) as model:
        assert model.package.graphs[0].file == "onnx/model_fp16.onnx"
        assert model.generate(TOKENS[:4], GREEDY, max_tokens=3, stop_tokens=()).tokens == greedy(TOKENS[:4], 3)
    with embedllm.load(folder, device="cpu") as model:
        assert model.package.graphs[0].file == "onnx/model_q4.onnx"
    with embedllm.load(folder / "onnx" / "model.onnx", device=device.name) as model:
        assert model.package.graphs[0].file == "onnx/model.onnx"


def test_work_that_would_go_to_the_cpu_is_named(device: Device, tmp_path: Path) -> None:
    folder = transformers_js(tmp_path / "model")
    path = folder / "onnx" / "model.onnx"
    quantize_dynamic(path, path.with_name("model_quantized.onnx"))
    with pytest.raises(DeviceUnavailable, match=r"gave MatMulInteger.* of 'onnx/model_quantized\.onnx' to the CPU"):
        opened(open_package(path.with_name("model_quantized.onnx")), device)

"""Graphs with a quantized KV: their scales, and sessions on ONNX Runtime's CPU that keep int8 and int4."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from embedllm.backends.base import BatchRow
from embedllm.backends.ort.engine import OrtEngine, devices
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import ExportError
from embedllm.export.graphs import write_variant
from embedllm.export.quantization.kv_scales import kv_scales
from embedllm.export.verify import compare
from embedllm.package.graph_variants import CALIBRATED, FLOAT32, INT4_KV, INT8_KV, GraphVariant
from embedllm.package.package import open_package
from embedllm.profiling.inspection.package_report import describe_package

MakePackage = Callable[..., Path]
CONTEXT = 600  # the capacity grows twice on the way
TOKENS = np.random.default_rng(5).integers(0, 307, 300).tolist()
# nats: 9e-5 to 1.7e-4 measured on these models, and 0.025 to 0.028
MOST_KL = {8: 5e-4, 4: 0.08}


@pytest.fixture(scope="module")
def made(tiny_package: MakePackage, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that gives a folder with both quantized KVs, of the scales that TOKENS ask for."""
    found: dict[str, Path] = {}

    def make(family: str = "qwen3", **config: object) -> Path:
        key = f"{family} {config}"
        if key not in found:
            folder = tmp_path_factory.mktemp("kv") / "package"
            shutil.copytree(tiny_package(family, max_position_embeddings=CONTEXT, **config), folder)
            for variant in CALIBRATED:
                write_variant(folder, variant.name, tokens=TOKENS)
            found[key] = folder
        return found[key]

    return make


def engine(folder: Path, variant: GraphVariant, *, exact: bool = True) -> OrtEngine:
    package = open_package(folder)
    graph = package.graph(variant.name)
    assert graph is not None
    return OrtEngine(package, graph, devices()[0], exact=exact)


@pytest.mark.parametrize(("variant", "step"), [(INT8_KV, 1.25 / 127), (INT4_KV, 0.85 / 7)], ids=["int8", "int4"])
def test_a_step_is_a_part_of_the_farthest_number_with_a_margin(
    variant: GraphVariant, step: float, made: Callable[..., Path]
) -> None:
    folder = made()
    session = engine(folder, FLOAT32, exact=False).open()
    session.feed(TOKENS)
    graph = onnx.load(folder / variant.file, load_external_data=False).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if not tensor.external_data}
    for index, (key, value) in enumerate(session.export_state(0, len(TOKENS))):
        for kind, numbers in (("key", key), ("value", value)):
            expected = np.abs(numbers).max(axis=1)[None, :, None] * np.float32(step)
            np.testing.assert_array_equal(stored[f"layers.{index}.kv.{kind}_scale"], expected)


def test_without_a_text_the_model_says_something_and_always_the_same(tiny_package: MakePackage) -> None:
    package = open_package(tiny_package("qwen3"))
    float_graph = (package.folder / FLOAT32.file).read_bytes()
    found = kv_scales(package, float_graph, 8), kv_scales(package, float_graph, 8)
    for once, again in zip(*found, strict=True):
        for scale, same in zip(once, again, strict=True):
            np.testing.assert_array_equal(scale, same)
            assert scale.shape == (2, 16)
            assert (scale > 1e-6).all()


@pytest.mark.parametrize("variant", CALIBRATED, ids=lambda variant: variant.name)
@pytest.mark.slow
@pytest.mark.parametrize(("family", "config"), [("qwen3", {}), ("llama", {}), ("mistral", {"sliding_window": 16})])
def test_logits_follow_the_reference(
    family: str, config: dict[str, object], variant: GraphVariant, made: Callable[..., Path]
) -> None:
    """Without the window of 16 tokens the int8 one would be 0.55 off."""
    folder = made(family, **config)
    tokens = TOKENS[:100]
    expected = ReferenceEngine(open_package(folder)).open().feed_all(tokens)
    found = compare(expected, engine(folder, variant).open().feed_all(tokens))
    assert 0 < found.kl_mean <= MOST_KL[variant.kv_bits], found


@pytest.mark.parametrize(("variant", "part"), [(INT8_KV, 4), (INT4_KV, 8)], ids=["int8", "int4"])
def test_the_kv_takes_a_part_of_the_bytes(variant: GraphVariant, part: int, made: Callable[..., Path]) -> None:
    floats, session = (engine(made(), one).open(512) for one in (FLOAT32, variant))
    assert session.capacity == floats.capacity == 512
    sizes = [sum(array.nbytes for array in one.kv.values()) for one in (floats, session)]
    assert sizes[0] == part * sizes[1]


@pytest.mark.parametrize("variant", CALIBRATED, ids=lambda variant: variant.name)
def test_pieces_growth_and_rewinds_change_nothing(variant: GraphVariant, made: Callable[..., Path]) -> None:
    opened = engine(made(), variant)
    whole, pieces = opened.open(CONTEXT), opened.open()
    whole.feed(TOKENS)
    pieces.feed(TOKENS[:100])
    pieces.feed(TOKENS[:7])
    pieces.rewind(100)
    pieces.feed(TOKENS[100:])
    for expected, found in zip(whole.export_state(0, 300), pieces.export_state(0, 300), strict=True):
        for one, other in zip(expected, found, strict=True):
            # float products round by their number of rows: a number between two steps may go either way
            gaps = np.abs(one.astype(int) - other.astype(int)) if variant is INT8_KV else one != other
            assert gaps.max() <= 1
            assert gaps.astype(bool).mean() < 0.001


@pytest.mark.parametrize("variant", CALIBRATED, ids=lambda variant: variant.name)
def test_a_state_goes_to_another_session_bit_by_bit(variant: GraphVariant, made: Callable[..., Path]) -> None:
    opened = engine(made(), variant)
    first, second = opened.open(), opened.open()
    first.feed(TOKENS)
    for start, stop in ((0, 120), (120, 300)):
        second.import_state(first.export_state(start, stop))
    assert first.feed([7]).values(range(307)) == second.feed([7]).values(range(307))
    assert first.export_state(0, 1)[0][0].dtype == (np.int8 if variant is INT8_KV else np.uint8)


def test_states_of_different_types_are_not_mixed(made: Callable[..., Path]) -> None:
    names = {FLOAT32: "floats", INT8_KV: "int8", INT4_KV: "uint8"}
    sessions = {variant: engine(made(), variant).open() for variant in names}
    for session in sessions.values():
        session.feed([1, 2, 3])
    for given, told in names.items():
        state = sessions[given].export_state(0, 3)
        for taking, own in names.items():
            if taking is not given:
                with pytest.raises(ValueError, match=f"this state holds {told}, and this session {own}"):
                    sessions[taking].import_state(state)
                assert sessions[taking].position == 3


@pytest.mark.parametrize("variant", CALIBRATED, ids=lambda variant: variant.name)
def test_sequences_that_step_together_get_what_each_gets_alone(
    variant: GraphVariant, made: Callable[..., Path]
) -> None:
    opened = engine(made(), variant, exact=False)
    together, alone = ([opened.open(), opened.open()] for _ in range(2))
    for sessions in (together, alone):
        for session, count in zip(sessions, (90, 41), strict=True):
            session.feed(TOKENS[:count])
    logits = opened.run_batch([BatchRow(together[0], [5]), BatchRow(together[1], [6])])
    for row, session, token in zip(logits, alone, (5, 6), strict=True):
        # with AVX2 alone ONNX Runtime sums several rows in another order than one: 6e-7, or a step of the KV
        np.testing.assert_allclose(row.values(range(307)), session.feed([token]).values(range(307)), atol=1e-3)


def test_inspect_finds_nothing_wrong_with_scales_in_the_graph(made: Callable[..., Path]) -> None:
    found = {graph.variant: graph for graph in describe_package(open_package(made())).graphs}
    for variant in CALIBRATED:
        assert (found[variant.name].problems, found[variant.name].unused_bytes) == ((), 0)


def test_a_model_that_does_not_run_has_no_scales(made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportError, match="has to run for the scales of its KV, and does not"):
        kv_scales(open_package(made()), b"no graph", 8)

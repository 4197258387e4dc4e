"""Sessions on ONNX Runtime's CPU against the NumPy reference, and their own rules."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.backends.base import Device, FeedsAll, Interrupted, Interruptible
from embedllm.backends.devices.registry import devices
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.ort.runtime import ort
from embedllm.backends.ort.session import OrtSession
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import ContextFull, DeviceError
from embedllm.export import Recipe
from embedllm.export.verify import compare
from embedllm.package.package import open_package

EXACT_ATOL = 1e-4  # of logits up to 5: the order of float32 sums differs
# accuracy_level 4 rounds activations to int8 in groups: measured 0.02 to 0.12 on these models, whose random weights
# are harder than trained ones (docs/numerics.md)
INT8_ACTIVATIONS_ATOL = 0.4
RECIPES = {
    "default": Recipe(),
    "int4": Recipe(symmetric=True),
    "int4 group 16": Recipe(group_size=16, symmetric=True),
    "int4 group 128": Recipe(group_size=128, symmetric=True),
    "int4 asymmetric": Recipe(symmetric=False),
    "int4, head 8": Recipe(head_bits=8),
    "int8": Recipe(bits=8),
    "int8 asymmetric": Recipe(bits=8, symmetric=False),
    "16 bits": Recipe(bits=16),
    "32 bits": Recipe(bits=32),
}


def cpu() -> Device:
    return next(device for device in devices() if device.name == "cpu")


def engine(folder: Path, *, exact: bool = False) -> OrtEngine:
    package = open_package(folder)
    graph = package.graph("generic-float32")
    assert graph is not None
    return OrtEngine(package, graph, cpu(), exact=exact)


@pytest.fixture(scope="module")
def exact_engine(tiny_package: Callable[..., Path]) -> Iterator[OrtEngine]:
    """A context of 600: the capacity grows twice on the way."""
    opened = engine(tiny_package("qwen3", Recipe(exact=True), max_position_embeddings=600))
    yield opened
    opened.close()


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_logits_follow_the_reference(family: str, name: str, tiny_package: Callable[..., Path]) -> None:
    folder = tiny_package(family, RECIPES[name], hidden_size=80, num_attention_heads=5, num_key_value_heads=1)
    tokens = np.random.default_rng(3).integers(0, 307, 50).tolist()
    reference = ReferenceEngine(open_package(folder)).open().feed_all(tokens)
    found = compare(reference, engine(folder).open().feed_all(tokens))
    quantized = name not in ("16 bits", "32 bits")
    assert found.max_difference <= (INT8_ACTIVATIONS_ATOL if quantized else EXACT_ATOL), found
    assert found.same_top >= 0.8, found


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8])
def test_how_weights_are_packed_and_memory_is_planned_changes_nothing(
    bits: int, tiny_package: Callable[..., Path]
) -> None:
    folder = tiny_package("qwen3", Recipe(bits=bits))
    usual = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    session = engine(folder).open()
    tokens = [3, 100, 41, 7, 250]
    inputs = {
        "input_ids": np.array([tokens], np.int64),
        "attention_mask": np.ones((1, len(tokens)), np.int64),
        **{f"past_key_values.{name}": array[:, :, :0] for name, array in session.kv.items()},
    }
    row = np.asarray(usual.run(["logits"], inputs)[0])[0, 0]
    assert session.feed(tokens).values(range(row.size)) == row.tolist()


@pytest.mark.slow
@pytest.mark.allcores
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_an_exact_export_equals_the_reference(bits: int, symmetric: bool, tiny_package: Callable[..., Path]) -> None:
    folder = tiny_package("qwen2", Recipe(bits=bits, symmetric=symmetric, exact=True), hidden_size=72)
    tokens = np.random.default_rng(4).integers(0, 307, 50).tolist()
    reference = ReferenceEngine(open_package(folder)).open().feed_all(tokens)
    found = compare(reference, engine(folder).open().feed_all(tokens))
    assert found.max_difference <= EXACT_ATOL, found


@pytest.mark.slow
def test_exact_is_a_choice_at_load_time_too(tiny_package: Callable[..., Path]) -> None:
    folder = tiny_package("llama", Recipe())
    tokens = list(range(3, 50))
    reference = ReferenceEngine(open_package(folder)).open().feed_all(tokens)
    rounded = compare(reference, engine(folder).open().feed_all(tokens))
    exact = compare(reference, engine(folder, exact=True).open().feed_all(tokens))
    assert exact.max_difference <= EXACT_ATOL < rounded.max_difference


@pytest.mark.allcores
@given(data=st.data())
def test_any_way_of_feeding_gives_the_logits_of_a_whole_feed(data: st.DataObject, exact_engine: OrtEngine) -> None:
    tokens = data.draw(st.lists(st.integers(0, 306), min_size=1, max_size=560))
    whole = exact_engine.open().feed(tokens).values(range(307))
    session = exact_engine.open()
    position, logits = 0, None
    while position < len(tokens):
        step = data.draw(st.integers(1, len(tokens) - position))
        if data.draw(st.booleans()):  # tokens that are taken back at once must leave no trace
            session.feed([7] * min(step, 600 - position))
            session.rewind(position)
        logits = session.feed(tokens[position : position + step])
        position += step
        assert session.position == position <= session.capacity
    assert logits is not None
    np.testing.assert_allclose(logits.values(range(307)), whole, atol=EXACT_ATOL)


def test_a_growing_cache_changes_nothing(exact_engine: OrtEngine) -> None:
    tokens = np.random.default_rng(5).integers(0, 307, 590).tolist()
    growing, roomy = exact_engine.open(), exact_engine.open(capacity=600)
    assert (growing.capacity, roomy.capacity) == (256, 600)
    for start in range(0, len(tokens), 59):
        piece = tokens[start : start + 59]
        ours, theirs = (session.feed(piece).values(range(307)) for session in (growing, roomy))
        assert ours == theirs
    assert growing.capacity == 600


def test_only_one_buffer_is_there_twice_while_a_cache_grows(
    exact_engine: OrtEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = exact_engine.open()
    session.feed([1, 2, 3])
    old = [weakref.ref(array) for array in session.kv.values()]
    alive: list[int] = []
    hold = session.hold

    def counted(kv: dict[str, np.ndarray], capacity: int) -> None:
        alive.append(sum(reference() is not None for reference in old))
        hold(kv, capacity)

    monkeypatch.setattr(session, "hold", counted)
    session.feed([4] * 300)
    assert alive == list(range(len(old), 0, -1))


def test_feed_gives_the_last_row_of_feed_all(exact_engine: OrtEngine) -> None:
    one, all_of_them = exact_engine.open(), exact_engine.open()
    for piece in ([1, 2, 3], [4], [5, 6]):
        rows = all_of_them.feed_all(piece)
        assert rows.shape == (len(piece), 307)
        np.testing.assert_allclose(one.feed(piece).values(range(307)), rows[-1], atol=EXACT_ATOL)


@pytest.mark.slow
def test_a_window_hides_what_lies_before_it(tiny_package: Callable[..., Path]) -> None:
    folder = tiny_package("mistral", Recipe(exact=True), sliding_window=8, num_hidden_layers=1)
    session, other = engine(folder).open(), engine(folder).open()
    tail = [11, 12, 13, 14, 15, 16, 17, 18]
    ours = session.feed([5] * 20 + tail).values(range(307))
    theirs = other.feed([9] * 20 + tail).values(range(307))
    np.testing.assert_allclose(ours, theirs, atol=EXACT_ATOL)


def test_sessions_of_one_engine_do_not_see_each_other(exact_engine: OrtEngine) -> None:
    alone = exact_engine.open()
    expected = [alone.feed([token]).top(3) for token in (1, 2, 3, 4)]
    one, other = exact_engine.open(), exact_engine.open()
    for token, candidates in zip((1, 2, 3, 4), expected, strict=True):
        assert one.feed([token]).top(3) == candidates
        other.feed([200 - token])


def test_what_is_bound_lives_as_long_as_the_binding(exact_engine: OrtEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bindings of ONNX Runtime 1.24 to 1.27 do not keep it; what was freed was read by the run."""

    class Binding:
        def bind_cpu_input(self, name: str, array: np.ndarray) -> None: ...

        def bind_ortvalue_input(self, name: str, value: ort.OrtValue) -> None:
            bound[name] = weakref.ref(value)

        def bind_ortvalue_output(self, name: str, value: ort.OrtValue) -> None: ...

    bound: dict[str, weakref.ref[ort.OrtValue]] = {}
    session = exact_engine.open()
    monkeypatch.setattr(session, "_binding", Binding())
    session._prepare([1, 2], logits_from=0)
    alive = {name: value() is not None for name, value in bound.items() if "key_values" not in name}
    assert alive == {"logits_from": True}  # of the KV the arrays are kept


@pytest.mark.allcores
def test_an_interrupted_session_stands_where_it_stood(exact_engine: OrtEngine) -> None:
    session = exact_engine.open()
    session.feed([1, 2, 3])
    session.interrupt()
    with pytest.raises(Interrupted):
        session.feed([4, 5])
    assert session.position == 3
    session.interrupt(False)
    after = session.feed([4, 5]).values(range(307))
    np.testing.assert_allclose(after, exact_engine.open().feed([1, 2, 3, 4, 5]).values(range(307)), atol=EXACT_ATOL)


def test_a_session_offers_what_the_optional_protocols_name(exact_engine: OrtEngine) -> None:
    session = exact_engine.open()
    assert isinstance(session, FeedsAll)
    assert isinstance(session, Interruptible)


def test_a_full_context_is_refused_whole(exact_engine: OrtEngine) -> None:
    session = exact_engine.open()
    session.feed([1] * 590)
    with pytest.raises(ContextFull, match="590 tokens are held and 11 more were given; 600 can be held") as caught:
        session.feed([2] * 11)
    assert (caught.value.tokens, caught.value.limit) == (601, 600)
    assert session.position == 590
    session.feed([2] * 10)
    assert session.position == 600


@pytest.mark.parametrize(
    ("tokens", "message"), [([], "at least one"), ([-1], "-1 is outside"), ([5, 307], "307 is outside")]
)
def test_tokens_outside_the_vocabulary_are_refused(tokens: list[int], message: str, exact_engine: OrtEngine) -> None:
    session = exact_engine.open()
    with pytest.raises(ValueError, match=message):
        session.feed(tokens)
    assert session.position == 0


@pytest.mark.parametrize("position", [-1, 4])
def test_a_rewind_goes_back_only(position: int, exact_engine: OrtEngine) -> None:
    session = exact_engine.open()
    session.feed([1, 2, 3])
    with pytest.raises(ValueError, match=f"cannot rewind to {position}; the session holds 3"):
        session.rewind(position)


def test_closed_things_say_so(tiny_package: Callable[..., Path]) -> None:
    opened = engine(tiny_package("llama", Recipe()))
    session: OrtSession = opened.open()
    session.close()
    session.close()
    with pytest.raises(ValueError, match="session was closed"):
        session.feed([1])
    opened.close()
    with pytest.raises(ValueError, match="model was closed"):
        opened.open()


def test_a_damaged_graph_is_a_device_error(tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "damaged"
    shutil.copytree(tiny_package("llama", Recipe()), folder)
    graph = folder / "model.onnx"
    graph.write_bytes(b"\0" * graph.stat().st_size)
    with pytest.raises(DeviceError, match="cannot load"):
        engine(folder)

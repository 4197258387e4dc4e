"""The DirectML graph and session, run on the CPU's provider: numbers, and the rules that DirectML's attention sets.

DirectML itself is Windows only; what was seen of it is in docs/directml.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedllm
from embedllm.backends.base import Device, FeedsAll, Interrupted, Interruptible, MovesState
from embedllm.backends.gpu.directml import DirectMLEngine
from embedllm.backends.gpu.directml_session import Buffers, DirectMLSession
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.ort.runtime import ort
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import ContextFull, DeviceUnavailable
from embedllm.export import Recipe
from embedllm.loading.resolve import package_folder
from embedllm.package.entries import Graph
from embedllm.package.package import Package, open_package

ATOL = 0.02  # of logits up to 4.6, all in float16, over 60 tokens: measured 0.006 to 0.011
DEVICE = Device(name="directml", backend="onnxruntime", description="the CPU in its place", available=True)
ODD: dict[str, object] = {"hidden_size": 96, "intermediate_size": 160}  # an odd number of groups of 32
RAGGED: dict[str, object] = {"hidden_size": 72, "intermediate_size": 136}  # no multiples of a group
MODELS: dict[str, tuple[str, Recipe, dict[str, object]]] = {
    "llama": ("llama", Recipe(), {}),
    "llama, biases": ("llama", Recipe(), {"attention_bias": True, "mlp_bias": True}),
    "llama, 8 bits, 3 and 5 groups": ("llama", Recipe(bits=8), ODD),
    "llama, 8 bits, 3 and 5 zero points": ("llama", Recipe(bits=8, symmetric=False), ODD),
    "mistral, group 16": ("mistral", Recipe(group_size=16), {}),
    "mistral, window of the context": ("mistral", Recipe(), {"sliding_window": 128}),
    "qwen2, asymmetric": ("qwen2", Recipe(symmetric=False), {}),
    "qwen2, asymmetric, one group": ("qwen2", Recipe(group_size=64, symmetric=False), {}),
    "qwen2, ragged, tied": ("qwen2", Recipe(), {**RAGGED, "tie_word_embeddings": True}),
    "qwen2, ragged, asymmetric": ("qwen2", Recipe(symmetric=False), RAGGED),
    "qwen2, ragged, 8 bits": ("qwen2", Recipe(bits=8, symmetric=False), RAGGED),
    "qwen2, 32 bits": ("qwen2", Recipe(bits=32), {}),
    "qwen3, head 8": ("qwen3", Recipe(head_bits=8), {}),
    "qwen3, untied, 8 bits": ("qwen3", Recipe(bits=8), {"tie_word_embeddings": False}),
    "qwen3, 16 bits": ("qwen3", Recipe(bits=16), {}),
}
PROMPTS = ["list files by size", "show disk usage", "count lines in a.txt", "compress the folder logs",
           "find all empty files", "show running processes", "what is my IP address?", "stop the process 123",
           "rename a.txt to b.txt", "show the last 20 lines of app.log", "which files changed today?",
           "make a folder named old", "delete all .tmp files", "how much memory is free?", "download example.com/a.zip",
           "show the first line of b.csv", "replace foo by bar in c.txt", "who is logged in?",
           "sort names.txt", "extract the archive d.tar.gz"]  # fmt: skip


def graph_of(package: Package, variant: str = "directml-float16") -> Graph:
    graph = package.graph(variant)
    assert graph is not None
    return graph


def engine(package: Package) -> DirectMLEngine:
    return DirectMLEngine(package, graph_of(package), DEVICE, provider="CPUExecutionProvider")


def row(session: DirectMLSession, tokens: Sequence[int]) -> np.ndarray:
    logits = session.feed(tokens)
    return np.array(logits.values(range(logits.size)))


def some_tokens(count: int, *, seed: int = 3) -> list[int]:
    return np.random.default_rng(seed).integers(0, 307, count).tolist()


@pytest.fixture(scope="module")
def tiny(tiny_package: Callable[..., Path]) -> Iterator[DirectMLEngine]:
    opened = engine(open_package(tiny_package("qwen3")))
    yield opened
    opened.close()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(start, count) of every run of a graph from here on."""
    seen: list[tuple[int, int]] = []
    compute = DirectMLSession._compute

    def noted(session: DirectMLSession, held: Buffers, tokens: Sequence[int], start: int, wanted: int) -> np.ndarray:
        seen.append((start, len(tokens)))
        return compute(session, held, tokens, start, wanted)

    monkeypatch.setattr(DirectMLSession, "_compute", noted)
    return seen


# Numbers


@pytest.mark.parametrize("model", MODELS)
def test_logits_follow_the_reference(
    model: str, tiny_package: Callable[..., Path], runs: list[tuple[int, int]]
) -> None:
    """Whole, token by token, after a rewind with much and with little to read, each by DirectML's rules."""
    family, recipe, config = MODELS[model]
    package = open_package(tiny_package(family, recipe, **config))
    tokens = some_tokens(60)
    expected = ReferenceEngine(package).open().feed_all(tokens)
    session = engine(package).open()
    np.testing.assert_allclose(session.feed_all(tokens), expected, atol=ATOL, rtol=0)
    session.rewind(0)
    np.testing.assert_allclose([row(session, [token]) for token in tokens], expected, atol=ATOL, rtol=0)
    for kept in (20, 57):
        session.rewind(kept)
        np.testing.assert_allclose(session.feed_all(tokens[kept:]), expected[kept:], atol=ATOL, rtol=0)
        session.rewind(kept)
        np.testing.assert_allclose(row(session, tokens[kept:]), expected[-1], atol=ATOL, rtol=0)
    assert {start for start, count in runs if count > 1} == {0}


@pytest.mark.slow
def test_replies_of_the_demo_are_those_of_the_cpu() -> None:
    """Eight greedy replies. Where the two part, their best two tokens are nearly equal: the CPU's margin says so."""
    package = open_package(package_folder("demo"))
    cpu = OrtEngine(package, graph_of(package, "generic-float32"), DEVICE, exact=True)
    ours = engine(package)
    parted = 0
    with embedllm.load("demo", device="cpu") as model:
        for prompt in PROMPTS[:8]:
            tokens = model.request(model.prompt([{"role": "user", "content": prompt}])).prompt
            parted += same_replies(cpu, ours, list(tokens), package.stop_tokens)
    assert parted <= 1  # measured: none, also with 40 tokens a reply


def same_replies(cpu: OrtEngine, ours: DirectMLEngine, prompt: list[int], stop: Sequence[int]) -> bool:
    """Whether two greedy replies part; AssertionError unless at a near tie."""
    theirs, mine = cpu.open(), ours.open()
    fed = prompt
    for _ in range(24):
        best = theirs.feed(fed).top(2)
        if best.tokens[0] != mine.feed(fed).top(1).tokens[0]:
            assert best.logits[0] - best.logits[1] < 0.1
            return True
        if best.tokens[0] in stop:
            break
        fed = [best.tokens[0]]
    return False


# DirectML's rules


def test_past_and_present_are_one_buffer(tiny: DirectMLEngine) -> None:
    """What is written lands in the buffers that the next step reads, at the same addresses."""
    session = tiny.open()
    places = {name: value.data_ptr() for name, value in session._require_buffers().kv.items()}
    session.feed(some_tokens(10))
    keys = session._require_buffers().kv["0.key"].numpy()
    assert np.abs(keys[:, :, :10]).min(axis=-1).max() > 0
    assert not keys[:, :, 10:].any()
    session.feed([5])
    assert session._require_buffers().kv["0.key"].numpy()[:, :, 10].any()
    assert {name: value.data_ptr() for name, value in session._require_buffers().kv.items()} == places


def test_what_lies_behind_the_sequence_is_never_used(tiny: DirectMLEngine) -> None:
    """Left-overs of a rewind, or of whatever was in the memory."""
    tokens = some_tokens(30)
    clean, poisoned = tiny.open(), tiny.open()
    for fed in (tokens[:20], [tokens[20]], tokens[21:]):
        poison(poisoned, poisoned.position)
        np.testing.assert_array_equal(row(poisoned, fed), row(clean, fed))


def test_a_prompt_reads_no_past_at_all(tiny: DirectMLEngine) -> None:
    tokens = some_tokens(30)
    expected = row(tiny.open(), tokens)
    session = tiny.open()
    session.feed(some_tokens(40, seed=4))
    session.rewind(0)
    poison(session, 0)
    np.testing.assert_array_equal(row(session, tokens), expected)


def poison(session: DirectMLSession, start: int) -> None:
    """NaN in the KV from `start` on, in the buffers themselves."""
    for name, value in session._require_buffers().kv.items():
        array = value.numpy()
        array[:, :, start:] = np.nan
        value.update_inplace(array)
        assert np.isnan(session._require_buffers().kv[name].numpy()[:, :, start:]).all()


def test_little_that_follows_goes_token_by_token_and_much_is_read_anew(
    tiny: DirectMLEngine, runs: list[tuple[int, int]]
) -> None:
    session = tiny.open()
    session.feed(some_tokens(64))
    session.feed([1, 2])
    assert runs == [(0, 64), (64, 1), (65, 1)]
    runs.clear()
    session.feed(some_tokens(20))
    assert runs == [(0, 86)]


def test_tokens_of_another_session_cannot_be_read_anew(tiny: DirectMLEngine, runs: list[tuple[int, int]]) -> None:
    tokens = some_tokens(40)
    first, second = tiny.open(), tiny.open()
    expected = row(first, tokens)
    second.import_state(first.export_state(0, 10))
    runs.clear()
    np.testing.assert_allclose(row(second, tokens[10:]), expected, atol=ATOL, rtol=0)
    assert runs == [(at, 1) for at in range(10, 40)]
    second.rewind(0)
    second.feed(tokens)
    assert runs[-1] == (0, 40)


def test_a_prompt_is_given_in_one_piece(tiny: DirectMLEngine) -> None:
    assert tiny.chunk == tiny.context


# A session like others


def test_a_session_is_all_that_a_session_may_be(tiny: DirectMLEngine) -> None:
    session = tiny.open()
    assert isinstance(session, FeedsAll)
    assert isinstance(session, Interruptible)
    assert isinstance(session, MovesState)
    session.close()
    session.close()
    for use in (lambda: session.feed([1]), lambda: session.export_state(0, 0), lambda: session.import_state([])):
        with pytest.raises(ValueError, match="this session was closed"):
            use()


def test_the_kv_goes_to_the_cpu_and_back(tiny: DirectMLEngine) -> None:
    package, tokens = tiny.package, some_tokens(40)
    expected = ReferenceEngine(package).open().feed_all(tokens)
    ours, cpu = tiny.open(), OrtEngine(package, graph_of(package, "generic-float32"), DEVICE, exact=True).open()
    ours.feed(tokens[:30])
    cpu.import_state(ours.export_state(0, 30))
    np.testing.assert_allclose(cpu.feed_all(tokens[30:]), expected[30:], atol=ATOL, rtol=0)
    back = tiny.open()
    back.feed(tokens[:10])
    back.import_state(cpu.export_state(10, 40))
    back.rewind(39)
    np.testing.assert_allclose(row(back, tokens[39:]), expected[-1], atol=ATOL, rtol=0)


def test_a_full_context_is_refused_whole(tiny: DirectMLEngine) -> None:
    session = tiny.open()
    session.feed(some_tokens(120))
    with pytest.raises(ContextFull, match="120 tokens are held and 9 more were given; 128 can be held"):
        session.feed([5] * 9)
    assert session.position == 120
    session.feed([5] * 8)


def test_a_session_grows_and_goes_on(tiny_package: Callable[..., Path]) -> None:
    opened = engine(open_package(tiny_package("llama", max_position_embeddings=2100)))
    tokens = some_tokens(1040)
    session = opened.open(5)
    session.feed(tokens[:1020])
    assert session.capacity == 1024
    stepped = [row(session, [token]) for token in tokens[1020:]][-1]
    assert session.capacity == 2048
    np.testing.assert_allclose(stepped, row(opened.open(), tokens), atol=ATOL, rtol=0)


def test_threads_with_sessions_of_their_own_get_what_each_would_alone(tiny: DirectMLEngine) -> None:
    """And what touches the device does so with the lock held: bindings, runs, and copies of the KV."""
    given = [some_tokens(40, seed=seed) for seed in range(3)]
    expected = [rows_of(tiny, tokens) for tokens in given]
    with ThreadPoolExecutor(len(given)) as threads:
        found = list(threads.map(lambda tokens: rows_of(tiny, tokens), given * 2))
    for rows, alone in zip(found, expected * 2, strict=True):
        np.testing.assert_array_equal(rows, alone)


def rows_of(opened: DirectMLEngine, tokens: Sequence[int]) -> list[np.ndarray]:
    """Of a prompt, of single tokens, and after the KV went into another session."""
    first, second = opened.open(), opened.open()
    rows = [row(first, tokens[:20]), *(row(first, [token]) for token in tokens[20:30])]
    second.import_state(first.export_state(0, 30))
    rows += [row(second, [token]) for token in tokens[30:]]
    first.close()
    second.close()
    return rows


@pytest.mark.parametrize("action", ["open", "feed", "feed more", "export", "import"])
def test_the_device_is_touched_with_the_lock_held(
    action: str, tiny: DirectMLEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, touched = Counted(), []

    def watched(owner: type, name: str) -> None:
        function = getattr(owner, name)  # bound already when it is of the class

        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # whatever the function takes
            touched.append((name, lock.depth > 0))
            return function(*arguments, **options)

        is_method = inspect.isfunction(inspect.getattr_static(owner, name))
        monkeypatch.setattr(owner, name, call if is_method else staticmethod(call))

    session, other = tiny.open(), tiny.open()
    for one in (session, other):
        one.feed(some_tokens(10))
    state = other.export_state(0, 5)
    monkeypatch.setattr(tiny, "lock", lock)
    for name in ("bind_cpu_input", "bind_ortvalue_input", "bind_ortvalue_output", "bind_output", "get_outputs",
                 "synchronize_outputs"):  # fmt: skip
        watched(ort.IOBinding, name)
    for name in ("ortvalue_from_numpy", "numpy", "update_inplace"):
        watched(ort.OrtValue, name)
    watched(ort.InferenceSession, "run_with_iobinding")
    actions: dict[str, Callable[[], object]] = {
        "open": tiny.open,
        "feed": lambda: session.feed([1]),
        "feed more": lambda: session.feed_all([1] * 20),
        "export": lambda: session.export_state(0, 5),
        "import": lambda: session.import_state(state),
    }
    actions[action]()
    assert touched
    assert [name for name, is_held in touched if not is_held] == []


class Counted:
    """A lock that says how often it is held."""

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


def test_an_interrupted_feed_appends_nothing(tiny: DirectMLEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of what goes token by token."""
    tokens = some_tokens(64)
    session = tiny.open()
    expected = row(session, [*tokens, 1, 2, 3])
    session.rewind(64)
    compute, left = DirectMLSession._compute, [2]

    def interrupting(
        session: DirectMLSession, held: Buffers, tokens: Sequence[int], start: int, wanted: int
    ) -> np.ndarray:
        left[0] -= 1
        session.interrupt(left[0] < 0)
        return compute(session, held, tokens, start, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(DirectMLSession, "_compute", interrupting)
        with pytest.raises(Interrupted):
            session.feed([1, 2, 3])
    assert session.position == 64
    session.interrupt(False)
    np.testing.assert_allclose(row(session, [1, 2, 3]), expected, atol=ATOL, rtol=0)


# What cannot be run


def test_a_model_with_windows_has_no_graph_and_is_refused_with_the_reason(tiny_package: Callable[..., Path]) -> None:
    package = open_package(tiny_package("mistral", Recipe(), sliding_window=16))
    assert package.graph("directml-float16") is None
    with pytest.raises(
        DeviceUnavailable, match="a layer has a sliding window of 16 tokens, which DirectML's attention does"
    ):
        DirectMLEngine(package, graph_of(package, "generic-float16"), DEVICE, provider="CPUExecutionProvider")

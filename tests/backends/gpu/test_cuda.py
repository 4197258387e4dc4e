"""Sessions on ONNX Runtime's CUDA provider. What needs a GPU: pytest -m gpu tests/backends/gpu/test_cuda.py"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import embedllm
from embedllm.backends.base import (
    BatchRow,
    Device,
    FeedsAll,
    Interrupted,
    Interruptible,
    MovesState,
    MovesStored,
    RunsBatches,
)
from embedllm.backends.devices import registry
from embedllm.backends.gpu import cuda
from embedllm.backends.gpu.cuda import CudaEngine
from embedllm.backends.gpu.cuda_driver import Gpu
from embedllm.backends.gpu.io_binding_session import ResidentSession
from embedllm.backends.gpu.recurrent_engine import RecurrentEngine
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import ContextFull, DeviceError, DeviceUnavailable
from embedllm.export import Recipe, convert
from embedllm.loading.resolve import package_folder
from embedllm.package.graph_variants import QMOE_FLOAT16
from embedllm.package.package import Package, open_package
from embedllm.package.packing import packings
from embedllm.types import Logits
from tests.support.decoder_cases import CASES, VOCABULARY, plain
from tests.support.described import described_package
from tests.support.encoder_folders import write_embedder, write_reranker
from tests.support.held import PACKINGS, HeldRandomSource
from tests.support.mixtures import DECODERS as FUSED
from tests.support.recurrent_checks import differences
from tests.support.tiny_recurrent import tiny_falcon_h1, tiny_hybrid_mixture, tiny_lfm2, tiny_qwen3_5

ATOL = 0.05  # of logits up to 5, all in float16: measured 0.006 to 0.02 on an H200 (docs/devices.md)
FIELD_CLOSE = 0.05  # of the spread of the logits
DEMO_ATOL = 0.5  # of logits up to 29, which activations of up to several hundred lead to; between two ways of feeding
MODELS: dict[str, tuple[str, Recipe, dict[str, object]]] = {
    "llama": ("llama", Recipe(), {}),
    "llama, group 128": ("llama", Recipe(group_size=128), {"hidden_size": 128}),
    "mistral, window": ("mistral", Recipe(), {"sliding_window": 16}),
    "qwen2, asymmetric": ("qwen2", Recipe(symmetric=False), {}),
    "qwen3, head 8": ("qwen3", Recipe(head_bits=8), {}),
    "qwen3, untied, 8 bits": ("qwen3", Recipe(bits=8), {"tie_word_embeddings": False}),
    "qwen3, 16 bits": ("qwen3", Recipe(bits=16), {}),
}
PROMPTS = ["list files by size", "show disk usage", "count lines in a.txt", "compress the folder logs",
           "find all empty files", "show running processes", "what is my IP address?", "stop the process 123",
           "rename a.txt to b.txt", "show the last 20 lines of app.log"]  # fmt: skip
gpu = pytest.mark.gpu


def engine(package: Package, *, capture: bool = True, variant: str = "generic-float16") -> CudaEngine:
    graph = package.graph(variant)
    assert graph is not None
    return CudaEngine(package, graph, cuda.devices()[0], capture=capture)


def row(session: ResidentSession, tokens: list[int]) -> np.ndarray:
    logits = session.feed(tokens)
    return np.array(logits.values(range(logits.size)))


@pytest.fixture(scope="module")
def demo() -> Iterator[CudaEngine]:
    opened = engine(open_package(package_folder("demo")))
    yield opened
    opened.close()


@gpu
@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("model", MODELS)
def test_logits_follow_the_reference(model: str, capture: bool, tiny_package: Callable[..., Path]) -> None:
    family, recipe, config = MODELS[model]
    package = open_package(tiny_package(family, recipe, **config))
    tokens = np.random.default_rng(3).integers(0, 307, 60).tolist()
    expected = ReferenceEngine(package).open().feed_all(tokens)
    opened = engine(package, capture=capture)
    session = opened.open()
    np.testing.assert_allclose(session.feed_all(tokens), expected, atol=ATOL, rtol=0)
    session.rewind(0)
    np.testing.assert_allclose([row(session, [token]) for token in tokens], expected, atol=ATOL, rtol=0)
    session.rewind(20)
    np.testing.assert_allclose(row(session, tokens[20:]), expected[-1], atol=ATOL, rtol=0)


@gpu
@pytest.mark.parametrize("tiny", [tiny_lfm2, tiny_qwen3_5, tiny_falcon_h1])
def test_states_of_recurrent_models_stay_on_the_gpu(tiny: Callable[[Path], Path], tmp_path: Path) -> None:
    convert(tiny(tmp_path), tmp_path / "package", Recipe())
    package = open_package(tmp_path / "package")
    opened = registry.open_engine(package, cuda.devices()[0])
    assert isinstance(opened, RecurrentEngine)
    assert opened.slots.captures
    found = differences(opened, package)
    opened.close()
    assert np.quantile(found, 0.9) < 0.01
    assert found.max() < 0.2  # single rows of the delta rule: a norm divides what is nearly zero


@gpu
@pytest.mark.parametrize("tiny", [tiny_lfm2, tiny_qwen3_5, tiny_falcon_h1])
def test_recurrent_sequences_step_together_as_each_does_alone(tiny: Callable[[Path], Path], tmp_path: Path) -> None:
    """Captured and replayed on both sides of the states, joined late, one of them rewound on the way."""
    package = open_package(convert(tiny(tmp_path), tmp_path / "package", Recipe()))
    streams = np.random.default_rng(3).integers(3, 300, (5, 60)).tolist()
    expected = [ReferenceEngine(package).open().feed_all(stream) for stream in streams]
    opened = registry.open_engine(package, cuda.devices()[0])
    assert isinstance(opened, RecurrentEngine)
    sessions, distances = [opened.open() for _ in streams], []
    for at, (session, stream) in enumerate(zip(sessions, streams, strict=True)):
        session.feed(stream[: 3 + at])
    for step in range(40):
        if step == 20:
            sessions[1].rewind(15)
            sessions[1].feed(streams[1][15:24])
        own = range(2 if step < 6 else 5)
        rows = [BatchRow(sessions[at], [streams[at][sessions[at].position]]) for at in own]
        places = [row.session.position for row in rows]
        for at, place, logits in zip(own, places, opened.run_batch(rows), strict=True):
            distances.append(np.abs(np.array(logits.values(range(307))) - expected[at][place]).max())
    opened.close()
    assert np.quantile(distances, 0.9) < 0.01 * np.ptp(expected)


@gpu
@pytest.mark.parametrize("tiny", [tiny_lfm2, tiny_qwen3_5, tiny_falcon_h1])
def test_recurrent_steps_that_ran_ahead_leave_no_trace(tiny: Callable[[Path], Path], tmp_path: Path) -> None:
    package = open_package(convert(tiny(tmp_path), tmp_path / "package", Recipe()))
    opened = registry.open_engine(package, cuda.devices()[0])
    assert isinstance(opened, RecurrentEngine)
    session, tokens, distances = opened.open(), [5, 6, 7, 8], []
    logits = session.feed(tokens)
    for turn in range(6):
        for _ in range(6):  # greedy: the device is a step ahead from the third on
            tokens.append(logits.top(1).tokens[0])
            logits = session.feed(tokens[-1:])
        logits.top(1)
        assert opened.slots._ahead is not None
        if turn == 3:
            session.rewind(len(tokens) - 3)
            del tokens[-3:]
        tokens.append(9 + turn)  # which it did not expect
        logits = session.feed(tokens[-1:])
        expected = ReferenceEngine(package).open().feed_all(tokens)[-1]
        distances.append(np.abs(np.array(logits.values(range(307))) - expected).max() / np.ptp(expected))
    opened.close()
    assert np.median(distances) < 0.01
    assert max(distances) < 0.2


@gpu
def test_experts_beside_states_are_captured(tmp_path: Path) -> None:
    package = open_package(tiny_hybrid_mixture(tmp_path / "package"))
    opened = registry.open_engine(package, cuda.devices()[0])
    assert isinstance(opened, RecurrentEngine)
    assert opened.slots.captures
    found = differences(opened, package)
    opened.close()
    assert np.quantile(found, 0.9) < 0.02


@gpu
@pytest.mark.parametrize("recipe", [Recipe(method="nearest"), Recipe(bits=16)], ids=["4 bits", "16 bits"])
@pytest.mark.parametrize("case", CASES)
def test_every_described_field_follows_the_reference(case: str, recipe: Recipe, tmp_path: Path) -> None:
    """In float16, whose rounding is told against the spread of the logits."""
    folder = described_package(tmp_path / "package", CASES[case](plain()), recipe, variant="generic-float16")
    package = open_package(folder)
    tokens = np.random.default_rng(3).integers(0, VOCABULARY, 40).tolist()
    expected = ReferenceEngine(package).open().feed_all(tokens)
    session, close = engine(package).open(), FIELD_CLOSE * expected.std()
    np.testing.assert_allclose(session.feed_all(tokens[:30]), expected[:30], atol=close, rtol=0)
    session.rewind(20)
    np.testing.assert_allclose([row(session, [token]) for token in tokens[20:]], expected[20:], atol=close, rtol=0)


@gpu
@pytest.mark.parametrize(("bits", "symmetric"), [(4, True), (4, False), (8, True)])
@pytest.mark.parametrize("decoder", FUSED)
def test_experts_as_one_operator_follow_the_reference(decoder: str, bits: int, symmetric: bool, tmp_path: Path) -> None:
    """Alone and in a batch. Where two experts are as good as equal, rounding chooses another one."""
    recipe = Recipe(method="nearest", bits=bits, symmetric=symmetric)
    folder = described_package(tmp_path / "package", FUSED[decoder], recipe, variant=QMOE_FLOAT16.name)
    package = open_package(folder)
    tokens = np.random.default_rng(3).integers(0, VOCABULARY, (3, 40)).tolist()
    expected = np.array([ReferenceEngine(package).open().feed_all(each) for each in tokens])
    opened = engine(package, variant=QMOE_FLOAT16.name)
    assert opened.captures
    sessions, distances = [opened.open() for _ in tokens], []
    for session, given, right in zip(sessions, tokens, expected, strict=True):
        distances += list(np.abs(session.feed_all(given[:30]) - right[:30]).max(axis=-1))
        session.rewind(20)
        distances += [np.abs(row(session, [given[at]]) - right[at]).max() for at in range(20, 30)]
    for at in range(30, 40):
        rows = [BatchRow(session, [given[at]]) for session, given in zip(sessions, tokens, strict=True)]
        for found, right in zip(opened.run_batch(rows), expected, strict=True):
            distances.append(np.abs(found.values(range(found.size)) - right[at]).max())
    opened.close()
    assert np.quantile(distances, 0.9) < FIELD_CLOSE * expected.std()


@gpu
@pytest.mark.parametrize("name", [name for name, packing in PACKINGS.items() if not packing.stores_zeros])
def test_matrices_that_were_carried_over_follow_the_reference(name: str, tmp_path: Path) -> None:
    """Minimums of groups, and scales that the float16 graph rounds."""
    decoder = plain()
    source = HeldRandomSource(decoder, PACKINGS[name])
    folder = described_package(tmp_path / "package", decoder, Recipe(), variant="generic-float16", source=source)
    package = open_package(folder)
    assert set(packings(package.manifest).values()) == {PACKINGS[name]}
    tokens = np.random.default_rng(3).integers(0, VOCABULARY, 40).tolist()
    expected = ReferenceEngine(package).open().feed_all(tokens)
    session, close = engine(package).open(), FIELD_CLOSE * expected.std()
    np.testing.assert_allclose(session.feed_all(tokens[:30]), expected[:30], atol=close, rtol=0)
    np.testing.assert_allclose([row(session, [token]) for token in tokens[30:]], expected[30:], atol=close, rtol=0)


@gpu
def test_a_session_is_all_that_a_session_may_be(demo: CudaEngine) -> None:
    session = demo.open()
    assert isinstance(session, FeedsAll)
    assert isinstance(session, Interruptible)
    assert isinstance(session, MovesState)
    assert isinstance(session, MovesStored)
    assert isinstance(demo, RunsBatches)
    session.close()
    session.close()
    with pytest.raises(ValueError, match="this session was closed"):
        session.feed([1])


@gpu
def test_sessions_do_not_disturb_each_other_nor_those_before_them(demo: CudaEngine) -> None:
    tokens = np.random.default_rng(5).integers(3, 16000, 80).tolist()
    alone = demo.open()
    expected = [row(alone, [token]) for token in tokens[:40]]
    alone.close()  # its buffers, and its captured step, go to the next one
    first, second = demo.open(), demo.open()
    for at in range(40):
        np.testing.assert_array_equal(row(first, [tokens[at]]), expected[at])
        second.feed([tokens[at + 40]])
    first.close()
    second.close()


@gpu
def test_closed_sessions_leave_nothing_behind(demo: CudaEngine) -> None:
    free: list[int] = []
    for _ in range(4):
        sessions = [demo.open() for _ in range(6)]
        for session in sessions:
            for token in (5, 6, 7):
                session.feed([token]).top(1)
        for session in sessions:
            session.close()
        free.append(free_memory())
    assert free[-1] >= free[1] - (8 << 20)


def free_memory() -> int:
    """Bytes of the GPU."""
    torch = pytest.importorskip("torch")
    return torch.cuda.mem_get_info()[0]


@gpu
def test_a_session_grows_and_goes_on(demo: CudaEngine) -> None:
    tokens = np.random.default_rng(6).integers(3, 16000, 1100).tolist()
    session = demo.open(1000)
    session.feed(tokens[:1000])
    assert session.capacity == 1024
    stepped = [row(session, [token]) for token in tokens[1000:]][-1]
    assert session.capacity == 2048
    whole = row(demo.open(2048), tokens)
    np.testing.assert_allclose(stepped, whole, atol=DEMO_ATOL, rtol=0)


@gpu
def test_a_full_context_is_refused_whole(demo: CudaEngine) -> None:
    session = demo.open()
    session.feed([5] * 2040)
    with pytest.raises(ContextFull, match="2040 tokens are held and 9 more were given; 2048 can be held"):
        session.feed([5] * 9)
    assert session.position == 2040
    session.feed([5] * 8)


@gpu
def test_the_kv_goes_to_the_cpu_and_back(demo: CudaEngine) -> None:
    package = demo.package
    graph = package.graph("generic-float32")
    assert graph is not None
    device = next(device for device in registry.devices() if device.name == "cpu")
    tokens = np.random.default_rng(7).integers(3, 16000, 60).tolist()
    on_gpu, on_cpu = demo.open(), OrtEngine(package, graph, device).open()
    expected = row(on_gpu, tokens)
    on_cpu.import_state(on_gpu.export_state(0, 59))
    logits = on_cpu.feed(tokens[59:])
    np.testing.assert_allclose(logits.values(range(logits.size)), expected, atol=2 * DEMO_ATOL, rtol=0)
    back = demo.open()
    back.feed(tokens[:20])
    back.import_state(on_cpu.export_state(20, 59))
    np.testing.assert_allclose(row(back, tokens[59:]), expected, atol=DEMO_ATOL, rtol=0)


@gpu
def test_an_interrupted_feed_appends_nothing(demo: CudaEngine) -> None:
    tokens = np.random.default_rng(8).integers(3, 16000, 1400).tolist()
    expected = row(demo.open(), tokens[:60])
    session = demo.open(2048)

    def feed_again_and_again() -> None:
        for _ in range(1000):
            session.feed(tokens)
            session.rewind(0)

    threading.Timer(0.005, session.interrupt).start()
    with pytest.raises(Interrupted):
        feed_again_and_again()
    assert session.position == 0
    session.interrupt(False)
    np.testing.assert_allclose(row(session, tokens[:60]), expected, atol=DEMO_ATOL, rtol=0)


@gpu
def test_greedy_replies_are_those_of_the_cpu_and_nothing_is_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBEDLLM_HOST_TUNING", "pages,quiet")  # ONNX Runtime 1.31 warns else that CUDA is no plug-in

    def replies(device: str) -> list[str]:
        with embedllm.load("demo", device=device) as model:
            greedy = embedllm.Sampling(temperature=0)
            return [model.chat([{"role": "user", "content": p}], greedy, max_tokens=40).text for p in PROMPTS]

    assert replies("cuda") == replies("cpu")
    assert capfd.readouterr() == ("", "")


# --- batches


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 16000, length).tolist()


def alone_differs(opened: CudaEngine, tokens: list[int], start: int) -> tuple[int, float]:
    """Of tokens chosen greedily in batches from `start` on: how many are others alone, and how far below the best."""
    session, others, worst = opened.open(), 0, 0.0
    logits = session.feed(tokens[:start])
    for token in tokens[start:]:
        best = logits.top(1)
        others += best.tokens[0] != token
        worst = max(worst, best.logits[0] - logits.values([token])[0])
        logits = session.feed([token])
    session.close()
    return others, worst


@gpu
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 16, 17, 33])
def test_rows_of_different_lengths_get_what_each_gets_alone(demo: CudaEngine, count: int) -> None:
    """But for ties, which are counted."""
    tokens = [prompt(at, 3 + at * 37 % 150) for at in range(count)]
    starts = [len(row) for row in tokens]
    sessions = [demo.open() for _ in tokens]
    logits = [session.feed(row) for session, row in zip(sessions, tokens, strict=True)]
    for _ in range(24):
        for row, one in zip(tokens, logits, strict=True):
            row.append(one.top(1).tokens[0])
        logits = demo.run_batch([BatchRow(one, row[-1:]) for one, row in zip(sessions, tokens, strict=True)])
    for session in sessions:
        session.close()
    found = [alone_differs(demo, row, start) for row, start in zip(tokens, starts, strict=True)]
    assert max(worst for _, worst in found) <= DEMO_ATOL
    assert sum(others for others, _ in found) <= 0.05 * 24 * count


@gpu
@pytest.mark.parametrize("case", CASES)
def test_every_described_field_is_the_same_in_a_batch(case: str, tmp_path: Path) -> None:
    """As alone on the same GPU; where two experts are as good as equal, rounding chooses another one."""
    decoder, recipe = CASES[case](plain()), Recipe(method="nearest")
    package = open_package(described_package(tmp_path / "package", decoder, recipe, variant="generic-float16"))
    tokens = np.random.default_rng(3).integers(0, VOCABULARY, (3, 24)).tolist()
    opened, starts, steps = engine(package), [3, 9, 14], 10
    expected: list[list[np.ndarray]] = []
    for given, start in zip(tokens, starts, strict=True):
        session = opened.open()
        session.feed(given[:start])
        expected.append([row(session, [token]) for token in given[start : start + steps]])
        session.close()
    sessions = [opened.open() for _ in tokens]
    for session, given, start in zip(sessions, tokens, starts, strict=True):
        session.feed(given[:start])
    close, distances = FIELD_CLOSE * np.std(expected[0]), []
    for step in range(steps):
        rows = [BatchRow(one, [given[at + step]]) for one, given, at in zip(sessions, tokens, starts, strict=True)]
        for found, right in zip(opened.run_batch(rows), expected, strict=True):
            distances.append(np.abs(found.values(range(found.size)) - right[step]).max())
    assert sum(distance <= close for distance in distances) >= (0.8 if decoder.is_mixture else 1) * len(distances)
    for session in sessions:
        session.close()
    opened.close()


@gpu
def test_joins_leaves_growth_and_rewinds_beside_others_change_no_row(demo: CudaEngine) -> None:
    """And the step that ran ahead serves those that go on."""
    tokens: dict[ResidentSession, list[int]] = {}
    starts: dict[ResidentSession, int] = {}
    latest: dict[ResidentSession, Logits] = {}
    random = np.random.default_rng(11)

    def join(length: int) -> None:
        session = demo.open()
        tokens[session], starts[session] = prompt(len(starts), length), length
        latest[session] = session.feed(tokens[session])

    for length in (40, 1018, 7):  # one of them grows
        join(length)
    ended: list[tuple[list[int], int]] = []
    for step in range(40):
        if step % 6 == 5:
            join(int(random.integers(2, 90)))
        if step % 11 == 10:
            session = next(iter(tokens))
            ended.append((tokens.pop(session), starts[session]))
            latest.pop(session)
            session.close()
        if step == 20:
            session = list(tokens)[-1]
            session.rewind(starts[session])
            tokens[session] = [*tokens[session][: starts[session]], 9, 8, 7]
            starts[session] += 3
            latest[session] = session.feed([9, 8, 7])
        for session, row in tokens.items():
            row.append(latest[session].top(1).tokens[0])
        rows = demo.run_batch([BatchRow(session, row[-1:]) for session, row in tokens.items()])
        latest = dict(zip(tokens, rows, strict=True))
    ended += [(row, starts[session]) for session, row in tokens.items()]
    for session in tokens:
        session.close()
    found = [alone_differs(demo, row, start) for row, start in ended]
    assert max(worst for _, worst in found) <= DEMO_ATOL
    assert sum(others for others, _ in found) <= 0.05 * sum(len(row) - start for row, start in ended)


@gpu
def test_a_stored_prefix_continues_as_the_computed_one(demo: CudaEngine) -> None:
    tokens = prompt(5, 700)
    session = demo.open()
    expected = row(session, tokens)
    spans = [(at, min(at + 64, 690)) for at in range(0, 690, 64)]
    states = session.export_stored(spans)
    session.rewind(0)
    session.feed(prompt(6, 300))  # what was stored is no part of the session
    other = demo.open()
    for state in states:
        other.import_state(state)
    np.testing.assert_allclose(row(other, tokens[690:]), expected, atol=DEMO_ATOL, rtol=0)
    kept = other.export_state(0, 690)
    for state, (start, stop) in zip(states, spans, strict=True):
        for pair, right in zip(state, kept, strict=True):
            for array, whole in zip(pair, right, strict=True):
                np.testing.assert_array_equal(np.asarray(array), whole[:, start:stop])
    session.close()
    other.close()


@gpu
def test_a_device_array_that_another_thread_drops_frees_its_memory_later(demo: CudaEngine) -> None:
    session = demo.open()
    session.feed(prompt(7, 500))
    demo.memory.synchronize()
    demo.memory.trim()
    before = free_memory()
    states = [session.export_stored([(0, 500)]) for _ in range(40)]
    thread = threading.Thread(target=states.clear)
    thread.start()
    thread.join()
    session.feed([5]).top(1)
    demo.memory.trim()
    assert free_memory() >= before - (8 << 20)
    session.close()


@gpu
def test_a_run_that_fails_leaves_all_sequences_where_they_were(
    demo: CudaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, tokens = [demo.open() for _ in range(3)], [prompt(at, 20 + at) for at in range(3)]
    for session, given in zip(sessions, tokens, strict=True):
        session.feed(given)

    def lost(*_: object) -> None:
        raise RuntimeError("lost")

    with monkeypatch.context() as patched:
        patched.setattr(CudaEngine, "run_step", lost)
        with pytest.raises(DeviceError, match="'cuda' failed: lost"):
            demo.run_batch([BatchRow(session, [7]) for session in sessions])
    assert [session.position for session in sessions] == [20, 21, 22]
    rows = demo.run_batch([BatchRow(session, [7]) for session in sessions])
    for found, session, given in zip(rows, sessions, tokens, strict=True):
        right = row(demo.open(), [*given, 7])
        np.testing.assert_allclose(found.values(range(found.size)), right, atol=DEMO_ATOL, rtol=0)
        session.close()


@gpu
def test_threads_get_the_replies_that_they_would_get_alone() -> None:
    """The same texts as alone but for ties: a few of fifty."""
    greedy = embedllm.Sampling(temperature=0)
    with embedllm.load("demo", device="cuda") as model:

        def reply(prompt: str) -> str:
            return model.chat([{"role": "user", "content": prompt}], greedy, max_tokens=40).text

        alone = [reply(prompt) for prompt in PROMPTS]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(reply, PROMPTS * 5))
        assert sum(one != other for one, other in zip(together, alone * 5, strict=True)) <= 5


@gpu
def test_a_warm_engine_captures_nothing_for_the_first_sequence(tiny_package: Callable[..., Path]) -> None:
    opened = engine(open_package(tiny_package("qwen3", Recipe())))
    opened.warm_up()
    steps = list(opened.pool(1).steps)
    session = opened.open()
    logits = session.feed(list(range(3, 40)))
    for _ in range(5):
        logits = session.feed(logits.top(1).tokens)
    assert list(opened.pool(1).steps) == steps
    assert all(step.has_run for step in steps)
    session.close()
    opened.close()


@gpu
@pytest.mark.parametrize("recipe", [Recipe(), Recipe(bits=16)], ids=["4 bits", "16 bits"])
def test_texts_have_the_vectors_and_scores_that_they_have_on_the_cpu(recipe: Recipe, tmp_path: Path) -> None:
    texts = ["find all files", "a b c d e f g", "sort"]
    embedder = convert(write_embedder(tmp_path / "embedder"), tmp_path / "embeds", recipe)
    reranker = convert(write_reranker(tmp_path / "reranker"), tmp_path / "ranks", recipe)
    found: list[list[float]] = []
    for device in ("cuda", "reference"):
        with embedllm.load(embedder, device=device) as embeds, embedllm.load(reranker, device=device) as ranks:
            vectors = embeds.embed(texts, kind="query")
            scores = {one.index: one.score for one in ranks.rerank("find", texts)}
        found.append([*vectors.ravel().tolist(), *(scores[index] for index in range(len(texts)))])
    np.testing.assert_allclose(found[0], found[1], atol=0.02, rtol=0)


@gpu
def test_exact_is_refused() -> None:
    with pytest.raises(DeviceUnavailable, match="float16 or rounds, so that nothing is exact there"):
        embedllm.load("demo", device="cuda", exact=True)


@pytest.mark.skipif(cuda.PROVIDER in cuda.ort.get_available_providers(), reason="this build has the provider")
def test_a_build_without_the_provider_says_what_to_install() -> None:
    (device,) = cuda.devices()
    assert (device.name, device.available) == ("cuda", False)
    with pytest.raises(DeviceUnavailable, match=r"no CUDA provider \(pip uninstall onnxruntime, then pip install"):
        embedllm.load("demo", device="cuda")


def test_a_gpu_is_named_by_its_index() -> None:
    assert [cuda.index_of(name) for name in ("cuda", "cuda:1", "cuda:12")] == [0, 1, 12]


def test_gpus_are_listed_by_the_driver_without_a_session_on_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.ort, "get_available_providers", lambda: [cuda.PROVIDER, "CPUExecutionProvider"])
    monkeypatch.setattr(cuda.ort, "InferenceSession", None)
    cards = [Gpu(name=f"Card {letter}", memory=8 << 30, capability="8.9") for letter in "AB"]
    monkeypatch.setattr(cuda, "gpus", lambda: cards)
    found = cuda.devices()
    assert [(one.name, one.memory, one.available) for one in found] == [
        ("cuda", 8 << 30, True),
        ("cuda:1", 8 << 30, True),
    ]
    assert found[1].description == "Card B, compute capability 8.9"
    monkeypatch.setattr(cuda, "gpus", list)
    (device,) = cuda.devices()
    assert (device.available, device.reason) == (False, "NVIDIA's driver is not here, or finds no GPU")


def test_libraries_that_are_missing_are_named(
    tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On a machine with the driver, without CUDA's libraries; nothing gets onto the application's stdout."""

    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("Provider configuration is not supported.\nmore")

    def preload() -> None:
        print("Failed to load libcublas.so.13")  # noqa: T201 - as ONNX Runtime's does

    monkeypatch.setattr(cuda.ort, "preload_dlls", preload, raising=False)
    monkeypatch.setattr(cuda.ort, "InferenceSession", broken)
    monkeypatch.setattr(cuda.ort.SessionOptions, "add_provider", lambda *_: None)
    package = open_package(tiny_package())
    graph = package.graph("generic-float16")
    assert graph is not None
    cuda._load_libraries.cache_clear()
    device = Device(name="cuda", backend="", description="", available=True)
    with pytest.raises(DeviceError, match=r"is not supported\. Failed to load libcublas.so.13; check the driver with"):
        CudaEngine(package, graph, device)
    cuda._load_libraries.cache_clear()
    assert capfd.readouterr() == ("", "")

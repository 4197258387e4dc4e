"""Prefixes of recurrent models, whose states belong to single positions: from memory, other sequences and the disk.

By WebGPU: .ci/lavapipe.sh pytest -m webgpu tests/kv_cache/test_recurrent_prefix.py
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedllm import Completion, Model, load
from embedllm.backends.base import KeepsStates
from embedllm.backends.images import FIRST_ID
from embedllm.backends.ort.session import OrtSession
from embedllm.backends.sessions import recurrent_session
from embedllm.errors import ContextFull, DeviceUnavailable
from embedllm.export import Recipe, convert
from embedllm.kv_cache.block_cache import BLOCK, Block, BlockCache, block_keys
from embedllm.kv_cache.disk_store import DiskStore
from embedllm.kv_cache.prefix_cache import MIN_TOKENS
from embedllm.kv_cache.recurrent_prefix import MOST_STATES, Blocks, as_kv, last_message, movable
from tests.support.tiny_recurrent import tiny_falcon_h1, tiny_lfm2, tiny_qwen3_5

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.types import Logits

SHARED = np.random.default_rng(5).integers(3, 300, 200).tolist()
MAKERS = {"lfm2": tiny_lfm2, "qwen3_5": tiny_qwen3_5, "falcon_h1": tiny_falcon_h1}
DEVICES = ("cpu", "openvino", "reference")
WEBGPU = pytest.param("webgpu", marks=pytest.mark.webgpu)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Floats: what is computed again rounds by the order of sums only."""
    place = tmp_path_factory.mktemp("recurrent")
    return {
        name: convert(make(place / name), place / f"{name}-package", Recipe(bits=32)) for name, make in MAKERS.items()
    }


@pytest.fixture(scope="module")
def alone(packages: dict[str, Path]) -> Iterator[dict[str, Model]]:
    """Models that share nothing."""
    models = {name: load(package, device="cpu", prefix_cache=0) for name, package in packages.items()}
    yield models
    for model in models.values():
        model.close()


def loaded(
    package: Path, device: str, *, exact: bool = False, threaded: bool = True, cache_dir: Path | None = None
) -> Model:
    """Skips the test where there is no such device."""
    exact = exact or device == "webgpu"  # which has float16 otherwise
    try:
        return load(package, device=device, exact=exact, threaded=threaded, cache_dir=cache_dir)
    except DeviceUnavailable as error:
        pytest.skip(str(error))


def tail(seed: int, count: int = 20) -> list[int]:
    return np.random.default_rng(100 + seed).integers(3, 300, count).tolist()


def reply(llm: Model, prompt: Sequence[int]) -> Completion:
    return llm.generate(prompt, temperature=0, max_tokens=6, stop_tokens=())


def fresh(alone: Model, prompt: Sequence[int]) -> tuple[int, ...]:
    alone.release()
    return tuple(reply(alone, prompt).tokens)


def cached(found: Completion) -> int:
    return found.statistics.cached_tokens


@pytest.mark.parametrize(
    ("name", "device", "threaded"),
    [
        *itertools.product(MAKERS, DEVICES, [True, False]),
        pytest.param("qwen3_5", "webgpu", True, marks=pytest.mark.webgpu),
    ],
)
def test_a_prefix_that_prompts_have_in_common_is_computed_twice_at_most(
    name: str, device: str, threaded: bool, packages: dict[str, Path], alone: dict[str, Model]
) -> None:
    """The second prompt shows where they part; the others begin there, whatever was computed in between."""
    prompts = [[*SHARED, *tail(seed)] for seed in range(4)]
    with loaded(packages[name], device, threaded=threaded) as llm:
        chunk = llm.runner.engine.chunk
        replies = [reply(llm, prompts[0]), reply(llm, prompts[1])]
        replies.append(reply(llm, prompts[2]))  # the same sequence
        reply(llm, tail(9, 100))  # takes it
        replies.append(reply(llm, prompts[3]))  # from memory
    first = len(SHARED) // chunk * chunk  # where states are kept, too; webgpu has short chunks with some drivers
    parting = len(SHARED) if len(SHARED) - first >= MIN_TOKENS else first
    assert [cached(each) for each in replies] == [0, first, parting, parting]
    assert [tuple(each.tokens) for each in replies] == [fresh(alone[name], prompt) for prompt in prompts]


@pytest.mark.parametrize("threaded", [True, False])
def test_a_beam_search_goes_on_from_a_prefix(threaded: bool, packages: dict[str, Path]) -> None:
    with load(packages["lfm2"], device="cpu", threaded=threaded) as llm:
        replies = [llm.beam_search([*SHARED, *tail(seed)], beams=2, max_tokens=2)[0] for seed in range(3)]
    assert [cached(each) for each in replies] == [0, 0, len(SHARED)]


@pytest.mark.parametrize("device", [*DEVICES, WEBGPU])
def test_of_prompts_at_once_the_first_computes_what_they_share(
    device: str, packages: dict[str, Path], alone: dict[str, Model]
) -> None:
    prompts = [[*SHARED, *tail(seed)] for seed in range(4)]
    with loaded(packages["qwen3_5"], device) as llm:
        replies = llm.generate_batch(prompts, temperature=0, max_tokens=6, stop_tokens=())
    assert [cached(each) for each in replies] == [0, *[len(SHARED)] * 3]
    assert [tuple(each.tokens) for each in replies] == [fresh(alone["qwen3_5"], prompt) for prompt in prompts]


@pytest.mark.parametrize("step", [1, -1])
def test_a_prompt_is_not_read_in_small_pieces_for_many_that_part_from_it(
    step: int, packages: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece reads all weights."""
    feeds: list[int] = []
    feed = OrtSession.feed

    def counted(session: OrtSession, tokens: Sequence[int]) -> Logits:
        feeds.append(len(tokens))
        return feed(session, tokens)

    monkeypatch.setattr(OrtSession, "feed", counted)
    text = [*SHARED, *tail(0, 128)]
    others = [text[:parting] for parting in range(len(SHARED), len(text), 4)][::step]
    with load(packages["lfm2"], device="cpu") as llm:
        prompts = [text, *([*other, 301, 302] for other in others)]
        replies = llm.generate_batch(prompts, temperature=0, max_tokens=1, stop_tokens=())
    assert len(feeds) <= len(prompts) + 2 * 128 // MIN_TOKENS
    assert all(len(other) - cached(each) < MIN_TOKENS for each, other in zip(replies[1:], others, strict=True))


def test_another_question_behind_the_same_system_prompt_begins_where_its_message_does(
    packages: dict[str, Path], alone: dict[str, Model]
) -> None:
    with load(packages["qwen3_5"], device="cpu") as llm:
        mark = min(llm.tokenizer.special_tokens)
        opening = [mark, 50, 51]

        def chat(seed: int) -> list[int]:
            return [mark, *SHARED, mark, 40, *tail(seed), *opening]

        replies = [reply(llm, chat(seed)) for seed in range(3)]
        assert [cached(each) for each in replies] == [0, len(SHARED) + 1, len(SHARED) + 1]
        assert [tuple(each.tokens) for each in replies] == [fresh(alone["qwen3_5"], chat(seed)) for seed in range(3)]


def test_the_next_turn_of_a_chat_computes_only_what_is_new(packages: dict[str, Path]) -> None:
    with load(packages["qwen3_5"], device="cpu") as llm:
        first = reply(llm, SHARED)
        second = reply(llm, [*SHARED, *first.tokens, *tail(1)])
        assert cached(second) >= len(SHARED) + len(first.tokens) - 1  # the last one was not fed yet


@pytest.mark.parametrize("device", [*DEVICES, WEBGPU])
def test_another_process_takes_whole_blocks_from_the_disk(
    device: str, packages: dict[str, Path], alone: dict[str, Model], tmp_path: Path
) -> None:
    prompts = [[*SHARED, *tail(seed)] for seed in range(3)]
    with loaded(packages["qwen3_5"], device, cache_dir=tmp_path) as llm:
        reply(llm, prompts[0])
    with loaded(packages["qwen3_5"], device, cache_dir=tmp_path) as llm:
        found = reply(llm, prompts[1])
    assert cached(found) == len(SHARED) - len(SHARED) % BLOCK
    assert tuple(found.tokens) == fresh(alone["qwen3_5"], prompts[1])
    with loaded(packages["lfm2"], device, cache_dir=tmp_path) as llm:  # another model
        assert cached(reply(llm, prompts[1])) == 0


def test_states_that_are_damaged_on_the_disk_or_gone_are_computed_again(
    packages: dict[str, Path], alone: dict[str, Model], tmp_path: Path
) -> None:
    prompt = [*SHARED, *tail(0)]
    with load(packages["qwen3_5"], device="cpu", cache_dir=tmp_path) as llm:
        reply(llm, prompt)
    files = sorted(tmp_path.glob("**/*"))
    assert files
    for file in files:
        if file.is_file():
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)
    with load(packages["qwen3_5"], device="cpu", cache_dir=tmp_path) as llm:
        found = reply(llm, prompt)
    assert cached(found) == 0
    assert tuple(found.tokens) == fresh(alone["qwen3_5"], prompt)


def test_the_budget_of_the_disk_holds_where_only_states_are_written(packages: dict[str, Path], tmp_path: Path) -> None:
    """Behind blocks of KV that are there already."""

    def size() -> int:
        return sum(file.stat().st_size for file in tmp_path.glob("*"))

    with load(packages["qwen3_5"], device="cpu", cache_dir=tmp_path) as llm:
        reply(llm, SHARED)
    budget = size()
    with load(packages["qwen3_5"], device="cpu", cache_dir=tmp_path, cache_dir_bytes=budget) as llm:
        reply(llm, SHARED[:150])
    assert size() <= budget


RUNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 90)), min_size=1, max_size=4).map(
    lambda runs: [5 + token for token, count in runs for _ in range(count)]
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(st.lists(RUNS, min_size=1, max_size=3), max_size=5), budget=st.sampled_from([0, 30_000, 1 << 20]))
def test_what_came_before_never_changes_a_reply(
    calls: list[list[list[int]]], budget: int, packages: dict[str, Path], alone: dict[str, Model]
) -> None:
    with load(packages["qwen3_5"], device="cpu", prefix_cache=budget) as llm:
        for prompts in calls:
            replies = llm.generate_batch(prompts, temperature=0, max_tokens=6, stop_tokens=())
            assert [tuple(each.tokens) for each in replies] == [fresh(alone["qwen3_5"], each) for each in prompts]
            cache = llm.runner.sequences.prefix_cache
            assert (0 if cache is None else cache.bytes) <= budget


def test_few_states_of_a_sequence_go_into_memory(packages: dict[str, Path]) -> None:
    """Where prompts part, the last ones, and others far apart."""
    with load(packages["lfm2"], device="cpu") as llm:
        talk = SHARED[:40]
        for seed in range(8):
            talk = [*talk, *reply(llm, talk).tokens, *tail(seed)]
        reply(llm, tail(20))  # takes the sequence
        assert llm.runner.sequences.prefix_cache is not None
        blocks = llm.runner.sequences.prefix_cache._memory._blocks.values()
        assert 2 <= sum(block.states is not None for block in blocks) <= MOST_STATES


# Parts


def test_the_last_message_begins_at_the_mark_before_the_one_that_opens_the_reply() -> None:
    start, end = 1, 2
    chat = [start, 7, 7, end, start, 8, 8, 8, end, start, 9]
    assert last_message(chat, {start, end}) == 4
    assert last_message(chat[4:], {start, end}) == 0
    assert last_message([5, 6, 7], {start, end}) == 0


def test_marks_beside_images_are_no_message_s() -> None:
    start, end, opens, closes, row = 1, 2, 3, 4, 5
    first, second = ([opens, FIRST_ID + at, row, FIRST_ID + at + 1, closes] for at in (0, 8))
    question = [start, 7, *first, *second, 8, end]
    chat = [start, 7, 7, end, *question, start, 9]
    marks = {start, end, opens, closes, row}
    assert last_message(chat, marks) == 4
    assert last_message(chat[4:], marks) == 0, "there is no other message"
    only_images = [*chat[:4], start, 7, *first, 7, *second, end, 7, start, 9]
    assert last_message(only_images, marks) == 4, "the end of a message may stand beside an image, too"


def test_a_block_with_states_stays_beside_a_longer_one() -> None:
    memory = BlockCache(1 << 20)
    kv: KeyValues = [(np.zeros((1, 8, 2), np.float32), np.zeros((1, 8, 2), np.float32))]
    states = {"conv.0": np.zeros(5, np.float32)}
    short = Block(parent=b"", tokens=(1, 2, 3), state=kv, states=states)
    for block in (short, Block(parent=b"", tokens=(1, 2), state=kv), Block(parent=b"", tokens=(1, 2, 3, 4), state=kv)):
        memory.put(block)
    assert [len(block.tokens) for block in memory._blocks.values()] == [3, 4]
    assert memory.ends(b"", [1, 2, 3, 9]) == [short]
    assert memory.ends(b"", [1, 2, 9]) == []
    assert memory.bytes == short.bytes + short.bytes - 20
    memory.put(Block(parent=b"", tokens=(1, 2, 3), state=kv, states=states))  # once is enough
    assert len(memory) == 2


def test_states_go_through_the_form_of_a_file_as_they_are(tmp_path: Path) -> None:
    shapes = {"conv.0": (2, 3), "recurrent.0": (2, 2, 2), "conv.2": (4,)}
    random = np.random.default_rng(0)
    states = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    store, (key, *_) = DiskStore(tmp_path, budget_bytes=1 << 20), block_keys([1], b"root")
    store.write(key, [7], as_kv(states, shapes), {})
    kv = store.read(key, [7])
    assert kv is not None
    flat = [array for pair in kv for array in pair]
    for name, array in zip(shapes, flat, strict=False):
        np.testing.assert_array_equal(array.reshape(shapes[name]), states[name])


@pytest.fixture(scope="module", params=[*DEVICES, WEBGPU])
def llm(request: pytest.FixtureRequest, packages: dict[str, Path]) -> Iterator[Model]:
    with loaded(packages["falcon_h1"], request.param, exact=True) as model:  # else OpenVINO rounds
        yield model


def opened(llm: Model) -> KeepsStates:
    session = movable(llm.runner.engine.open())
    assert session is not None
    return session


def logits(session: KeepsStates, tokens: Sequence[int]) -> np.ndarray:
    rows = session.feed(tokens)  # type: ignore[attr-defined]  # a Session, too
    return np.array(rows.values(range(307)))


def test_a_session_goes_on_from_a_prefix_of_another_one(llm: Model) -> None:
    def check() -> None:
        one, other = opened(llm), opened(llm)
        logits(one, SHARED[:80])
        logits(one, SHARED[80:120])
        assert one.kept() == [80, 120]
        assert [one.last_kept(at) for at in (79, 80, 119, 120)] == [0, 80, 80, 120]
        assert one.kv is not None
        logits(other, SHARED[:50])
        state = one.kv.export_state(50, 80)
        assert other.import_prefix(SHARED[50:80], [state], one.export_states(80))
        expected = logits(one, SHARED[120:125])
        for _ in range(2):
            np.testing.assert_allclose(logits(other, SHARED[80:125]), expected, atol=1e-4 * np.ptp(expected))
            other.rewind(90)  # type: ignore[attr-defined]  # to 80, where its states are kept
            np.testing.assert_allclose(logits(other, SHARED[90:125]), expected, atol=1e-4 * np.ptp(expected))
            other.rewind(80)  # type: ignore[attr-defined]

    llm.runner.call(check)


def test_a_prefix_that_does_not_come_whole_changes_nothing(llm: Model) -> None:
    def check() -> None:
        one, other = opened(llm), opened(llm)
        logits(one, SHARED[:80])
        assert one.kv is not None
        state, states = one.kv.export_state(0, 80), one.export_states(80)
        logits(other, SHARED[:30])
        short = [(key[:, 30:60], value[:, 30:60]) for key, value in state]
        assert not other.import_prefix(SHARED[30:80], [short], states)
        wrong = [(key[:, 30:80, :-1], value[:, 30:80]) for key, value in state]
        with pytest.raises(ValueError, match="of another"):
            other.import_prefix(SHARED[30:80], [wrong], states)
        expected = logits(one, SHARED[80:90])
        np.testing.assert_allclose(logits(other, SHARED[30:90]), expected, atol=1e-4 * np.ptp(expected))
        long = [(np.tile(key, (1, 8, 1)), np.tile(value, (1, 8, 1))) for key, value in state]
        with pytest.raises(ContextFull):
            other.import_prefix(SHARED * 4, [long], states)
        expected = logits(one, SHARED[90:95])
        np.testing.assert_allclose(logits(other, SHARED[90:95]), expected, atol=1e-4 * np.ptp(expected))

    llm.runner.call(check)


def test_nothing_short_is_moved(packages: dict[str, Path]) -> None:
    with load(packages["lfm2"], device="cpu") as llm:
        short = SHARED[: MIN_TOKENS - 1]
        for seed in range(3):
            reply(llm, [*short, *tail(seed)])
            reply(llm, tail(10 + seed, 50))
        assert cached(reply(llm, [*short, *tail(5)])) == 0


def test_states_that_are_used_stay_in_memory(packages: dict[str, Path]) -> None:
    """Beside a longer block of KV without states, which has as much in common with the prompts."""
    kv: KeyValues = [(np.zeros((1, BLOCK, 2), np.float32), np.zeros((1, BLOCK, 2), np.float32))]
    states = {"conv.0": np.zeros(5, np.float32)}
    prompt = SHARED[:40]
    keys = block_keys(prompt, b"")
    long = Block(parent=b"", tokens=tuple(SHARED[:BLOCK]), state=kv)
    short = Block(parent=b"", tokens=tuple(SHARED[:35]), state=[(key[:, :35], value[:, :35]) for key, value in kv],
                  states=states)  # fmt: skip
    memory = BlockCache(long.bytes + short.bytes + 100)
    for block in (short, long):
        memory.put(block)
    prefix, _ = Blocks(memory, None, prompt, keys, {"conv.0": (5,)}).longest(0, len(prompt) - 1)
    assert prefix is not None
    assert prefix.stop == 35
    memory.make_room(200)
    assert memory.ends(b"", prompt) == [short]


def test_copies_of_states_are_no_more_than_a_session_keeps(llm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each prefix adds one."""
    monkeypatch.setattr(recurrent_session, "_MOST", 3)

    def check() -> None:
        one, other = opened(llm), opened(llm)
        for at in range(0, 120, 20):
            assert one.kv is not None
            logits(one, SHARED[at : at + 20])
            assert other.import_prefix(
                SHARED[at : at + 20], [one.kv.export_state(at, at + 20)], one.export_states(at + 20)
            )
        assert len(one.kept()) <= 4  # and that of now
        assert len(other.kept()) <= 3
        assert other.kept()[-1] == 120

    llm.runner.call(check)


def test_blocks_in_memory_are_put_together_before_a_session_takes_them(
    packages: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some copy all that they hold for each."""
    counts: list[int] = []
    import_state = OrtSession.import_state

    def counted(session: OrtSession, state: KeyValues) -> None:
        counts.append(state[0][0].shape[1])
        import_state(session, state)

    monkeypatch.setattr(OrtSession, "import_state", counted)
    with load(packages["lfm2"], device="cpu") as llm:
        reply(llm, SHARED)
        reply(llm, tail(1, 100))  # takes the sequence
        reply(llm, [*SHARED, *tail(2)])
    assert counts == [len(SHARED)]

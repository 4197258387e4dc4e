"""Adapters chosen by calls: what each computes is what a model with that adapter alone does, and no KV is shared."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from embedllm import Model, Sampling, load
from embedllm.errors import DeviceUnavailable, PackageError
from embedllm.export import convert
from embedllm.package.tensors import linears
from tests.support.peft_folders import write_adapter
from tests.support.tiny import tiny_checkpoint

GREEDY = Sampling(temperature=0)
PROMPT = [(7 * at * at + 3) % 300 for at in range(200)]  # longer than a block of the prefix cache
NAMES = ("one", "two", None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    checkpoint = tiny_checkpoint(folder / "checkpoint", "llama", max_position_embeddings=1024)
    write_adapter(folder / "one", checkpoint, seed=1)
    write_adapter(folder / "two", checkpoint, targets=["q_proj", "v_proj"], rank=9, seed=2)
    convert(checkpoint, folder / "package")
    return folder


@pytest.fixture(params=["cpu", "openvino", "reference"])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


Opened = Callable[..., Model]


@pytest.fixture
def opened(folder: Path) -> Iterator[Opened]:
    """Exact: a reply does not depend on what runs beside it."""
    models: list[Model] = []

    def open_model(device: str = "cpu", **options: object) -> Model:
        adapters = {name: folder / name for name in ("one", "two")}
        given = {"exact": device != "reference", "adapters": adapters, **options}
        models.append(load(folder / "package", device=device, **given))  # type: ignore[arg-type]
        return models[-1]

    yield open_model
    for model in models:
        model.close()


def told(llm: Model, name: str | None, prompt: list[int] = PROMPT) -> tuple[int, ...]:
    return llm.generate(prompt, GREEDY, max_tokens=8, adapter=name).tokens


def alone(opened: Opened, device: str = "cpu", prompt: list[int] = PROMPT) -> dict[str | None, tuple[int, ...]]:
    """What each adapter says in a model of its own."""
    found = {name: told(opened(device), name, prompt) for name in NAMES}
    assert len(set(found.values())) == 3
    return found


def test_calls_switch_between_adapters_and_share_no_kv(opened: Opened, device: str) -> None:
    expected = alone(opened, device)
    llm = opened(device)
    assert llm.adapters == ("one", "two")
    for name in ("one", "two", None, "two", "one", None, "one"):
        reply = llm.generate(PROMPT, GREEDY, max_tokens=8, adapter=name)
        assert reply.tokens == expected[name]
    if device != "reference":  # whose KV cannot be kept
        assert reply.statistics.cached_tokens == len(PROMPT) - 1  # its own of three calls ago, from the prefix cache


def test_the_first_call_with_an_adapter_has_nothing_of_the_bare_model(opened: Opened, tmp_path: Path) -> None:
    llm = opened(cache_dir=tmp_path / "kv")
    for name in NAMES:
        assert llm.generate(PROMPT, GREEDY, max_tokens=2, adapter=name).statistics.cached_tokens == 0
    with llm.conversation() as talk:  # a sequence that waits
        talk.say("x " * 100, GREEDY, max_tokens=2)
        messages = [*talk.messages, {"role": "user", "content": "more"}]
        assert llm.chat(messages, GREEDY, max_tokens=2).statistics.cached_tokens > 64
        assert llm.chat(messages, GREEDY, max_tokens=2, adapter="one").statistics.cached_tokens == 0


def test_on_disk_each_adapter_finds_its_own_and_by_what_it_does(opened: Opened, folder: Path, tmp_path: Path) -> None:
    expected = alone(opened)
    with opened(cache_dir=tmp_path / "kv") as llm:
        assert [told(llm, name) for name in NAMES] == [expected[name] for name in NAMES]
    renamed = {"zwei": folder / "two", "eins": folder / "one"}
    with opened(cache_dir=tmp_path / "kv", adapters=renamed) as llm:
        for name, before in (("eins", "one"), ("zwei", "two"), (None, None)):
            reply = llm.generate(PROMPT, GREEDY, max_tokens=8, adapter=name)
            assert reply.tokens == expected[before]
            assert reply.statistics.cached_tokens == 192  # three blocks


@pytest.mark.parametrize("device", ["cpu", "openvino"])
def test_threads_with_different_adapters_each_get_what_they_get_alone(opened: Opened, device: str) -> None:
    prompts = [[token + 1 for token in PROMPT[: 20 + 13 * at]] for at in range(6)]
    expected = {(at, name): told(opened(device), name, prompt)
                for at, prompt in enumerate(prompts[:2]) for name in NAMES}  # fmt: skip
    llm = opened(device, prefix_cache=1 << 22)
    with ThreadPoolExecutor(6) as threads:
        asked = [(at % 2, NAMES[at % 3]) for at in range(18)]
        replies = [threads.submit(told, llm, name, prompts[at]) for at, name in asked]
        assert [reply.result(120) for reply in replies] == [expected[one] for one in asked]


def test_replies_of_one_batch_have_its_adapter(opened: Opened) -> None:
    prompts = [PROMPT[:count] for count in (10, 33, 60, 90)]
    llm = opened(exact=False)  # the steps of all of them are one run
    alone = {name: [told(llm, name, prompt) for prompt in prompts] for name in NAMES}
    for name in NAMES:
        found = llm.generate_batch(prompts, GREEDY, max_tokens=8, adapter=name)
        assert [reply.tokens[:1] for reply in found] == [tokens[:1] for tokens in alone[name]]
        # products in float32 round by their number of rows; then 8-bit activations may tip: docs/guide-python.md
        same = sum(reply.tokens == tokens for reply, tokens in zip(found, alone[name], strict=True))
        assert same >= 2


def test_every_kind_of_call_takes_an_adapter(opened: Opened) -> None:
    expected = alone(opened)["one"]
    llm = opened()
    assert tuple(chunk.token for chunk in llm.stream(PROMPT, GREEDY, max_tokens=8, adapter="one")) == expected
    assert llm.generate_n(PROMPT, 2, GREEDY, max_tokens=8, adapter="one")[1].tokens == expected
    assert llm.beam_search(PROMPT, 1, max_tokens=8, adapter="one")[0].tokens == expected
    assert asyncio.run(llm.agenerate(PROMPT, GREEDY, max_tokens=8, adapter="one")).tokens == expected
    assert llm.generate(PROMPT, GREEDY, max_tokens=8, adapter="one", speculate="lookup").tokens == expected
    messages = [{"role": "user", "content": "hello"}]
    chatted = llm.chat(messages, GREEDY, max_tokens=8, adapter="two").tokens
    assert llm.conversation(adapter="two").say("hello", GREEDY, max_tokens=8).tokens == chatted
    assert llm.conversation().say("hello", GREEDY, max_tokens=8, adapter="two").tokens == chatted


def test_every_beam_has_the_adapter(opened: Opened) -> None:
    expected = {name: opened().beam_search(PROMPT, 3, max_tokens=5, adapter=name) for name in NAMES}
    llm = opened()
    for name in (*NAMES, *NAMES):
        found = llm.beam_search(PROMPT, 3, max_tokens=5, adapter=name)
        assert [reply.tokens for reply in found] == [reply.tokens for reply in expected[name]]


def test_a_conversation_may_change_its_adapter_between_turns(opened: Opened) -> None:
    llm, other = opened(), opened()
    with llm.conversation("Be brief. " * 30, adapter="one") as talk:
        talk.say("hello", GREEDY, max_tokens=6)
        assert talk.say("and now?", GREEDY, max_tokens=6).statistics.cached_tokens > 64
        messages = [*talk.messages, {"role": "user", "content": "go on"}]
        expected = other.chat(messages, GREEDY, max_tokens=6, adapter="two").tokens
        reply = talk.say("go on", GREEDY, max_tokens=6, adapter="two")
        assert (reply.tokens, reply.statistics.cached_tokens) == (expected, 0)


@pytest.mark.parametrize("when_full", ["drop-oldest", "shift"])
def test_a_conversation_that_outgrows_its_context_keeps_its_adapter(opened: Opened, when_full: str) -> None:
    llm = opened()
    texts: dict[str | None, list[tuple[int, ...]]] = {}
    for name in ("one", "two", "one", None):  # what the calls before leave behind changes nothing
        with llm.conversation("Be brief.", when_full=when_full, adapter=name) as talk:  # type: ignore[arg-type]
            replies = [talk.say(f"{turn} " * 90, GREEDY, max_tokens=12) for turn in range(14)]
        assert replies[-1].statistics.dropped_tokens > 0
        found = [reply.tokens for reply in replies]
        assert texts.setdefault(name, found) == found
    assert len({str(found) for found in texts.values()}) == 3


def test_a_saved_conversation_goes_on_with_its_adapter(
    opened: Opened, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "embedllm")
    path = tmp_path / "talk"
    with opened() as llm, llm.conversation("Be brief. " * 20, adapter="one") as talk:
        talk.say("hello", GREEDY, max_tokens=6)
        talk.save(path)
        reply = talk.say("and now?", GREEDY, max_tokens=6)
        expected = reply.tokens, reply.statistics.cached_tokens
    with opened() as llm, llm.open_conversation(path) as talk:
        assert talk.adapter == "one"
        reply = talk.say("and now?", GREEDY, max_tokens=6)
        assert (reply.tokens, reply.statistics.cached_tokens) == expected
    assert "another model, adapter" not in caplog.text
    with opened(adapters={"one": folder / "two"}) as llm, llm.open_conversation(path) as talk:
        assert "another model, adapter" in caplog.text
        reply = talk.say("and now?", GREEDY, max_tokens=6)
        assert reply.statistics.cached_tokens == 0
        assert reply.tokens != expected[0]
    with opened(adapters={}) as llm, llm.open_conversation(path) as talk:
        with pytest.raises(ValueError, match="no adapter 'one'; this model has: none"):
            talk.say("and now?")
        talk.adapter = None
        assert talk.say("and now?", GREEDY, max_tokens=6).text is not None


def test_adapters_come_and_go(opened: Opened, folder: Path) -> None:
    expected = alone(opened)
    llm = opened(adapters={})
    assert llm.adapters == ()
    with pytest.raises(ValueError, match="no adapter 'one'; this model has: none"):
        told(llm, "one")
    llm.add_adapter("one", folder / "one")
    assert told(llm, "one") == expected["one"]
    with pytest.raises(ValueError, match="an adapter 'one' already"):
        llm.add_adapter("one", folder / "two")
    with pytest.raises(PackageError, match="there is no adapter"):
        llm.add_adapter("two", folder / "nowhere")
    running = llm.stream(PROMPT, GREEDY, max_tokens=8, adapter="one")
    first = next(running)
    llm.remove_adapter("one")
    assert (first.token, *(chunk.token for chunk in running)) == expected["one"]  # what runs with it goes on
    with pytest.raises(ValueError, match="no adapter 'one'"):
        llm.remove_adapter("one")
    llm.add_adapter("one", folder / "two")  # the same name does something else now
    assert told(llm, "one") == expected["two"]
    assert told(llm, None) == expected[None]


def test_a_model_that_was_loaded_without_says_how_to_have_some(opened: Opened, folder: Path) -> None:
    llm = opened(adapters=None)
    assert llm.adapters == ()
    calls: list[Callable[[], object]] = [
        lambda: told(llm, "one"),
        lambda: llm.add_adapter("one", folder / "one"),
        lambda: llm.remove_adapter("one"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"load it with adapters=\{\}"):
            call()


def test_a_wrong_adapter_is_known_before_anything_is_loaded(folder: Path) -> None:
    with pytest.raises(PackageError, match="there is no adapter"):
        load(folder / "package", adapters={"one": folder / "nowhere"})
    with pytest.raises(ValueError, match="expected a dict"):
        load(folder / "package", adapters=[folder / "one"])  # type: ignore[arg-type]


def test_a_device_without_adapters_is_refused_or_passed_over(folder: Path) -> None:
    adapters = {"one": folder / "one"}
    with pytest.raises(DeviceUnavailable, match="takes no adapters") as caught:
        load(folder / "package", device="npu-on-cpu", adapters=adapters)
    assert "embedllm export --lora" in caught.value.tried[0][2]
    with load(folder / "package", device=["npu-on-cpu", "cpu"], adapters=adapters) as llm:
        assert llm.device.name == "cpu"


def test_memory_counts_adapters(opened: Opened) -> None:
    with_adapters, without = opened().memory, opened(adapters={}).memory
    assert with_adapters is not None
    assert without is not None
    factors = 4 * sum(rank * sum(sizes) for rank, sizes in _sizes(opened()))
    assert with_adapters.needed_bytes - without.needed_bytes == factors


def _sizes(llm: Model) -> list[tuple[int, tuple[int, int]]]:
    """Ranks, and rows and columns, of what the two adapters change."""
    layers = llm.package.decoder.layers
    some = [linear for attention in llm.package.decoder.attentions for linear in (attention.q, attention.v)]
    every = [linear for layer in layers for linear in linears(layer)]
    return [*((4, (one.rows, one.columns)) for one in every), *((9, (one.rows, one.columns)) for one in some)]


def test_a_closed_model_frees_what_had_an_adapter(opened: Opened) -> None:
    llm = opened()
    talk = llm.conversation(adapter="one")
    talk.say("hello", GREEDY, max_tokens=2)
    llm.release()
    assert told(llm, "one")
    llm.close()
    with pytest.raises(ValueError, match="closed"):
        told(llm, "one")

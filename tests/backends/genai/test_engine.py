"""onnxruntime-genai as an engine: folders of several graphs, against the formula that they compute."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import helper

import embedllm
from embedllm.backends.base import Interrupted, MovesState
from embedllm.backends.options import DEFAULT, RuntimeOptions
from embedllm.errors import ContextFull, DeviceUnavailable
from embedllm.package.external.detect import manifest_of
from embedllm.package.external.genai_config import read_config
from embedllm.package.external.genai_pipeline import read as read_pipeline
from embedllm.package.package import Package, open_package
from tests.package.test_onnx_folders import greedy
from tests.support.external_folders import Edit, stripped
from tests.support.genai_folders import PAD, combined, pictures, pipeline, windowed
from tests.support.traced_models import CONTEXT, VOCABULARY, expected, weights

pytest.importorskip("onnxruntime_genai")
from embedllm.backends.genai import engine as genai
from embedllm.backends.genai.engine import GenaiEngine, devices
from embedllm.backends.genai.session import GenaiSession, Generator

if TYPE_CHECKING:
    from embedllm.types import F32

LAST = VOCABULARY - 1  # at which the generator would stop if it were made to choose it
TOKENS = np.random.default_rng(3).integers(12, VOCABULARY, 30).tolist()
TOKENS[9] = TOKENS[22] = LAST
RIGHT = expected(weights(), TOKENS)
GREEDY = embedllm.Sampling(temperature=0)


def opened(folder: Path, engine: type[GenaiEngine] = GenaiEngine) -> GenaiSession:
    package = open_package(folder)
    return engine(package, package.graphs[0], devices()[0], DEFAULT).open()


def check(session: GenaiSession, right: F32 = RIGHT) -> None:
    """Feeds in every way, and again behind a rewind."""
    np.testing.assert_allclose(session.feed_all(TOKENS[:9]), right[:9], atol=1e-4)
    for at in (9, 10):
        found = session.feed(TOKENS[at : at + 1])
        np.testing.assert_allclose(found.values(range(VOCABULARY)), right[at], atol=1e-4)
    np.testing.assert_allclose(session.feed(TOKENS[11:15]).values(range(VOCABULARY)), right[14], atol=1e-4)
    session.rewind(7)
    assert session.position == 7
    np.testing.assert_allclose(session.feed_all(TOKENS[7:20]), right[7:20], atol=1e-4)
    session.rewind(20)
    np.testing.assert_allclose(session.feed(TOKENS[20:]).values(range(VOCABULARY)), right[-1], atol=1e-4)
    assert session.position == len(TOKENS)


@pytest.mark.parametrize("make", [pipeline, pictures, combined])
def test_graphs_that_it_alone_feeds_are_as_their_formula(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    session = opened(make(tmp_path / "model"))
    check(session)
    assert not isinstance(session, MovesState)
    session.rewind(0)
    check(session)


def test_the_whole_library_runs_it_and_writes_nothing_into_it(tmp_path: Path) -> None:
    folder = pipeline(tmp_path / "model")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    chat = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with embedllm.load(folder, chat_template=chat, threads=1) as model:
        assert (model.device.name, model.name, model.context) == ("genai", "model", CONTEXT)
        assert model.package.stop_tokens == (7, 9, 2, 0)
        prompt = model.tokenizer.encode("list files", special=True)
        reply = model.generate(prompt, GREEDY, max_tokens=6, stop_tokens=(), logprobs=2)
        assert reply.tokens == greedy(prompt, 6)
        pieces = list(model.stream(prompt, GREEDY, max_tokens=6, stop_tokens=()))
        assert "".join(piece.text for piece in pieces) == reply.text
        said = model.chat([{"role": "user", "content": "list files"}], GREEDY, max_tokens=6, stop_tokens=())
        assert said.tokens == reply.tokens
        guessed = model.generate(prompt, GREEDY, max_tokens=6, stop_tokens=(), speculate="lookup")
        assert guessed.tokens == reply.tokens
        with pytest.raises(ContextFull, match="take a model that holds more"):
            model.generate([1] * CONTEXT, max_tokens=1)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_several_replies_at_once_do_not_mix(tmp_path: Path) -> None:
    with embedllm.load(pipeline(tmp_path / "model")) as model:
        prompts = [TOKENS[:5], TOKENS[3:12], TOKENS[10:11]]
        with ThreadPoolExecutor() as pool:
            replies = list(pool.map(lambda one: model.generate(one, GREEDY, max_tokens=5, stop_tokens=()), prompts))
    assert [reply.tokens for reply in replies] == [greedy(prompt, 5) for prompt in prompts]


def test_a_padding_token_of_a_prompt_is_a_token(tmp_path: Path) -> None:
    """Left to itself onnxruntime-genai gives the logits of the last one that is none."""
    for tokens in ([*TOKENS[:4], PAD], [PAD] * 3):
        session = opened(pipeline(tmp_path / f"of {len(tokens)}"))
        right = expected(weights(), tokens)[-1]
        np.testing.assert_allclose(session.feed(tokens).values(range(VOCABULARY)), right, atol=1e-4)


# How tokens behind others are given to it


class Devices:
    """A generator as on devices that take a prompt once, and single tokens that it makes."""

    def __init__(self, real: Generator) -> None:
        self._real = real

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def append_tokens(self, tokens: Sequence[int]) -> None:
        if self._real.token_count():
            raise RuntimeError("Continuous decoding is not supported on the selected device type")
        self._real.append_tokens(tokens)


class Once(GenaiEngine):
    """On such a device."""

    made = 0  # generators

    def generator(self, room: int) -> Generator:
        self.made += 1
        return Devices(super().generator(room))  # type: ignore[return-value]  # the rest is the real one's


def test_devices_that_do_not_append_are_made_to_choose_the_token(tmp_path: Path) -> None:
    folder = pipeline(tmp_path / "model")
    check(opened(folder, Once))
    package = open_package(folder)
    engine = Once(package, package.graphs[0], devices()[0], DEFAULT)
    assert (engine.appends, engine.chunk) == (False, CONTEXT)
    session, before = engine.open(), engine.made
    for start, end, made in ((0, 3, 1), (3, 4, 1), (4, 7, 2), (7, 8, 2)):  # several tokens start a new sequence
        session.feed(TOKENS[start:end])
        assert engine.made - before == made


@pytest.mark.parametrize("window", [4, 32])
def test_a_prompt_goes_through_windows_and_what_follows_token_by_token(tmp_path: Path, window: int) -> None:
    without_places = weights() | {"places": np.zeros_like(weights()["places"])}
    session = opened(windowed(tmp_path / "model", window))
    check(session, expected(without_places, TOKENS))
    filled = [*TOKENS[:6], PAD, *TOKENS[1:4], PAD]  # the token that fills windows up is one of the text, too
    for tokens in (filled, filled[:7]):
        session.rewind(0)
        right = expected(without_places, tokens)
        np.testing.assert_allclose(session.feed(tokens).values(range(VOCABULARY)), right[-1], atol=1e-4)
        session.rewind(0)
        np.testing.assert_allclose(session.feed_all(tokens), right, atol=1e-4)
    with pytest.raises(ValueError, match=f"the tokens {PAD} and {LAST} cannot be in one text"):
        session.feed([LAST])
    session.rewind(0)
    with pytest.raises(ValueError, match=f"the first token, {PAD}, is what fills windows up"):
        session.feed([PAD, 1])


def test_windows_may_be_filled_up_with_any_token(tmp_path: Path) -> None:
    """Also with those that are tried at load."""
    drawn = np.random.default_rng(genai._SEED).integers(0, VOCABULARY - 1, 2).tolist()
    for filler in drawn:
        session = opened(windowed(tmp_path / str(filler), 4, pad_token_id=filler))
        text = [*(token for token in range(100, 106) if token != filler), filler]
        right = expected(weights() | {"places": np.zeros_like(weights()["places"])}, text)[-1]
        found = session.feed(text)
        np.testing.assert_allclose(found.values(range(VOCABULARY)), right, atol=1e-4)


def test_windows_leave_room_for_what_fills_them_up(tmp_path: Path) -> None:
    package = open_package(windowed(tmp_path / "model", 8))
    engine = GenaiEngine(package, package.graphs[0], devices()[0], DEFAULT)
    assert (engine.context, engine.is_shared, engine.appends) == (CONTEXT - 7, False, False)
    session = engine.open()
    tokens = (TOKENS * 3)[: engine.context]
    for count in (1, engine.context):
        session.rewind(0)
        session.feed(tokens[:count])
        for token in tokens[count:]:
            session.feed([token])
        assert session.position == engine.context
    with pytest.raises(ContextFull):
        session.feed([1])


def test_a_graph_that_is_wrong_for_pieces_is_fed_token_by_token(tmp_path: Path) -> None:
    check(opened(pipeline(tmp_path / "model", mask="whole")))


def test_a_graph_that_is_wrong_behind_others_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailable, match="gives other logits for a prompt that is fed at once"):
        embedllm.load(pipeline(tmp_path / "model", mask="wrong"))


def test_a_graph_whose_logits_are_no_numbers_is_refused(tmp_path: Path) -> None:
    folder = pipeline(tmp_path / "model")
    edit = Edit(folder / "lm_head.onnx")
    edit.constant("nan", np.float32(np.nan))
    (head,) = edit.graph.node
    head.output[0] = "numbers"
    edit.graph.node.append(helper.make_node("Add", ["numbers", "nan"], ["logits"]))
    edit.save()
    with pytest.raises(DeviceUnavailable, match="gives other logits for a prompt that is fed at once"):
        embedllm.load(folder)


def test_a_feed_that_is_stopped_appends_nothing(tmp_path: Path) -> None:
    session = opened(pipeline(tmp_path / "model"))
    session.feed(TOKENS[:9])
    session.interrupt()
    with pytest.raises(Interrupted):
        session.feed(TOKENS[9:])
    assert session.position == 9
    session.interrupt(False)
    np.testing.assert_allclose(session.feed_all(TOKENS[9:]), RIGHT[9:], atol=1e-4)
    session.close()
    session.close()
    with pytest.raises(ValueError, match="this session was closed"):
        session.feed([1])


# Memory


def with_shared_buffers(package: Path, folder: Path) -> Package:
    """One graph of ours, whose attention appends in place, read as onnxruntime-genai's several are."""
    config = stripped(package, folder) / "genai_config.json"
    told = json.loads(config.read_text())
    told["search"] = {**told["search"], "past_present_share_buffer": True}
    config.write_text(json.dumps(told))
    reading = read_pipeline(read_config(config))
    return Package(reading.root, manifest_of(reading), reading.external)


def test_a_sequence_that_outgrows_its_buffers_goes_on_in_larger_ones(
    tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    ours = tiny_package("llama", max_position_embeddings=1000)
    package = with_shared_buffers(ours, tmp_path / "model")
    engine = GenaiEngine(package, package.graphs[0], devices()[0], RuntimeOptions(threads=1))
    tokens = np.random.default_rng(5).integers(3, 200, 600).tolist()
    session, capacities = engine.open(), []
    for start, end in ((0, 200), (200, 300), (300, 301), (301, 600)):
        logits = session.feed(tokens[start:end])
        capacities.append(session.capacity)
    assert capacities == [256, 512, 512, 1000]
    whole = engine.open(900)
    right = whole.feed(tokens)
    assert whole.capacity == 1000
    every = range(engine.vocabulary)
    np.testing.assert_allclose(logits.values(every), right.values(every), atol=2e-2)
    with embedllm.load(ours, device="cpu") as model:
        reply = model.generate(tokens, GREEDY, max_tokens=1, stop_tokens=())
    assert reply.tokens == tuple(right.top(1).tokens)
    engine.close()
    with pytest.raises(ValueError, match="this model was closed"):
        engine.open()


# What is refused


def test_what_it_cannot_load_is_said_in_its_words(tmp_path: Path) -> None:
    folder = pipeline(tmp_path / "model")
    config = folder / "genai_config.json"
    told = json.loads(config.read_text())
    told["model"]["decoder"]["session_options"] = {"provider_options": [{"qnn": {}}]}
    config.write_text(json.dumps(told))
    with pytest.raises(DeviceUnavailable, match=r"genai \S+ cannot load '.*json': QNN .* install the build"):
        embedllm.load(folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "cpu"}, "use the device 'genai'"),
        ({"exact": True}, "cannot be told to round nothing.*load it without exact"),
        ({"kv": "int8"}, "keeps its KV as floats.*load it without kv"),
        ({"device": "genai+cpu"}, "its KV can be neither taken out nor put in"),
    ],
)
def test_what_it_cannot_do_is_said(tmp_path: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(DeviceUnavailable, match=f"(?s){said}"):
        embedllm.load(pipeline(tmp_path / "model"), **options)  # type: ignore[arg-type]  # one of them


def test_a_package_of_ours_is_for_the_other_devices(tiny_package: Callable[..., Path]) -> None:
    with pytest.raises(DeviceUnavailable, match=r"that no other device runs.*use the device 'cpu'"):
        embedllm.load(tiny_package("llama"), device="genai")

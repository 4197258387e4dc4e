"""Hidden states on OpenVINO, for multi-token prediction heads (MTP), which draft on ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import embedllm
from embedllm import Model, Sampling
from embedllm.backends.base import BatchRow, Engine, FeedsAll, GivesHidden, RunsBatches, Session
from embedllm.backends.devices.registry import open_engine
from embedllm.backends.openvino.engine import OvEngine
from embedllm.backends.openvino.paged_engine import PagedEngine
from embedllm.cancel import Cancel
from embedllm.errors import DeviceError, DeviceUnavailable
from embedllm.export import Recipe, convert
from embedllm.export.eagle import add_eagle
from embedllm.export.mtp import add_mtp
from embedllm.package.graph_variants import HIDDEN
from embedllm.package.package import open_package
from tests.support.draft_heads import make_drafts_free, opened_head, row
from tests.support.eagle_heads import tiny_eagle
from tests.support.mtp_heads import CHECKPOINTS, add_head, package_with_head, torch_logits
from tests.support.openings import device
from tests.support.tiny import tiny_checkpoint

TOKENS = [5, 6, 7, 8, 9, 40, 41, 42, 43]
PROMPT = [(7 * place) % 300 for place in range(100)]  # longer than the hidden states that are kept of one
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module", params=CHECKPOINTS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CHECKPOINTS[request.param](tmp_path_factory.mktemp(request.param) / "checkpoint")


@pytest.fixture(scope="module")
def package(checkpoint: Path) -> Path:
    return package_with_head(checkpoint)


@pytest.fixture(scope="module")
def llm(package: Path) -> Iterator[Model]:
    with embedllm.load(package, device="openvino", exact=True, draft=package / "mtp") as model:
        yield model


def opened(folder: Path, name: str, *, exact: bool = True) -> Engine:
    return open_engine(open_package(folder), device(name), exact=exact, hidden_graph=HIDDEN.name)


def hidden(session: Session) -> np.ndarray:
    assert isinstance(session, GivesHidden)
    assert session.hidden is not None
    return session.hidden.get(session.hidden.first, session.hidden.stop)


@pytest.mark.peer
def test_a_head_computes_what_torch_does(llm: Model, checkpoint: Path) -> None:
    wanted, _ = torch_logits(checkpoint, TOKENS)
    assert isinstance(llm.runner.engine, OvEngine if llm.package.decoder.is_recurrent else PagedEngine)
    head, target = opened_head(llm, TOKENS[:4])
    for at in (4, 5):
        assert abs(row(head.feed(TOKENS[at : at + 1] if at > 4 else TOKENS[:5])) - wanted[at - 1]).max() < 1e-4
        target.feed(TOKENS[at : at + 1])  # type: ignore[attr-defined]  # a session
    target.feed(TOKENS[6:-1])  # type: ignore[attr-defined]
    assert abs(row(head.feed(TOKENS[6:])) - wanted[-1]).max() < 1e-4


def test_hidden_states_are_those_of_the_cpu_behind_a_prompt_steps_and_a_rewind(package: Path) -> None:
    both = [opened(package, name).open() for name in ("cpu", "openvino")]
    for session in both:
        session.feed(PROMPT)
    expected, found = map(hidden, both)
    assert found.shape == expected.shape == (64, 64)
    assert abs(found - expected).max() < 1e-4
    for session in both:
        assert isinstance(session, FeedsAll)  # by which guesses are verified
        session.feed_all(TOKENS)
        session.rewind(len(PROMPT) + 4)
        session.feed([9])
    expected, found = map(hidden, both)
    assert found.shape == expected.shape == (69, 64)
    assert abs(found - expected).max() < 1e-4


def test_sequences_that_step_together_keep_their_own(package: Path) -> None:
    engine = opened(package, "openvino", exact=False)
    if not isinstance(engine, RunsBatches):
        pytest.skip("whose sequences take turns")
    alone, together = ([engine.open() for _ in range(2)] for _ in range(2))
    prompts = PROMPT, TOKENS
    for sessions in (alone, together):
        for session, tokens in zip(sessions, prompts, strict=True):
            session.feed(tokens)
    engine.run_batch([BatchRow(session, [7, 8]) for session in together])
    for one, other in zip(alone, together, strict=True):
        one.feed([7, 8])
        assert abs(hidden(one) - hidden(other)).max() < 0.05  # of values up to 3: activations are rounded to 8 bits


def test_a_head_changes_no_reply(llm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    make_drafts_free(monkeypatch)
    for sampling in (GREEDY, Sampling(seed=1, temperature=0.3)):
        plain = llm.generate(TOKENS, sampling, max_tokens=30, speculate="off")
        drafted = llm.generate(TOKENS, sampling, max_tokens=30, speculate="draft")
        assert drafted.tokens == plain.tokens
        assert drafted.statistics.drafted_tokens
    requests = [llm.request(prompt, GREEDY, max_tokens=12, speculate="draft") for prompt in (TOKENS, PROMPT)]
    plain_replies = [llm.generate(prompt, GREEDY, max_tokens=12, speculate="off").tokens for prompt in (TOKENS, PROMPT)]
    for chunks, tokens in zip(llm.runner.run_all(requests, Cancel()), plain_replies, strict=True):
        assert tuple(chunk.token for chunk in chunks if chunk.token is not None) == tokens


def test_kv_from_elsewhere_has_no_hidden_states(package: Path) -> None:
    engine = opened(package, "openvino")
    first, second = engine.open(), engine.open()
    first.feed(TOKENS)
    if not hasattr(first, "export_state"):
        pytest.skip("whose KV is not moved")
    second.import_state(first.export_state(0, len(TOKENS)))  # type: ignore[attr-defined]  # both are sessions that move it
    assert not len(hidden(second))


@pytest.mark.parametrize("engine", [PagedEngine, OvEngine])
@pytest.mark.parametrize("layers", [(2, 2, 1), (0, 1, 3)])
def test_an_eagle_head_reads_the_layers_that_it_reads_on_the_cpu(
    tmp_path: Path, layers: tuple[int, ...], engine: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = convert(tiny_checkpoint(tmp_path / "checkpoint", num_hidden_layers=4), tmp_path / "package",
                     Recipe(bits=32))  # fmt: skip
    eagle = add_eagle(folder, tiny_eagle(tmp_path / "head", eagle_aux_hidden_state_layer_ids=list(layers)), bits=32)
    if engine is OvEngine:
        monkeypatch.setattr(PagedEngine, "__init__", _refuse)
    make_drafts_free(monkeypatch)
    with (
        embedllm.load(folder, device="cpu", exact=True, draft=eagle) as cpu,
        embedllm.load(folder, device="openvino", exact=True, draft=eagle) as llm,
    ):
        assert isinstance(llm.runner.engine, engine)
        both = [model.runner.engine.open() for model in (cpu, llm)]
        for session in both:
            session.feed(PROMPT)
            assert isinstance(session, FeedsAll)
            session.feed_all(TOKENS)
            session.feed([9])
        expected, found = map(hidden, both)
        assert found.shape == expected.shape == (74, 64)
        assert abs(found - expected).max() < 1e-3 * expected.std()  # the matrix is float16 there
        plain = llm.generate(TOKENS, GREEDY, max_tokens=30, speculate="off")
        drafted = llm.generate(TOKENS, GREEDY, max_tokens=30, speculate="draft")
        assert drafted.tokens == plain.tokens
        assert drafted.statistics.drafted_tokens


def _refuse(*_: object, **__: object) -> None:
    raise DeviceError("replies take turns")


def test_heads_of_pairs_are_refused(tmp_path: Path) -> None:
    checkpoint = add_head(tiny_checkpoint(tmp_path / "checkpoint", num_hidden_layers=4), layer=0)
    folder = convert(checkpoint, tmp_path / "package", Recipe(bits=8))
    mtp = add_mtp(folder, checkpoint)
    with pytest.raises(DeviceUnavailable, match=r"runs no heads that draft \(MTP\)"):
        embedllm.load(folder, device="openvino+cpu", draft=mtp)

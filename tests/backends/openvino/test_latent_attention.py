"""Multi-head latent attention (MLA) on OpenVINO: the graph that keeps latents, and when it is taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from embedllm import OpenVINOOptions, Sampling, load
from embedllm.backends.base import BatchRow
from embedllm.backends.devices.registry import open_engine
from embedllm.backends.openvino.engine import OvEngine, OvSession
from embedllm.backends.openvino.paged_engine import PagedEngine, PagedSession
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import ExportError
from embedllm.export import Recipe, convert
from embedllm.export.graphs import write_variant
from embedllm.loading import memory_estimate
from embedllm.loading.memory_estimate import estimate_memory
from embedllm.package.entries import LATENT_AND_VALUES
from embedllm.package.graph_variants import OPENVINO, OPENVINO_LATENT
from embedllm.package.package import Package, open_package
from embedllm.package.tensors import kv_bytes
from tests.support.decoder_cases import CASES, VOCABULARY, mla, plain
from tests.support.described import described_package
from tests.support.latents import mla_checkpoint
from tests.support.openings import device

GREEDY = Sampling(temperature=0)
CLOSE = 1e-4  # of the spread of the logits: the order of float32 sums differs
TOKENS = np.random.default_rng(5).integers(0, VOCABULARY, 40).tolist()
PROMPT = [3 + at * 7 % 290 for at in range(200)]


def package(folder: Path, case: str = "mla, query latent", recipe: Recipe | None = None) -> Package:
    recipe = recipe or Recipe(method="nearest")
    return open_package(described_package(folder, CASES[case](plain()), recipe, variant=OPENVINO_LATENT))


def paged(found: Package, *, exact: bool = True) -> PagedEngine:
    opened = open_engine(found, device("openvino"), exact=exact)
    assert isinstance(opened, PagedEngine)
    return opened


def stateful(found: Package) -> OvEngine:
    return OvEngine(found, found.graphs[0], device("openvino"), "CPU", exact=True)


def fed(session: PagedSession | OvSession) -> np.ndarray:
    """Logits of a prompt, of several tokens, of one by one, and behind a rewind."""
    rows = [session.feed_all(TOKENS[:20]), session.feed_all(TOKENS[20:25])]
    rows += [session.feed_all([token]) for token in TOKENS[25:30]]
    session.rewind(17)
    return np.concatenate([*rows, session.feed_all(TOKENS[30:])])


def expected(found: Package) -> np.ndarray:
    return np.concatenate([ReferenceEngine(found).open().feed_all(TOKENS[:30]),
                           ReferenceEngine(found).open().feed_all(TOKENS[:17] + TOKENS[30:])[17:]])  # fmt: skip


def close(found: np.ndarray, right: np.ndarray, most: float = CLOSE) -> None:
    np.testing.assert_allclose(found, right, atol=most * right.std(), rtol=0)


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("mla")])
def test_logits_follow_the_reference(case: str, tmp_path: Path) -> None:
    found = package(tmp_path / "package", case)
    close(fed(paged(found).open()), expected(found))
    close(fed(stateful(found).open()), expected(found))


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(method="nearest", group_size=16, symmetric=False),  # three zero points a row
        Recipe(bits=8, method="nearest"),
        Recipe(bits=16),
    ],
    ids=["int4, odd zero points", "int8", "16 bits"],
)
def test_matrices_are_unpacked_as_products_read_them(recipe: Recipe, tmp_path: Path) -> None:
    found = package(tmp_path / "package", recipe=recipe)
    close(fed(paged(found).open()), expected(found))


def test_the_kv_holds_one_latent_of_a_token_for_all_heads(tmp_path: Path) -> None:
    decoder = mla(rope_dim=16, nope_dim=16, value=24)(plain())
    place = described_package(tmp_path / "package", decoder, Recipe(method="nearest"), variant=OPENVINO_LATENT)
    found = open_package(place)
    assert [graph.kv for graph in found.graphs] == [LATENT_AND_VALUES]
    assert kv_bytes(decoder, 1, 1, kv=LATENT_AND_VALUES) == 2 * (16 + 40 + 40)
    for opened, widths in ((paged(found), {56, 40}), (paged(found, exact=False), {56 + 8, 40 + 8})):
        assert {(one.heads, one.width) for one in opened.blocks.layouts.values()} == {(1, width) for width in widths}
    for opened in (paged(found), stateful(found)):
        session = opened.open()
        session.feed(TOKENS)
        shapes = [(keys.shape, values.shape) for keys, values in session.export_state(0, session.position)]
        assert shapes == [((1, len(TOKENS), 56), (1, len(TOKENS), 40))] * 2


def test_8_bits_round_a_latent_no_more_than_whole_keys_and_values(tmp_path: Path) -> None:
    latent = package(tmp_path / "latent")
    whole = open_package(
        described_package(tmp_path / "whole", latent.decoder, Recipe(method="nearest"), variant=OPENVINO)
    )
    errors = [np.abs(fed(paged(one, exact=False).open()) - expected(one)).mean() for one in (latent, whole)]
    assert errors[0] < 1.5 * errors[1]  # measured: 1.0


def test_sequences_step_together_as_alone(tmp_path: Path) -> None:
    found = paged(package(tmp_path / "package"), exact=False)
    starts = (3, 17, 30)
    alone, together = [], [found.open() for _ in starts]
    for session, start in zip(together, starts, strict=True):
        single = found.open()
        single.feed(TOKENS[:start])
        alone.append([single.feed([token]).values(range(VOCABULARY)) for token in TOKENS[start : start + 5]])
        session.feed(TOKENS[:start])
    for step in range(5):
        rows = [BatchRow(one, [TOKENS[start + step]]) for one, start in zip(together, starts, strict=True)]
        for logits, right in zip(found.run_batch(rows), alone, strict=True):
            # rounding of activations, which a batch may do otherwise
            close(np.array(logits.values(range(VOCABULARY))), np.array(right[step]), 0.1)


@pytest.mark.parametrize("exact", [True, False], ids=["float32", "8 bits"])
def test_kv_that_is_taken_out_and_put_back_goes_on(exact: bool, tmp_path: Path) -> None:
    found = paged(package(tmp_path / "package"), exact=exact)
    session = found.open()
    session.feed(TOKENS[:30])
    others = [found.open(), found.open()]
    for other, export in zip(others, (session.export_state, lambda *span: session.export_stored([span])[0]),
                             strict=True):  # fmt: skip
        other.import_state(export(0, 20))
        other.import_state(export(20, 30))
    right = np.array(session.feed(TOKENS[30:31]).values(range(VOCABULARY)))
    for other in others:
        close(np.array(other.feed(TOKENS[30:31]).values(range(VOCABULARY))), right)


def test_whole_keys_and_values_are_refused_by_a_session_of_latents(tmp_path: Path) -> None:
    latent = package(tmp_path / "latent")
    place = described_package(tmp_path / "whole", latent.decoder, Recipe(method="nearest"), variant=OPENVINO)
    whole = paged(open_package(place)).open()
    whole.feed(TOKENS)
    with pytest.raises(ValueError, match="of another model"):
        paged(latent).open().import_state(whole.export_state(0, whole.position))


# --- when it is taken


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of a tiny DeepSeek V2 with all its graphs."""
    folder = tmp_path_factory.mktemp("latent")
    return convert(mla_checkpoint(folder / "checkpoint"), folder / "package", Recipe(method="nearest"))


def test_latents_are_kept_where_whole_keys_and_values_do_not_fit(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, openvino = open_package(exported), device("openvino")
    whole = estimate_memory(found, openvino, latents=False)
    assert whole.variants == ()
    for free, variants in ((whole.needed_bytes, ()), (whole.needed_bytes - 1, (OPENVINO_LATENT,)), (None, ())):
        monkeypatch.setattr(memory_estimate, "free_bytes", lambda free=free: free)
        assert estimate_memory(found, openvino).variants == variants
        assert estimate_memory(found, openvino, context=10).variants == variants
    monkeypatch.setattr(memory_estimate, "free_bytes", lambda: whole.needed_bytes - 1)
    latent = estimate_memory(found, openvino)
    assert latent.kv_bytes * 2 * 4 * 32 == whole.kv_bytes * (64 + 48)
    assert estimate_memory(found, device("cpu")).variants == ()
    assert estimate_memory(found, openvino, latents=False).variants == ()
    with load(exported, device="openvino") as llm:
        assert llm.memory is not None
        assert llm.memory.variants == (OPENVINO_LATENT,)


def test_prefixes_conversations_and_guesses_go_on_working(exported: Path, tmp_path: Path) -> None:
    options = OpenVINOOptions(latents=True)
    with load(exported, device="openvino", openvino=options, prefix_cache=0) as llm:
        right = llm.generate(PROMPT, sampling=GREEDY, max_tokens=24).tokens
    with load(exported, device="openvino", openvino=options, cache_dir=tmp_path / "kv") as llm:
        first = llm.generate(PROMPT, sampling=GREEDY, max_tokens=24)
    with load(exported, device="openvino", openvino=options, cache_dir=tmp_path / "kv") as llm:
        again = llm.generate(PROMPT, sampling=GREEDY, max_tokens=24)
    assert (first.tokens, again.tokens) == (right, right)
    assert again.statistics.cached_tokens >= 128
    with load(exported, device="openvino", openvino=OpenVINOOptions(latents=False), cache_dir=tmp_path / "kv") as llm:
        assert llm.generate(PROMPT, sampling=GREEDY, max_tokens=1).statistics.cached_tokens == 0


def test_a_folder_of_before_runs_with_whole_keys_and_values(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights file has no constants of the graph with latents."""
    with monkeypatch.context() as before:
        before.setattr("embedllm.export.openvino.model.has_latents", lambda *_: False)
        decoder = open_package(exported).decoder
        folder = described_package(tmp_path / "older", decoder, Recipe(method="nearest"), variant=OPENVINO)
    older = open_package(folder)
    assert estimate_memory(older, device("openvino"), latents=True).variants == ()
    close(fed(paged(older).open()), expected(older))
    with pytest.raises(ExportError, match="Export the model again"):
        write_variant(folder, OPENVINO_LATENT)


def test_the_graph_can_be_written_again(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "again")
    name = "openvino_model.latent.xml"
    (folder / name).unlink()
    write_variant(folder, OPENVINO_LATENT)
    assert (folder / name).read_bytes() == (exported / name).read_bytes()

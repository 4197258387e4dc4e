"""Multi-head latent attention (MLA) on the CPU: what the KV holds, and that all that moves KV goes on working."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from embedllm import Sampling, load
from embedllm.backends.base import BatchRow
from embedllm.backends.devices.registry import open_engine
from embedllm.backends.ort.engine import OrtEngine, unsupported_latents
from embedllm.backends.ort.session import OrtSession
from embedllm.errors import DeviceUnavailable
from embedllm.export import Recipe, convert
from embedllm.export.graphs import stored_layout, write_variant
from embedllm.export.onnx.decoder import build
from embedllm.files.atomic import write_json
from embedllm.loading.memory_estimate import estimate_memory
from embedllm.package.entries import LATENT
from embedllm.package.graph_variants import FLOAT32, INT8_KV
from embedllm.package.package import MANIFEST, Package, open_package, sha256
from embedllm.package.packing import packings
from tests.support.decoder_cases import VOCABULARY, mla, plain
from tests.support.described import described_package
from tests.support.latents import mla_checkpoint
from tests.support.openings import device

GREEDY = Sampling(temperature=0)
CLOSE = 1e-4  # of the spread of the logits: the order of float32 sums differs
LATENT_DIM = 16 + 40  # rotary key and latent of `mla()`
TOKENS = np.random.default_rng(5).integers(0, VOCABULARY, 40).tolist()


def package(folder: Path, recipe: Recipe | None = None) -> Package:
    recipe = recipe or Recipe(method="nearest", exact=True)
    decoder = mla(rope_dim=16, nope_dim=16, value=24, q_rank=24)(plain())
    return open_package(described_package(folder, decoder, recipe, variant=FLOAT32.name))


def engine(found: Package, *, exact: bool = False) -> OrtEngine:
    opened = open_engine(found, device("cpu"), exact=exact)
    assert isinstance(opened, OrtEngine)
    return opened


def fed(session: OrtSession) -> np.ndarray:
    """Logits of a prompt, of several tokens, and of one by one."""
    rows = [session.feed_all(TOKENS[:20]), session.feed_all(TOKENS[20:25])]
    return np.concatenate([*rows, *(session.feed_all([token]) for token in TOKENS[25:])])


def with_whole_kv(found: Package) -> Package:
    """The same folder as this library wrote it before there were latents."""
    variant = dataclasses.replace(FLOAT32, latent_kv=False, accuracy_level=0)
    graph = build(found.decoder, stored_layout(found), packings(found.manifest), variant)
    path = found.folder / FLOAT32.file
    path.write_bytes(graph.SerializeToString(deterministic=True))
    graphs = [{"file": one.file, "variant": one.variant, "activations": one.activations} for one in found.listed]
    files = {name: file.as_json() for name, file in found.files.items()}
    files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    write_json(found.folder / MANIFEST, {**found.manifest, "graphs": graphs, "files": files})
    return open_package(found.folder)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=CLOSE * expected.std(), rtol=0)


def test_the_kv_holds_one_latent_of_a_token_for_all_heads(tmp_path: Path) -> None:
    found = package(tmp_path / "package")
    assert [graph.kv for graph in found.graphs] == [LATENT]
    session = engine(found).open()
    session.feed(TOKENS)
    shapes = [(keys.shape, values.shape) for keys, values in session.export_state(0, session.position)]
    assert shapes == [((1, len(TOKENS), LATENT_DIM), (1, len(TOKENS), 0))] * 2


def test_an_older_folder_with_whole_keys_and_values_gives_the_same_logits(tmp_path: Path) -> None:
    found = package(tmp_path / "package")
    latent = fed(engine(found, exact=True).open())
    older = with_whole_kv(found)
    session = engine(older, exact=True).open()
    close(fed(session), latent)
    assert session.export_state(0, 1)[0][0].shape == (5, 1, 32)
    assert estimate_memory(older, device("cpu")).kv_bytes > 5 * estimate_memory(package(tmp_path / "new"),
                                                                               device("cpu")).kv_bytes  # fmt: skip
    assert write_variant(older.folder, FLOAT32.name).kv == LATENT  # written again, it is of this version
    close(fed(engine(open_package(older.folder), exact=True).open()), latent)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(method="nearest", group_size=16, symmetric=False, exact=True),  # three zero points a row
        Recipe(bits=8, method="nearest", exact=True),
        Recipe(bits=8, method="nearest", symmetric=False, exact=True),
    ],
    ids=["int4, odd zero points", "int8", "int8, zero points"],
)
def test_matrices_are_unpacked_as_products_read_them(recipe: Recipe, tmp_path: Path) -> None:
    found = package(tmp_path / "package", recipe)
    latent = fed(engine(found).open())
    close(fed(engine(with_whole_kv(found)).open()), latent)


def test_sequences_step_together_as_alone(tmp_path: Path) -> None:
    found = engine(package(tmp_path / "package"))
    starts = (3, 17, 30)
    alone = []
    for start in starts:
        session = found.open()
        session.feed(TOKENS[:start])
        alone.append([session.feed([token]).values(range(VOCABULARY)) for token in TOKENS[start : start + 5]])
    together = [found.open() for _ in starts]
    for session, start in zip(together, starts, strict=True):
        session.feed(TOKENS[:start])
    for step in range(5):
        rows = [BatchRow(one, [TOKENS[start + step]]) for one, start in zip(together, starts, strict=True)]
        for logits, expected in zip(found.run_batch(rows), alone, strict=True):
            close(np.array(logits.values(range(VOCABULARY))), np.array(expected[step]))


def test_kv_that_is_taken_out_and_put_back_goes_on(tmp_path: Path) -> None:
    found = engine(package(tmp_path / "package"))
    session, other = found.open(), found.open()
    session.feed(TOKENS[:30])
    other.import_state(session.export_state(0, 20))
    other.import_state(session.export_state(20, 30))
    expected = np.array(session.feed(TOKENS[30:]).values(range(VOCABULARY)))
    close(np.array(other.feed(TOKENS[30:]).values(range(VOCABULARY))), expected)


def test_whole_keys_and_values_are_refused_by_a_session_of_latents(tmp_path: Path) -> None:
    found = package(tmp_path / "package")
    latents = engine(found).open()
    whole = engine(with_whole_kv(found)).open()
    whole.feed(TOKENS)
    with pytest.raises(ValueError, match="of another model"):
        latents.import_state(whole.export_state(0, whole.position))


def test_an_older_runtime_is_refused_with_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime 1.24.4, the newest with DirectML, does not load such a graph."""
    found = package(tmp_path / "package")
    assert unsupported_latents(found.graphs[0], version="1.31.0") is None
    old = partial(unsupported_latents, version="1.24.4")
    monkeypatch.setattr("embedllm.backends.ort.engine.unsupported_latents", old)
    with pytest.raises(DeviceUnavailable, match=r"takes ONNX Runtime 1\.31; this is 1\.24\.4"):
        engine(found)
    engine(with_whole_kv(found)).open().feed(TOKENS)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of a tiny DeepSeek V2 with all its graphs."""
    folder = tmp_path_factory.mktemp("latent")
    return convert(mla_checkpoint(folder / "checkpoint"), folder / "package", Recipe(method="nearest"))


def test_prefixes_conversations_and_guesses_go_on_working(exported: Path, tmp_path: Path) -> None:
    prompt = [3 + at * 7 % 290 for at in range(200)]
    with load(exported, device="cpu", prefix_cache=0) as llm:
        expected = llm.generate(prompt, sampling=GREEDY, max_tokens=24).tokens
    with load(exported, device="cpu", cache_dir=tmp_path / "kv") as llm:
        first = llm.generate(prompt, sampling=GREEDY, max_tokens=24)
    with load(exported, device="cpu", cache_dir=tmp_path / "kv") as llm:
        again = llm.generate(prompt, sampling=GREEDY, max_tokens=24)
    assert (first.tokens, again.tokens) == (expected, expected)
    assert again.statistics.cached_tokens >= 128


def test_a_quantized_kv_is_that_of_whole_keys_and_values(exported: Path) -> None:
    write_variant(exported, INT8_KV.name)
    found = open_package(exported)
    graph = found.graph(INT8_KV.name)
    assert graph is not None
    assert graph.kv == ""
    prompt = [3 + at * 7 % 290 for at in range(100)]
    with load(exported, device="cpu", kv="int8") as llm:
        assert len(llm.generate(prompt, sampling=GREEDY, max_tokens=8).tokens) > 0
    rows = []
    for kv in (None, "int8"):
        session = open_engine(found, device("cpu"), kv=kv).open()
        rows.append(np.array(session.feed(prompt).values(range(307))))
    assert np.abs(rows[0] - rows[1]).max() < 0.3 * rows[0].std()  # measured: 0.07

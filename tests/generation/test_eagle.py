"""EAGLE-3 heads: they compute what torch does over a vocabulary of their own, and change nothing of a reply."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

import embedllm
from embedllm import Model, Sampling
from embedllm.backends.sessions.draft_head import DraftHeadSession
from embedllm.cancel import Cancel
from embedllm.cli.main import cli
from embedllm.errors import DeviceUnavailable, ExportError, PackageError
from embedllm.export import Recipe, convert
from embedllm.export.eagle import add_eagle
from embedllm.export.graphs import write_variant
from embedllm.files.atomic import write_json
from embedllm.package.package import MANIFEST, WEIGHTS, open_package
from tests.support.draft_heads import make_drafts_free, opened_head, row
from tests.support.eagle_heads import DRAFT_VOCABULARY, draft_tokens, tiny_eagle, torch_logits
from tests.support.tiny import tiny_checkpoint
from tests.support.tiny_nextn import tiny_glm4_moe

TOKENS = [5, 6, 7, 8, 9, 40, 41, 42, 43]
GREEDY = Sampling(temperature=0)
KINDS: dict[str, tuple[dict[str, object], tuple[int, ...]]] = {  # of heads: tiny_eagle()'s arguments, layers read
    "plain": ({}, (2, 2, 1)),
    "eagle_config": ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}, (1, 2, 3)),
    "speculators": (
        {
            "is_of_speculators": True,
            "eagle_aux_hidden_state_layer_ids": [0, 1, 3],
            "norm_before_residual": True,
            "theta": 500.0,
        },
        (0, 1, 3),
    ),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("eagle") / "checkpoint", num_hidden_layers=4)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(scope="module")
def head_checkpoint(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_eagle(tmp_path_factory.mktemp("head") / kind, **KINDS[kind][0])  # type: ignore[arg-type]  # a table's


@pytest.fixture(scope="module")
def package(checkpoint: Path, head_checkpoint: Path) -> Path:
    folder = convert(checkpoint, head_checkpoint.parent / "package", Recipe(bits=32))
    add_eagle(folder, head_checkpoint, bits=32)
    return folder


@pytest.fixture(scope="module")
def llm(package: Path) -> Iterator[Model]:
    with embedllm.load(package, device="cpu", exact=True, draft=package / "eagle") as model:
        yield model


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    make_drafts_free(monkeypatch)


def wanted_logits(kind: str, checkpoint: Path, head_checkpoint: Path, tokens: list[int], *, own: int = 0) -> np.ndarray:
    changes, layers = KINDS[kind]
    theta = float(str(changes.get("theta", 10000.0)))
    return torch_logits(checkpoint, head_checkpoint, tokens, layers=layers, own=own, theta=theta)


@pytest.mark.peer
def test_a_head_computes_what_torch_does_whole_in_pieces_and_after_a_rewind(
    llm: Model, kind: str, checkpoint: Path, head_checkpoint: Path
) -> None:
    wanted = wanted_logits(kind, checkpoint, head_checkpoint, TOKENS)
    assert wanted.shape[1] == DRAFT_VOCABULARY
    head, _ = opened_head(llm, TOKENS[:-1])
    assert abs(row(head.feed(TOKENS)) - wanted[-1]).max() < 1e-4
    head.rewind(4)
    for at in (4, 5):
        assert abs(row(head.feed([TOKENS[at]])) - wanted[at - 1]).max() < 1e-4
    assert abs(row(head.feed(TOKENS[6:])) - wanted[-1]).max() < 1e-4


@pytest.mark.peer
def test_a_draft_goes_on_with_what_the_heads_own_norm_has_read(
    llm: Model, kind: str, checkpoint: Path, head_checkpoint: Path
) -> None:
    head, target = opened_head(llm, TOKENS[:4])
    head.feed(TOKENS[:5])
    first, second = (row(head.feed([TOKENS[at]])).copy() for at in (5, 6))
    for found, own in ((first, 1), (second, 2)):
        tokens = TOKENS[: 5 + own]
        wanted = wanted_logits(kind, checkpoint, head_checkpoint, tokens, own=own)
        assert abs(found - wanted[-1]).max() < 1e-4
    target.feed(TOKENS[4:-1])  # type: ignore[attr-defined]  # a session
    whole = wanted_logits(kind, checkpoint, head_checkpoint, TOKENS)
    assert abs(row(head.feed(TOKENS[7:])) - whole[-1]).max() < 1e-4


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=1, temperature=0.3)])
def test_a_head_changes_no_reply_and_guesses_tokens_of_its_vocabulary(
    llm: Model, head_checkpoint: Path, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[int] = []

    def noted(self: DraftHeadSession, tokens: list[int]) -> object:
        fed.extend(tokens if len(tokens) == 1 else ())
        return feed(self, tokens)

    feed = DraftHeadSession.feed
    monkeypatch.setattr(DraftHeadSession, "feed", noted)
    plain = llm.generate(TOKENS, sampling, max_tokens=30, speculate="off")
    drafted = llm.generate(TOKENS, sampling, max_tokens=30, speculate="draft")
    assert drafted.tokens == plain.tokens
    assert drafted.statistics.drafted_tokens
    guesses = [token for token in fed if token not in plain.tokens]
    assert guesses
    assert set(guesses) <= set(draft_tokens(head_checkpoint).tolist())


@pytest.mark.usefixtures("free")
def test_requests_that_run_together_have_a_head_each(llm: Model) -> None:
    prompts = [TOKENS, TOKENS[:4], [9, 8, 7]]
    plain = [llm.generate(prompt, GREEDY, max_tokens=20, speculate="off").tokens for prompt in prompts]
    requests = [llm.request(prompt, GREEDY, max_tokens=20, speculate="draft") for prompt in prompts]
    for chunks, tokens in zip(llm.runner.run_all(requests, Cancel()), plain, strict=True):
        assert tuple(chunk.token for chunk in chunks if chunk.token is not None) == tokens


def test_a_head_is_small_and_its_graphs_can_be_written_again(package: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(package, tmp_path / "package")
    assert b"embedding.weight" not in (folder / "eagle" / WEIGHTS).read_bytes()
    graph = folder / "model.eagle_hidden.onnx"
    before = graph.read_bytes()
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest["graphs"] = [each for each in manifest["graphs"] if each["file"] != graph.name]
    del manifest["files"][graph.name]
    write_json(folder / MANIFEST, manifest)
    graph.unlink()
    with pytest.raises(DeviceUnavailable, match=r"--variant eagle-hidden-float32"):  # not one for experts
        embedllm.load(folder, device="cpu", draft=folder / "eagle")
    write_variant(folder, "eagle-hidden-float32")
    assert graph.read_bytes() == before
    with embedllm.load(folder, device="cpu") as model:  # as before
        assert model.generate(TOKENS, GREEDY, max_tokens=3).tokens
    shutil.rmtree(folder / "eagle")
    with pytest.raises(ExportError, match="has no EAGLE-3 head"):
        write_variant(folder, "eagle-hidden-float32")


def test_a_head_is_refused_where_it_does_not_belong(package: Path, checkpoint: Path, tmp_path: Path) -> None:
    head = package / "eagle"
    with pytest.raises(PackageError, match="drafts for the model in the folder around it"):
        embedllm.load(head, device="cpu")
    with pytest.raises(DeviceUnavailable, match="no heads that draft"):
        embedllm.load(package, device="reference", draft=head)
    other = convert(checkpoint, tmp_path / "other", Recipe(bits=4))
    shutil.copytree(head, other / "copied")
    with pytest.raises(PackageError, match="embedllm eagle"):
        embedllm.load(other, device="cpu", draft=other / "copied")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 32}, "hidden size and vocabulary are 32"),
        ({"vocab_size": 300}, "300"),
        ({"num_hidden_layers": 2}, "2 layers"),
        ({"draft_vocab_size": 40}, "'d2t' of the head has 41 values; expected 40"),
        ({"norm_before_fc": True}, "norm_before_fc"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}, "has 4 layers"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    checkpoint: Path, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    folder = convert(checkpoint, tmp_path / "package", Recipe(bits=4))
    with pytest.raises(ExportError, match=said):
        add_eagle(folder, tiny_eagle(tmp_path / "head", **changes))  # type: ignore[arg-type]  # of config.json
    assert not (folder / "eagle").exists()


@pytest.mark.usefixtures("free")
def test_the_command_adds_a_quantized_head_that_a_run_drafts_with(checkpoint: Path, tmp_path: Path) -> None:
    folder, head = convert(checkpoint, tmp_path / "package", Recipe(bits=8)), tiny_eagle(tmp_path / "head")
    done = CliRunner().invoke(cli, ["eagle", str(folder), str(head), "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["folder"] == str(folder / "eagle")
    assert open_package(folder / "eagle").manifest["recipe"]["bits"] == 4  # type: ignore[index]  # JSON
    with embedllm.load(folder, device="cpu", draft=folder / "eagle") as model:
        reply = model.generate(TOKENS, GREEDY, max_tokens=12, speculate="draft")
    assert reply.statistics.drafted_tokens


def test_a_mixture_has_its_experts_as_one_operator(tmp_path: Path) -> None:
    folder = convert(tiny_glm4_moe(tmp_path / "checkpoint"), tmp_path / "package", Recipe(bits=4))
    own = tiny_eagle(tmp_path / "head", eagle_config={"eagle_aux_hidden_state_layer_ids": [0]})
    head = add_eagle(folder, with_fc_of_one(own))
    with embedllm.load(folder, device="cpu") as model:
        expected = model.generate(TOKENS, GREEDY, max_tokens=12).tokens
    with embedllm.load(folder, device="cpu", draft=head) as model:
        assert model.runner.engine.graph.variant == "eagle-hidden-qmoe-float32"  # type: ignore[attr-defined]  # OrtEngine
        assert model.generate(TOKENS, GREEDY, max_tokens=12, speculate="off").tokens == expected


def with_fc_of_one(head: Path) -> Path:
    """A head that reads the hidden states of one layer."""
    tensors = load_file(head / "model.safetensors")
    tensors["fc.weight"] = np.ascontiguousarray(tensors["fc.weight"][:, :64])
    save_file(tensors, head / "model.safetensors")
    return head

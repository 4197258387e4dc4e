"""Multi-token prediction heads: they compute what torch does, and change nothing of a reply but its speed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

import embedllm
from embedllm import Model, Sampling
from embedllm.backends.base import Engine, OpenOptions
from embedllm.backends.devices import drivers
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.sessions.draft_head import DraftHeadEngine
from embedllm.cancel import Cancel
from embedllm.cli.main import cli
from embedllm.errors import DeviceError, DeviceUnavailable, ExportError, PackageError, UnsupportedModel
from embedllm.export import Recipe, convert
from embedllm.export.mtp import add_mtp
from embedllm.generation.speculation.draft_head import HeadDrafter
from embedllm.package.package import WEIGHTS, open_package
from tests.support.draft_heads import make_drafts_free, opened_head, row
from tests.support.mtp_heads import CHECKPOINTS, add_head, package_with_head, torch_logits
from tests.support.tiny import tiny_checkpoint
from tests.support.tiny_nextn import LAYERS, tiny_glm4_moe, tiny_glm4_moe_lite

TOKENS = [5, 6, 7, 8, 9, 40, 41, 42, 43]
GREEDY = Sampling(temperature=0)
FAMILIES = {**CHECKPOINTS, "glm4_moe_lite": tiny_glm4_moe_lite}


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp(request.param) / "checkpoint")


@pytest.fixture(scope="module")
def package(checkpoint: Path) -> Path:
    return package_with_head(checkpoint)


@pytest.fixture(scope="module")
def llm(package: Path) -> Iterator[Model]:
    with embedllm.load(package, device="cpu", exact=True, draft=package / "mtp") as model:
        yield model


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    make_drafts_free(monkeypatch)


@pytest.mark.peer
def test_a_head_computes_what_torch_does_whole_in_pieces_and_after_a_rewind(llm: Model, checkpoint: Path) -> None:
    wanted, _ = torch_logits(checkpoint, TOKENS)
    head, _ = opened_head(llm, TOKENS[:-1])
    assert abs(row(head.feed(TOKENS)) - wanted[-1]).max() < 1e-4
    head.rewind(4)
    assert head.position == 4
    for at in (4, 5):
        assert abs(row(head.feed([TOKENS[at]])) - wanted[at - 1]).max() < 1e-4
    assert abs(row(head.feed(TOKENS[6:])) - wanted[-1]).max() < 1e-4


def test_a_draft_is_read_again_with_the_models_hidden_states(llm: Model) -> None:
    whole, _ = opened_head(llm, TOKENS[:-1])
    wanted = row(whole.feed(TOKENS)).copy()
    head, target = opened_head(llm, TOKENS[:4])
    head.feed(TOKENS[:5])
    head.feed([TOKENS[5]])  # with the head's own hidden states: the model has not read token 4
    head.feed([TOKENS[6]])
    target.feed(TOKENS[4:-1])  # type: ignore[attr-defined]  # a session
    assert abs(row(head.feed(TOKENS[7:])) - wanted).max() < 1e-4


def test_a_head_that_has_paused_begins_with_the_newest_tokens(llm: Model) -> None:
    tokens = [*TOKENS * 8]
    paused, target = opened_head(llm, tokens[:4])
    paused.feed(tokens[:5])
    target.feed(tokens[4:-1])  # type: ignore[attr-defined]  # a session
    late = row(paused.feed(tokens[5:])).copy()
    fresh, _ = opened_head(llm, tokens[:-1])
    assert abs(late - row(fresh.feed(tokens))).max() > 1e-3
    assert paused._inner.position < len(tokens) - 5  # pyright: ignore[reportPrivateUsage]


@pytest.mark.peer
def test_a_draft_goes_on_with_the_heads_own_hidden_states_until_the_model_has_read_it(
    llm: Model, checkpoint: Path
) -> None:
    """What was read with them is read again with the model's, so that later drafts do not begin with guesses."""
    head, target = opened_head(llm, TOKENS[:4])
    head.feed(TOKENS[:5])
    guessed = row(head.feed([TOKENS[5]])).copy()
    wanted, _ = torch_logits(checkpoint, TOKENS)
    assert abs(guessed - wanted[4]).max() > 1e-2  # the model has not read token 4
    target.feed(TOKENS[4:6])  # type: ignore[attr-defined]  # a session
    assert abs(row(head.feed([TOKENS[6]])) - wanted[5]).max() < 1e-4


def test_a_head_begins_where_hidden_states_are_kept(llm: Model) -> None:
    """Of a sequence that comes from the prefix cache there are none: the head has not seen the tokens before."""
    if llm.package.decoder.is_recurrent:
        pytest.skip("whose KV is not moved")
    head, target = opened_head(llm, TOKENS[:4])
    other = llm.runner.engine.open()
    other.import_state(target.export_state(0, 4))  # type: ignore[attr-defined]  # both are sessions that move it
    head.follow(other)
    assert not head.is_ready  # of the last token there is none yet
    other.feed(TOKENS[4:6])
    assert head.is_ready
    late = row(head.feed(TOKENS[:7])).copy()
    target.feed(TOKENS[4:6])  # type: ignore[attr-defined]
    whole, _ = opened_head(llm, TOKENS[:6])
    early = row(whole.feed(TOKENS[:7]))
    assert np.isfinite(late).all()
    assert abs(late - early).max() > 1e-3


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=1, temperature=0.3)])
def test_a_head_changes_no_reply(llm: Model, sampling: Sampling) -> None:
    plain = llm.generate(TOKENS, sampling, max_tokens=40, speculate="off")
    drafted = llm.generate(TOKENS, sampling, max_tokens=40, speculate="draft")
    assert drafted.tokens == plain.tokens
    assert drafted.statistics.drafted_tokens


@pytest.mark.usefixtures("free")
def test_requests_that_run_together_have_a_head_each(llm: Model) -> None:
    prompts = [TOKENS, TOKENS[:4], [9, 8, 7]]
    plain = [llm.generate(prompt, GREEDY, max_tokens=20, speculate="off").tokens for prompt in prompts]
    requests = [llm.request(prompt, GREEDY, max_tokens=20, speculate="draft") for prompt in prompts]
    for chunks, tokens in zip(llm.runner.run_all(requests, Cancel()), plain, strict=True):
        assert tuple(chunk.token for chunk in chunks if chunk.token is not None) == tokens


@pytest.mark.usefixtures("free")
def test_a_reply_that_was_preempted_drafts_on(llm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [TOKENS, [9, 8, 7]]
    plain = [llm.generate(prompt, GREEDY, max_tokens=40, speculate="off").tokens for prompt in prompts]
    llm.release()
    before = llm.runner.scheduler.preempted
    one = llm.runner.call(llm.runner.engine.open)
    monkeypatch.setattr(llm.runner.sequences, "kv_tokens", one.capacity + 20)  # both are admitted, and one has room
    drafted = llm.generate_batch(prompts, GREEDY, max_tokens=40, speculate="draft")
    assert llm.runner.scheduler.preempted > before
    assert [reply.tokens for reply in drafted] == plain
    assert all(reply.statistics.drafted_tokens for reply in drafted)


@pytest.mark.usefixtures("free")
def test_a_model_without_a_thread_has_a_head_too(package: Path) -> None:
    with embedllm.load(package, device="cpu", exact=True, draft=package / "mtp", threaded=False) as model:
        plain = model.generate(TOKENS, GREEDY, max_tokens=12, speculate="off")
        assert model.generate(TOKENS, GREEDY, max_tokens=12, speculate="draft").tokens == plain.tokens


def test_the_folder_loads_as_before_and_the_head_has_no_copy_of_the_embedding(package: Path) -> None:
    names = [graph.variant for graph in open_package(package).graphs]
    assert "hidden-float32" in names
    matrix = 307 * 64 * 4
    assert (package / "mtp" / WEIGHTS).stat().st_size < 64 * 128 * 4 + 250_000
    assert b"embedding.weight" not in (package / "mtp" / WEIGHTS).read_bytes()
    assert (package / WEIGHTS).stat().st_size > matrix
    with embedllm.load(package, device="cpu") as model:
        assert model.generate(TOKENS, GREEDY, max_tokens=3).tokens


def test_a_head_is_refused_where_it_does_not_belong(package: Path, checkpoint: Path, tmp_path: Path) -> None:
    head = package / "mtp"
    with pytest.raises(PackageError, match="drafts for the model in the folder around it"):
        embedllm.load(head, device="cpu")
    with pytest.raises(DeviceUnavailable, match="no heads that draft"):
        embedllm.load(package, device="reference", draft=head)
    if not open_package(package).decoder.is_mixture:  # which takes none anyway
        with pytest.raises(ValueError, match="not combined with adapters"):
            embedllm.load(package, device="cpu", draft=head, adapters={})
    other = convert(checkpoint, tmp_path / "other", Recipe(bits=8))
    with pytest.raises(ValueError, match="drafts for no other"):
        embedllm.load(other, device="cpu", draft=head)
    os.rename(add_mtp(other, checkpoint), tmp_path / "moved")  # noqa: PTH104  # a path object is given
    package_of_others = convert(checkpoint, tmp_path / "third", Recipe(bits=4))
    os.rename(tmp_path / "moved", package_of_others / "mtp")  # noqa: PTH104
    with pytest.raises(PackageError, match="made for other weights"):
        embedllm.load(package_of_others, device="cpu", draft=package_of_others / "mtp")


def test_a_head_that_there_is_no_memory_for_is_told_with_what_helps(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = DeviceError("ONNX Runtime cannot load 'model.mtp.onnx': std::bad_alloc")

    def fail(_: OpenOptions) -> Engine:
        raise error

    family = drivers.find_family("cpu")
    assert family is not None
    monkeypatch.setitem(drivers._FAMILIES, "cpu", replace(family, open_draft_head=fail))
    needs = r"'cpu' cannot run this model: memory ran out while its draft head 'mtp' was loaded: 'package' needs about "
    with pytest.raises(DeviceUnavailable, match=needs) as caught:
        embedllm.load(package, device="cpu", draft=package / "mtp")
    assert str(error) in str(caught.value)
    assert caught.value.tried[0][2].startswith("load it without draft=, close other programs")
    assert caught.value.__cause__ is error


def test_a_checkpoint_without_a_head_or_of_another_model_is_refused(package: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="exists already"):
        add_mtp(package, tiny_checkpoint(tmp_path / "plain"))
    with pytest.raises(ExportError, match=r"'plain' has no multi-token prediction head .* 'mtp\.layers\.0"):
        add_mtp(package, tiny_checkpoint(tmp_path / "plain"), replace=True)
    with pytest.raises(ExportError, match="hidden size and vocabulary are 96"):
        add_mtp(package, tiny_checkpoint(tmp_path / "wider", hidden_size=96), replace=True)
    assert (package / "mtp" / WEIGHTS).exists()


def with_tensors(folder: Path, named: Callable[[str], str | None], change: Callable[[np.ndarray], np.ndarray]) -> Path:
    """The checkpoint with more tensors: each that `named` gives a name, changed."""
    tensors = load_file(folder / "model.safetensors")
    more = {new: change(value) for name, value in tensors.items() if (new := named(name)) is not None}
    save_file({**tensors, **more}, folder / "model.safetensors")
    return folder


@pytest.mark.peer
@pytest.mark.parametrize("part", ["embed_tokens", "shared_head.head"])
def test_a_table_of_its_own_is_stored_and_read(part: str, tmp_path: Path) -> None:
    """DeepSeek's and GLM's heads have copies of the model's, as a rule."""
    checkpoint = tiny_glm4_moe(tmp_path / "checkpoint")
    own = f"model.layers.{LAYERS}.{part}.weight"
    with_tensors(checkpoint, lambda name: name if name == own else None, lambda values: values[::-1].copy())
    folder = convert(checkpoint, tmp_path / "package", Recipe(bits=32))
    head = add_mtp(folder, checkpoint, bits=32)
    assert (head / WEIGHTS).stat().st_size > 307 * 64 * 4 + 64 * 128 * 4
    wanted, _ = torch_logits(checkpoint, TOKENS)
    with embedllm.load(folder, device="cpu", exact=True, draft=head) as model:
        session, _ = opened_head(model, TOKENS[:-1])
        assert abs(row(session.feed(TOKENS)) - wanted[-1]).max() < 1e-4


def test_heads_of_several_layers_are_refused(tmp_path: Path) -> None:
    checkpoint, last = tiny_glm4_moe(tmp_path / "checkpoint"), f"model.layers.{LAYERS}."
    with_tensors(
        checkpoint,
        lambda name: name.replace(last, f"model.layers.{LAYERS + 1}.") if name.startswith(last) else None,
        np.copy,
    )
    folder = convert(checkpoint, tmp_path / "package", Recipe(bits=8))
    assert open_package(folder).manifest["mtp_layers"] == 2
    with pytest.raises(ExportError, match=r"heads \(MTP\) of 2 layers; those of one layer are read"):
        add_mtp(folder, checkpoint)


def test_a_head_of_a_model_whose_layers_differ_is_refused(tmp_path: Path) -> None:
    """K-EXAONE's has windows of its own, which its other layers do not tell."""
    values = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    checkpoint = add_head(tiny_checkpoint(tmp_path / "checkpoint", **values), layer=0)
    folder = convert(checkpoint, tmp_path / "package", Recipe(bits=8))
    with pytest.raises(UnsupportedModel, match="layers of 'qwen3' differ in their windows and rotations"):
        add_mtp(folder, checkpoint)


def test_an_export_leaves_the_head_out_and_says_so(checkpoint: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["export", str(checkpoint), str(tmp_path / "all"), "--bits", "8"])
    assert done.exit_code == 0, done.stderr
    assert f"Add it: embedllm mtp {tmp_path / 'all'} {checkpoint}" in done.stderr
    plain = tmp_path / "plain"
    shutil.copytree(checkpoint, plain)
    tensors = load_file(plain / "model.safetensors")
    kept = {name: value for name, value in tensors.items() if not name.startswith(("mtp.", f"model.layers.{LAYERS}."))}
    save_file(kept, plain / "model.safetensors")
    folder = convert(plain, tmp_path / "without", Recipe(bits=8))
    assert "mtp_layers" not in open_package(folder).manifest
    assert (folder / WEIGHTS).read_bytes() == (tmp_path / "all" / WEIGHTS).read_bytes()


def test_the_command_adds_a_head_that_a_run_drafts_with(checkpoint: Path, tmp_path: Path) -> None:
    folder = convert(checkpoint, tmp_path / "package", Recipe(bits=8))
    done = CliRunner().invoke(cli, ["mtp", str(folder), str(checkpoint), "--bits", "16", "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["folder"] == str(folder / "mtp")
    options = ["--device", "cpu", "--draft", str(folder / "mtp"), "--speculate", "draft", "--max-tokens", "4"]
    said = CliRunner().invoke(cli, ["run", str(folder), "hello", *options])
    assert said.exit_code == 0, said.stderr


@pytest.mark.usefixtures("free")
def test_a_quantized_head_drafts(checkpoint: Path, tmp_path: Path) -> None:
    folder = convert(checkpoint, tmp_path / "package", Recipe(bits=4))
    head = add_mtp(folder, checkpoint, bits=4)
    with embedllm.load(folder, device="cpu", draft=head) as model:
        reply = model.generate(TOKENS, GREEDY, max_tokens=12, speculate="draft")
    assert reply.statistics.drafted_tokens


def test_experts_are_one_operator_with_a_head_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is slower for its head would not be sped up by guesses; exact and older runtimes take the others."""
    checkpoint = tiny_glm4_moe(tmp_path / "checkpoint")
    folder = convert(checkpoint, tmp_path / "package", Recipe(bits=4))
    head = add_mtp(folder, checkpoint, bits=4)
    with embedllm.load(folder, device="cpu") as model:
        expected = model.generate(TOKENS, GREEDY, max_tokens=12).tokens
    with embedllm.load(folder, device="cpu", draft=head) as model:
        assert graphs_of(model) == ("hidden-qmoe-float32", "mtp-qmoe-float32")
        assert model.generate(TOKENS, GREEDY, max_tokens=12, speculate="off").tokens == expected
    with embedllm.load(folder, device="cpu", draft=head, exact=True) as model:
        assert graphs_of(model) == ("hidden-float32", "mtp-float32")
    monkeypatch.setattr("embedllm.backends.ort.engine._FIRST_QMOE", (99, 0))
    with embedllm.load(folder, device="cpu", draft=head) as model:
        assert graphs_of(model) == ("hidden-float32", "mtp-float32")


def graphs_of(model: Model) -> tuple[str, str]:
    """Of the model and its head."""
    engine, drafter = model.runner.engine, model.runner.draft
    assert isinstance(engine, OrtEngine)
    assert isinstance(drafter, HeadDrafter)
    head = drafter._engine  # pyright: ignore[reportPrivateUsage]
    assert isinstance(head, DraftHeadEngine)
    return engine.graph.variant, head._host._engine.graph.variant  # type: ignore[attr-defined]  # pyright: ignore

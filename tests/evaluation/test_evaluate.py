"""evaluate() on tiny models, against the reference's logits and plain NumPy."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedllm
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.evaluation import Evaluation, evaluate
from embedllm.evaluation.plot import write_plot
from embedllm.export import Recipe
from embedllm.files.progress import Progress
from embedllm.package.package import open_package
from embedllm.text.tokenizer import Tokenizer
from embedllm.text.windows import read_windows

MakePackage = Callable[..., Path]
WINDOW = 70  # tokens: more than one piece
LINES = [
    "List all files that were changed today, and sort them by size. " * 6,
    "The quick brown fox jumps over the lazy dog; the dog does not mind.",
    "def main(): print('hello, world') # café, naïve, 東京, 😀\n" * 5,
]


@pytest.fixture(scope="module")
def base(tiny_package: MakePackage) -> Path:
    return tiny_package("qwen3", Recipe(bits=16))


@pytest.fixture(scope="module")
def small(tiny_package: MakePackage) -> Path:
    return tiny_package("qwen3", Recipe(bits=4))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES), encoding="utf-8")
    return path


def reference_logprobs(folder: Path, windows: Sequence[Sequence[int]]) -> np.ndarray:
    """[windows, T, V], each window fed whole to the NumPy reference."""
    engine = ReferenceEngine(open_package(folder))
    logits = []
    for window in windows:
        session = engine.open()
        logits.append(session.feed_all(window))
        session.close()
    found = np.stack(logits).astype(np.float64)
    return found - np.log(np.exp(found).sum(axis=-1, keepdims=True))


def mean_loss(logprobs: np.ndarray, windows: Sequence[Sequence[int]]) -> float:
    """Of each token that has one before it in its window."""
    of_windows = [one[np.arange(WINDOW - 1), window[1:]] for one, window in zip(logprobs, windows, strict=True)]
    return -float(np.mean(of_windows))


@pytest.mark.parametrize("name", ["cpu", "reference", "openvino"])
def test_it_is_what_the_references_logits_give(name: str, base: Path, small: Path, text: Path) -> None:
    if name == "openvino":
        pytest.importorskip("openvino")
    found = evaluate([small], text, against=base, window=WINDOW, device=name, exact=True)
    windows = read_windows(text, Tokenizer.open(base), size=WINDOW, limit=0)
    p, q = (reference_logprobs(folder, windows.pieces) for folder in (base, small))
    kl = (np.exp(p) * (p - q)).sum(axis=-1)
    loss_p, loss_q = mean_loss(p, windows.pieces), mean_loss(q, windows.pieces)
    assert found.base is not None
    assert found.base.text is not None
    assert found.models[0].text is not None
    far = found.models[0].text.divergence
    assert far is not None
    assert found.base.text.divergence is None
    assert found.base.text.perplexity == pytest.approx(np.exp(loss_p), rel=1e-4)
    assert found.models[0].text.perplexity == pytest.approx(np.exp(loss_q), rel=1e-4)
    assert far.perplexity_ratio == pytest.approx(np.exp(loss_q - loss_p), rel=1e-4)
    assert far.mean_kl == pytest.approx(kl.mean(), rel=1e-3)
    assert (far.kl_95, far.kl_99) == pytest.approx(np.percentile(kl, [95, 99]), rel=1e-3)
    assert far.same_top == pytest.approx((p.argmax(axis=-1) == q.argmax(axis=-1)).mean(), abs=0.02)  # near ties
    assert found.text is not None
    assert (found.text.tokens, found.text.left_out) == (p.shape[0] * WINDOW, windows.left_out)
    assert kl.mean() > 0.001  # there was something to find


def test_a_model_is_no_distance_from_itself(base: Path, text: Path) -> None:
    found = evaluate([base], text, against=base, window=WINDOW, device="cpu")
    assert found.base is not None
    (model,) = found.models
    assert model.text is not None
    assert asdict(model.text)["divergence"] == {
        "perplexity_ratio": 1, "mean_kl": 0, "kl_95": 0, "kl_99": 0, "same_top": 1
    }  # fmt: skip


def test_rounded_activations_are_told_apart(base: Path, small: Path, text: Path) -> None:
    found = evaluate([small], text, against=base, window=WINDOW, device="cpu", exact="both")
    plain, exact = found.models
    assert (plain.exact, exact.exact, found.base and found.base.exact) == (False, True, True)
    assert plain.weights_sha256 == exact.weights_sha256
    assert plain.text != exact.text


def test_sizes_are_those_of_the_weights_file(base: Path, small: Path, text: Path) -> None:
    found = evaluate([small], text, window=WINDOW, device="cpu")
    (model,) = found.models
    size = (small / "weights.safetensors").stat().st_size
    assert found.base is None
    assert (model.weights_bytes, model.device, model.model) == (size, "cpu", str(small))
    described = json.loads((small / "embedllm.json").read_text())
    assert model.weights_sha256 == described["files"]["weights.safetensors"]["sha256"]
    assert model.text is not None
    assert model.text.divergence is None


@pytest.mark.slow
def test_a_device_that_gives_one_row_at_a_time_measures_the_same(base: Path, small: Path, text: Path) -> None:
    """A pair of devices; `npu` and GPUs are others."""
    pytest.importorskip("openvino")
    one, pair = (
        evaluate([small], text, against=base, window=WINDOW, device=name, exact=True).models[0].text
        for name in ("cpu", "openvino+cpu")
    )
    assert one is not None
    assert pair is not None
    assert one.perplexity == pytest.approx(pair.perplexity, rel=1e-3)
    assert one.divergence is not None
    assert pair.divergence is not None
    assert one.divergence.mean_kl == pytest.approx(pair.divergence.mean_kl, rel=1e-2)


def test_a_loaded_model_stays_open_and_the_others_are_closed(base: Path, text: Path) -> None:
    with embedllm.load(base, device="cpu") as llm:
        found = evaluate([llm], text, against=llm, window=WINDOW)
        assert found.models[0].exact is None
        assert llm.generate("hello", max_tokens=2).text is not None


def test_progress_counts_tokens_of_all_models(base: Path, small: Path, text: Path) -> None:
    seen: list[Progress] = []
    evaluate([small], text, against=base, window=WINDOW, tokens=2 * WINDOW, device="cpu", on_progress=seen.append)
    total = 2 * 2 * WINDOW
    assert seen == [Progress("text", 2 * WINDOW, total), Progress("text", total, total)]


def test_a_base_that_cannot_be_exact_says_so(
    tiny_package: MakePackage, text: Path, caplog: pytest.LogCaptureFixture
) -> None:
    eight = tiny_package("qwen3", Recipe(bits=8))
    with caplog.at_level(logging.INFO, "embedllm"):
        found = evaluate([eight], text, against=eight, window=WINDOW, device="cpu")
    assert found.base is not None
    assert found.base.exact is False
    assert "the base is not loaded as exact" in caplog.text


# --- what is refused, before anything is loaded


def test_another_vocabulary_is_refused(base: Path, tiny_package: MakePackage, text: Path) -> None:
    other = tiny_package("qwen3", vocab_size=299)
    with pytest.raises(ValueError, match=r"cannot be compared with .*: its vocabulary has 299 tokens instead of 307"):
        evaluate([other], text, against=base, window=WINDOW)
    with pytest.raises(ValueError, match="cannot be compared with"):
        evaluate([base, other], text, window=WINDOW)


@pytest.mark.parametrize("window", [1, 129])
def test_a_window_beyond_the_context_is_refused(window: int, base: Path, text: Path) -> None:
    with pytest.raises(ValueError, match=f"window is {window} tokens; expected 2 to 128, the context of"):
        evaluate([base], text, window=window)


def test_models_may_come_from_a_generator(base: Path, small: Path, text: Path) -> None:
    folders: Any = (folder for folder in (base, small))  # no Sequence
    found = evaluate(folders, text, window=WINDOW, tokens=WINDOW, device="cpu")
    assert len(found.models) == 2


def test_nothing_to_do_is_refused(base: Path, text: Path) -> None:
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate([base])
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate([], text)
    with pytest.raises(ValueError, match="expected a list of them"):
        evaluate("demo", text)
    with pytest.raises(ValueError, match="tokens is -1"):
        evaluate([base], text, tokens=-1, window=WINDOW)


def test_a_missing_folder_is_an_error(base: Path, text: Path, tmp_path: Path) -> None:
    with pytest.raises(embedllm.PackageError, match="there is no folder"):
        evaluate([base], text, against=tmp_path / "none", window=WINDOW)


# --- the picture


@pytest.fixture(scope="module")
def found(base: Path, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(LINES[0], encoding="utf-8")
    return evaluate([base, small], path, against=base, window=20, device="cpu")


@pytest.mark.slow
def test_a_plot_is_a_picture_and_the_same_every_time(found: Evaluation, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, begins in (("a.svg", b"<?xml"), ("b.svg", b"<?xml"), ("a.png", b"\x89PNG")):
        write_plot(found, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begins)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg", "b.svg"]


def test_a_plot_names_each_model_and_the_base(found: Evaluation, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none"}):  # words, not outlines
        write_plot(found, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert all(one.model in drawn for one in found.models)
    assert f"against {found.models[0].model}" in drawn


def test_what_cannot_be_drawn_is_refused(found: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match=r"ends in '.pdf'; a plot is .svg or .png"):
        write_plot(found, tmp_path / "a.pdf")
    with pytest.raises(ValueError, match="evaluate a text against one"):
        write_plot(replace(found, base=None), tmp_path / "a.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'embedllm\[plot\]'"):
        write_plot(found, tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []

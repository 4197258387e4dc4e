"""`--exporter optimum` with optimum itself, for families that are not described; .ci/run has an environment for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import embedllm
from embedllm.backends.ort.engine import devices
from embedllm.backends.ort.external_graph.engine import ExternalGraphEngine, ExternalGraphSession
from embedllm.backends.ort.external_graph.placement import on_host
from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export import Recipe, convert
from embedllm.package.package import open_package
from tests.support.tiny import write_tokenizer

pytestmark = pytest.mark.optimum
pytest.importorskip("optimum.exporters.onnx", reason="optimum is not installed")
transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

VOCABULARY, CONTEXT = 307, 96
TOKENS = np.random.default_rng(1).integers(6, VOCABULARY, 48).tolist()
GREEDY = embedllm.Sampling(temperature=0)
SIZES = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 5}
# GPT-NeoX's older sibling with a half-wide rotation, one whose windows alternate, and ALiBi, which no field of ours has
FAMILIES: dict[str, Callable[[], object]] = {
    "gptj": lambda: transformers.GPTJConfig(
        n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4, rotary_dim=8, **SIZES
    ),
    "gpt_neo": lambda: transformers.GPTNeoConfig(
        max_position_embeddings=CONTEXT, hidden_size=64, num_layers=2, num_heads=4,
        attention_types=[[["global", "local"], 1]], window_size=16, **SIZES
    ),
    "bloom": lambda: transformers.BloomConfig(hidden_size=64, n_layer=2, n_head=4, seq_length=CONTEXT, **SIZES),
}  # fmt: skip


@pytest.fixture(scope="module", params=list(FAMILIES))
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[request.param]()).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    write_tokenizer(folder, VOCABULARY)
    return folder


@pytest.fixture(scope="module")
def exported(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(source, tmp_path_factory.mktemp("out") / "floats", Recipe(bits=32), exporter="optimum")


def expected(source: Path, tokens: list[int]) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def opened(folder: Path) -> ExternalGraphSession:
    package = open_package(folder)
    return ExternalGraphEngine(package, package.graphs[0], on_host(devices()[0], exact=True)).open()


def off(found: np.ndarray, right: np.ndarray) -> float:
    """In standard deviations of the logits."""
    return float(np.abs(found - right).max() / right.std())


def test_logits_are_those_of_transformers(source: Path, exported: Path) -> None:
    session, right = opened(exported), expected(source, TOKENS)
    assert off(session.feed_all(TOKENS[:32]), right[:32]) < 1e-3
    steps = np.stack([session.feed_all([token])[0] for token in TOKENS[32:]])
    assert off(steps, right[32:]) < 1e-3
    session.rewind(20)
    assert off(session.feed_all(TOKENS[20:40]), right[20:40]) < 1e-3


def test_greedy_replies_of_32_tokens_are_those_of_transformers(source: Path, exported: Path) -> None:
    prompt = TOKENS[:24]
    session = opened(exported)
    found = [session.feed(prompt).top(1).tokens[0]]
    while len(found) < 32:
        found.append(session.feed(found[-1:]).top(1).tokens[0])
    assert found == followed(source, prompt, 32)


@pytest.mark.filterwarnings("ignore")  # torch's and optimum's
def test_a_folder_that_optimum_wrote_loads_as_it_is(source: Path, tmp_path: Path) -> None:
    exporters = pytest.importorskip("optimum.exporters.onnx")
    exporters.main_export(str(source), tmp_path / "own", task="text-generation-with-past")
    write_tokenizer(tmp_path / "own", VOCABULARY)
    package = open_package(tmp_path / "own")
    assert package.external is not None
    session, right = (
        ExternalGraphEngine(package, package.graphs[0], on_host(devices()[0])).open(),
        expected(source, TOKENS),
    )
    assert off(session.feed_all(TOKENS[:32]), right[:32]) < 1e-3
    session.rewind(20)
    assert off(session.feed_all(TOKENS[20:]), right[20:]) < 1e-3
    with embedllm.load(tmp_path / "own") as model:
        reply = model.generate(TOKENS[:24], GREEDY, max_tokens=8, stop_tokens=()).tokens
    assert reply[0] == right[23].argmax()
    assert list(reply) == followed(source, TOKENS[:24], 8)


def followed(source: Path, prompt: list[int], count: int) -> list[int]:
    """What transformers goes on with."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(expected(source, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("source", ["gptj"], indirect=True)  # each export starts torch and optimum: 25 s
def test_four_bits_are_the_rounded_model(source: Path, tmp_path: Path) -> None:
    folder = convert(source, tmp_path / "out", exporter="optimum")
    kinds = json.loads((folder / "embedllm.json").read_text())["quantization"].values()
    assert {kind["bits"] for kind in kinds} == {4}
    floats = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    assert (folder / "weights.safetensors").stat().st_size < floats / 4
    right = expected(source, TOKENS)
    found = opened(folder).feed_all(TOKENS)
    assert 0.9 < np.corrcoef(found.ravel(), right.ravel())[0, 1] < 1
    with embedllm.load(folder) as model:
        assert model.generate("hello", GREEDY, max_tokens=5, stop_tokens=()).tokens


def test_it_is_offered_where_a_family_is_not_described(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"The nearest is .* optimum is installed and may know"):
        convert(source, tmp_path / "out")


def test_what_optimum_cannot_export_is_said_in_its_words(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    transformers.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1).save_pretrained(folder)
    transformers.MambaForCausalLM(transformers.MambaConfig.from_pretrained(folder)).save_pretrained(folder)
    write_tokenizer(folder, VOCABULARY)
    with pytest.raises(ExportError, match=r"optimum .* could not export"):
        convert(folder, tmp_path / "out", Recipe(context=64), exporter="optimum")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]

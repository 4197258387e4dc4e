"""What applications do with a model, on a published one: SmolLM2 135M, a GGUF file with matrices of 4 bits (Q4_1)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

import embedllm
from embedllm.cli.main import cli
from embedllm.export import Recipe, convert
from tests.support.real import SMOLLM2, published_file

pytestmark = [pytest.mark.real, pytest.mark.slow]

ASK: list[Any] = [{"role": "user", "content": "Name the planet that we live on."}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 0},
        "sights": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
    },
    "required": ["city", "population", "sights"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
ATOL = 2e-3  # of logits up to 30, between runtimes that sum float32 in other orders; measured 1.8e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(published_file(SMOLLM2, "**/*.gguf"), tmp_path_factory.mktemp("exported") / "smollm2")


@pytest.fixture(scope="module", params=["cpu", "openvino"])
def model(request: pytest.FixtureRequest, folder: Path) -> Iterator[embedllm.Model]:
    with embedllm.load(folder, device=request.param) as loaded:
        yield loaded


def test_a_stream_joins_to_the_reply_and_the_reply_is_right(model: embedllm.Model) -> None:
    whole = model.chat(ASK, temperature=0.0, max_tokens=30)
    assert "Earth" in whole.text
    assert whole.finish_reason == "stop"
    chunks = list(model.stream(ASK, temperature=0.0, max_tokens=30))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert len(chunks) > 5


def test_replies_follow_a_schema(model: embedllm.Model) -> None:
    ask: list[Any] = [{"role": "user", "content": "Describe Paris as JSON with city, population and sights."}]
    for seed in range(4):
        reply = model.chat(ask, temperature=1.0, seed=seed, max_tokens=200, response_format=FORMAT)
        assert reply.finish_reason == "stop"
        jsonschema.validate(json.loads(reply.text), SCHEMA)


def test_a_saved_conversation_remembers(model: embedllm.Model, tmp_path: Path) -> None:
    with model.conversation(system="You are a helpful assistant.") as talk:
        talk.say("My name is Amelia.", temperature=0.0, max_tokens=40)
        talk.save(tmp_path / "talk")
        expected = talk.say("What is my name?", temperature=0.0, max_tokens=20)
    with model.open_conversation(tmp_path / "talk") as talk:
        found = talk.say("What is my name?", temperature=0.0, max_tokens=20)
    assert found.text == expected.text


def test_exact_devices_give_the_logits_of_the_file(tmp_path: Path) -> None:
    """Its integers are carried over as they are; the oracle is plain NumPy over them."""
    folder = convert(published_file(SMOLLM2, "**/*.gguf"), tmp_path / "exact", Recipe(exact=True))
    rows: dict[str, Any] = {}
    for device in ("reference", "cpu", "openvino"):
        with embedllm.load(folder, device=device, exact=device != "reference", prefix_cache=0) as model:
            prompt = model.tokenizer.encode(model.prompt(ASK), special=False)
            session = model.runner.call(model.runner.engine.open)
            row = model.runner.call(lambda session=session, prompt=prompt: session.feed(prompt))
            rows[device] = np.array(row.values(range(row.size)))
            model.runner.call(session.close)
    for device in ("cpu", "openvino"):
        np.testing.assert_allclose(rows[device], rows["reference"], atol=ATOL, rtol=0)


def test_its_speed_is_measured(folder: Path) -> None:
    done = CliRunner().invoke(cli, ["bench", str(folder), "--device", "cpu", "--prompt", "32", "--tokens", "8",
                                    "--rounds", "1", "--json", "-", "--quiet"])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert '"decode' in done.stdout

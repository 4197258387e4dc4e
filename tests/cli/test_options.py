"""The options of `run` and `chat`: each reaches what it is for; wrong ones are named before a model is loaded."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import embedllm
from embedllm import Sampling
from embedllm.cli.main import cli
from embedllm.cli.reply_output import show
from embedllm.export import Recipe, convert
from embedllm.generation.chunk import Chunk, Statistics
from embedllm.sampling.option_table import SAMPLING_OPTIONS, Option
from embedllm.text.prompt import Prompt
from tests.support.peft_folders import write_adapter
from tests.support.tiny import tiny_checkpoint

MakePackage = Callable[..., Path]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["a"],
          "additionalProperties": False}  # fmt: skip
# for each option of sampling, a value that is not the default
CHANGED = {
    "temperature": "2",
    "dynamic_temperature": "1",
    "dynamic_exponent": "3",
    "top_k": "2",
    "top_p": "0.1",
    "min_p": "0.9",
    "typical_p": "0.1",
    "top_n_sigma": "0.1",
    "xtc_probability": "1",
    "xtc_threshold": "0.002",
    "mirostat": "2",
    "mirostat_tau": "0.5",
    "mirostat_eta": "1",
    "repetition_penalty": "2",
    "presence_penalty": "2",
    "frequency_penalty": "2",
    "dry_multiplier": "5",
    "dry_base": "3",
    "dry_allowed_length": "7",
    "dry_range": "5",
    "dry_breakers": "x",
    "no_repeat_ngram": "1",
    "bad_words": "a",
    "seed": "8",
}


@pytest.fixture(scope="session")
def tiny(tiny_package: MakePackage) -> str:
    return str(tiny_package(max_position_embeddings=512))


def run(model: str, *options: str, text: str = "hello") -> Result:
    return CliRunner().invoke(cli, ["run", "--model", model, *options, text], prog_name="embedllm")


def test_the_table_has_every_option_of_sampling_but_those_for_programs() -> None:
    names = {each.name for each in fields(Sampling) if each.init}
    assert {option.name for option in SAMPLING_OPTIONS} == names - {"logit_bias", "processors", "order"}
    assert set(CHANGED) == {option.name for option in SAMPLING_OPTIONS}


@dataclass
class Streams:
    """What Model.stream was called with."""

    sampling: list[Sampling] = field(default_factory=list)
    options: list[dict[str, object]] = field(default_factory=list)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    seen, stream = Streams(), embedllm.Model.stream

    def noting(model: embedllm.Model, prompt: Prompt, sampling: Sampling, **options: object) -> object:
        seen.sampling.append(sampling)
        seen.options.append(options)
        return stream(model, prompt, sampling, **options)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(embedllm.Model, "stream", noting)
    return seen


@pytest.mark.parametrize("option", SAMPLING_OPTIONS, ids=lambda option: option.name)
@pytest.mark.slow
def test_each_option_of_sampling_reaches_the_sampler(option: Option, tiny: str, streams: Streams) -> None:
    result = run(tiny, f"--{option.name.replace('_', '-')}", CHANGED[option.name], "--max-tokens", "1")
    assert result.exit_code == 0, result.stderr
    value = option.kind(CHANGED[option.name])
    assert getattr(streams.sampling[0], option.name) == ((value,) if option.is_list else value)


def test_options_of_a_reply_reach_it(tiny: str, streams: Streams) -> None:
    given = ("--max-tokens", "9", "--min-tokens", "4", "--stop", "a", "--stop", "b", "--speculate", "lookup")
    assert run(tiny, *given).exit_code == 0
    expected = {"max_tokens": 9, "min_tokens": 4, "stop": ("a", "b"), "speculate": "lookup", "response_format": None}
    assert expected.items() <= streams.options[0].items()


# --- what a reply shall be


def test_a_schema_as_text_or_file_is_followed(tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    for given in (str(path), json.dumps(SCHEMA)):
        result = run(tiny, "--json-schema", given, "--temperature", "1", "--seed", "3")
        assert result.exit_code == 0, result.stderr
        assert 0 <= json.loads(result.stdout)["a"] <= 99


@pytest.mark.slow
def test_a_regex_choices_and_a_grammar_are_followed(tiny: str, tmp_path: Path) -> None:
    grammar = tmp_path / "grammar.lark"
    grammar.write_text('start: "left" | "right"\n', encoding="utf-8")
    for options, allowed in (
        (("--regex", "ab|cd"), {"ab", "cd"}),
        (("--choices", "yes, no"), {"yes", "no"}),
        (("--choices", '["a, b", "c"]'), {"a, b", "c"}),
        (("--grammar", str(grammar)), {"left", "right"}),
    ):
        result = run(tiny, *options)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.strip() in allowed
    piped = CliRunner().invoke(cli, ["chat", "--model", tiny, "--choices", "yes,no"], input="hello\nand?\n")
    assert set(piped.stdout.split()) <= {"yes", "no"}


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--json-schema", "{no json"), 2, "is no JSON"),
        (("--json-schema", "no/such/file"), 2, "cannot read 'no/such/file'"),
        (("--grammar", "no/such/file"), 2, "cannot read 'no/such/file'"),
        (("--grammar", "~nobody-of-this-name/x"), 2, "cannot read '~nobody-of-this-name/x'"),
        (("--choices", "[1"), 2, "is no JSON list"),
        (("--choices", "[1]"), 1, "expected a list of one text or more"),
        (("--regex", "a", "--choices", "a"), 2, "--regex and --choices are mutually exclusive"),
        (("--kv", "int3"), 2, "int8"),
        (("--speculate", "guess"), 2, "lookup"),
        (("--min-tokens", "-1"), 2, "min-tokens"),
        (("--mirostat", "3"), 1, "mirostat is 3; expected 0 (off), 1 or 2"),
        (("--bad-words", " "), 1, "bad_words has ' '"),
    ],
)
def test_wrong_options_are_named_before_the_model_is_loaded(options: tuple[str, ...], code: int, words: str) -> None:
    result = run("/nowhere", *options)
    assert result.exit_code == code
    assert words in result.stderr


# --- how it is computed


@pytest.mark.slow
def test_options_of_the_model_reach_load(tiny: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    long = "list all files and sort them by size " * 8
    results = [run(tiny, "--cache-dir", str(cache), "--stats", "--max-tokens", "2", text=long) for _ in range(2)]
    assert ["of them cached" in result.stderr for result in results] == [False, True]
    assert list(cache.rglob("*"))
    refused = run(tiny, "--kv", "int8", "--max-tokens", "1")
    assert refused.exit_code == 1
    assert "embedllm graph" in refused.stderr  # what the graph for it takes
    assert run(tiny, "--draft", tiny, "--speculate", "draft", "--max-tokens", "2").exit_code == 0
    assert run(tiny, "--speculate", "draft").stderr.startswith("error: speculate is 'draft', and this model has none")


@pytest.fixture(scope="session")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A package and an adapter of it."""
    folder = tmp_path_factory.mktemp("adapted")
    checkpoint = tiny_checkpoint(folder / "checkpoint", "llama")
    return str(convert(checkpoint, folder / "package", Recipe())), write_adapter(folder / "mine", checkpoint)


@pytest.mark.slow
def test_an_adapter_computes_the_replies(adapted: tuple[str, Path], tmp_path: Path) -> None:
    model, adapter = adapted
    with embedllm.load(model, adapters={"mine": adapter}) as llm:
        asked = [{"role": "user", "content": "hello"}]
        bare, expected = (llm.chat(asked, max_tokens=12, adapter=name).text for name in (None, "mine"))
    assert bare != expected
    given = ("--adapter", str(adapter), "--max-tokens", "12")
    assert run(model, *given).stdout == f"{expected}\n"
    with contextlib.chdir(adapter):
        assert run(model, "--adapter", ".", "--max-tokens", "12").stdout == f"{expected}\n"
    path = tmp_path / "talk"
    said = CliRunner().invoke(cli, ["chat", "--model", model, *given], input=f"hello\n/save {path}\n")
    assert (said.exit_code, said.stdout.rstrip("\n")) == (0, expected.rstrip("\n"))
    again = CliRunner().invoke(cli, ["chat", "--model", model, *given, "--stats"], input=f"/open {path}\nand?\n")
    assert "of them cached" in again.stderr


# --- what is shown


def thinking() -> list[Chunk]:
    statistics = Statistics(prompt_tokens=1, cached_tokens=0)
    parts = (("", "hm"), ("so", ""))
    return [Chunk(text=t, reasoning=r, token=1, logprob=0.0, statistics=statistics) for t, r in parts]


@pytest.mark.parametrize(("shown", "stderr"), [(True, "hm\n"), (False, "")])
def test_reasoning_is_shown_on_stderr_or_nowhere(shown: bool, stderr: str, capsys: pytest.CaptureFixture[str]) -> None:
    reply = show(thinking(), reasoning=shown)
    captured = capsys.readouterr()
    assert (captured.out, captured.err, reply.reasoning) == ("so\n", stderr, "hm")

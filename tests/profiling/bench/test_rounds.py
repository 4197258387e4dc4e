"""`embedllm bench` as it is typed: real engines in processes of their own, on tiny workloads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import jsonschema
import pytest

from embedllm.errors import EmbedError
from embedllm.export import Recipe, convert
from embedllm.package.package import WEIGHTS, open_package
from embedllm.profiling.bench.ours import layers_packing
from embedllm.profiling.bench.process import Process
from embedllm.profiling.bench.specs import Spec, own_spec
from tests.cli.test_commands import embed
from tests.support.gguf_files import write_gguf
from tests.support.tiny import tiny_checkpoint

NUMBER, TEXT = {"type": "number", "exclusiveMinimum": 0}, {"type": "string", "minLength": 1}
SPREAD = {"type": "object", "required": ["median", "least", "most"], "additionalProperties": NUMBER}
LATENCIES = {"type": "object", "required": ["p50", "p95", "p99"], "additionalProperties": NUMBER}
CASE = {
    "type": "object",
    "required": ["kind", "prompt", "depth", "tokens", "streams", "joules_per_token"],
    "properties": {
        "kind": {"enum": ["reply", "shared-prefix", "structured", "concurrency"]},
        **dict.fromkeys(("first_token_s", "prefill_tokens_s", "decode_tokens_s", "tokens_s"), SPREAD),
        **dict.fromkeys(("prefill_of_first", "decode_of_first", "of_first", "bandwidth_share"), NUMBER),
        "token_s": LATENCIES,
    },
}
ENGINE = {
    "type": "object",
    "required": ["name", "engine", "versions", "device", "threads", "model", "weights_sha256", "bits", "group", "cold"],
    "properties": {
        **dict.fromkeys(("load_s", "start_s", "loaded_peak_bytes", "peak_bytes", "weights_bytes", "step_bytes",
                         "first_reply_first_token_s"), NUMBER),
        "versions": {"type": "object", "minProperties": 1, "additionalProperties": TEXT},
        "cases": {"type": "array", "minItems": 1, "items": CASE},
        "not_measured": {"type": "array"},
    },
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "required": ["format", "embedllm", "machine", "workload", "bandwidth", "energy", "engines"],
    "additionalProperties": False,
    "properties": {
        "format": {"const": 1},
        "embedllm": TEXT,
        "machine": {"type": "object", "required": ["cpu", "cores", "memory_bytes", "system", "python", "load_average"]},
        "workload": {"type": "object", "required": ["prompts", "depths", "tokens", "rounds", "threads", "conditions"]},
        "bandwidth": {"type": "object", "properties": {"threads": NUMBER, "bytes_s": NUMBER}},
        "energy": TEXT,
        "engines": {"type": "array", "minItems": 1, "items": ENGINE},
    },
}
TINY = ("--prompt", "8", "--tokens", "4", "--rounds", "2", "--quiet")


@pytest.mark.parametrize(("recipe", "expected"), [
    (Recipe(head_bits=8), (4, 32)),
    (Recipe(bits=16), (16, None)),
    (Recipe(group_size=16, mean_bits=9.5), (None, 16)),
])  # fmt: skip
def test_the_bits_of_a_folder_are_those_of_its_layers(
    recipe: Recipe, expected: tuple[int | None, int | None], tmp_path: Path
) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", max_position_embeddings=16)
    assert layers_packing(open_package(convert(checkpoint, tmp_path / "package", recipe))) == expected


@pytest.mark.slow
def test_everything_at_once_on_two_engines(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    sizes = ("--prompt", "8,16", "--depth", "0,20", "--tokens", "4", "--rounds", "2", "--threads", "1")
    more = ("--shared-prefix", "--structured", "--concurrency", "1,2", "--cold")
    result = embed("bench", "demo", "--against", "demo@openvino", *sizes, *more, "--json", str(out), "--plot",
                   str(tmp_path / "plot.svg"))  # fmt: skip
    assert result.exit_code == 0, result.stderr
    for title in (
        "load and memory",
        "cold",
        "replies",
        "a shared prefix",
        "held to a JSON schema",
        "concurrent requests",
    ):
        assert title in result.stdout
    assert "round 2: embedllm demo@openvino, reply: prompt 16, behind 20, 4 new" in result.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    jsonschema.validate(found, SCHEMA)
    cpu, openvino = found["engines"]
    weights = open_package(own_spec("demo").path).files[WEIGHTS]
    for engine in (cpu, openvino):
        assert engine["weights_sha256"] == weights.sha256
        assert (engine["bits"], engine["group"], engine["threads"]) == (4, 32, 1)
        assert engine["loaded_peak_bytes"] <= engine["peak_bytes"]
        assert [case["kind"] for case in engine["cases"]] == [
            *["reply"] * 4, "shared-prefix", "structured", "concurrency", "concurrency",
        ]  # fmt: skip
        assert engine["cold"].keys() == {"load_s", "start_s", "first_token_s", "peak_bytes"}
    assert (cpu["device"], openvino["device"]) == ("cpu", "openvino")
    assert {case["decode_of_first"] for case in cpu["cases"] if "decode_of_first" in case} == {1.0}
    svg = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "</svg>" in svg
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "plot.svg"}


def test_json_on_stdout_is_all_there_is_on_it(tiny_package: Callable[..., Path]) -> None:
    result = embed("bench", str(tiny_package()), "--device", "cpu", *TINY, "--json", "-")
    jsonschema.validate(json.loads(result.stdout), SCHEMA)
    assert result.stderr == ""


def test_how_our_folders_were_loaded_is_in_the_table_and_the_json(
    tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    result = embed("bench", str(tiny_package()), "--device", "cpu", *TINY, "--threads", "0", "--exact",
                   "--no-prefix-cache", "--json", str(out))  # fmt: skip
    assert "folders of ours exact; folders of ours without a prefix cache" in result.stdout
    assert "each engine's own choice" in result.stdout
    found = json.loads(out.read_text(encoding="utf-8"))
    assert (found["workload"]["exact"], found["workload"]["prefix_cache"], found["workload"]["threads"]) == (
        True, False, 0,
    )  # fmt: skip
    assert found["engines"][0]["device"] == "cpu, exact"


@pytest.mark.parametrize("names", ["", "cpu", "a, b,", "openvino:HETERO:GPU,CPU"])
def test_devices_are_named_as_in_run(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from embedllm.profiling.bench.ours import Ours

    loaded: list[object] = []
    monkeypatch.setattr("embedllm.profiling.bench.ours.load", lambda *_, device, **__: loaded.append(device))
    Ours("folder", device=names, threads=1, exact=False, prefix_cache=False)
    assert loaded == [names or None]


@pytest.mark.slow
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_our_engine_goes_on_from_what_it_holds(prefix_cache: bool, tiny_package: Callable[..., Path]) -> None:
    from embedllm.profiling.bench.ours import Ours

    engine = Ours(str(tiny_package()), device="cpu", threads=1, exact=False, prefix_cache=prefix_cache)

    def cached(prompt: list[int]) -> int:
        return engine._model.generate(prompt, max_tokens=2, stop_tokens=()).statistics.cached_tokens

    tokens = list(range(5, 105))
    assert len(engine.run(tokens[:90], 1)) == 1
    assert cached(tokens) == 90
    engine.run([200, *tokens[1:]], 1)
    assert (cached(tokens) > 0) == prefix_cache


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--prompt", "8,x"), 2, "expected whole numbers with commas"),
        (("--prompt", "0"), 1, "--prompt has 0; expected 1 or more"),
        (("--rounds", "0"), 2, "--rounds"),
        (("--against", "nothing"), 1, "no such folder, nor an engine of that name"),
        (("--device", "warp"), 1, "warp"),
        (("--plot", "plot.bmp"), 1, "a plot is .svg or .png"),
        (("--json", "/nowhere/at/all.json"), 1, "cannot write '/nowhere/at/all.json'"),
        (("--prompt", "2040"), 1, "holds 2048 tokens; this workload needs 2104"),
    ],
)
def test_what_cannot_be_measured_is_said(arguments: tuple[str, ...], code: int, said: str) -> None:
    result = embed("bench", "demo", "--quiet", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


def test_an_engine_that_fails_says_why() -> None:
    spec = Spec(engine="embedllm", path="/nowhere", label="it")
    with (
        Process(spec, threads=1, capacity=9, exact=False, prefix_cache=True) as process,
        pytest.raises(EmbedError) as caught,
    ):
        process.opened()
    assert "'it' cannot be measured: PackageError: there is no folder '/nowhere'" in str(caught.value)


def test_a_process_that_is_gone_is_an_error(tiny_package: Callable[..., Path]) -> None:
    spec = own_spec(str(tiny_package()), "cpu")
    with Process(spec, threads=1, capacity=9, exact=False, prefix_cache=True) as running:
        running.opened()
        running._process.kill()
        running._process.wait()
        with pytest.raises(EmbedError, match=r"does not listen any more|ended with code -9"):
            running.run([5, 6], 2)


def test_a_plot_that_cannot_be_drawn_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure
    from embedllm.profiling.bench.plot import draw

    def write_half(self: object, file: IO[bytes], **_: object) -> None:
        file.write(b"half")
        raise RuntimeError

    monkeypatch.setattr(figure, "savefig", write_half)
    (tmp_path / "out.png").write_text("before")
    shown = {"machine": {"cpu": "x"}, "workload": {"threads": 1}, "engines": [{"name": "A", "cases": []}]}
    with pytest.raises(RuntimeError):
        draw(shown, tmp_path / "out.png")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.png", "before")]


# --- against others


def run_against(*arguments: str) -> dict[str, Any]:
    result = embed("bench", *arguments, *TINY, "--threads", "1", "--json", "-")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    jsonschema.validate(found, SCHEMA)
    return found


@pytest.mark.peer
def test_against_onnxruntime_genai_on_our_folder() -> None:
    pytest.importorskip("onnxruntime_genai")
    found = run_against("demo", "--against", "onnxruntime-genai", "--depth", "0,16", "--shared-prefix", "--structured")
    ours, theirs = found["engines"]
    assert theirs["weights_sha256"] == ours["weights_sha256"]
    assert theirs["versions"].keys() == {"onnxruntime-genai", "onnxruntime"}
    assert [case["kind"] for case in theirs["cases"]] == ["reply", "reply", "shared-prefix"]
    assert [case["kind"] for case in theirs["not_measured"]] == ["structured"]


@pytest.mark.peer
def test_openvino_genai_without_its_tokenizer_says_how_to_get_it() -> None:
    pytest.importorskip("openvino_genai")
    result = embed("bench", "demo", "--against", "openvino-genai", *TINY)
    assert result.exit_code == 1
    assert "embedllm export ... --openvino-tokenizer" in result.stderr


@pytest.mark.peer
@pytest.mark.slow
def test_against_openvino_genai_and_transformers(tmp_path: Path) -> None:
    for module in ("openvino_genai", "openvino_tokenizers", "transformers", "torch"):
        pytest.importorskip(module)
    from embedllm.export import convert

    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama")
    folder = convert(checkpoint, tmp_path / "package", openvino_tokenizer=True)
    found = run_against(str(folder), "--against", "openvino-genai", "--against", f"transformers:{checkpoint}")
    assert [engine["engine"] for engine in found["engines"]] == ["embedllm", "openvino-genai", "transformers"]
    assert found["engines"][2]["bits"] == 32


@pytest.mark.peer
def test_genai_goes_on_from_what_it_holds_as_from_nothing(tiny_package: Callable[..., Path]) -> None:
    pytest.importorskip("onnxruntime_genai")
    from embedllm.profiling.bench.peers import Genai

    path = str(tiny_package("llama"))
    again, fresh = (Genai(path, threads=1, capacity=40) for _ in range(2))
    start = [5, 9, 40, 41, 42, 77]
    again.run([*start, 8, 8], 6)
    assert len(again.run([*start, 11, 12], 6)) == 6
    fresh.run([*start, 11, 12], 6)
    assert again._token_ids == fresh._token_ids
    assert len(fresh._token_ids) == 8 + 5  # the last token was not fed
    assert again.about == fresh.about


@pytest.mark.peer
@pytest.mark.slow
def test_llama_cpp_by_xllamacpp_gives_each_token_a_time(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    from embedllm.profiling.bench.peers import XllamaCpp

    tiny_checkpoint(tmp_path, "llama")
    llama = XllamaCpp(str(write_gguf(tmp_path / "model.gguf", tmp_path)), threads=1, capacity=64)
    times = llama.run([5, 9, 40, 41, 42, 77], 6)
    assert len(times) == 6
    assert times == sorted(times)
    assert times[0] > 0
    assert llama.about.vocabulary > 77
    assert "xllamacpp" in llama.about.versions


@pytest.mark.peer
@pytest.mark.slow
def test_transformers_goes_on_from_what_it_holds_as_from_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from embedllm.profiling.bench.peers import Transformers

    path = str(tiny_checkpoint(tmp_path / "checkpoint", "llama"))
    again, fresh = (Transformers(path, threads=1, capacity=40) for _ in range(2))
    start = [5, 9, 40, 41, 42, 77]
    again.run([*start, 8, 8], 6)
    again.run([*start, 11, 12], 6)
    fresh.run([*start, 11, 12], 6)
    assert again._token_ids == fresh._token_ids
    assert len(fresh._token_ids) == 8 + 5  # the last token was not fed

"""The commands, as a user and as a script meet them: what is on stdout, what on stderr, which exit code.

Most run inside this process; where signals, pipes or a terminal matter, in one of their own.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib.abc import MetaPathFinder
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import embedllm
from embedllm.cli.main import cli
from embedllm.generation.chunk import Chunk
from embedllm.generation.completion import Completion, collect
from embedllm.package.package import sha256
from tests.support.tiny import tiny_checkpoint

MakePackage = Callable[..., Path]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
LONG = 30000  # tokens: seconds of replying, time enough for anything that interrupts it


@pytest.fixture(scope="session")
def tiny(tiny_package: MakePackage) -> str:
    return str(tiny_package())


@pytest.fixture(scope="session")
def endless(tiny_package: MakePackage) -> str:
    """A model that goes on and on."""
    return str(tiny_package(max_position_embeddings=LONG))


@pytest.fixture(scope="session")
def no_template(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same model without its chat template."""
    folder = tmp_path_factory.mktemp("plain") / "plain"
    shutil.copytree(tiny, folder)
    settings, manifest = folder / "tokenizer_config.json", folder / "embedllm.json"
    settings.write_text('{"eos_token": "<|im_end|>"}')
    data = json.loads(manifest.read_text(encoding="utf-8"))
    data["files"][settings.name]["bytes"] = settings.stat().st_size
    manifest.write_text(json.dumps(data), encoding="utf-8")
    return str(folder)


def embed(*arguments: str, stdin: str | bytes | None = None, env: Mapping[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin, env=env, prog_name="embedllm")


def start(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "embedllm", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )


# --- run


@pytest.mark.slow
def test_stdout_has_the_reply_and_nothing_else(tiny: str) -> None:
    with embedllm.load(tiny) as llm:
        expected = llm.chat([{"role": "user", "content": "hello"}], max_tokens=9).text
    result = embed("run", "--model", tiny, "--max-tokens", "9", "--stats", "-v", "--logprobs", "1", "hello")
    assert result.exit_code == 0
    assert result.stdout == f"{expected}\n"
    assert "running 'package' on cpu" in result.stderr
    assert "prompt: " in result.stderr
    assert "(truncated after 9 tokens; increase --max-tokens)" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["-"], []])
def test_text_comes_from_stdin_without_its_last_line_end(tiny: str, arguments: list[str]) -> None:
    direct = embed("run", "--model", tiny, "--max-tokens", "5", "two\nlines")
    piped = embed("run", "--model", tiny, "--max-tokens", "5", *arguments, stdin=b"\xef\xbb\xbftwo\nlines\r\n")
    assert piped.stdout == direct.stdout


def piped_in(*arguments: str, stdin: bytes) -> str:
    command = [sys.executable, "-m", "embedllm", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=True, timeout=120).stdout.decode()


def test_what_is_piped_in_follows_the_text(tiny: str) -> None:
    options = ("run", "--model", tiny, "--max-tokens", "5", "--temperature", "0")
    assert piped_in(*options, "two", stdin=b"lines\n") == embed(*options, "two\n\nlines\n").stdout
    assert piped_in(*options, "two", stdin=b"") == embed(*options, "two").stdout


def test_the_model_may_be_named_by_its_place(tiny: str) -> None:
    by_option = embed("run", "--model", tiny, "--max-tokens", "5", "hello").stdout
    assert embed("run", tiny, "hello", "--max-tokens", "5").stdout == by_option != ""
    assert embed("run", tiny, "--max-tokens", "5", stdin="hello").stdout == by_option  # TEXT is piped in
    assert embed("run", "--model", tiny, "demo", "--max-tokens", "5").stdout not in ("", by_option)  # a TEXT
    assert "there is no file 'missing.gguf'" in embed("run", "missing.gguf", "hello").stderr
    chatted = embed("chat", tiny, "--max-tokens", "5", stdin="hello\n")
    assert chatted.stdout == embed("chat", "--model", tiny, "--max-tokens", "5", stdin="hello\n").stdout != ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "list", "files"], "found 2 texts, from 'list' on; put TEXT in quotes. There is no model 'list'."),
        (["run", "demo", "list", "files"], "found 3 texts, from 'demo' on; put TEXT in quotes."),
        (["run", "demo", "hello", "--model", "other"], "found two models, 'demo' and --model 'other'; give one."),
        (["chat", "demo", "--model", "other"], "found two models, 'demo' and --model 'other'; give one."),
        (["pull", "demo"], "'demo' is no name of the hub (org/name) and no GGUF file: nothing to pull."),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: list[str], message: str) -> None:
    result = embed(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_other_programs_names_of_commands_are_understood() -> None:
    for name in ("list", "ls"):
        assert embed(name, "--json").stdout == embed("models", "--json").stdout
    assert embed("rm", "org/nothing").stderr == embed("models", "--remove", "org/nothing").stderr


@pytest.mark.parametrize(("stdin", "code"), [("", 2), ("\n \n", 2), (b"\xff\xfe", 1)])
def test_stdin_without_text_is_refused(tiny: str, stdin: str | bytes, code: int) -> None:
    result = embed("run", "--model", tiny, stdin=stdin)
    assert (result.exit_code, result.stdout) == (code, "")


@pytest.mark.slow
def test_raw_continues_the_text_as_it_stands(tiny: str) -> None:
    with embedllm.load(tiny) as llm:
        expected = llm.generate("The quick", max_tokens=7).text
    assert embed("run", "--model", tiny, "--raw", "--max-tokens", "7", "The quick").stdout == f"{expected}\n"


def test_raw_goes_without_what_the_template_would_take(tiny: str) -> None:
    for option in (["--system", "x"], ["--var", "a=1"]):
        result = embed("run", "--model", tiny, "--raw", *option, "hello")
        assert result.exit_code == 2
        assert "--raw" in result.stderr


@pytest.mark.slow
def test_a_model_without_a_template_continues_and_says_so(no_template: str) -> None:
    plain = embed("run", "--model", no_template, "--max-tokens", "7", "The quick")
    raw = embed("run", "--model", no_template, "--max-tokens", "7", "--raw", "The quick")
    assert plain.stdout == raw.stdout != ""
    assert plain.stderr.splitlines()[0] == "'package' has no chat template; plain text completion."
    assert "template" not in raw.stderr


def test_a_model_without_a_template_takes_no_system_message(no_template: str) -> None:
    result = embed("run", "--model", no_template, "--system", "be brief", "hello")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: 'package' has no chat template")


@pytest.mark.slow
def test_json_is_one_object_with_all_there_is(tiny: str) -> None:
    result = embed("run", "--model", tiny, "--json", "--logprobs", "2", "--max-tokens", "6", "hello")
    reply = json.loads(result.stdout)
    assert (len(reply["tokens"]), reply["finish_reason"], reply["stopped_by"]) == (6, "length", None)
    assert reply["statistics"]["tokens"] == 6
    assert reply["statistics"]["decode_tokens_s"] > 0
    assert [step["token"] for step in reply["logprobs"]] == reply["tokens"]
    first = reply["logprobs"][0]
    assert first["top"][0] == {key: first[key] for key in ("token", "text", "logprob")}  # greedy takes the best
    assert len(first["top"]) == 2
    assert reply["text"] == embed("run", "--model", tiny, "--max-tokens", "6", "hello").stdout.removesuffix("\n")


@pytest.mark.slow
def test_options_reach_the_sampler(tiny: str) -> None:
    def text(*options: str) -> str:
        return embed("run", "--model", tiny, "--max-tokens", "12", *options, "hello").stdout

    assert text("--temperature", "1", "--seed", "5") == text("--temperature", "1", "--seed", "5")
    assert text("--temperature", "1", "--seed", "5") != text("--temperature", "1", "--seed", "6")
    assert text("--temperature", "1", "--top-k", "1") == text()
    assert text("--frequency-penalty", "2", "--repetition-penalty", "2") != text()


def test_an_option_of_chance_without_chance_is_remarked(tiny: str) -> None:
    result = embed("run", "--model", tiny, "--top-p", "0.5", "--seed", "1", "--max-tokens", "1", "hello")
    assert "--top-p, --seed: no effect at temperature 0" in result.stderr


@pytest.mark.slow
def test_stop_strings_end_the_reply(tiny: str) -> None:
    whole = embed("run", "--model", tiny, "--max-tokens", "12", "hello").stdout
    cut = embed("run", "--model", tiny, "--max-tokens", "12", "--stop", whole[3:5], "--stop", "never", "hello")
    assert cut.stdout == f"{whole[: whole.index(whole[3:5])]}\n"
    assert "truncated" not in cut.stderr


def test_a_full_context_is_said(tiny: str) -> None:
    result = embed("run", "--model", tiny, "--max-tokens", "500", "hello")
    assert result.exit_code == 0
    assert "the context of 128 tokens is full; shorten the text" in result.stderr


def test_a_variable_is_json_of_any_kind(tiny: str) -> None:
    assert embed("run", "--model", tiny, "--max-tokens", "1", "--var", 'a="x"', "--var", "b=[1]", "hi").exit_code == 0
    for wrong in ("a", "=1", "a=x", "a="):
        assert embed("run", "--model", tiny, "--var", wrong, "hi").exit_code == 2


@POSIX
@pytest.mark.usefixtures("ctrl_c_works")
def test_ctrl_c_keeps_the_text_so_far_and_exits_with_130(endless: str) -> None:
    process = start("run", "--model", endless, "--max-tokens", str(LONG), "hello")
    assert process.stdout is not None
    first = process.stdout.read(1)  # it has begun to reply
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert first
    assert rest.endswith(b"\n")
    assert b"(stopped after" in errors
    assert b"Traceback" not in errors


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied", "a/b.json"), "error: cannot use 'a/b.json': Permission denied.\n"),
        (OSError(28, "No space left on device"), "error: No space left on device.\n"),
        (OSError("the server hung up"), "error: the server hung up\n"),
    ],
)
def test_an_error_of_the_system_is_told_without_its_number(
    error: OSError, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("embedllm.cli.commands.inspect.open_folder", fails)
    result = embed("inspect", "demo")
    assert (result.exit_code, result.stderr) == (1, line)


def test_ctrl_c_while_the_command_line_is_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Pressed(MetaPathFinder):
        def find_spec(self, fullname: str, *_: object) -> None:
            if fullname == "embedllm.cli.commands.bench":
                raise KeyboardInterrupt

    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = scripts["scripts"]["embedllm"].partition(":")
    program = getattr(importlib.import_module(module), function)
    for name in ("embedllm.cli.main", "embedllm.cli.commands.bench"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Pressed(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "error: interrupted.\n"


@pytest.mark.usefixtures("ctrl_c_works")
def test_ctrl_c_with_json_still_gives_an_object(endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed_at_the_third(chunks: Iterator[Chunk]) -> Completion:
        kept = [next(chunks) for _ in range(3)]
        signal.raise_signal(signal.SIGINT)
        return collect([*kept, *chunks])

    monkeypatch.setattr("embedllm.cli.commands.run.collect", pressed_at_the_third)
    result = embed("run", "--model", endless, "--max-tokens", str(LONG), "--json", "hello")
    assert result.exit_code == 130
    reply = json.loads(result.stdout)
    assert reply["finish_reason"] == "cancelled"
    assert 3 <= len(reply["tokens"]) < LONG


@POSIX
def test_a_reader_that_goes_away_ends_it_quietly(endless: str) -> None:
    process = start("run", "--model", endless, "--max-tokens", str(LONG), "hello")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=120) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@POSIX
def test_closed_streams_are_no_crash(tiny: str) -> None:
    program = f"{shlex.quote(sys.executable)} -m embedllm run --model {shlex.quote(tiny)} --max-tokens 1"
    for command, code in ((f"{program} hello >&-", 0), (f"{program} <&-", 2), (f"{program} hello 2>&-", 0)):
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), command


# --- errors


def test_an_error_is_one_line_on_stderr(tmp_path: Path) -> None:
    result = embed("run", "--model", str(tmp_path / "none"), "hello")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: there is no folder '{tmp_path / 'none'}'.")
    assert len(result.stderr.splitlines()) == 1


def test_an_unknown_device_gets_the_librarys_answer(tiny: str) -> None:
    result = embed("run", "--model", tiny, "--device", "tpu,npu", "hello")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: no device can run this model. Tried 'tpu': not found")
    assert "'npu'" in result.stderr


def test_devices_by_commas_are_tried_in_turn(tiny: str) -> None:
    result = embed("run", "--model", tiny, "--device", "tpu,reference", "-v", "--max-tokens", "1", "hello")
    assert result.exit_code == 0
    assert "on reference" in result.stderr


def test_a_value_out_of_its_range_is_named_before_the_model_is_loaded() -> None:
    result = embed("run", "--model", "/nowhere", "--temperature", "-1", "hello")
    assert (result.exit_code, result.stderr) == (1, "error: temperature is -1.0; expected 0 (greedy) to 100\n")


@pytest.mark.parametrize("arguments", [["--debug", "run"], ["run", "--debug"]])
def test_debug_shows_the_traceback(arguments: list[str]) -> None:
    result = embed(*arguments, "--model", "/nowhere", "hello")
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")


def test_the_environment_can_ask_for_the_traceback() -> None:
    for value, shown in (("1", True), ("on", True), ("0", False), ("OFF", False), ("", False)):
        result = embed("run", "--model", "/nowhere", "hello", env={"EMBEDLLM_DEBUG": value})
        assert ("Traceback" in result.stderr) is shown


def test_verbose_leaves_the_logger_as_it_was(tiny: str) -> None:
    logger = logging.getLogger("embedllm")
    before = (logger.level, list(logger.handlers))
    embed("-v", "run", "-v", "--model", tiny, "--max-tokens", "1", "hello")
    assert (logger.level, list(logger.handlers)) == before


# --- export


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_checkpoint(tmp_path_factory.mktemp("source") / "checkpoint"))


def test_an_export_can_be_run_and_inspected(checkpoint: str, tmp_path: Path) -> None:
    out = str(tmp_path / "model")
    exported = embed("export", checkpoint, out, "--bits", "8", "--group", "16", "--asymmetric", "--context", "64")
    assert (exported.exit_code, exported.stdout) == (0, "")
    assert exported.stderr.startswith(f"wrote '{out}': ")
    assert [line.split()[0] for line in exported.stderr.splitlines()] == [
        "wrote",
        "next:",
    ]  # no bar where there is no terminal
    found = json.loads(embed("inspect", out, "--json").stdout)
    assert found["packing"] == [{"matrices": 15, "bits": 8, "group_size": 16, "symmetric": False, "has_minimum": False,
                                 "ordered": False}]  # fmt: skip
    assert found["architecture"]["context"] == 64
    assert embed("run", "--model", out, "--max-tokens", "3", "hello").exit_code == 0


@pytest.mark.slow
def test_export_tells_scripts_what_it_wrote(checkpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "model"
    result = embed("export", checkpoint, str(out), "--quiet", "--json", "--verify", "--lm-head-bits", "16")
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert found["folder"] == str(out)
    assert found["weights_bytes"] == (out / "weights.safetensors").stat().st_size
    assert found["bytes"] == sum(p.stat().st_size for p in out.iterdir() if p.name != "embedllm.json")
    assert found["verification"]["model.onnx"]["same_top"] > 0.5


def test_what_is_there_stays_unless_it_shall_be_replaced(checkpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "model"
    (out / "sub").mkdir(parents=True)
    refused = embed("export", checkpoint, str(out))
    assert refused.exit_code == 1
    assert "exists already" in refused.stderr
    shutil.rmtree(out)
    assert embed("export", checkpoint, str(out)).exit_code == 0
    assert embed("export", checkpoint, str(out), "--replace", "--bits", "32").exit_code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_files_that_a_replaced_package_would_take_along_are_named_before_a_download(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def downloads(*_: object, **__: object) -> str:
        raise AssertionError("a download has begun")

    out = tmp_path / "model"
    assert embed("export", checkpoint, str(out), "--method", "nearest").exit_code == 0
    monkeypatch.setattr("embedllm.loading.hub_sources.export_source", downloads)
    (out / "text.txt").write_text("years of work")
    result = embed("export", "org/name", str(out), "--replace", "--calibrate", str(out / "text.txt"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: '{out / 'text.txt'}' lies in '{out}', which the export would replace")
    result = embed("export", "org/name", str(out), "--replace")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "would delete it: 'text.txt'." in result.stderr


def test_ctrl_c_during_an_export_leaves_nothing(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("embedllm.export.pipeline.write_weights", interrupted)
    result = embed("export", checkpoint, str(tmp_path / "model"))
    assert result.exit_code == 130
    assert result.stderr == f"nothing was written to '{tmp_path / 'model'}'.\nerror: interrupted.\n"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    embed("export", checkpoint, str(tmp_path / "model"))
    monkeypatch.setattr("embedllm.export.pipeline.write_weights", interrupted)
    result = embed("export", checkpoint, str(tmp_path / "model"), "--replace")
    assert result.stderr == f"'{tmp_path / 'model'}' is unchanged.\nerror: interrupted.\n"


def test_an_export_ends_with_the_next_line_to_type(checkpoint: str, tmp_path: Path) -> None:
    named = tmp_path / "my model"
    assert embed("export", checkpoint, str(named)).stderr.splitlines()[-1] == f"next: embedllm chat '{named}'"
    assert embed("export", checkpoint, str(tmp_path / "web"), "--shard", "1MB").stderr.count("next:") == 0
    raw = shutil.copytree(checkpoint, tmp_path / "raw")
    (raw / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((raw / "tokenizer_config.json").read_text())
    (raw / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": None}))
    out = tmp_path / "out"
    assert embed("export", str(raw), str(out)).stderr.splitlines()[-1] == f'next: embedllm run {out} "TEXT"'


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--bits", "3"], "4, 8, 16 or 32"),
        (["--lm-head-bits", "0"], "'4', '8', '16', '32'"),
        (["--group", "48"], "'16', '32', '64', '128', '256'"),
        (["--context", "0"], "x>=1"),
    ],
)
def test_unknown_values_are_refused_with_the_known_ones(arguments: list[str], allowed: str, tmp_path: Path) -> None:
    result = embed("export", "source", str(tmp_path / "out"), *arguments)
    assert result.exit_code == 2
    assert allowed in result.stderr


def test_the_npus_target_takes_no_small_groups(checkpoint: str, tmp_path: Path) -> None:
    result = embed("export", checkpoint, str(tmp_path / "model"), "--target", "npu", "--group", "32")
    assert result.exit_code == 2
    assert "the NPU needs a group size of at least 64" in " ".join(result.stderr.split())


@pytest.mark.parametrize(("options", "group", "symmetric"), [
    (["--target", "npu"], 128, {True}),
    (["--target", "npu", "--group", "64"], 64, {True}),
    ([], 32, {True, False}),  # rows of 3 groups, and of 2
    (["--symmetric"], 32, {True}),
    (["--group", "256"], 256, {True}),  # rows of one group
])  # fmt: skip
def test_a_target_sets_what_was_not_said(
    options: list[str], group: int, symmetric: set[bool], checkpoint: str, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    assert embed("export", checkpoint, str(out), "--quiet", *options).exit_code == 0
    found = json.loads(embed("inspect", str(out), "--json").stdout)["packing"]
    assert {(packing["bits"], packing["group_size"]) for packing in found} == {(4, group)}
    assert {packing["symmetric"] for packing in found} == symmetric


def test_the_npu_takes_no_zero_points(tmp_path: Path) -> None:
    result = embed("export", "source", str(tmp_path / "out"), "--target", "npu", "--asymmetric")
    assert result.exit_code == 2
    assert "--target npu and --asymmetric" in result.stderr
    assert embed("export", "source", str(tmp_path / "out"), "--target", "gpu").exit_code == 2


def test_no_weight_is_lost_between_the_options_and_the_recipe(checkpoint: str, tmp_path: Path) -> None:
    """A tied model refuses two widths for its one table: the option arrived."""
    result = embed("export", checkpoint, str(tmp_path / "out"), "--embedding-bits", "8", "--lm-head-bits", "16")
    assert result.exit_code == 1
    assert "embedding bits 8 and head bits 16 differ" in result.stderr


# --- inspect, devices, families


def test_inspect_shows_every_part(tiny: str) -> None:
    result = embed("inspect", tiny, "--check", "--context", "100")
    assert result.exit_code == 0, result.stderr
    for part in (
        "model type    qwen3",
        "attention     2 layers: 4 heads, 2 key/value heads of 16, no window",
        "context       128 tokens",
        "tokens        bos none, pad 0, stop 2",
        "rotary tables",
        "KV float32",
        "generic-float16",
        "all in the weights file, none stored twice",
        "as exported",
    ):
        assert part in result.stdout


def test_inspect_finds_a_changed_file(tiny: str, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny, folder)
    with (folder / "weights.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    result = embed("inspect", str(folder))
    assert result.exit_code == 1
    assert "is damaged: the sha256 of parts of it is" in result.stderr
    manifest = json.loads((folder / "embedllm.json").read_text(encoding="utf-8"))
    del manifest["files"]["weights.safetensors"]["sampled_sha256"]  # as if no sample had the byte
    (folder / "embedllm.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert embed("inspect", str(folder)).exit_code == 0
    result = embed("inspect", str(folder), "--check")
    assert result.exit_code == 1
    assert "is damaged: its sha256 is" in result.stderr


def test_inspect_says_which_files_are_bad_and_what_helps(tiny: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "copy"))
    (folder / "model.dml.onnx").unlink()
    (folder / "model.onnx").write_bytes(b"x" * (folder / "model.onnx").stat().st_size)
    missing = f"'{folder}' is incomplete: cannot read 'model.dml.onnx' (No such file or directory)"
    result = embed("inspect", str(folder))
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"problem in model.dml.onnx: {missing}" in result.stdout
    result = embed("inspect", str(folder), "--check")
    assert result.exit_code == 1
    states = {line.split()[0]: line.rstrip().endswith("NOT as exported") for line in result.stdout.splitlines()
              if line.rstrip().endswith("as exported")}  # fmt: skip
    assert {name for name, is_bad in states.items() if is_bad} == {"model.onnx", "model.dml.onnx"}
    assert not states["weights.safetensors"]
    for variant in ("generic-float32", "directml-float16"):
        assert f"embedllm graph {folder} --variant {variant}" in result.stderr
    result = embed("inspect", str(folder), "--check", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["faults"]["model.dml.onnx"] == missing


def test_inspect_finds_a_graph_that_reads_another_file(tiny: str, tmp_path: Path) -> None:
    """The manifest was made to agree, so that the graph itself is what does not fit."""
    folder = tmp_path / "copy"
    shutil.copytree(tiny, folder)
    graph, manifest = folder / "model.onnx", folder / "embedllm.json"
    graph.write_bytes(graph.read_bytes().replace(b"weights.safetensors", b"another.safetensors"))
    data = json.loads(manifest.read_text(encoding="utf-8"))
    data["files"]["model.onnx"]["sha256"] = sha256(graph)
    manifest.write_text(json.dumps(data), encoding="utf-8")
    assert embed("inspect", str(folder)).exit_code == 0
    result = embed("inspect", str(folder), "--check")
    assert result.exit_code == 1
    assert "problem in model.onnx: " in result.stdout
    assert "lies in 'another.safetensors', not in weights.safetensors" in result.stdout
    assert result.stderr == "error: a graph does not fit the weights file; export the folder again.\n"


def test_inspect_refuses_a_context_that_does_not_fit(tiny: str) -> None:
    result = embed("inspect", tiny, "--context", "129")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: context is 129 tokens; expected 1 to 128, what this package holds.\n",
    )


def test_tables_are_not_folded_for_a_pipe(tiny: str) -> None:
    lines = embed("inspect", tiny, env={"COLUMNS": "30"}).stdout.splitlines()
    assert max(len(line.rstrip()) for line in lines) > 80


def test_tables_have_no_spaces_at_the_ends_of_lines_for_a_pipe(tiny: str) -> None:
    assert [line for line in embed("inspect", tiny).stdout.splitlines() if line != line.rstrip()] == []


def test_the_demo_names_its_licence() -> None:
    assert json.loads(embed("inspect", "demo", "--json").stdout)["license"] == "apache-2.0"


def test_devices_are_listed_for_people_and_scripts() -> None:
    devices = json.loads(embed("devices", "--json").stdout)
    assert {"cpu", "reference"} <= {device["name"] for device in devices}
    assert all(device["available"] or device["reason"] for device in devices)
    assert "onnxruntime" in embed("devices").stdout


def test_families_are_one_a_line_with_their_models() -> None:
    from embedllm.export.architectures import families
    from embedllm.export.encoders import families as encoders

    lines = [line.split(maxsplit=1) for line in embed("families").stdout.splitlines()]
    assert [name for name, _ in lines] == [*families(), *encoders()]
    assert dict(lines)["phi3"] == "Phi-3, Phi-3.5, Phi-4, Phi-4-mini"
    found = json.loads(embed("families", "--json").stdout)
    assert [family["model_type"] for family in found] == [name for name, _ in lines]
    assert all(line[1].startswith(family["models"]) for family, line in zip(found, lines, strict=True))
    assert [family["tasks"] for family in found if family["model_type"] == "bert"] == [["embed", "rerank"]]
    assert all(family["has"] for family in found)


# --- the program


@pytest.mark.parametrize(
    ("typed", "nearest"), [("chta", "chat"), ("quantize", "export"), ("help", "--help"), ("xyzzy", "")]
)
def test_an_unknown_command_is_answered_with_the_nearest(typed: str, nearest: str) -> None:
    result = embed(typed, "demo")
    assert result.exit_code == 2
    said = f"No such command '{typed}'." + (f" The nearest is '{nearest}'." if nearest else "")
    assert result.stderr.splitlines()[-1] == f"Error: {said}"


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    assert "'--temperature'" in embed("run", "--temprature", "1", "hello").stderr


def test_a_regex_that_cannot_be_followed_is_refused_in_one_readable_line() -> None:
    said = embed("run", "--regex", "(?=a)b", "hello").stderr
    assert said == (
        "error: the regex cannot be followed: look-around, including look-ahead and look-behind, is not supported: "
        "'(?=a)b'. The syntax is that of Rust's regex crate.\n"
    )


def test_version() -> None:
    assert embed("--version").stdout == f"embedllm {embedllm.__version__}\n"


def test_help_loads_no_runtime() -> None:
    """What makes the first answer slow is imports; the command line's own are click and the standard library."""
    code = (
        "import sys\n"
        "sys.argv = ['embedllm', '--help']\n"
        "from embedllm.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print({'numpy', 'onnx', 'onnxruntime', 'tokenizers', 'rich', 'jinja2', 'huggingface_hub'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_every_option_has_a_help_text() -> None:
    def options() -> Iterator[tuple[str, click.Parameter]]:
        for name, command in cli.commands.items():
            yield from ((name, parameter) for parameter in command.params)

    missing = [(name, p.name) for name, p in options() if isinstance(p, click.Option) and not p.help]
    assert missing == []


def test_reference_page_is_current() -> None:
    """If it is not: python docs/make_reference.py --write"""
    docs = Path(__file__).parents[2] / "docs"
    page = runpy.run_path(str(docs / "make_reference.py"))["reference_page"]()
    assert (docs / "reference-cli.md").read_text(encoding="utf-8") == page

"""Models of the hub by name: the hub's own client against a server on 127.0.0.1 that breaks, lies or is not there."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub
import pytest
from click.testing import CliRunner
from huggingface_hub import constants
from onnx import helper

import embedllm
from embedllm.cli.main import cli
from embedllm.errors import DeviceUnavailable, EmbedError, HubError, PackageError, UnsupportedModel
from embedllm.export import Progress, convert
from embedllm.loading.export_cache import exports
from embedllm.loading.resolve import find_package
from embedllm.package.package import MANIFEST, WEIGHTS, open_package
from embedllm.profiling.bench.specs import against_spec, own_spec
from tests.export.checkpoints import test_packed_integers
from tests.project.test_import import environment
from tests.support.external_folders import stripped, transformers_js
from tests.support.genai_folders import pipeline
from tests.support.hub_server import Hub, Repo, go_offline, read_folder
from tests.support.tiny import tiny_checkpoint
from tests.support.traced_models import VOCABULARY
from tests.support.worker_host import Host

NAME = "org/tiny"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("source") / "checkpoint", "llama")


@pytest.fixture
def with_checkpoint(hub: Hub, checkpoint: Path) -> Hub:
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit(read_folder(checkpoint))
    return hub


@pytest.fixture
def with_package(hub: Hub, tiny_package: Callable[..., Path]) -> Hub:
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit(read_folder(tiny_package("llama")))
    return hub


def refusal(name: str = NAME, **options: object) -> str:
    with pytest.raises(HubError) as caught:
        find_package(name, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- what is downloaded


def test_a_package_is_downloaded_as_its_manifest_lists_it_and_runs(
    with_package: Hub, tiny_package: Callable[..., Path]
) -> None:
    folder = tiny_package("llama")
    files = read_folder(folder)
    with_package.repos[NAME].commit({**files, "other.gguf": b"large", "onnx/model.onnx": b"large", "notes.md": b""})
    with embedllm.load(folder, device="cpu") as near, embedllm.load(NAME, device="cpu") as model:
        assert model.generate("hello", max_tokens=4).tokens == near.generate("hello", max_tokens=4).tokens
    assert read_folder(find_package(NAME)).keys() == files.keys() == {MANIFEST, *open_package(folder).files}
    assert exports() == []


def test_what_is_in_the_cache_is_not_downloaded_again(with_package: Hub) -> None:
    first = find_package(NAME)
    with_package.sent.clear()
    with_package.asked.clear()
    assert find_package(NAME) == first
    assert with_package.downloaded() == set()
    assert with_package.asked == [f"GET /api/models/{NAME}"]


def test_a_checkpoint_is_exported_once_from_what_it_takes(
    with_checkpoint: Hub, checkpoint: Path, tmp_path: Path
) -> None:
    others = {"model.fp16.safetensors": b"x", "pytorch_model.bin": b"x", "tiny-Q4_0.gguf": b"x", "onnx/a.onnx": b"x"}
    commit = with_checkpoint.repos[NAME].commit({**read_folder(checkpoint), **others})
    folder = find_package(NAME)
    assert with_checkpoint.downloaded() == read_folder(checkpoint).keys()
    manifest = json.loads((folder / MANIFEST).read_text())
    assert (manifest["name"], manifest["source"], manifest["revision"]) == ("tiny", NAME, commit)
    assert (folder / WEIGHTS).read_bytes() == (convert(checkpoint, tmp_path / "near") / WEIGHTS).read_bytes()
    assert find_package(NAME) == folder
    assert [one.folder for one in exports()] == [folder]


def test_shards_are_downloaded_as_the_index_names_them(hub: Hub, checkpoint: Path) -> None:
    files = read_folder(checkpoint)
    shard = files.pop("model.safetensors")
    header = json.loads(shard[8 : 8 + int.from_bytes(shard[:8], "little")])
    names = [name for name in header if name != "__metadata__"]
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    files |= {"model-00001-of-00001.safetensors": shard, "model.safetensors.index.json": json.dumps(index).encode()}
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit({**files, "consolidated.safetensors": b"x"})
    find_package(NAME)
    assert hub.downloaded() == files.keys()


def test_a_quantized_checkpoint_is_carried_over(hub: Hub, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    test_packed_integers.checkpoint(packed, test_packed_integers.gptq())
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit(read_folder(packed))
    assert (find_package(NAME) / WEIGHTS).read_bytes() == (convert(packed, tmp_path / "near") / WEIGHTS).read_bytes()


def test_loads_at_once_export_once(with_checkpoint: Hub) -> None:
    together = threading.Barrier(3)

    def load(_: int) -> Path:
        together.wait()
        return find_package(NAME)

    with ThreadPoolExecutor(3) as threads:
        found = set(threads.map(load, range(3)))
    assert {one.folder for one in exports()} == found
    assert len(found) == 1
    open_package(found.pop()).check()


def test_a_model_that_cannot_be_exported_is_refused_before_its_weights_are_downloaded(
    with_checkpoint: Hub, checkpoint: Path
) -> None:
    with_checkpoint.repos[NAME].commit({**read_folder(checkpoint), "config.json": b'{"model_type": "unheard-of"}'})
    with pytest.raises(UnsupportedModel, match="unheard-of"):
        find_package(NAME)
    assert "model.safetensors" not in with_checkpoint.downloaded()
    assert exports() == []


def test_progress_is_told_of_every_byte(with_checkpoint: Hub) -> None:
    told: list[Progress] = []
    find_package(NAME, on_progress=told.append)
    stages = list(dict.fromkeys(report.stage for report in told))
    assert stages == ["download", "inputs", "weights", "graphs"]
    downloads = [report for report in told if report.stage == "download"]
    size = len(with_checkpoint.repos[NAME].commits.popitem()[1]["model.safetensors"])
    assert [report.done for report in downloads] == sorted(report.done for report in downloads)
    assert (downloads[-1].done, downloads[-1].total) == (size, size)


def test_a_gguf_is_exported_once_with_all_its_parts(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from tests.support.gguf_files import write_gguf

    file = write_gguf(tmp_path / "tiny-F32-00001-of-00001.gguf", checkpoint)
    hub.repos[NAME] = Repo()
    commit = hub.repos[NAME].commit(
        {"tiny-F32-00001-of-00001.gguf": file.read_bytes(), "tiny-Q8_0.gguf": b"x", "README.md": b"x"}
    )
    assert "'org/tiny:tiny-F32-00001-of-00001.gguf' (0.00 GB), 'org/tiny:tiny-Q8_0.gguf'" in refusal()
    folder = find_package(f"{NAME}:*F32*")
    assert folder.name == "tiny-F32"
    assert hub.downloaded() == {"tiny-F32-00001-of-00001.gguf"}
    assert (folder / WEIGHTS).read_bytes() == (convert(file, tmp_path / "near") / WEIGHTS).read_bytes()
    assert find_package(f"{NAME}:*F32*") == folder == find_package(f"{NAME}:*F32*", local_files_only=True)
    assert [(one.folder, one.source, one.revision) for one in exports()] == [(folder, NAME, commit)]


@pytest.mark.parametrize("name", ["model.safetensors", "tiny.gguf"])
def test_the_command_exports_what_was_compared_with_the_hubs_hashes(
    name: str, hub: Hub, checkpoint: Path, tmp_path: Path
) -> None:
    files = read_folder(checkpoint)
    if name == "tiny.gguf":
        pytest.importorskip("gguf")
        from tests.support.gguf_files import write_gguf

        files = {name: write_gguf(tmp_path / name, checkpoint).read_bytes()}
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit(files)
    out, command = tmp_path / "out", ["export", NAME, str(tmp_path / "out"), "--quiet"]
    hub.wrong.add(name)
    failed = CliRunner().invoke(cli, command)
    assert (failed.exit_code, failed.stdout, out.exists()) == (1, "", False)
    assert f"'{name}' of '{NAME}' came damaged" in failed.stderr
    hub.wrong.clear()
    assert CliRunner().invoke(cli, command).exit_code == 0
    open_package(out).check()
    hub.asked.clear()
    assert "exists already" in CliRunner().invoke(cli, command).stderr
    assert hub.asked == []


def test_the_command_does_not_export_what_is_a_package_already(with_package: Hub, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["export", NAME, str(tmp_path / "out")])
    assert f"'{NAME}' is exported already; load('{NAME}') and --model {NAME} take it as it is." in done.stderr
    assert with_package.downloaded() == set()


def test_a_graph_of_others_is_downloaded_with_its_texts_and_the_file_of_its_weights(hub: Hub, tmp_path: Path) -> None:
    folder = transformers_js(tmp_path / "js", "model.onnx", "model_q4.onnx", beside=True)
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit({**read_folder(folder), "onnx/model_q4f16.onnx_data": b"x", "README.md": b"x"})
    assert f"'{NAME}:onnx/model.onnx'" in refusal()
    with embedllm.load(folder, device="cpu") as near, embedllm.load(f"{NAME}:*_q4.onnx", device="cpu") as model:
        assert model.generate([5, 6], max_tokens=4).tokens == near.generate([5, 6], max_tokens=4).tokens
    found = find_package(f"{NAME}:*_q4.onnx")
    assert found == find_package(f"{NAME}:*_q4.onnx", local_files_only=True)
    texts = {path.name for path in folder.iterdir() if path.is_file()}
    assert read_folder(found.parents[1]).keys() == {*texts, "onnx/model_q4.onnx", "onnx/model.onnx_data"}


def test_a_folder_of_onnxruntime_genai_is_downloaded_and_runs(
    hub: Hub, tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    files = read_folder(stripped(tiny_package("llama"), tmp_path / "genai"))
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit({f"cpu/{name}": data for name, data in files.items()} | {"cpu/model.safetensors": b"x"})
    with embedllm.load(tiny_package("llama"), device="cpu") as near, embedllm.load(NAME, device="cpu") as model:
        assert model.generate([5, 6], max_tokens=4).tokens == near.generate([5, 6], max_tokens=4).tokens
    assert not hub.downloaded() & {"cpu/model.safetensors", "cpu/model.fp32.onnx"}


def test_a_folder_of_several_graphs_is_downloaded_whole(hub: Hub, tmp_path: Path) -> None:
    folder = pipeline(tmp_path / "genai")
    node = helper.make_node("EPContext", ["y"], ["logits"], domain="com.microsoft")
    compiled = helper.make_model(helper.make_graph([node], "compiled", [], []))
    (folder / "lm_head.onnx").write_bytes(compiled.SerializeToString())
    files = {**read_folder(folder), "qnn.bin": b"code of a device"}
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit({f"npu/{name}": data for name, data in files.items()} | {"npu/old/qnn.bin": b"x"})
    found = find_package(NAME)
    assert read_folder(found) == files
    assert hub.downloaded() == {f"npu/{name}" for name in files}
    assert open_package(found).external_graph.vocabulary == VOCABULARY


def test_a_folder_that_is_not_run_is_refused_before_its_graphs_are_downloaded(hub: Hub) -> None:
    config = json.dumps({"model": {"decoder": {"filename": "a.onnx"}, "encoder": {"filename": "b.onnx"}}}).encode()
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit({"genai_config.json": config, "a.onnx": b"x", "b.onnx": b"x"})
    with pytest.raises(PackageError, match="has the section 'encoder'"):
        find_package(NAME)
    assert hub.downloaded() == {"genai_config.json"}


def test_an_openvino_model_is_downloaded_without_its_tokenizer(hub: Hub) -> None:
    wanted = {"config.json": b"{}", "tokenizer.json": b"{}", "openvino_model.xml": b"<net/>", "openvino_model.bin": b""}
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit({**wanted, "openvino_tokenizer.xml": b"x", "openvino_tokenizer.bin": b"x"})
    assert read_folder(find_package(NAME)) == wanted
    assert CliRunner().invoke(cli, ["export", NAME, "out"]).stderr.startswith(f"error: '{NAME}' is exported already")


# --- revisions and patterns


def test_a_revision_is_a_branch_a_tag_or_a_commit(with_package: Hub, tiny_package: Callable[..., Path]) -> None:
    main, other = find_package(NAME), read_folder(tiny_package("qwen3"))
    commit = with_package.repos[NAME].commit(other, branch="v2")
    by_branch = find_package(NAME, revision="v2")
    assert by_branch == find_package(NAME, revision=commit) != main
    assert (by_branch / WEIGHTS).read_bytes() == other[WEIGHTS]
    assert refusal(revision="v3") == f"'{NAME}' has no revision 'v3'; expected a branch, a tag or a commit."


def test_a_branch_that_went_on_is_followed(with_checkpoint: Hub, tmp_path: Path) -> None:
    before = find_package(NAME)
    with_checkpoint.repos[NAME].commit(read_folder(tiny_checkpoint(tmp_path / "other", "qwen3")))
    after = find_package(NAME)
    assert after != before
    assert {one.folder for one in exports()} == {before, after}


def test_a_pattern_names_one_of_several_packages(hub: Hub, tiny_package: Callable[..., Path]) -> None:
    files = read_folder(tiny_package("llama"))
    hub.repos[NAME] = Repo()
    hub.repos[NAME].commit({f"{bits}/{name}": data for bits in ("int4", "int8") for name, data in files.items()})
    assert f"has 2 packages; name one: '{NAME}:int4' (0.00 GB), '{NAME}:int8' (0.00 GB)." in refusal()
    folder = find_package(f"{NAME}:int8")
    assert folder.name == "int8"
    assert {name.partition("/")[0] for name in hub.downloaded()} == {"int8"}
    open_package(folder).check()


def test_a_package_of_which_files_are_missing_is_refused_before_its_weights_are_downloaded(with_package: Hub) -> None:
    files = dict(with_package.repos[NAME].commits.popitem()[1])
    del files["tokenizer.json"]
    with_package.repos[NAME].commit(files)
    assert f"'{NAME}' has no file 'tokenizer.json' in commit " in refusal()
    with_package.repos[NAME].commit({**files, "tokenizer.json": b"{}"})
    assert "has 2 bytes; the manifest beside it says" in refusal()
    assert with_package.downloaded() == {MANIFEST}


# --- paths


def test_a_folder_that_is_there_goes_before_the_hub(
    hub: Hub, tiny_package: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_package("llama"), tmp_path / NAME)
    monkeypatch.chdir(tmp_path)
    assert find_package(NAME) == Path(NAME)
    assert find_package(Path("org/none")) == Path("org/none")  # a Path is no name of the hub
    assert hub.asked == []
    with pytest.raises(ValueError, match=r"revision is 'main' and 'org/tiny' no model of the hub"):
        find_package(NAME, revision="main")


def test_what_is_neither_a_folder_nor_a_repository_is_told_as_both(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "tinny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    message = refusal()
    assert f"neither a folder '{NAME}' here ('org' has: tinny) nor a repository of that name on {hub.url}" in message
    assert "pass token=" in message


# --- rights


@pytest.mark.parametrize("is_gated", [False, True])
def test_a_private_or_gated_repository_takes_a_token_which_no_error_tells(with_package: Hub, is_gated: bool) -> None:
    repo = with_package.repos[NAME]
    repo.token, repo.is_gated = "hf_right", is_gated
    for token in (None, "hf_wrong"):
        message = refusal(token=token)
        assert "log in (hf auth login) or pass token=" in message
        assert ("is gated" in message) == is_gated
        assert "hf_" not in message
    open_package(find_package(NAME, token="hf_right")).check()


# --- what goes wrong


def test_a_connection_that_breaks_is_taken_up_where_it_broke_off(
    with_package: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what is written at once
    with_package.breaks[WEIGHTS] = [5000]
    if int(huggingface_hub.__version__.split(".")[0]) == 0:  # such a client leaves that to the next load
        assert "Connection broken" in refusal()
    folder = find_package(NAME)
    assert with_package.ranges == [f"{WEIGHTS} 5000"]
    assert with_package.sent[WEIGHTS] == (folder / WEIGHTS).stat().st_size
    open_package(folder).check()


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_file_with_another_hash_is_refused_and_not_kept(with_package: Hub, name: str) -> None:
    with_package.wrong.add(name)
    assert f"'{name}' of '{NAME}' came damaged: its hash is " in refusal()
    with_package.wrong.clear()
    with_package.sent.clear()
    open_package(find_package(NAME)).check()
    assert with_package.downloaded() == {name}  # the others are there


def test_what_a_process_that_ended_had_not_checked_yet_is_checked_by_the_next(
    with_package: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(path: Path, *_: object) -> None:
        if path.name == WEIGHTS:
            raise KeyboardInterrupt

    with_package.wrong.add(WEIGHTS)
    with monkeypatch.context() as ending:
        ending.setattr("embedllm.hub.repository._check_file", end)
        with pytest.raises(KeyboardInterrupt):
            find_package(NAME)
    with_package.wrong.clear()
    assert f"'{WEIGHTS}' of '{NAME}' came damaged" in refusal()
    open_package(find_package(NAME)).check()
    assert list((tmp_path / "cache" / "unchecked").iterdir()) == []


def test_what_a_function_for_progress_raises_ends_the_download(with_package: Hub) -> None:
    class Enough(Exception):
        pass

    def stop(report: Progress) -> None:
        raise Enough(report.stage)

    with pytest.raises(Enough, match="download"):
        find_package(NAME, on_progress=stop)
    open_package(find_package(NAME)).check()


def test_a_checkpoint_with_another_hash_is_not_exported(with_checkpoint: Hub) -> None:
    with_checkpoint.wrong.add("model.safetensors")
    assert "came damaged" in refusal()
    assert exports() == []
    with_checkpoint.wrong.clear()
    open_package(find_package(NAME)).check()


@pytest.mark.parametrize("kind", ["with_package", "with_checkpoint"])
def test_too_little_space_is_refused_before_weights_are_downloaded(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub: Hub = request.getfixturevalue(kind)
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=(64 << 20) + 60_000))
    message = refusal()
    needed = re.search(f"'{NAME}' needs ([\\d,]+) bytes", message)
    assert needed is not None
    assert int(needed[1].replace(",", "")) > (64 << 20) + 60_000
    assert f"; {(64 << 20) + 60_000:,} are free" in message
    assert not hub.downloaded() & {WEIGHTS, "model.safetensors"}


@pytest.mark.parametrize("kind", ["with_package", "with_checkpoint"])
def test_too_little_memory_is_refused_before_weights_are_downloaded(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub: Hub = request.getfixturevalue(kind)
    monkeypatch.setattr("embedllm.loading.memory_estimate.free_bytes", lambda: 1000)
    with pytest.raises(DeviceUnavailable, match="was not downloaded, no device here has the memory") as caught:
        find_package(NAME)
    assert "cpu" in {device for device, _, _ in caught.value.tried}
    assert "0 MiB are free" in str(caught.value)
    assert not hub.downloaded() & {WEIGHTS, "model.safetensors"}


def test_a_client_that_is_not_installed_is_told_with_the_line_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert refusal().endswith("pip install huggingface-hub")


# --- offline


@pytest.mark.parametrize("kind", ["with_package", "with_checkpoint"])
@pytest.mark.parametrize("how", ["asked for", "by the environment", "the hub is down", "no connection"])
def test_without_the_hub_what_is_in_the_caches_is_taken(
    kind: str, how: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    hub: Hub = request.getfixturevalue(kind)
    folder = find_package(NAME)
    hub.asked.clear()
    caplog.set_level(logging.INFO, "embedllm")
    if how == "by the environment":
        go_offline(monkeypatch)
    hub.is_down = how == "the hub is down"
    if how == "no connection":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # discard: nobody listens
    assert find_package(NAME, local_files_only=how == "asked for") == folder
    assert bool(hub.asked) == (how == "the hub is down")
    assert (f"'{NAME}' is taken from the cache" in caplog.text) == (how != "asked for")


def test_without_the_hub_and_a_cache_there_is_nothing(with_package: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        f"there is no folder '{NAME}' here, the hub's model of that name at 'v1' is not in the cache, and nothing is "
    )
    assert refusal(local_files_only=True, revision="v1").startswith(said)
    go_offline(monkeypatch)
    assert "cannot be downloaded from" in refusal()
    assert with_package.asked == []


def test_without_the_hub_what_is_not_whole_in_the_cache_is_refused(with_package: Hub) -> None:
    folder = find_package(NAME)
    (folder / WEIGHTS).unlink()
    assert f"has no file '{WEIGHTS}'" in (message := refusal(local_files_only=True))
    assert "the hub was not reached" in message


# --- in a process of its own


@pytest.mark.slow
def test_the_command_line_runs_a_model_of_the_hub(with_package: Hub, tmp_path: Path) -> None:
    home = {**environment(tmp_path), "HF_ENDPOINT": with_package.url, "HF_HOME": str(tmp_path / "home")}
    home |= {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "EMBEDLLM_DEVICE": "cpu", "ORT_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-m", "embedllm", "run", "--model", NAME, "--raw", "--max-tokens", "2", "--json", "hi"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], env=home, check=True)
    assert len(json.loads(done.stdout)["tokens"]) == 2
    command[command.index(NAME)] = "org/none"
    failed = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], env=home)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("error: there is neither a folder 'org/none' here")


@pytest.mark.slow
def test_the_worker_loads_a_model_of_the_hub(
    with_package: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", with_package.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with Host() as host:
        assert host.ask("load", 1, model=NAME, device="cpu")["device"]["name"] == "cpu"
        assert host.told("progress", 1)[0]["text"] == f"loading '{NAME}'"
        host.send("load", 2, model="org/none")
        assert "there is neither a folder 'org/none' here" in host.answer(2)["error"]["message"]
        assert host.ask("generate", 3, prompt="hi", max_tokens=2)["tokens"] == 2  # the model before is still there


def test_what_measures_a_model_takes_one_of_the_hub(with_package: Hub, tmp_path: Path) -> None:
    own = own_spec(NAME, "cpu")
    assert own.path == str(find_package(NAME))
    assert against_spec(f"{NAME}@openvino", own).device == "openvino"
    text = tmp_path / "text.txt"
    text.write_text("some words and " * 40)
    command = ["eval", NAME, "--text", str(text), "--tokens", "32", "--window", "16", "--device", "cpu", "--json", "-"]
    done = CliRunner().invoke(cli, command)
    assert (done.exit_code, json.loads(done.stdout)["models"][0]["model"]) == (0, NAME)
    assert embedllm.tune(NAME, devices="cpu", seconds=0.01).device == "cpu"
    assert embedllm.forget_tuning(NAME) == 1


@pytest.mark.parametrize("command", ["inspect", "fit"])
def test_commands_that_only_look_take_what_is_in_the_cache(command: str, with_package: Hub) -> None:
    failed = CliRunner().invoke(cli, [command, NAME])
    assert (failed.exit_code, with_package.asked) == (1, [])
    assert "is not in the cache, and nothing is downloaded here. Download it first: embedllm pull" in failed.stderr
    find_package(NAME)
    with_package.asked.clear()
    assert CliRunner().invoke(cli, [command, NAME, "--json"]).exit_code == 0
    assert with_package.asked == []


def test_every_error_of_the_hub_is_one_of_the_library() -> None:
    assert issubclass(embedllm.HubError, EmbedError)

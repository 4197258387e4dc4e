"""embedllm.loading.hub_cache and `embedllm models`: what is kept of the hub's models is listed, and removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from huggingface_hub import constants

from embedllm.cli.main import cli
from embedllm.errors import HubError
from embedllm.loading.hub_cache import kept_models, remove_models
from embedllm.loading.resolve import find_package
from tests.support.hub_server import Hub, Repo, read_folder, serving, use
from tests.support.tiny import tiny_checkpoint


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


@pytest.fixture
def hub(server: Hub, tiny_package: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """With a package, the same package again, and a checkpoint; of each something is kept."""
    use(server, tmp_path, monkeypatch)
    package = read_folder(tiny_package("llama"))
    files = {
        "org/package": package,
        "org/same": package,
        "org/tiny": read_folder(tiny_checkpoint(tmp_path / "t", "llama")),
    }
    server.repos = {name: Repo() for name in files}
    for name, content in files.items():
        server.repos[name].commit(content)
        find_package(name)
    return server


def names() -> list[tuple[str, str]]:
    return [(one.name, one.kind) for one in kept_models()]


def test_what_is_kept_is_listed_with_its_size(hub: Hub) -> None:
    assert names() == [("org/package", "package"), ("org/same", "package"), ("org/tiny", "checkpoint"),
                       ("org/tiny", "export")]  # fmt: skip
    for one in kept_models():
        assert one.commits == (hub.repos[one.name].refs["main"],)
        files = {path.resolve() for path in Path(one.folder).rglob("*") if path.is_file()}
        weights = sum(path.stat().st_size for path in files if path.stat().st_size > 10_000)
        assert weights <= one.bytes <= sum(path.stat().st_size for path in files)
        assert abs(one.used - Path(one.folder).stat().st_mtime) < 3600


def test_a_model_is_removed_and_no_other_of_the_same_commit(hub: Hub) -> None:
    kept = {one.name: one.bytes for one in kept_models()}
    assert remove_models("org/same") == kept["org/same"]
    assert [name for name, _ in names()] == ["org/package", "org/tiny", "org/tiny"]
    remove_models("org/package")
    remove_models("org/tiny")
    assert names() == []
    hub.sent.clear()
    find_package("org/tiny")
    assert "model.safetensors" in hub.downloaded()


def test_an_export_is_removed_alone(hub: Hub) -> None:
    remove_models("org/tiny", downloads=False)
    assert ("org/tiny", "checkpoint") in names()
    assert ("org/tiny", "export") not in names()
    hub.sent.clear()
    find_package("org/tiny")
    assert hub.downloaded() == set()


def test_what_is_not_kept_cannot_be_removed(hub: Hub) -> None:
    with pytest.raises(HubError, match=r"of 'org/tinny' nothing is kept .* Near it are: org/tiny\."):
        remove_models("org/tinny")
    with pytest.raises(HubError, match="of 'org/package' nothing is kept"):
        remove_models("org/package", downloads=False)
    assert len(names()) == 4


def test_without_caches_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Hub(url="http://127.0.0.1:9"), tmp_path, monkeypatch)
    assert kept_models() == []
    done = CliRunner().invoke(cli, ["models"])
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no cached models\n")
    assert list(tmp_path.iterdir()) == []


def test_the_command_lists_and_removes(hub: Hub) -> None:
    listed = CliRunner().invoke(cli, ["models"])
    lines = [line.split() for line in listed.stdout.splitlines()]
    assert [line[:2] for line in lines if line[0].startswith("org/")] == [list(one) for one in names()]
    assert "GB in total" in listed.stderr
    as_json = json.loads(CliRunner().invoke(cli, ["models", "--json"]).stdout)
    assert [(one["name"], one["kind"]) for one in as_json] == names()
    removed = CliRunner().invoke(cli, ["models", "--remove", "org/tiny", "--remove", "org/same"])
    assert [line.partition(":")[0] for line in removed.stderr.splitlines()] == [
        "removed 'org/tiny'",
        "removed 'org/same'",
    ]
    assert names() == [("org/package", "package")]
    failed = CliRunner().invoke(cli, ["models", "--remove", "org/none"])
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert CliRunner().invoke(cli, ["models", "--keep-downloads"]).exit_code == 2


def test_the_cache_is_the_clients_own(hub: Hub) -> None:
    folders = {Path(one.folder).parent for one in kept_models() if one.kind != "export"}
    assert folders == {Path(constants.HF_HUB_CACHE)}

"""Weights in parts in a browser: one stored file, whatever part of it a server spoils."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from embedllm.export import sharding
from embedllm.package.package import MANIFEST, WEIGHTS, read_package
from tests.web.support.browser import Browser
from tests.web.support.calls import BrowserError, awaited
from tests.web.support.page import Context, Page
from tests.web.support.server import Fault, WebServer
from tests.web.test_store import LIBRARIES, LIST, LOAD, STORED, digest, ranges, refused, until_stored, write_model
from tests.web.test_store import WEIGHTS as DATA

pytestmark = pytest.mark.browser

CUTS = (0, 300_000, 600_000, 700_001)  # bytes where the parts of DATA begin and end
PARTS = [f"/models/hosted/{WEIGHTS}.{i}-of-3" for i in (1, 2, 3)]
ONCE = [[None], [None], [None]]  # how often each was asked for: from its start


def sharded_copy(folder: Path) -> None:
    """Cuts the weights of a folder of write_model()."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    listed = []
    for path, start, end in zip(PARTS, CUTS, CUTS[1:], strict=False):
        name = path.rpartition("/")[2]
        (folder / name).write_bytes(DATA[start:end])
        listed.append({"file": name, "bytes": end - start, "sha256": digest(DATA[start:end])})
    (folder / WEIGHTS).unlink()
    (folder / MANIFEST).write_text(json.dumps({**manifest, "features": ["shards"], "shards": {WEIGHTS: listed}}))


@pytest.fixture
def url(web_server: WebServer, tmp_path: Path) -> str:
    """The address of a sharded web copy."""
    write_model(tmp_path / "hosted")
    sharded_copy(tmp_path / "hosted")
    return web_server.serve("/models/hosted", tmp_path / "hosted")


@pytest.fixture
def whole(web_server: WebServer, tmp_path: Path) -> str:
    """The address of the folder that it was made of."""
    write_model(tmp_path / "tiny")
    return web_server.serve("/models/tiny", tmp_path / "tiny")


@pytest.fixture
def context(browser: Browser) -> Iterator[Context]:
    context = browser.context()
    yield context
    context.close()


@pytest.fixture
def page(context: Context, web_server: WebServer) -> Page:
    return context.page(web_server.url + "/tests/blank.html")


def asked(server: WebServer) -> list[list[str | None]]:
    """The ranges that each part was asked for."""
    return [ranges(server, path) for path in PARTS]


def held(page: Page, server: WebServer, url: str, path: str = PARTS[1], **of_fault: Any) -> Future[Any]:  # noqa: ANN401
    """A load that has come to 100,000 bytes of the second part and waits there."""
    server.fault(path, Fault(hold_after=100_000, times=1, **of_fault))
    loading = page.start_in_worker(LOAD, url)
    until_stored(page, digest(DATA) + ".part", 400_000)
    return loading


def test_parts_become_one_stored_file_which_is_the_whole_one(
    web_server: WebServer, page: Page, url: str, whole: str
) -> None:
    result = page.in_worker(LOAD, url)
    assert result["sha256"] == digest(DATA)
    assert asked(web_server) == ONCE
    steps = [step for step in result["progress"] if step["file"] == WEIGHTS]
    assert {step["total"] for step in steps} == {700_001}
    assert [step["loaded"] for step in steps] == sorted(step["loaded"] for step in steps)
    assert steps[-1]["loaded"] == 700_001
    stored = page.in_worker(STORED)
    assert (stored[digest(DATA)], [name for name in stored if name.endswith(".part")]) == (700_001, [])
    listed = page.in_worker(LIST)[0]
    assert listed["bytes"] == sum(stored.values())
    assert {"name": WEIGHTS, "bytes": 700_001, "stored": True} in listed["files"]
    assert not any("-of-3" in file["name"] for file in listed["files"])
    assert page.in_worker(LOAD, whole)["sha256"] == digest(DATA)
    assert ranges(web_server, f"/models/tiny/{WEIGHTS}") == []
    page.in_worker(LIBRARIES + "await store.remove(argument)", whole)
    page.in_worker(LOAD, url)
    assert asked(web_server) == ONCE


def test_a_stored_whole_file_needs_no_parts(web_server: WebServer, page: Page, url: str, whole: str) -> None:
    page.in_worker(LOAD, whole)
    assert page.in_worker(LOAD, url)["sha256"] == digest(DATA)
    assert asked(web_server) == [[], [], []]


def test_a_folder_that_embedllm_cut_is_the_same_model(
    web_server: WebServer, page: Page, tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    package = tiny_package("llama")
    hosted = sharding.shard(package, tmp_path / "cut", 24_000)
    assert read_package(hosted).shards.keys() == {WEIGHTS, "openvino_model.xml"}  # a graph too
    result = page.in_worker(LOAD, web_server.serve("/models/cut", hosted))
    assert result["sha256"] == digest((package / WEIGHTS).read_bytes())
    graph = page.in_worker("return (await opened.file('openvino_model.xml')).text()")
    assert graph == (package / "openvino_model.xml").read_text(encoding="utf-8")


def test_a_text_in_parts_is_read_like_any_other(page: Page, url: str, tmp_path: Path) -> None:
    place = tmp_path / "hosted"
    manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    halves = {"tokenizer.json.1-of-2": b'{"version"', "tokenizer.json.2-of-2": b': "1.0"}'}
    for name, data in halves.items():
        (place / name).write_bytes(data)
    manifest["shards"]["tokenizer.json"] = [
        {"file": name, "bytes": len(data), "sha256": digest(data)} for name, data in halves.items()
    ]
    (place / "tokenizer.json").unlink()
    (place / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    result = page.in_worker(LOAD, url)
    assert (result["texts"]["tokenizer.json"], result["sha256"]) == ('{"version": "1.0"}', digest(DATA))
    assert result["texts"].keys() == {MANIFEST, "tokenizer.json", "more words/chat template.jinja"}


def test_a_cut_connection_goes_on_within_its_part(web_server: WebServer, page: Page, url: str) -> None:
    loading = held(page, web_server, url, cut_after=100_000)
    web_server.release(PARTS[1])
    assert awaited(loading, "the load")["sha256"] == digest(DATA)
    assert asked(web_server) == [[None], [None, "bytes=100000-"], [None]]


def test_parts_that_came_are_kept_for_the_next_time(web_server: WebServer, page: Page, url: str) -> None:
    web_server.fault(PARTS[1], Fault(cut_after=0))
    message = refused(page, url)
    assert "300000 of 700001 bytes are here" in message
    assert f"from {web_server.url}{PARTS[1]} (" in message
    web_server.fault(PARTS[1], None)
    web_server.forget()
    assert page.in_worker(LOAD, url)["sha256"] == digest(DATA)
    assert asked(web_server) == [[], [None], [None]]


def test_a_tab_closed_in_a_later_part_leaves_all_that_came(
    web_server: WebServer, context: Context, page: Page, url: str
) -> None:
    loading = held(page, web_server, url)
    page.close()
    with pytest.raises(BrowserError):
        awaited(loading, "the load of a page that was closed")
    result = context.page(web_server.url + "/tests/blank.html").in_worker(LOAD, url)
    assert result["sha256"] == digest(DATA)
    assert "check" in {step["phase"] for step in result["progress"]}
    assert asked(web_server) == [[None], [None, "bytes=100000-"], [None]]


def test_the_beginning_of_a_whole_file_goes_on_in_parts(
    web_server: WebServer, page: Page, url: str, whole: str
) -> None:
    path = f"/models/tiny/{WEIGHTS}"
    web_server.fault(path, Fault(hold_after=400_000, cut_after=400_000, times=1))
    loading = page.start_in_worker(LOAD, whole)
    until_stored(page, digest(DATA) + ".part", 400_000)
    web_server.fault(path, Fault(status=404), keep_held=True)
    web_server.release(path)
    with pytest.raises(BrowserError, match="answered with status 404"):
        awaited(loading, "the load")
    assert page.in_worker(LOAD, url)["sha256"] == digest(DATA)
    assert asked(web_server) == [[], ["bytes=100000-"], [None]]


def test_a_server_without_ranges_sends_one_part_again(web_server: WebServer, page: Page, url: str) -> None:
    loading = held(page, web_server, url, cut_after=100_000)
    web_server.fault(PARTS[1], Fault(no_ranges=True), keep_held=True)
    web_server.release(PARTS[1])
    assert awaited(loading, "the load")["sha256"] == digest(DATA)
    assert asked(web_server) == [[None], [None, "bytes=100000-"], [None]]
    assert [request.status for request in web_server.requests(PARTS[1])] == [200, 200]


@pytest.mark.parametrize("spoilt", [0, 1, 2])
@pytest.mark.parametrize("is_disk", [True, False])
def test_a_damaged_part_is_fetched_again_alone(
    web_server: WebServer, page: Page, url: str, spoilt: int, is_disk: bool
) -> None:
    if not is_disk:
        page.in_worker("StorageManager.prototype.getDirectory = async () => { throw new Error('a private window') }")
    web_server.fault(PARTS[spoilt], Fault(flip=1234, times=1))
    assert page.in_worker(LOAD, url)["sha256"] == digest(DATA)
    assert asked(web_server) == [[None] * (2 if index == spoilt else 1) for index in range(3)]


def test_a_part_that_stays_damaged_is_refused_and_those_before_it_are_kept(
    web_server: WebServer, page: Page, url: str
) -> None:
    web_server.fault(PARTS[1], Fault(flip=1234))
    message = refused(page, url)
    assert f"'{WEIGHTS}' is damaged, downloaded twice from {web_server.url}{PARTS[1]}: its sha256 is " in message
    assert f"the manifest says {digest(DATA[300_000:600_000])}" in message
    stored = page.in_worker(STORED)
    assert (digest(DATA) in stored, stored[digest(DATA) + ".part"]) == (False, 300_000)
    web_server.fault(PARTS[1], None)
    web_server.forget()
    assert page.in_worker(LOAD, url)["sha256"] == digest(DATA)
    assert asked(web_server) == [[], [None], [None]]


@pytest.mark.parametrize("size", [299_999, 300_001])
def test_a_part_of_another_size_is_refused(page: Page, url: str, tmp_path: Path, size: int) -> None:
    (tmp_path / "hosted" / f"{WEIGHTS}.2-of-3").write_bytes((DATA[300_000:] + DATA)[:size])
    assert f"{'shorter' if size < 300_000 else 'longer'} than the 300000 bytes" in refused(page, url)


def test_what_was_spoilt_on_the_disk_is_found_and_fetched_again(web_server: WebServer, page: Page, url: str) -> None:
    web_server.fault(PARTS[2], Fault(cut_after=0))
    refused(page, url)
    root = "(await (await navigator.storage.getDirectory()).getDirectoryHandle('embedllm'))"
    spoil = f"""const file = await (await {root}.getDirectoryHandle('files')).getFileHandle(argument);
                const access = await file.createSyncAccessHandle();
                access.write(new Uint8Array(10), {{at: 400_000}});
                access.close();"""
    page.in_worker(spoil, digest(DATA) + ".part")
    web_server.fault(PARTS[2], None)
    web_server.forget()
    assert page.in_worker(LOAD, url)["sha256"] == digest(DATA)
    assert asked(web_server) == [[], [None], [None]]


def test_parts_that_make_another_file_are_refused_and_not_kept(page: Page, url: str, tmp_path: Path) -> None:
    place = tmp_path / "hosted" / MANIFEST
    manifest = json.loads(place.read_text(encoding="utf-8"))
    manifest["files"][WEIGHTS]["sha256"] = "0" * 64
    place.write_text(json.dumps(manifest), encoding="utf-8")
    message = refused(page, url)
    assert f"are as the manifest says, but not the file that they make: its sha256 is {digest(DATA)}, the" in message
    assert page.in_worker(STORED)["0" * 64 + ".part"] == 0
    assert "0" * 64 not in page.in_worker(STORED)


def test_room_is_needed_once(web_server: WebServer, page: Page, url: str) -> None:
    page.in_worker("StorageManager.prototype.estimate = async () => ({quota: 900_000, usage: 400_000})")
    with pytest.raises(BrowserError, match=r"no room for .*'weights\.safetensors'") as raised:
        page.in_worker(LOAD, url)
    assert 700_001 <= raised.value.fields["needed"] < 700_200
    assert asked(web_server) == [[], [], []]


def test_a_part_that_is_not_there_is_named(web_server: WebServer, page: Page, url: str) -> None:
    web_server.fault(PARTS[2], Fault(status=404))
    assert f"cannot download '{WEIGHTS}': {web_server.url}{PARTS[2]} answered with status 404" in refused(page, url)

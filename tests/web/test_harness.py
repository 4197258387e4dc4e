"""The browser tests' own means: the server's faults and ranges, and a Chromium that cannot leave the machine."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.support.browser import Browser
from tests.web.support.calls import BrowserError
from tests.web.support.page import Context
from tests.web.support.server import Fault, WebServer

DATA = bytes(range(256)) * 1000


@pytest.fixture
def file(web_server: WebServer, tmp_path: Path) -> str:
    (tmp_path / "weights.bin").write_bytes(DATA)
    return web_server.serve("/models/tiny", tmp_path) + "/weights.bin"


def read(url: str, **headers: str) -> tuple[int, bytes, http.client.HTTPMessage]:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as response:
        return response.status, response.read(), response.headers


def test_a_file_comes_whole_with_the_headers_of_isolation(file: str) -> None:
    status, body, headers = read(file)
    assert (status, body) == (200, DATA)
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert headers["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("wanted", "start", "stop"), [("bytes=10-19", 10, 20), ("bytes=255990-", 255990, None), ("bytes=-5", -5, None)]
)
def test_a_range_is_answered_with_206(file: str, wanted: str, start: int, stop: int | None) -> None:
    status, body, headers = read(file, Range=wanted)
    assert (status, body) == (206, DATA[start:stop])
    assert headers["Content-Range"].endswith("/256000")


def test_a_range_behind_the_end_and_a_way_out_of_the_folder_are_refused(web_server: WebServer, file: str) -> None:
    for url, status in ((file, 416), (f"{web_server.url}/models/tiny/../../pyproject.toml", 404)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            read(url, Range="bytes=256000-")
        refused.value.close()
        assert refused.value.code == status


def test_faults_happen_as_often_as_said_and_requests_are_noted(web_server: WebServer, file: str) -> None:
    path = "/models/tiny/weights.bin"
    web_server.fault(path, Fault(cut_after=100_001, times=1))
    with pytest.raises(http.client.IncompleteRead) as cut:
        read(file)
    assert cut.value.partial == DATA[:100_001]
    web_server.fault(path, Fault(flip=3, no_ranges=True))
    status, body, _ = read(file, Range="bytes=2-")
    assert status == 200
    assert body[:5] == bytes([0, 1, 2, 2, 4])
    web_server.fault(path, None)
    assert read(file)[1] == DATA
    assert [(request.status, request.range) for request in web_server.requests(path)] == [
        (200, None), (200, "bytes=2-"), (200, None)
    ]  # fmt: skip


@pytest.fixture
def context(browser: Browser) -> Iterator[Context]:
    context = browser.context()
    yield context
    context.close()


@pytest.mark.browser
def test_a_worker_is_isolated_and_has_modules_and_errors(web_server: WebServer, context: Context) -> None:
    page = context.page(web_server.url + "/tests/blank.html")
    assert page.evaluate("async (add) => crossOriginIsolated && 1 + add", 2) == 3
    assert page.in_worker("globalThis.kept = argument; return self.crossOriginIsolated", [1, 2]) is True
    assert page.in_worker("return kept") == [1, 2]
    assert page.in_worker("return 'kept' in globalThis", worker="another") is False
    with pytest.raises(BrowserError) as raised:
        page.in_worker("throw Object.assign(new RangeError('too far'), {limit: 7})")
    assert (raised.value.kind, raised.value.message, raised.value.fields) == ("RangeError", "too far", {"limit": 7})


@pytest.mark.browser
def test_what_leaves_the_machine_is_aborted_and_told(browser: Browser, web_server: WebServer, context: Context) -> None:
    page = context.page(web_server.url + "/tests/blank.html")
    for url in ("http://example.com/model", "http://192.0.2.1/"):
        with pytest.raises(BrowserError, match="Failed to fetch"):
            page.in_worker("await fetch(argument, {mode: 'no-cors'})", url)
    with pytest.raises(AssertionError, match=r"example\.com"):
        browser.check()


@pytest.mark.browser
def test_an_uncaught_error_of_a_page_is_told(browser: Browser, web_server: WebServer, context: Context) -> None:
    page = context.page(web_server.url + "/tests/blank.html")
    page.evaluate("() => void setTimeout(() => { throw new Error('nobody caught this'); })")
    page.evaluate("() => new Promise((done) => setTimeout(done, 50))")
    with pytest.raises(AssertionError, match="nobody caught this"):
        browser.check()


@pytest.mark.browser
def test_a_profile_in_a_folder_outlives_the_death_of_its_browser(
    browser: Browser, web_server: WebServer, tmp_path: Path
) -> None:
    write = """const folder = await navigator.storage.getDirectory();
               const handle = await (await folder.getFileHandle("kept", {create: true})).createSyncAccessHandle();
               handle.write(new Uint8Array([7])); handle.flush(); handle.close();"""
    read = """const folder = await navigator.storage.getDirectory();
              return (await (await folder.getFileHandle("kept")).getFile()).size;"""
    first = browser.context(tmp_path / "profile")
    first.page(web_server.url + "/tests/blank.html").in_worker(write)
    first.crash()
    second = browser.context(tmp_path / "profile")
    assert second.page(web_server.url + "/tests/blank.html").in_worker(read) == 1
    second.close()


@pytest.mark.browser
def test_pages_are_closed_with_all_contexts(browser: Browser, web_server: WebServer) -> None:
    page = browser.context().page(web_server.url + "/tests/blank.html")
    browser.close_contexts()
    assert browser.events("closed", page=page.id) == [""]
    assert browser.context().page(web_server.url + "/tests/blank.html").in_worker("return 1") == 1


@pytest.mark.browser
def test_a_context_can_be_offline(web_server: WebServer, context: Context) -> None:
    page = context.page(web_server.url + "/tests/blank.html")
    page.in_worker("return 1")
    context.set_offline(True)
    with pytest.raises(BrowserError, match="Failed to fetch"):
        page.in_worker("await fetch('/src/')")
    context.set_offline(False)
    assert page.in_worker("return (await fetch('/tests/blank.html')).status") == 200

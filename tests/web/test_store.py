"""Weights on disk in a browser: downloads that fail in the ways that a server can provoke, and what is kept of them."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from embedllm.package.features import FORMAT
from tests.web.support.browser import Browser
from tests.web.support.calls import PATIENCE_S, BrowserError, awaited, until
from tests.web.support.page import Context, Page
from tests.web.support.server import Fault, WebServer
from tests.web.support.stored import damage

pytestmark = pytest.mark.browser

WEIGHTS = random.Random(5).randbytes(700_001)
OTHER = random.Random(6).randbytes(300_001)
PATH = "/models/tiny/weights.safetensors"

LIBRARIES = """
    const {Store} = await import("/src/storage/store.js");
    const {openPackage} = await import("/src/package/package.js");
    const {sha256} = await import("/node_modules/@noble/hashes/sha2.js");
    const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    const store = globalThis.store ??= await Store.open({sha256, pause: 1, patience: globalThis.patience});
    const progress = globalThis.progress = [];
    const onProgress = (step) => progress.push(step);
"""
LOAD = (
    LIBRARIES
    + """
    const opened = globalThis.opened = await openPackage(argument, {store, onProgress, signal: globalThis.signal});
    const weights = await opened.file("weights.safetensors");
    return {
        sha256: hex(sha256(new Uint8Array(await weights.arrayBuffer()))), progress,
        texts: Object.fromEntries(opened.texts), isOffline: opened.isOffline, isStored: opened.isStored,
        url: opened.url,
    };
"""
)
GRAPH = "await opened.file('model.onnx')"
LIST = LIBRARIES + "return store.list()"
STORED = """
    const home = await (await navigator.storage.getDirectory()).getDirectoryHandle("embedllm");
    const files = {};
    for await (const [name, handle] of (await home.getDirectoryHandle("files")).entries())
        files[name] = (await handle.getFile()).size;
    return files;
"""


WAITS_FOR_A_LOCK = """
    while (!(await navigator.locks.query()).pending.length) await new Promise((done) => setTimeout(done, 10));
"""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_model(folder: Path, weights: bytes = WEIGHTS, **changes: object) -> dict[str, Any]:
    """A folder with a manifest that is right; nothing in it can be computed with."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "weights.safetensors": weights,
        "model.onnx": b"a graph",
        "openvino_model.xml": b"<a graph of another runtime/>",
        "tokenizer.json": b'{"version": "1.0"}',
        "more words/chat template.jinja": "{{ 'grüß dich' }}".encode(),
    }
    graphs = [("model.onnx", "generic-float32"), ("openvino_model.xml", "openvino")]
    manifest = {
        "format": 1, "name": folder.name, "context": 64, "tokens": {"stop": [0]},
        "graphs": [{"file": file, "variant": variant, "activations": "float32"} for file, variant in graphs],
        "files": {name: {"bytes": len(data), "sha256": digest(data)} for name, data in files.items()},
        **changes,
    }  # fmt: skip
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "embedllm.json").write_text(json.dumps(manifest), encoding="utf-8")
    return manifest


@pytest.fixture
def url(web_server: WebServer, tmp_path: Path) -> str:
    """The address of a model."""
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


@pytest.fixture
def lasting(browser: Browser, web_server: WebServer, tmp_path: Path) -> Iterator[Page]:
    """A page that stores on the disk."""
    context = browser.context(tmp_path / "profile")
    yield context.page(web_server.url + "/tests/blank.html")
    context.close()


def ranges(server: WebServer, path: str = PATH) -> list[str | None]:
    return [request.range for request in server.requests(path)]


def refused(page: Page, url: str) -> str:
    with pytest.raises(BrowserError) as raised:
        page.in_worker(LOAD, url)
    assert raised.value.kind == "PackageError"
    return raised.value.message


def until_stored(page: Page, name: str, bytes: int) -> None:
    """Waits until that much of a file has been written; by a worker that does nothing else."""
    code = f"""for (let tries = 0; tries < 3000; tries++) {{
        const files = await (async () => {{ {STORED} }})().catch(() => ({{}}));
        if ((files[argument.name] ?? 0) >= argument.bytes) return true;
        await new Promise((done) => setTimeout(done, 10));
    }}"""
    assert page.in_worker(code, {"name": name, "bytes": bytes}, worker="watcher")


def held(page: Page, server: WebServer, url: str, **of_fault: Any) -> Future[Any]:  # noqa: ANN401
    """A load that has come to 400,000 bytes of the weights and waits there."""
    server.fault(PATH, Fault(hold_after=400_000, times=1, **of_fault))
    loading = page.start_in_worker(LOAD, url)
    until_stored(page, digest(WEIGHTS) + ".part", 400_000)
    return loading


def load_with_a_cut(page: Page, server: WebServer, url: str, **of_fault: Any) -> Any:  # noqa: ANN401
    """The result of a load whose connection ends after 400,000 bytes: when they were read, else they may be lost."""
    loading = held(page, server, url, cut_after=400_000, **of_fault)
    server.release(PATH)
    return awaited(loading, "the load")


def test_a_file_is_downloaded_once_and_checked(web_server: WebServer, page: Page, url: str) -> None:
    first = page.in_worker(LOAD, url)
    assert first["sha256"] == digest(WEIGHTS)
    assert (first["isOffline"], first["isStored"], first["url"]) == (False, True, url + "/")
    assert first["texts"].keys() == {"embedllm.json", "tokenizer.json", "more words/chat template.jinja"}
    assert first["texts"]["more words/chat template.jinja"] == "{{ 'grüß dich' }}"
    weights = [step for step in first["progress"] if step["file"] == "weights.safetensors"]
    assert weights[-1] == {"file": "weights.safetensors", "loaded": 700_001, "total": 700_001, "phase": "download"}
    assert [step["loaded"] for step in weights] == sorted(step["loaded"] for step in weights)
    assert not web_server.requests("/models/tiny/model.onnx")
    web_server.forget()
    page.reload()
    assert page.in_worker(LOAD, url + "/embedllm.json#anything")["sha256"] == digest(WEIGHTS)
    asked = {request.path for request in web_server.requests() if request.path.startswith("/models")}
    assert asked == {"/models/tiny/embedllm.json"}


READ = """
const { readBlob, whileOpen } = await import("/src/engine/blob_bytes.js");
const file = await opened.file("weights.safetensors");
const places = [[0, 9], [65_537, 65_999], [700_000, 700_001]];
const read = () => places.map(([start, end]) => [...readBlob(file, start, end)]);
const past = () => { try { return readBlob(file, 700_000, 700_002).length; } catch (error) { return error.name; } };
const closed = { read: read(), past: past() };
const asked = FileReaderSync.prototype.readAsArrayBuffer;
FileReaderSync.prototype.readAsArrayBuffer = () => { throw new Error("read by FileReader"); };
try {
  return await whileOpen(file, async () => {
    const again = await whileOpen(file, async () => read());
    const both = await navigator.storage.getDirectory().then((root) => root.getDirectoryHandle("embedllm"))
      .then((root) => root.getDirectoryHandle("files")).then((files) => files.getFileHandle(argument))
      .then((handle) => handle.createSyncAccessHandle({ mode: "read-only" }));
    both.close();
    return { closed, open: { read: read(), past: past() }, again };
  });
} finally {
  FileReaderSync.prototype.readAsArrayBuffer = asked;
}
"""


def test_a_stored_file_is_read_alike_while_it_is_open(page: Page, url: str) -> None:
    """By its handle, then, which locks nobody out who reads."""
    page.in_worker(LOAD, url)
    found = page.in_worker(READ, digest(WEIGHTS))
    pieces = [WEIGHTS[start:end] for start, end in ((0, 9), (65_537, 65_999), (700_000, 700_001))]
    assert [bytes(each) for each in found["open"]["read"]] == pieces
    assert found["closed"] == found["open"]
    assert found["open"]["past"] == "RangeError"
    assert found["again"] == found["open"]["read"]
    of_memory = "return (await import('/src/engine/blob_bytes.js')).whileOpen(new Blob(['abc']), async () => 'done')"
    assert page.in_worker(of_memory) == "done"


BLOCK = 65_536
COUNTED = """
    const counted = {create: () => {
        const own = sha256.create();
        const count = (bytes) => { globalThis.hashed = (globalThis.hashed ?? 0) + bytes.length; own.update(bytes); };
        return {update: count, digest: () => own.digest(), clone: () => { throw new Error("one piece"); }};
    }};
"""
# the library of hashes, which names records and checks small files, is given no weights
LOAD_BY_BLOCKS = LOAD.replace("Store.open({sha256,", "Store.open({sha256: counted,").replace(
    "const store =", f"{COUNTED} const store ="
)


def hash_list(data: bytes) -> dict[str, Any]:
    hashes = [digest(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    return {"bytes": BLOCK, "sha256": hashes, "root": digest(b"".join(map(bytes.fromhex, hashes)))}


def with_blocks(folder: Path, **changes: object) -> str:
    """Gives the manifest hashes of blocks; their root, by which the file is stored."""
    manifest = json.loads((folder / "embedllm.json").read_text())
    blocks = {**hash_list(WEIGHTS), **changes}
    manifest["files"]["weights.safetensors"]["blocks"] = blocks
    (folder / "embedllm.json").write_text(json.dumps(manifest))
    return blocks["root"]


def test_blocks_are_checked_by_the_browser(page: Page, url: str, tmp_path: Path) -> None:
    root = with_blocks(tmp_path / "tiny")
    assert page.in_worker(LOAD_BY_BLOCKS, url)["sha256"] == digest(WEIGHTS)
    assert page.in_worker("return globalThis.hashed") < BLOCK
    stored = page.in_worker(STORED)
    assert stored[root] == len(WEIGHTS)
    assert digest(WEIGHTS) not in stored
    listed = page.in_worker(LIST)[0]
    assert {each["name"]: each["stored"] for each in listed["files"]}["weights.safetensors"]
    page.in_worker(LIBRARIES + "return store.remove(argument)", url)
    assert root not in page.in_worker(STORED)


@pytest.mark.parametrize("place", [1234, BLOCK, 700_000])
def test_a_damaged_block_is_downloaded_again(
    web_server: WebServer, page: Page, url: str, tmp_path: Path, place: int
) -> None:
    root = with_blocks(tmp_path / "tiny")
    web_server.fault(PATH, Fault(flip=place, times=1))
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    assert ranges(web_server) == [None, None]
    page.in_worker(LIBRARIES + "return store.remove(argument)", url)
    web_server.fault(PATH, Fault(flip=place))
    assert f"its block {place // BLOCK} has not the sha256 that the manifest says" in refused(page, url)
    stored = page.in_worker(STORED)
    assert root not in stored
    assert stored.get(f"{root}.part", 0) == 0


def test_a_cut_download_goes_on_by_blocks(web_server: WebServer, page: Page, url: str, tmp_path: Path) -> None:
    with_blocks(tmp_path / "tiny")
    web_server.fault(PATH, Fault(cut_after=400_000, times=1))
    assert page.in_worker(LOAD_BY_BLOCKS, url)["sha256"] == digest(WEIGHTS)
    assert len(ranges(web_server)) == 2
    assert page.in_worker("return globalThis.hashed") < BLOCK


def test_hashes_of_blocks_have_to_have_their_root(page: Page, url: str, tmp_path: Path) -> None:
    with_blocks(tmp_path / "tiny", root="0" * 64)
    assert "the hashes of its blocks have not the root that the manifest says" in refused(page, url)
    assert "0" * 64 not in page.in_worker(STORED)


def test_a_file_that_was_checked_whole_serves_a_manifest_with_blocks(
    web_server: WebServer, page: Page, url: str, tmp_path: Path
) -> None:
    page.in_worker(LOAD, url)
    with_blocks(tmp_path / "tiny")
    web_server.forget()
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    assert not web_server.requests(PATH)


def test_right_blocks_under_the_hash_of_another_file_do_not_take_its_place(
    web_server: WebServer, page: Page, url: str, tmp_path: Path
) -> None:
    """A manifest may say what it wants of the whole; what its blocks are checked by has a name of its own."""
    evil = write_model(tmp_path / "evil", OTHER)
    blocks = hash_list(OTHER)
    evil["files"]["weights.safetensors"] = {"bytes": len(OTHER), "sha256": digest(WEIGHTS), "blocks": blocks}
    (tmp_path / "evil" / "embedllm.json").write_text(json.dumps(evil))
    page.in_worker(LOAD, web_server.serve("/models/evil", tmp_path / "evil"))
    assert digest(WEIGHTS) not in page.in_worker(STORED)
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)


LATER = "const now = Date.now; Date.now = () => now() + argument * 86_400_000;"


def was_checked(steps: list[dict[str, Any]]) -> bool:
    """Whether the stored weights were read for a check."""
    return ("weights.safetensors", "check") in {(step["file"], step["phase"]) for step in steps}


@pytest.mark.parametrize("name", ["tokenizer.json", "model.onnx"])
def test_texts_and_graphs_are_checked_at_each_load(
    web_server: WebServer, page: Page, url: str, tmp_path: Path, name: str
) -> None:
    written = (tmp_path / "tiny" / name).read_bytes()
    read = f"return (await opened.file('{name}')).text()"
    page.in_worker(LOAD, url)
    page.in_worker(read)
    damage(page, digest(written))
    page.reload()
    web_server.forget()
    page.in_worker(LOAD, url)
    assert page.in_worker(read) == written.decode()
    assert len(web_server.requests(f"/models/tiny/{name}")) == 1
    assert any(f"the stored '{name}' was damaged" in line for line in page.console)


@pytest.mark.parametrize("has_blocks", [True, False])
def test_stored_weights_that_changed_are_checked_before_their_use(
    web_server: WebServer, lasting: Page, url: str, tmp_path: Path, has_blocks: bool
) -> None:
    name = with_blocks(tmp_path / "tiny") if has_blocks else digest(WEIGHTS)
    lasting.in_worker(LOAD, url)
    damage(lasting, name, 300_000)
    lasting.reload()
    assert lasting.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    assert ranges(web_server) == [None, None]
    lasting.reload()
    assert not was_checked(lasting.in_worker(LOAD, url)["progress"])
    assert len(ranges(web_server)) == 2


@pytest.mark.parametrize("has_blocks", [True, False])
def test_stored_weights_are_checked_again_after_thirty_days(
    web_server: WebServer, page: Page, url: str, tmp_path: Path, has_blocks: bool
) -> None:
    name = with_blocks(tmp_path / "tiny") if has_blocks else digest(WEIGHTS)
    page.in_worker(LOAD, url)
    damage(page, name, 300_000)
    page.reload()
    page.in_worker(LATER, 29)
    assert page.in_worker(LOAD, url)["sha256"] != digest(WEIGHTS)
    page.reload()
    page.in_worker(LATER, 31)
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    assert ranges(web_server) == [None, None]


def test_large_weights_without_blocks_are_checked_where_they_changed_only(page: Page) -> None:
    """JavaScript would hash them for a minute."""
    code = """
        const {isRight} = await import("/src/storage/checks.js");
        const place = {isDisk: true, record: async () => JSON.stringify({of: [5, Date.now() - 365 * 86_400_000]})};
        const right = (bytes, lastModified) =>
            isRight({size: bytes, lastModified}, "of", {name: "weights.safetensors", bytes, sha256: "of"}, place);
        return [await right(2 ** 26 + 1, 5), await right(2 ** 26 + 1, 6), await right(2 ** 26, 5)];
    """
    assert page.in_worker(code) == [True, False, False]


def test_weights_under_suspicion_are_checked_at_once(web_server: WebServer, page: Page, url: str) -> None:
    page.in_worker(LOAD, url)
    suspect = "const file = await opened.file('weights.safetensors', {isSuspect: true}); return file.lastModified"
    before = page.in_worker(suspect)
    assert ranges(web_server) == [None]
    damage(page, digest(WEIGHTS))
    assert page.in_worker(suspect) != before
    assert ranges(web_server) == [None, None]


@pytest.mark.parametrize("name", ["tokenizer.json", "weights.safetensors"])
def test_a_damaged_file_without_a_network_is_named_with_its_remedy(
    web_server: WebServer, lasting: Page, url: str, tmp_path: Path, name: str
) -> None:
    lasting.in_worker(LOAD, url)
    stored = digest((tmp_path / "tiny" / name).read_bytes())
    damage(lasting, stored)
    for path in ("/models/tiny/embedllm.json", f"/models/tiny/{name}"):
        web_server.fault(path, Fault(cut_after=0))
    lasting.reload()
    message = refused(lasting, url)
    assert f"the stored '{name}' was damaged (its sha256 is" in message
    assert "Load again when the network is back" in message
    assert stored not in lasting.in_worker(STORED)


def test_progress_says_what_is_stored(page: Page, url: str) -> None:
    page.in_worker(LOAD, url)
    page.reload()
    steps = page.in_worker(LOAD, url)["progress"]
    assert {step["phase"] for step in steps} == {"stored"}
    assert steps[-1] == {"file": "weights.safetensors", "loaded": 700_001, "total": 700_001, "phase": "stored"}


def test_texts_do_not_wait_for_one_another(web_server: WebServer, page: Page, url: str) -> None:
    first, second = "/models/tiny/tokenizer.json", "/models/tiny/more words/chat template.jinja"
    web_server.fault(first, Fault(hold_after=1))
    loading = page.start_in_worker(LOAD, url)
    until(lambda: web_server.requests(first) and web_server.requests(second), patience_s=PATIENCE_S)
    web_server.release(first)
    found = list(awaited(loading, "the load")["texts"])
    assert found == ["embedllm.json", "tokenizer.json", "more words/chat template.jinja"]  # in the manifest's order


def test_a_graph_is_downloaded_when_it_is_asked_for(page: Page, url: str) -> None:
    page.in_worker(LOAD, url)
    assert page.in_worker("return (await opened.file('model.onnx')).text()") == "a graph"
    with pytest.raises(BrowserError, match=r"has no file 'model\.fp16\.onnx'; it has weights\.safetensors, model"):
        page.in_worker("await opened.file('model.fp16.onnx')")


def test_a_cut_connection_goes_on_where_it_stopped(web_server: WebServer, page: Page, url: str) -> None:
    assert load_with_a_cut(page, web_server, url)["sha256"] == digest(WEIGHTS)
    assert ranges(web_server) == [None, "bytes=400000-"]


def test_without_a_network_what_came_is_kept_for_the_next_time(web_server: WebServer, page: Page, url: str) -> None:
    web_server.fault(PATH, Fault(cut_after=0))
    assert "0 of 700001 bytes are here" in refused(page, url)
    assert len(ranges(web_server)) == 4
    loading = held(page, web_server, url, cut_after=400_000)
    web_server.fault(PATH, Fault(cut_after=0), keep_held=True)
    web_server.release(PATH)
    with pytest.raises(BrowserError, match="400000 of 700001 bytes are here"):
        awaited(loading, "the load")
    web_server.fault(PATH, None)
    web_server.forget()
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    assert ranges(web_server) == ["bytes=400000-"]


def test_a_server_without_ranges_is_asked_from_the_start(web_server: WebServer, page: Page, url: str) -> None:
    loading = held(page, web_server, url, cut_after=400_000)
    web_server.fault(PATH, Fault(no_ranges=True), keep_held=True)
    web_server.release(PATH)
    assert awaited(loading, "the load")["sha256"] == digest(WEIGHTS)
    assert ranges(web_server) == [None, "bytes=400000-"]
    assert [request.status for request in web_server.requests(PATH)] == [200, 200]


def test_a_text_that_is_stored_packed_is_asked_from_the_start(
    web_server: WebServer, page: Page, tmp_path: Path
) -> None:
    """As on object stores: ranges are then of the packed bytes, and the browser cannot unpack what comes by one."""
    text = json.dumps(random.Random(7).randbytes(300_000).hex()).encode()
    files = write_model(tmp_path / "tiny")["files"] | {"tokenizer.json": {"bytes": len(text), "sha256": digest(text)}}
    write_model(tmp_path / "tiny", files=files)
    (tmp_path / "tiny" / "tokenizer.json").write_bytes(gzip.compress(text, mtime=0))
    url, path = web_server.serve("/models/tiny", tmp_path / "tiny"), "/models/tiny/tokenizer.json"
    web_server.headers(path, {"Content-Encoding": "gzip"})
    web_server.fault(path, Fault(hold_after=100_000, cut_after=100_000, times=1))
    loading = page.start_in_worker(LOAD, url)
    until_stored(page, digest(text) + ".part", 100_000)
    web_server.release(path)
    assert awaited(loading, "the load")["texts"]["tokenizer.json"] == text.decode()
    first, *resumed, last = ranges(web_server, path)
    assert (first, last) == (None, None)
    assert len(resumed) == 2


def test_a_server_without_ranges_that_always_stops_is_given_up(web_server: WebServer, page: Page, url: str) -> None:
    web_server.fault(PATH, Fault(cut_after=300_000, no_ranges=True))
    assert "Load again when the network is back" in refused(page, url)
    assert 4 <= len(ranges(web_server)) < 40  # the last four brought nothing new; what others brought is up to timing


def test_a_damaged_download_is_made_again_from_the_start_once(web_server: WebServer, page: Page, url: str) -> None:
    web_server.fault(PATH, Fault(flip=1234, times=1))
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    assert ranges(web_server) == [None, None]


def test_a_file_that_stays_damaged_is_refused_and_not_kept(web_server: WebServer, page: Page, url: str) -> None:
    web_server.fault(PATH, Fault(flip=1234))
    found = digest(WEIGHTS[:1234] + bytes([WEIGHTS[1234] ^ 1]) + WEIGHTS[1235:])
    message = refused(page, url)
    assert f"its sha256 is {found}, the manifest says {digest(WEIGHTS)}" in message
    assert "'weights.safetensors'" in message
    assert PATH in message
    stored = page.in_worker(STORED)
    assert digest(WEIGHTS) not in stored
    assert stored.get(digest(WEIGHTS) + ".part", 0) == 0
    web_server.fault(PATH, None)
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)


def test_damage_before_a_cut_is_found_after_it(web_server: WebServer, page: Page, url: str) -> None:
    assert load_with_a_cut(page, web_server, url, flip=5)["sha256"] == digest(WEIGHTS)
    assert ranges(web_server) == [None, "bytes=400000-", None]


@pytest.mark.parametrize("size", [400_000, 800_000])
def test_a_file_of_another_size_is_refused(page: Page, url: str, tmp_path: Path, size: int) -> None:
    (tmp_path / "tiny" / "weights.safetensors").write_bytes((WEIGHTS * 2)[:size])
    assert f"{'shorter' if size < 700_001 else 'longer'} than the 700001 bytes" in refused(page, url)


def test_a_status_that_may_pass_is_asked_again_and_another_is_not(web_server: WebServer, page: Page, url: str) -> None:
    web_server.fault(PATH, Fault(status=503, times=2))
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    page.in_worker(LIBRARIES + "await store.remove(argument)", url)
    web_server.forget()
    web_server.fault(PATH, Fault(status=404))
    assert "answered with status 404" in refused(page, url)
    assert len(ranges(web_server)) == 1


def test_a_server_that_goes_silent_is_asked_again(web_server: WebServer, page: Page, url: str) -> None:
    page.in_worker("globalThis.patience = 1000")
    assert awaited(held(page, web_server, url), "the load")["sha256"] == digest(WEIGHTS)
    assert ranges(web_server) == [None, "bytes=400000-"]


def test_an_error_of_who_is_told_of_progress_is_thrown_on(web_server: WebServer, page: Page, url: str) -> None:
    tell = LIBRARIES + """await openPackage(argument, {store, onProgress: ({file}) => file.nothing.there});"""
    with pytest.raises(BrowserError, match=r"Cannot read properties of undefined \(reading 'there'\)"):
        page.in_worker(tell, url)
    assert len(web_server.requests("/models/tiny/tokenizer.json")) == 1


def test_a_tab_closed_in_the_middle_leaves_a_beginning(
    web_server: WebServer, context: Context, page: Page, url: str
) -> None:
    loading = held(page, web_server, url)
    page.close()
    with pytest.raises(BrowserError):
        awaited(loading, "the load of a page that was closed")
    another = context.page(web_server.url + "/tests/blank.html")
    result = another.in_worker(LOAD, url)
    assert result["sha256"] == digest(WEIGHTS)
    assert "check" in {step["phase"] for step in result["progress"]}
    assert ranges(web_server) == [None, "bytes=400000-"]


def test_a_browser_that_dies_leaves_nothing_wrong(
    browser: Browser, web_server: WebServer, url: str, tmp_path: Path
) -> None:
    dying = browser.context(tmp_path / "profile")
    held(dying.page(web_server.url + "/tests/blank.html"), web_server, url)
    dying.crash()
    again = browser.context(tmp_path / "profile")
    assert again.page(web_server.url + "/tests/blank.html").in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    again.close()


def test_two_tabs_download_a_file_once(web_server: WebServer, context: Context, page: Page, url: str) -> None:
    first = held(page, web_server, url)
    second_page = context.page(web_server.url + "/tests/blank.html")
    second = second_page.start_in_worker(LOAD, url)
    second_page.in_worker(WAITS_FOR_A_LOCK, worker="watcher")
    web_server.release(PATH)
    assert awaited(first, "the first tab")["sha256"] == digest(WEIGHTS)
    assert awaited(second, "the second tab")["sha256"] == digest(WEIGHTS)
    assert ranges(web_server) == [None]


def test_an_abort_keeps_what_came(web_server: WebServer, page: Page, url: str) -> None:
    page.in_worker("globalThis.controller = new AbortController(); globalThis.signal = controller.signal")
    loading = held(page, web_server, url)
    page.in_worker("controller.abort()")
    with pytest.raises(BrowserError) as aborted:
        awaited(loading, "the aborted load")
    assert aborted.value.kind == "AbortError"
    with pytest.raises(BrowserError, match="AbortError"):
        page.in_worker(LOAD, url)
    page.in_worker("globalThis.signal = undefined")
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    assert [wanted is None for wanted in ranges(web_server)] == [True, False]


def test_a_tab_that_waits_for_another_can_abort(web_server: WebServer, context: Context, page: Page, url: str) -> None:
    first = held(page, web_server, url)
    second_page = context.page(web_server.url + "/tests/blank.html")
    second_page.in_worker("globalThis.controller = new AbortController(); globalThis.signal = controller.signal")
    second = second_page.start_in_worker(LOAD, url)
    second_page.in_worker(WAITS_FOR_A_LOCK, worker="watcher")
    second_page.in_worker("controller.abort()")
    with pytest.raises(BrowserError) as aborted:
        awaited(second, "the tab that waited")
    assert aborted.value.kind == "AbortError"
    web_server.release(PATH)
    assert awaited(first, "the first tab")["sha256"] == digest(WEIGHTS)


def test_it_works_without_a_network_the_second_time(context: Context, page: Page, url: str) -> None:
    page.in_worker(LOAD, url)
    context.set_offline(True)
    result = page.in_worker(LOAD, url)
    assert (result["isOffline"], result["sha256"]) == (True, digest(WEIGHTS))
    with pytest.raises(BrowserError, match=r"cannot download 'model\.onnx'.*0 of 7 bytes are here"):
        page.in_worker("await opened.file('model.onnx')")
    message = refused(page, url + "/another")
    assert "cannot read" in message
    assert "/models/tiny/another/embedllm.json" in message


@pytest.mark.parametrize("wrong", ["status", "text", "newer"])
def test_a_server_that_gives_no_usable_manifest_leaves_the_stored_model(
    web_server: WebServer, page: Page, url: str, tmp_path: Path, wrong: str
) -> None:
    page.in_worker(LOAD, url)
    if wrong == "status":
        web_server.fault("/models/tiny/embedllm.json", Fault(status=500))
    elif wrong == "text":
        (tmp_path / "tiny" / "embedllm.json").write_text("<html>Please log in to this network</html>")
    else:
        write_model(tmp_path / "tiny", OTHER, format=FORMAT + 1)
    result = page.in_worker(LOAD, url)
    assert (result["isOffline"], result["sha256"]) == (True, digest(WEIGHTS))
    assert any("using the stored model, because" in line for line in page.console)
    assert refused(page, web_server.url + "/models/none")


def test_an_updated_model_is_noticed_and_its_old_files_go(
    web_server: WebServer, page: Page, url: str, tmp_path: Path
) -> None:
    page.in_worker(LOAD, url)
    write_model(tmp_path / "tiny", OTHER)
    web_server.forget()
    assert page.in_worker(LOAD, url)["sha256"] == digest(OTHER)
    page.in_worker(GRAPH)  # now it can be used
    stored = page.in_worker(STORED)
    assert digest(OTHER) in stored
    assert digest(WEIGHTS) not in stored
    assert not web_server.requests("/models/tiny/tokenizer.json")  # it is the same as before


def test_an_interrupted_update_leaves_the_model_of_before(
    web_server: WebServer, page: Page, url: str, tmp_path: Path
) -> None:
    page.in_worker(LOAD, url)
    page.in_worker(GRAPH)
    write_model(tmp_path / "tiny", OTHER)
    web_server.fault("/models/tiny/weights.safetensors", Fault(status=404))
    assert "answered with status 404" in refused(page, url)
    web_server.fault("/models/tiny/embedllm.json", Fault(status=500))
    for _ in range(2):
        result = page.in_worker(LOAD, url)
        assert (result["isOffline"], result["sha256"]) == (True, digest(WEIGHTS))
        page.in_worker(GRAPH)
    assert len(page.in_worker(LIST)) == 1
    web_server.forget()
    web_server.fault("/models/tiny/weights.safetensors", None)
    web_server.fault("/models/tiny/embedllm.json", None)
    assert page.in_worker(LOAD, url)["sha256"] == digest(OTHER)
    page.in_worker(GRAPH)
    assert digest(WEIGHTS) not in page.in_worker(STORED)
    assert not page.in_worker(LOAD, url)["isOffline"]


def test_an_update_without_room_beside_the_model_of_before_takes_its_room(page: Page, url: str, tmp_path: Path) -> None:
    page.in_worker(LOAD, url)
    page.in_worker(GRAPH)
    write_model(tmp_path / "tiny", OTHER)
    page.in_worker(
        """
        const estimate = navigator.storage.estimate.bind(navigator.storage);
        navigator.storage.estimate = async () => {
            const home = await (await navigator.storage.getDirectory()).getDirectoryHandle("embedllm");
            let usage = 0;
            for await (const handle of (await home.getDirectoryHandle("files")).values())
                usage += (await handle.getFile()).size;
            return {usage, quota: argument};
        };
        """,
        len(WEIGHTS) + len(OTHER) - 1,
    )
    assert page.in_worker(LOAD, url)["sha256"] == digest(OTHER)
    assert digest(WEIGHTS) not in page.in_worker(STORED)


def test_an_update_whose_room_ends_in_the_middle_takes_that_of_the_model_of_before(
    web_server: WebServer, page: Page, url: str, tmp_path: Path
) -> None:
    page.in_worker(LOAD, url)
    page.in_worker(GRAPH)
    write_model(tmp_path / "tiny", OTHER)
    page.cdp("Storage.overrideQuotaForOrigin", origin=web_server.url, quotaSize=len(WEIGHTS) + 150_000)
    assert page.in_worker(LOAD, url)["sha256"] == digest(OTHER)
    assert digest(WEIGHTS) not in page.in_worker(STORED)


def test_a_model_is_removed_with_what_an_update_left_of_it(
    web_server: WebServer, page: Page, url: str, tmp_path: Path
) -> None:
    page.in_worker(LOAD, url)
    page.in_worker(GRAPH)
    write_model(tmp_path / "tiny", OTHER)
    web_server.fault("/models/tiny/weights.safetensors", Fault(status=404))
    refused(page, url)
    assert page.in_worker(LIBRARIES + "return store.remove(argument)", url)
    assert page.in_worker(STORED) == {}


def test_a_tab_with_the_manifest_of_before_does_not_undo_an_update(
    web_server: WebServer, context: Context, page: Page, url: str, tmp_path: Path
) -> None:
    page.in_worker(LOAD, url)
    write_model(tmp_path / "tiny", OTHER)
    another = context.page(web_server.url + "/tests/blank.html")
    another.in_worker(LOAD, url)
    assert page.in_worker("return (await opened.file('model.onnx')).text()") == "a graph"
    with pytest.raises(BrowserError, match="If the model there was updated just now, load it again"):
        page.in_worker("await opened.file('weights.safetensors')")
    assert digest(OTHER) in page.in_worker(STORED)
    web_server.forget()
    assert page.in_worker(LOAD, url)["sha256"] == digest(OTHER)
    assert not ranges(web_server)


def test_models_share_files_until_the_last_is_removed(
    web_server: WebServer, page: Page, url: str, tmp_path: Path
) -> None:
    write_model(tmp_path / "twin", name="the twin")
    twin = web_server.serve("/models/twin", tmp_path / "twin")
    page.in_worker(LOAD, url)
    page.in_worker(LOAD, twin)
    page.in_worker("await opened.file('model.onnx')")
    assert ranges(web_server, "/models/twin/weights.safetensors") == []
    listed = page.in_worker(LIST)
    assert [(model["url"], model["name"], model["complete"]) for model in listed] == [
        (twin + "/", "the twin", True), (url + "/", "tiny", False)
    ]  # fmt: skip
    assert {"name": "weights.safetensors", "bytes": 700_001, "stored": True} in listed[0]["files"]
    assert listed[0]["bytes"] == sum(page.in_worker(STORED).values())
    usage = page.in_worker(LIBRARIES + "return store.usage()")
    assert usage["models"] == listed[0]["bytes"] <= usage["quota"]
    assert page.in_worker(LIBRARIES + "return store.remove(argument)", twin) is True
    assert page.in_worker(LIBRARIES + "return store.remove(argument)", twin) is False
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    assert len(ranges(web_server)) == 1
    page.in_worker(LIBRARIES + "await store.remove(argument)", url)
    assert (page.in_worker(LIST), page.in_worker(STORED)) == ([], {})


def test_what_is_being_downloaded_survives_the_removal_of_another_model(
    web_server: WebServer, context: Context, page: Page, url: str, tmp_path: Path
) -> None:
    write_model(tmp_path / "other", OTHER)
    other = web_server.serve("/models/other", tmp_path / "other")
    another = context.page(web_server.url + "/tests/blank.html")
    another.in_worker(LOAD, other)
    loading = held(page, web_server, url)
    another.in_worker(LIBRARIES + "await store.remove(argument)", other)
    another.in_worker(LIBRARIES + "await store.remove(argument)", url)
    web_server.release(PATH)
    assert awaited(loading, "the load")["sha256"] == digest(WEIGHTS)


@pytest.mark.parametrize("evicted", ["one", "all", "an end"])
def test_what_the_browser_removed_is_downloaded_again(
    web_server: WebServer, page: Page, url: str, evicted: str
) -> None:
    page.in_worker(LOAD, url)
    root = "const root = await navigator.storage.getDirectory(); "
    files = "(await (await root.getDirectoryHandle('embedllm')).getDirectoryHandle('files'))"
    if evicted == "one":
        page.in_worker(f"{root} await {files}.removeEntry(argument)", digest(WEIGHTS))
        assert not page.in_worker(LIST)[0]["complete"]
    elif evicted == "an end":
        cut = "const handle = await file.createSyncAccessHandle(); handle.truncate(600_000); handle.close();"
        page.in_worker(f"{root} const file = await {files}.getFileHandle(argument); {cut}", digest(WEIGHTS))
    else:
        page.in_worker(f"{root} await root.removeEntry('embedllm', {{recursive: true}})")
        assert page.in_worker(LIST) == []
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    assert len(ranges(web_server)) == 2


def test_reading_locks_nothing(context: Context, web_server: WebServer, page: Page, url: str) -> None:
    another = context.page(web_server.url + "/tests/blank.html")
    for tab in (page, another):
        tab.in_worker(LOAD, url)
        tab.in_worker("globalThis.reader = (await opened.file('weights.safetensors')).stream().getReader()")
    assert page.in_worker("return !(await reader.read()).done")
    assert another.in_worker("return !(await reader.read()).done")
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    another.in_worker(LIBRARIES + "await store.remove(argument)", url)
    assert page.in_worker(LIST) == []


def test_a_model_without_room_is_refused_before_its_download(web_server: WebServer, page: Page, url: str) -> None:
    page.in_worker("""globalThis.estimate = StorageManager.prototype.estimate;
                      StorageManager.prototype.estimate = async () => ({quota: 900_000, usage: 400_000});""")
    with pytest.raises(BrowserError, match=r"no room for .*'weights\.safetensors'") as raised:
        page.in_worker(LOAD, url)
    assert raised.value.kind == "PackageError"
    assert 700_001 <= raised.value.fields["needed"] < 700_200
    assert raised.value.fields["available"] == 500_000
    assert "500000 bytes are left for this site. Free space on the disk, remove a" in raised.value.message
    assert not ranges(web_server)
    page.in_worker("StorageManager.prototype.estimate = estimate")
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)


@pytest.mark.parametrize("quota", [600_000, 1])  # the second is used up before anything is written
@pytest.mark.parametrize("is_private", [True, False])
def test_room_that_ends_in_the_middle_is_told_alike(
    browser: Browser, web_server: WebServer, url: str, tmp_path: Path, is_private: bool, quota: int
) -> None:
    context = browser.context(None if is_private else tmp_path / "profile")
    page = context.page(web_server.url + "/tests/blank.html")
    page.in_worker(LIBRARIES)
    page.cdp("Storage.overrideQuotaForOrigin", origin=web_server.url, quotaSize=quota)
    message = refused(page, url)
    assert "no room for" in message
    assert "bytes are needed, less is left for this site" in message
    assert digest(WEIGHTS) not in page.in_worker(STORED)
    page.cdp("Storage.overrideQuotaForOrigin", origin=web_server.url)
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    context.close()


def test_where_nothing_can_be_stored_files_are_in_memory(web_server: WebServer, page: Page, url: str) -> None:
    page.in_worker("StorageManager.prototype.getDirectory = async () => { throw new Error('a private window') }")
    web_server.fault(PATH, Fault(hold_after=400_000, cut_after=400_000, times=1))
    loading = page.start_in_worker(LOAD, url)
    until_told = """while (!(globalThis.progress ?? []).some(({file}) => file === "weights.safetensors"))
                        await new Promise((done) => setTimeout(done, 10));"""
    page.in_worker(until_told)
    web_server.release(PATH)
    result = awaited(loading, "the load")
    assert (result["isStored"], result["sha256"]) == (False, digest(WEIGHTS))
    assert any("kept in memory only" in line and "a private window" in line for line in page.console)
    first, second = ranges(web_server)
    assert first is None
    assert second is not None
    assert page.in_worker(LOAD, url)["sha256"] == digest(WEIGHTS)
    assert len(ranges(web_server)) == 2
    assert page.in_worker(LIST)[0]["bytes"] > 700_000
    page.in_worker(LIBRARIES + "await store.remove(argument)", url)
    assert page.in_worker(LIST) == []


def test_a_page_without_https_downloads_a_file_once_too(web_server: WebServer, page: Page, url: str) -> None:
    page.in_worker("""for (const name of ["locks", "storage"])
                          Object.defineProperty(WorkerNavigator.prototype, name, {value: undefined})""")
    together = LOAD.replace("const weights = ", "const both = ").replace(
        'await opened.file("weights.safetensors");',
        'await Promise.all([1, 2].map(() => opened.file("weights.safetensors"))); const weights = both[1];',
    )
    result = page.in_worker(together, url)
    assert (result["isStored"], result["sha256"]) == (False, digest(WEIGHTS))
    assert ranges(web_server) == [None]
    assert page.in_worker(LIBRARIES + "return (await store.usage()).quota") is None


def test_a_model_of_another_origin_is_resumed_though_its_ranges_are_hidden(page: Page, tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    with WebServer({"/models/tiny": tmp_path / "tiny"}, cors=True) as elsewhere:
        result = load_with_a_cut(page, elsewhere, elsewhere.url + "/models/tiny?key=a%20b")
        assert result["sha256"] == digest(WEIGHTS)
        assert ranges(elsewhere) == [None, "bytes=400000-"]


def test_a_page_without_a_worker_is_told(page: Page) -> None:
    with pytest.raises(BrowserError, match=r"Store\.open\(\) works only in a worker"):
        page.evaluate("""async () => (await import("/src/storage/store.js")).Store.open({})""")

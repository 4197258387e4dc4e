"""embedllm.loading.export_cache: an export is made once for a key, by one of those who ask, and appears whole."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest

from embedllm.errors import EmbedError, ExportError
from embedllm.loading.export_cache import cached_export, exports, exports_folder, find_export, remove_export

KEY = {"repository": "org/name", "commit": "1" * 40}


pytestmark = pytest.mark.usefixtures("cache")


class Maker:
    """Copies a package, and counts."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.made: list[Path] = []

    def __call__(self, out: Path) -> None:
        self.made.append(out)
        shutil.copytree(self.package, out.with_name("partial"))
        out.with_name("partial").rename(out)


@pytest.fixture
def maker(tiny_package: Callable[..., Path]) -> Maker:
    return Maker(tiny_package("llama"))


def test_an_export_is_made_once_for_a_key(maker: Maker) -> None:
    assert find_export("name", KEY) is None
    first = cached_export("name", KEY, maker)
    assert cached_export("name", dict(reversed(KEY.items())), maker) == first == find_export("name", KEY)
    other = cached_export("name", {**KEY, "commit": "2" * 40}, maker)
    assert maker.made == [first, other]
    assert first.name == other.name == "name"


def test_of_several_that_ask_at_once_one_makes_it(maker: Maker) -> None:
    together = Barrier(4)

    def ask(_: int) -> Path:
        together.wait()
        return cached_export("name", KEY, maker)

    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(ask, range(4)))
    assert found == set(maker.made)
    assert len(maker.made) == 1


def test_who_waits_for_another_says_so(maker: Maker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "embedllm")
    making, told = Event(), Event()
    monitor = logging.Handler()
    monitor.emit = lambda record: told.set()  # type: ignore[method-assign]

    def make(out: Path) -> None:
        making.set()
        assert told.wait(60)
        maker(out)

    logging.getLogger("embedllm").addHandler(monitor)
    try:
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(cached_export, "name", KEY, make)
            assert making.wait(60)
            assert cached_export("name", KEY, maker) == first.result()
    finally:
        logging.getLogger("embedllm").removeHandler(monitor)
    assert "'name' is exported by another load; waiting for that" in caplog.text
    assert len(maker.made) == 1


def test_what_fails_leaves_nothing_and_is_tried_again(maker: Maker) -> None:
    def fail(out: Path) -> None:
        raise ExportError("no")

    with pytest.raises(ExportError):
        cached_export("name", KEY, fail)
    assert exports() == []
    assert cached_export("name", KEY, maker) == maker.made[0]


def test_a_damaged_export_and_what_a_dead_process_left_are_made_anew(maker: Maker) -> None:
    folder = cached_export("name", KEY, maker)
    (folder / "weights.safetensors").write_bytes(b"cut")
    (folder.parent / ".name.partial-1234").mkdir()
    assert find_export("name", KEY) is None
    assert cached_export("name", KEY, maker) == folder
    assert len(maker.made) == 2
    assert [path.name for path in folder.parent.iterdir()] == ["name"]
    assert (folder / "weights.safetensors").stat().st_size > 3


def test_an_export_without_a_graph_is_made_anew_where_the_source_is_at_hand(
    maker: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "embedllm")
    folder = cached_export("name", KEY, maker)
    (folder / "model.onnx").unlink()
    assert cached_export("name", KEY, maker) == folder == find_export("name", KEY), "other devices do not need it"
    assert len(maker.made) == 1
    assert cached_export("name", KEY, maker, whole=True) == folder
    assert len(maker.made) == 2
    assert (folder / "model.onnx").is_file()
    assert "an export in the cache is made again: " in caplog.text
    assert "cannot read 'model.onnx'" in caplog.text


def test_kept_exports_are_listed_and_removed(maker: Maker) -> None:
    first = cached_export("name", KEY, maker)
    second = cached_export("other", KEY, maker)
    found = {one.folder: one for one in exports()}
    assert found.keys() == {first, second}
    assert {(one.source, one.revision) for one in exports()} == {("org/name", "1" * 40)}
    assert found[first].bytes == sum(path.stat().st_size for path in maker.package.rglob("*") if path.is_file())
    remove_export(found[first])
    assert [one.folder for one in exports()] == [second]
    assert not list(first.parents[1].glob(f"{first.parent.name}*[!k]"))  # all but the lock
    assert find_export("name", KEY) is None


def test_a_cache_that_cannot_be_written_is_told(cache: Path, maker: Maker) -> None:
    cache.write_text("a file")
    with pytest.raises(EmbedError, match="cannot keep an export in"):
        cached_export("name", KEY, maker)
    assert exports_folder().parent == cache

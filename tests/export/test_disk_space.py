"""The free disk that an export asks for: what it has there at its peak, and little more."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import stat
import threading
from pathlib import Path

import pytest

from embedllm.errors import ExportError
from embedllm.export import Recipe, convert
from embedllm.export.graphs import Model, build, graph_bytes, variants
from embedllm.export.writing.plan import plan
from embedllm.package.architecture_json import to_json
from tests.support import decoder_cases
from tests.support.tiny import tiny_checkpoint

CASES: dict[str, dict[str, object]] = {
    "plain": {"recipe": Recipe(method="nearest")},
    "float": {"recipe": Recipe(bits=32)},
    "in shards": {"recipe": Recipe(bits=32), "shard": 100_000},
    "a text that the model generates": {"recipe": Recipe(method="gptq")},
}
MORE = 500_000  # bytes: what the bound for graphs is above those of the tiny model


def needed_bytes(monkeypatch: pytest.MonkeyPatch, source: Path, out: Path, options: dict[str, object]) -> int:
    real = shutil.disk_usage
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=0))
        with pytest.raises(ExportError, match="the export needs") as caught:
            convert(source, out, **options)  # type: ignore[arg-type]  # by the table above
    found = re.search(r"needs ([\d,]+) bytes", str(caught.value))
    assert found is not None
    return int(found[1].replace(",", ""))


class Peak:
    """The most bytes that a folder had at once, looked at all the time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bytes, self._ends = folder, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def look(self, *_: object) -> None:
        found = [path.stat() for path in self.folder.rglob("*")]
        self.bytes = max(self.bytes, sum(each.st_size for each in found if stat.S_ISREG(each.st_mode)))

    def _watch(self) -> None:
        while not self._ends.wait(0.001):
            with contextlib.suppress(FileNotFoundError):  # removed or renamed meanwhile
                self.look()


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if "generates" in case else []) for case in CASES]
)
def test_the_free_disk_asked_for_is_what_an_export_takes_at_its_peak(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = tiny_checkpoint(tmp_path / "checkpoint"), tmp_path / "out" / "package"
    needed = needed_bytes(monkeypatch, source, out, CASES[case])
    with Peak(out.parent) as peak:
        convert(source, out, on_progress=peak.look, **CASES[case])  # type: ignore[arg-type]  # by the table above
        peak.look()
    assert peak.bytes <= needed <= peak.bytes + MORE


@pytest.mark.parametrize("case", decoder_cases.CASES)
def test_graphs_and_what_describes_them_are_within_their_bound(case: str) -> None:
    decoder = decoder_cases.CASES[case](decoder_cases.plain())
    planned = plan(decoder, Recipe(bits=4))
    model = Model(decoder=decoder, layout=planned.layout, packing=planned.packing, exact=False)
    graphs = sum(len(build(graph.variant, model)) for graph in variants(decoder, planned.packing))
    assert graphs + len(json.dumps(to_json(decoder))) <= graph_bytes(planned.packing)

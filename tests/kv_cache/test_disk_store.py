"""KV in files: the format, damage, budgets, processes that are killed, and a second process that goes on."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from embedllm import EmbedError, Sampling, load
from embedllm.errors import PackageError
from embedllm.files.atomic import PARTIAL
from embedllm.kv_cache.block_cache import BLOCK
from embedllm.kv_cache.disk_store import DiskStore
from embedllm.kv_cache.kv_file import open_state, write_state

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues

ROOT = Path(__file__).parents[2]
GREEDY = Sampling(temperature=0)
TOKENS = list(range(BLOCK))
PROMPT = [3 + at * 7 % 290 for at in range(5 * BLOCK)]


def state(seed: int = 0, count: int = BLOCK, dtype: type[np.floating | np.integer] = np.float32) -> KeyValues:
    random = np.random.default_rng(seed)
    return [
        ((100 * random.random((2, count, 4))).astype(dtype), (100 * random.random((2, count, 8))).astype(dtype))
        for _ in range(3)
    ]


def same(one: KeyValues, other: KeyValues) -> bool:
    return all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for pair, others in zip(one, other, strict=True)
        for a, b in zip(pair, others, strict=True)
    )


def key(name: int) -> bytes:
    return bytes([name]) * 32


@pytest.mark.parametrize("is_opened", [False, True])
def test_a_file_that_another_process_replaces_while_its_header_is_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_opened: bool
) -> None:
    """is_opened: it is replaced after it was opened, not just before."""
    path, other = tmp_path / "talk", tmp_path / "other"
    write_state(path, {"tokens": "[0]"}, [state(1, 1)])
    write_state(other, {"tokens": json.dumps(TOKENS)}, [state(2)])
    open_file = Path.open

    def open_and_replace(self: Path, mode: str) -> object:
        early = open_file(self, mode) if is_opened else None
        if other.exists():
            other.replace(path)
        return early or open_file(self, mode)

    monkeypatch.setattr(Path, "open", open_and_replace)
    assert open_state(path).tokens == ((0,) if is_opened else tuple(TOKENS))
    (found,) = open_state(path).read()
    assert same(found, state(2))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8, np.uint16])
def test_a_file_gives_what_was_written_and_is_a_safetensors_file(
    tmp_path: Path, dtype: type[np.floating | np.integer]
) -> None:
    path = tmp_path / "kv.safetensors"
    pieces = [state(1, 10, dtype), state(2, 10, dtype), state(3, 4, dtype)]
    write_state(path, {"tokens": json.dumps(list(range(24))), "note": 'of "sha256": "me"'}, pieces)
    file = open_state(path)
    assert file.about["note"] == 'of "sha256": "me"'
    assert file.starts == (0, 10, 20)
    assert all(same(one, other) for one, other in zip(file.read(), pieces, strict=True))
    others = load_file(path)
    assert np.array_equal(others["10.2.value"], pieces[1][2][1])
    assert [entry.name for entry in tmp_path.iterdir()] == ["kv.safetensors"]


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(tmp_path: Path) -> None:
    """As a conversation that is saved again while another thread opens it."""
    path, about = tmp_path / "kv", {"tokens": json.dumps([5, 6, 7, 8])}
    pieces, others = ([state(seed, 2) for seed in seeds] for seeds in ((1, 2), (3, 4)))
    write_state(path, about, pieces)
    found = open_state(path).read()
    read = [next(found)]
    write_state(path, about, others)
    read += found
    assert all(same(one, other) for one, other in zip(read, pieces, strict=True))


@given(st.data())
def test_no_damage_goes_unnoticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damage") / "kv.safetensors"
    write_state(path, {"tokens": json.dumps(TOKENS)}, [state()])
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "zero"]))
    if kind == "cut":
        path.write_bytes(whole[:place])
    elif kind == "flip":
        flipped = whole[place] ^ 1 << data.draw(st.integers(0, 7))
        path.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
    else:
        path.write_bytes(whole[:place] + bytes(len(whole) - place))
        if path.read_bytes() == whole:
            return
    with pytest.raises(PackageError):
        list(open_state(path).read())


def test_a_damaged_file_is_told_of_once_and_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "embedllm")
    folder = DiskStore(tmp_path, budget_bytes=1 << 20)
    folder.write(key(1), TOKENS, state(), {})
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert folder.read(key(1), TOKENS) is None
    assert [record.message.count("is damaged") for record in caplog.records] == [1]
    assert not folder.has(key(1))
    folder.write(key(1), TOKENS, state(), {})
    read = folder.read(key(1), TOKENS)
    assert read is not None
    assert same(read, state())
    assert folder.read(key(1), [*TOKENS[:-1], 0]) is None  # a file under a name that is not its own


def test_the_files_used_least_recently_go_first(tmp_path: Path) -> None:
    folder = DiskStore(tmp_path, budget_bytes=1 << 20)
    for name in range(4):
        folder.write(key(name), TOKENS, state(), {})
        os.utime(tmp_path / f"{key(name).hex()}.safetensors", ns=(name, name))
    size = next(tmp_path.iterdir()).stat().st_size
    folder.used([key(0)])
    left_behind, under_way = (tmp_path / f"{key(9).hex()}.safetensors.{name}{PARTIAL}" for name in ("1-2", "3-4"))
    for partial in (left_behind, under_way):
        partial.write_bytes(b"half")
    os.utime(left_behind, (time.time() - 7200, time.time() - 7200))
    DiskStore(tmp_path, budget_bytes=2 * size).trim()
    assert [folder.has(key(name)) for name in range(4)] == [True, False, False, True]
    assert (left_behind.exists(), under_way.exists()) == (False, True)


def test_files_of_others_are_neither_removed_nor_counted(tmp_path: Path) -> None:
    """A folder may hold saved conversations, a model's weights, another program's half-written files."""
    others = [tmp_path / name for name in ("chat.safetensors", "weights.safetensors", f"download{PARTIAL}")]
    for other in others:
        other.write_bytes(b"x" * 100_000)
        os.utime(other, (1, 1))
    folder = DiskStore(tmp_path, budget_bytes=50_000)
    folder.write(key(1), TOKENS, state(), {})
    folder.trim()
    assert all(other.exists() for other in others)
    assert folder.has(key(1))


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbedError, match=r"cannot make the cache_dir .*Give another folder"):
        DiskStore(tmp_path / "file" / "folder", budget_bytes=1)


# --- processes

REPLY = """
import json, sys
import embedllm
with embedllm.load(sys.argv[1], device=sys.argv[2], exact=sys.argv[2] != "reference", cache_dir=sys.argv[3]) as llm:
    reply = llm.generate(json.loads(sys.argv[4]), embedllm.Sampling(temperature=0), max_tokens=6, stop_tokens=())
    print(json.dumps([reply.tokens, reply.statistics.cached_tokens]))
"""


def process(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def answer(running: subprocess.Popen[str]) -> tuple[list[int], int]:
    out, _ = running.communicate(timeout=120)
    assert running.returncode == 0
    found, cached = json.loads(out)
    return found, cached


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "reference", "openvino"])
def test_another_process_starts_from_what_the_first_has_computed(
    tiny_package: Callable[..., Path], tmp_path: Path, device: str
) -> None:
    if device == "openvino":
        pytest.importorskip("openvino")
    folder = tiny_package("llama", max_position_embeddings=1024)
    first = answer(process(REPLY, folder, device, tmp_path, PROMPT))
    assert len(list(tmp_path.iterdir())) == len(PROMPT) // BLOCK
    second = answer(process(REPLY, folder, device, tmp_path, PROMPT))
    assert (first[1], second[1]) == (0, len(PROMPT) - 1)
    assert first[0] == second[0]


def test_nothing_is_taken_from_another_model_device_or_setting(
    tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_package("llama", max_position_embeddings=1024)
    other = tiny_package("llama", max_position_embeddings=1024, seed=1)
    for path, device, exact in ((folder, "cpu", True), (folder, "cpu", False), (folder, "reference", False),
                                (other, "cpu", True)):  # fmt: skip
        with load(path, device=device, exact=exact, cache_dir=tmp_path) as llm:
            assert llm.generate(PROMPT, max_tokens=1).statistics.cached_tokens == 0
    with load(folder, device="cpu", exact=True, cache_dir=tmp_path) as llm:
        assert llm.generate(PROMPT, max_tokens=1).statistics.cached_tokens == len(PROMPT) - 1


def test_several_processes_share_a_folder(tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_package("llama", max_position_embeddings=1024)
    running = [process(REPLY, folder, "cpu", tmp_path, PROMPT) for _ in range(3)]
    assert len({tuple(answer(one)[0]) for one in running}) == 1
    assert len(list(tmp_path.iterdir())) == len(PROMPT) // BLOCK


KILLED = """
import sys
from pathlib import Path
import numpy as np
from embedllm.kv_cache.disk_store import DiskStore
folder = DiskStore(Path(sys.argv[1]), budget_bytes=1 << 30)
array = np.full((4, 64, 1 << 10), 1, np.float32)
for name in range(1, 200):
    print(name, flush=True)
    folder.write(bytes([name]) * 32, list(range(64)), [(array * name, array)], {})
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no process is killed like this here")
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_a_process_that_is_killed_leaves_whole_files_only(tmp_path: Path, count: int) -> None:
    running = process(KILLED, tmp_path)
    assert running.stdout is not None
    for _ in range(count):
        running.stdout.readline()
    time.sleep(count / 1000)  # somewhere within a write; where does not matter, as long as it is not always the same
    running.kill()
    running.communicate(timeout=60)
    folder = DiskStore(tmp_path, budget_bytes=1 << 30)
    names = [name for name in range(1, 200) if folder.has(key(name))]
    assert names == list(range(1, len(names) + 1))
    assert len(names) >= count - 1
    for name in names:
        read = folder.read(key(name), TOKENS)
        assert read is not None
        assert (read[0][0] == name).all()

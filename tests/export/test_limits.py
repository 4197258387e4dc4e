"""Exports in processes of their own: a full disk, Ctrl-C, a kill, and how much memory they take."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from embedllm.export import Recipe, convert
from embedllm.package.package import open_package
from tests.support.tiny import tiny_checkpoint, tiny_config, write_tokenizer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits and signals of POSIX")

SIZE = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 4,
        "head_dim": 64, "vocab_size": 32768, "max_position_embeddings": 2048, "tie_word_embeddings": True}  # fmt: skip
LAYER = (2 * 1024 + 2 * 256 + 3 * 3072) * 1024  # weights; the table has 33.6 million more
EXPORT = "import sys; from embedllm.export import convert; convert(sys.argv[1], sys.argv[2])"


def large_checkpoint(folder: Path, layers: int) -> Path:
    """A llama of 33.6 + 12.1 * layers million bfloat16 weights, written a megabyte at a time."""
    folder.mkdir(parents=True)
    config = tiny_config("llama", **SIZE, num_hidden_layers=layers)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, 307)
    shapes: dict[str, list[int]] = {"model.embed_tokens.weight": [32768, 1024], "model.norm.weight": [1024]}
    rows = {"self_attn.q_proj": 1024, "self_attn.k_proj": 256, "self_attn.v_proj": 256, "self_attn.o_proj": 1024,
            "mlp.gate_proj": 3072, "mlp.up_proj": 3072}  # fmt: skip
    for index in range(layers):
        layer = f"model.layers.{index}"
        shapes |= {f"{layer}.{name}.weight": [count, 1024] for name, count in rows.items()}
        shapes[f"{layer}.mlp.down_proj.weight"] = [1024, 3072]
        shapes |= {f"{layer}.{norm}.weight": [1024] for norm in ("input_layernorm", "post_attention_layernorm")}
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    random = np.random.default_rng(0).integers(0, 1 << 16, 1 << 19, np.uint16)
    block = (random & 0x807F | 0x3C00).tobytes()  # of either sign, from 2**-7 to 2**-6
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, end, len(block)):
            file.write(block[: end - start])
    return folder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """58 million weights: 33 MB as a package."""
    return large_checkpoint(tmp_path_factory.mktemp("large") / "checkpoint", 2)


def run(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def error_of(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1
    return result.stderr.strip().splitlines()[-1]


# A full disk

LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)"


@pytest.mark.parametrize("limit", [100, 8_000, 50_000], ids=["in a text file", "in the tokenizer", "in the weights"])
def test_a_file_that_may_not_grow_is_named_and_nothing_is_left(limit: int, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint")
    out = tmp_path / "out" / "package"
    out.parent.mkdir()
    result = run(f"import sys; {LIMITED}; {EXPORT}", checkpoint, out, str(limit))
    assert error_of(result) == (
        f"embedllm.errors.ExportError: cannot write '{out}': the file system, or a limit of this process, takes no "
        "file that large. Nothing was left there."
    )
    assert list(out.parent.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("only root may mount a disk")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_is_named_and_nothing_is_left(large: Path, small_disk: Path) -> None:
    """Space that was there when the export began can be taken by others: the child is told of more than there is."""
    out = small_disk / "package"
    assert error_of(run(EXPORT, large, out)).startswith("embedllm.errors.ExportError: the export needs ")
    assert list(small_disk.iterdir()) == []
    optimist = "import shutil; real = shutil.disk_usage; shutil.disk_usage = lambda p: real(p)._replace(free=10**9)"
    result = run(f"{optimist}; {EXPORT}", large, out)
    assert error_of(result) == (
        f"embedllm.errors.ExportError: cannot write '{out}': the disk is full. Nothing was left there."
    )
    assert list(small_disk.iterdir()) == []


# Stopped on the way


def until(is_true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Waits for the child to get somewhere; there is no event to wait for."""
    while not is_true():
        assert process.poll() is None, "it ended before it could be stopped"
        time.sleep(0.001)


def stopped(command: list[str | Path], out: Path, written: int, with_signal: int) -> subprocess.CompletedProcess[str]:
    """Runs an export until it has written that many bytes of weights, then sends a signal."""

    def has_written() -> bool:
        files = out.parent.glob(f".{out.name}.partial-*/weights.safetensors")
        return any(file.stat().st_size > written for file in files)

    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            until(has_written, process)
            process.send_signal(with_signal)
            printed, said = process.communicate(timeout=60)
        finally:
            process.kill()  # when it does not end by itself, it is not left to the tests after this one
    return subprocess.CompletedProcess(command, process.returncode, printed, said)


@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c_works")
@pytest.mark.parametrize("written", [0, 1_000_000, 10_000_000])
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "replacing"])
def test_ctrl_c_leaves_everything_as_it_was(written: int, is_new: bool, large: Path, tmp_path: Path) -> None:
    out = tmp_path / "package"
    if not is_new:
        convert(tiny_checkpoint(tmp_path / "tiny"), out)
    before = sorted(tmp_path.rglob("*"))
    export = EXPORT.replace("sys.argv[2]", "sys.argv[2], replace=True")
    result = stopped([sys.executable, "-c", export, large, out], out, written, signal.SIGINT)
    assert result.returncode == -signal.SIGINT
    assert result.stderr.strip().endswith("KeyboardInterrupt")
    assert sorted(tmp_path.rglob("*")) == before
    if not is_new:
        open_package(out).check()


@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c_works")
def test_ctrl_c_of_the_command_says_so_and_leaves_nothing(large: Path, tmp_path: Path) -> None:
    out = tmp_path / "package"
    result = stopped([sys.executable, "-m", "embedllm", "export", large, out], out, 1_000_000, signal.SIGINT)
    assert result.returncode == 130
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_kill_leaves_no_package_and_the_next_export_works(large: Path, tmp_path: Path) -> None:
    out = tmp_path / "package"
    result = stopped([sys.executable, "-c", EXPORT, large, out], out, 1_000_000, signal.SIGKILL)
    assert result.returncode == -signal.SIGKILL
    assert not out.exists()
    open_package(convert(large, out, Recipe(method="nearest"))).check()


# Memory

TWO_CORES = "import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])"  # each has pieces in memory
PEAK = "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize(("method", "most", "growth"), [("search", 150, 20), (None, 350, 70)])
def test_the_peak_of_memory_hardly_grows_with_the_model(
    method: str | None, most: int, growth: int, tmp_path: Path
) -> None:
    """Measured: 72 MB for either with search; 254 and 304 MB by default, which reads a text and keeps sums of inputs.
    With 6 and 12 layers, 241 to 276 and 260 to 305 MB, by what threads do at the same time.

    VmHWM and not ru_maxrss, which a child inherits from the process that started it.
    """
    peaks = []
    for layers in (2, 6):  # 58 and 106 million weights
        checkpoint = large_checkpoint(tmp_path / f"{layers} layers", layers)
        out = tmp_path / f"package of {layers}"
        export = "import sys; from embedllm.export import Recipe, convert; "
        export += f"convert(sys.argv[1], sys.argv[2], Recipe(method={method!r}))"
        result = run(f"{TWO_CORES}; {export}; {PEAK}", checkpoint, out)
        assert result.returncode == 0, result.stderr
        assert (out / "weights.safetensors").stat().st_size > (33.5e6 + layers * LAYER) * 4.5 / 8
        peaks.append(int(result.stdout) / 1000)  # MB
        os.remove(checkpoint / "model.safetensors")  # noqa: PTH107
    assert max(peaks) < most, peaks
    assert abs(peaks[1] - peaks[0]) < growth, peaks


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_the_peak_of_memory_does_not_grow_with_the_context(tmp_path: Path) -> None:
    """The rotary tables of 300,000 tokens are 154 MB."""
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama", head_dim=128, max_position_embeddings=300_000)
    result = run(f"{TWO_CORES}; {EXPORT}; {PEAK}", checkpoint, tmp_path / "package")
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) / 1000 < 150

"""The table of the worker's parameters, against the library that it speaks for."""

from __future__ import annotations

import pytest

from embedllm import opening
from embedllm.backends import select
from embedllm.worker_messages import RpcError
from embedllm.worker_params import checked


@pytest.mark.parametrize("threads", [-1, 0, 1, opening._MOST_THREADS, opening._MOST_THREADS + 1])
def test_the_table_takes_the_threads_that_load_takes(threads: int) -> None:
    """What load() refuses only after the held model was freed would cost the host its model."""
    assert is_taken("load", threads=threads) == (0 <= threads <= opening._MOST_THREADS)


@pytest.mark.parametrize("device", ["cpu", "", " ", [], ["auto", "cpu"], ["cpu", ""], ["\t"], ["npu:NPU 4000"]])
def test_the_table_takes_the_devices_that_load_takes(device: str | list[str]) -> None:
    try:
        select.plain(device)
    except ValueError:
        assert not is_taken("load", device=device)
    else:
        assert is_taken("load", device=device)


def is_taken(method: str, **params: int | str | list[str]) -> bool:
    try:
        checked(method, params)  # type: ignore[arg-type]  # a list of texts is JSON
    except RpcError:
        return False
    return True

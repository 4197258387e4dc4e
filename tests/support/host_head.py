"""Draft heads of the engine of CUDA with the CPU provider as its device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from embedllm.backends.gpu.draft_head import DeviceHeadEngine
from embedllm.export import graphs
from embedllm.package.graph_variants import EAGLE, MTP
from tests.support.host_engine import OnHost


class HostHeadEngine(OnHost, DeviceHeadEngine):
    """The device is the machine's own memory."""


@contextmanager
def heads_for_host() -> Iterator[None]:
    """Heads that are added within the block have guesses as CUDA's have them, in float32."""
    known = graphs._OF_HEADS  # pyright: ignore[reportPrivateUsage]
    with pytest.MonkeyPatch.context() as patch:
        guessing = tuple(replace(one, guesses=True) if one in (EAGLE, MTP) else one for one in known)
        patch.setattr(graphs, "_OF_HEADS", guessing)
        yield

"""How far the hub's client has come with a download, told to a function in place of its own bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from huggingface_hub.utils import tqdm

    from embedllm.export.progress import Progress


@contextmanager
def reporting(total: int, on_progress: Callable[[Progress], None] | None) -> Iterator[type[tqdm]]:
    """What snapshot_download() takes for its bars: prints nothing, reports bytes of `total`, in the end all."""
    from huggingface_hub.utils import tqdm

    from embedllm.export.progress import Progress

    done, lock = 0, Lock()  # files are downloaded by several threads

    def report(count: float) -> None:
        nonlocal done
        if on_progress is not None and total and count > done:
            done = min(int(count), total)
            on_progress(Progress("download", done, total))

    class Bar(tqdm):
        """One of files, or of bytes: of these the client has up to two, what was sent and what is on disk."""

        def __init__(self, *arguments: object, **options: object) -> None:
            self._counts_bytes = options.get("unit") == "B"
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            with lock:
                self.n += n or 0
                if self._counts_bytes:
                    report(self.n)

    yield Bar
    report(total)

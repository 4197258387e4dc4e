"""Reports the download progress of huggingface_hub to a function, in place of its progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from huggingface_hub.utils import tqdm

    from embedllm.files.progress import Progress


@contextmanager
def reporting(total: int, on_progress: Callable[[Progress], None] | None) -> Iterator[type[tqdm]]:
    """What snapshot_download() takes for its bars: prints nothing, reports bytes of `total`, in the end all.

    What on_progress raises ends the download, and is raised as it is.
    """
    from huggingface_hub.utils import tqdm

    from embedllm.files.progress import Progress

    done, lock = 0, Lock()  # files are downloaded by several threads
    raised: list[BaseException] = []

    def report(count: float) -> None:
        nonlocal done
        if on_progress is not None and total and count > done:
            done = min(int(count), total)
            try:
                on_progress(Progress("download", done, total))
            except BaseException as error:
                raised.append(error)
                raise

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

    try:
        yield Bar
    except Exception:
        if raised:
            raise raised[0] from None
        raise
    report(total)

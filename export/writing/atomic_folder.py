"""Where a folder is written: it appears under its name when it is whole, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.package.package import MANIFEST

_SPARE = 64 << 20  # bytes that shall be left on the disk
_NAME = 50  # characters of a name that are kept beside a suffix: file systems take 255 bytes
_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file system, or a limit of this process, takes no file that large",
}


def named_place(out: str | Path) -> Path:
    """The folder that a caller means, with a name of its own.

    Raises ExportError for one that no file system takes, or that the package's files could not say.
    """
    if not isinstance(out, str | os.PathLike):
        raise TypeError(f"the folder to write is {out!r}; expected text or a pathlib.Path.")
    place = Path(os.path.expanduser(out))  # noqa: PTH111  # Path.expanduser raises for a user that is not there
    if "\0" in str(place):
        raise ExportError(f"cannot write {str(place)!r}: no name has the character \\0 in it. Choose another name.")
    place = place.resolve() if place.name in ("", "..") else place  # such as ".", which is to be replaced
    try:
        place.name.encode()
    except UnicodeEncodeError:
        raise ExportError(
            f"cannot write {str(place)!r}: its name has a byte that is not UTF-8, and the package's files hold the "
            "name as text. Choose another name."
        ) from None
    return place


def check_place(out: Path, replace: bool) -> None:
    """Raises ExportError when the package cannot go there."""
    try:
        if out.exists() and not replace:
            raise ExportError(f"'{out}' exists already; choose another name, or replace it (--replace).")
        if out.exists() and not (out / MANIFEST).exists() and (not out.is_dir() or any(out.iterdir())):
            raise ExportError(f"'{out}' is no package folder; it is not replaced. Choose another name.")
    except OSError as error:
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: OSError) -> ExportError:
    reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
    return ExportError(f"cannot write '{out}': {reason}. Nothing was left there.")


@contextmanager
def atomic_folder(out: Path, size: int, *, what: str = "the export") -> Iterator[Path]:
    """A folder beside `out` that takes its name when the block ends well, and is removed when it does not.

    size: bytes that must be free; what: whose need they are. Raises ExportError for whatever the system refuses.
    """
    partial: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out.parent).free
        if free < size + _SPARE:
            raise ExportError(f"{what} needs {size:,} bytes on the disk of '{out.parent}'; {free:,} are free.")
        # not mkdtemp: what it makes is for this user only, on Windows by an access list that chmod does not lift
        fresh = out.with_name(f".{out.name[:_NAME]}.partial-{secrets.token_hex(4)}")
        fresh.mkdir()
        partial = fresh
        yield partial
        _take_name(partial, out)
    except OSError as error:
        raise _unwritable(out, error) from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def _take_name(partial: Path, out: Path) -> None:
    if not out.exists():
        partial.rename(out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name[:_NAME]}.old-", dir=out.parent))
    kept = old / out.name
    try:
        out.rename(kept)
        partial.rename(out)
    except BaseException:  # Ctrl-C among them: what was to be replaced must not vanish with the folder it waits in
        if os.path.lexists(kept) and not os.path.lexists(out):
            kept.rename(out)
        raise
    finally:
        if os.path.lexists(out):
            shutil.rmtree(old, ignore_errors=True)

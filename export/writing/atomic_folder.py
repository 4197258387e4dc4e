"""Where a folder is written: it appears under its name when it is whole, or not at all."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.export.writing.replaceable import check_replaceable
from embedllm.files.home_path import expanded
from embedllm.package.package import MANIFEST

_NAME = 50  # characters of a name that are kept beside a suffix: file systems take 255 bytes
_LOCK, _OLD = ".lock", ".old"  # ends of names beside a partial folder: its lock, and what it replaces
_log = logging.getLogger("embedllm")
_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file system, or a limit of this process, takes no file that large",
}


def named_place(out: str | Path) -> Path:
    """The folder that a caller means, with a name of its own: of a link to a folder, the one that it leads to.

    Raises ExportError for one that no file system takes, or that the package's files could not say.
    """
    if not isinstance(out, str | os.PathLike):
        raise TypeError(f"the folder to write is {out!r}; expected text or a pathlib.Path.")
    place = expanded(out)
    if "\0" in str(place):
        raise ExportError(f"cannot write {str(place)!r}: no name has the character \\0 in it. Choose another name.")
    is_link = os.path.islink(place) and os.path.isdir(place)  # noqa: PTH112, PTH114  # Path.is_dir raises for a long name
    if is_link or place.name in ("", ".."):  # such as ".", which is to be replaced
        place = place.resolve()
    try:
        place.name.encode()
    except UnicodeEncodeError:
        raise ExportError(
            f"cannot write {str(place)!r}: its name has a byte that is not UTF-8, and the package's files hold the "
            "name as text. Choose another name."
        ) from None
    return place


def check_place(out: Path, replace: bool, *, inputs: Iterable[str | Path] = ()) -> None:
    """Raises ExportError when the package cannot go there. inputs: that are read, and must not be deleted with it."""
    try:
        if os.path.islink(out) and not out.exists():  # noqa: PTH114  # Path.is_symlink raises for a long name
            raise ExportError(
                f"'{out}' is a link to '{out.readlink()}', where nothing is. Remove the link, or choose another name."
            )
        if out.exists() and not replace:
            raise ExportError(f"'{out}' exists already; choose another name, or replace it (--replace).")
        if out.exists() and not (out / MANIFEST).exists() and (not out.is_dir() or any(out.iterdir())):
            raise ExportError(f"'{out}' is no package folder; it is not replaced. Choose another name.")
        if (out / MANIFEST).exists():
            check_replaceable(out, inputs)
    except OSError as error:
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: OSError) -> ExportError:
    reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
    return ExportError(f"cannot write '{out}': {reason}. Nothing was left there.")


@contextmanager
def atomic_folder(out: Path, size: int, *, what: str = "the export") -> Iterator[Path]:
    """A folder beside `out` that takes its name when the block ends well, and is removed when it does not.

    Also removes what exports to the same place left that were killed (clear_killed()).
    size: bytes that must be free; what: whose need they are. Raises ExportError for whatever the system refuses.
    """
    with ExitStack() as left:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            clear_killed(out)
            free = shutil.disk_usage(out.parent).free
            if free < size:
                raise ExportError(f"{what} needs {size:,} bytes on the disk of '{out.parent}'; {free:,} are free.")
            partial = _new_partial(out, left)
            yield partial
            _take_name(partial, out)
        except OSError as error:
            raise _unwritable(out, error) from error


def _new_partial(out: Path, left: ExitStack) -> Path:
    """A folder beside `out`, and its lock. left: frees both."""
    while True:
        partial = out.with_name(f"{_partial_prefix(out)}{secrets.token_hex(4)}")
        is_mine = left.enter_context(_locked(partial))
        if is_mine is not False and partial.with_name(partial.name + _LOCK).exists() == bool(is_mine):
            break  # else another export took the new lock for one that was left, and has removed it
    # not mkdtemp: what it makes is for this user only, on Windows by an access list that chmod does not lift
    partial.mkdir()
    left.callback(shutil.rmtree, partial, ignore_errors=True)
    return partial


def clear_killed(out: Path) -> None:
    """Removes what killed exports to a place left beside it; a package that one of them was replacing comes back.

    An export that runs, in this process or another, holds a lock.
    """
    pattern = re.compile(re.escape(_partial_prefix(out)) + r"[0-9a-f]{8}(?=$|\.lock$|\.old$|\.trace-)")
    try:
        names = {match[0] for path in out.parent.iterdir() if (match := pattern.match(path.name))}
    except OSError:
        return
    for name in names:
        partial = out.with_name(name)
        with suppress(OSError), _locked(partial) as is_mine:
            if is_mine and not partial.is_symlink():
                _remove_killed(partial)


def _remove_killed(partial: Path) -> None:
    for path in [path for path in partial.parent.iterdir() if path.name.startswith(f"{partial.name}.trace-")]:
        shutil.rmtree(path, ignore_errors=True)
    old = partial.with_name(partial.name + _OLD)
    for entry in [*old.iterdir()] if old.is_dir() else []:
        if not os.path.lexists(place := partial.with_name(entry.name)):
            entry.rename(place)
    for folder in (old, partial):
        if folder.exists():
            _log.info("removing '%s', which an export that was killed left", folder)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(partial: Path) -> Iterator[bool | None]:
    """Holds the lock of a folder that is being written, which ends with the process.

    Gives False where another one has it, and None where the file system knows no locks: nothing is cleared there.
    """
    from filelock import FileLock, Timeout

    path = partial.with_name(partial.name + _LOCK)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except (Timeout, NotImplementedError) as error:
        yield False if isinstance(error, Timeout) else None
        return
    try:
        yield True
    finally:
        with suppress(OSError):  # before it is free, so that nobody takes it for one that is in use
            path.unlink()
        lock.release()
        if os.name == "nt":  # where an open file cannot be removed
            with suppress(OSError):
                path.unlink()


def _partial_prefix(out: Path) -> str:
    return f".{out.name[:_NAME]}.partial-"


def _take_name(partial: Path, out: Path) -> None:
    if not out.exists():
        partial.rename(out)
        return
    old = partial.with_name(partial.name + _OLD)
    old.mkdir()
    backup = old / out.name
    try:
        out.rename(backup)
        partial.rename(out)
    except BaseException:  # Ctrl-C among them: what was to be replaced must not vanish with the folder it waits in
        if os.path.lexists(backup) and not os.path.lexists(out):
            backup.rename(out)
        raise
    finally:
        if os.path.lexists(out):
            shutil.rmtree(old, ignore_errors=True)

"""Files with a JSON object a line, and their faults by the line. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

_BOM = b"\xef\xbb\xbf"


def read_objects(path: Path, expected: str) -> Iterator[tuple[int, dict[str, object]]]:
    """(number of the line, object) of every line that is not blank, one at a time.

    expected: what a line is to look like, for errors.
    Raises ValueError for a line that is no UTF-8 or no JSON object, OSError.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            data = line.removeprefix(_BOM) if number == 1 else line
            if not data.strip():
                continue
            try:
                value = json.loads(data.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise fault(
                    path, number, f"is no UTF-8 ({error.reason} at its byte {error.start})", expected
                ) from error
            except (ValueError, RecursionError) as error:
                raise fault(path, number, f"is no JSON ({error})", expected) from error
            if not isinstance(value, dict):
                raise fault(path, number, f"holds a {type(value).__name__}", expected)
            yield number, value


def fault(path: Path, number: int, what: str, expected: str) -> ValueError:
    """What to raise for a line."""
    return ValueError(f"line {number} of '{path}' {what}; expected {expected}.")

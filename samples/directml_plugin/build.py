"""Packs the extension into embedllm_writer.oxt: python samples/directml_plugin/build.py [FILE]

The same sources give the same bytes: names in order, no times, no owners.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parent / "extension"
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that a ZIP file can hold
_SUFFIXES = (".py", ".xml", ".xcu")


def build(target: Path) -> Path:
    """Writes the extension, whole or not at all; gives `target`."""
    partial = target.with_name(f".{target.name}.partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as packed:  # deflated bytes differ between zlib versions
        for path in sorted(path for path in SOURCE.rglob("*") if path.suffix in _SUFFIXES):
            entry = zipfile.ZipInfo(path.relative_to(SOURCE).as_posix(), _TIME)
            entry.create_system = 3  # else it says where it was packed
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, path.read_bytes())
    partial.replace(target)
    return target


if __name__ == "__main__":
    made = build(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("embedllm_writer.oxt"))
    sys.stdout.write(f"{made}\n")

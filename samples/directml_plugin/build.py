"""Packs the extension into embedllm_writer.oxt: python samples/directml_plugin/build.py [FILE]

The same sources give the same bytes: names in order, no times, no owners.
"""

from __future__ import annotations

import argparse
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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Packs the extension for LibreOffice into one file.")
    parser.add_argument("file", nargs="?", type=Path, default="embedllm_writer.oxt", help="default: %(default)s")
    target: Path = parser.parse_args().file
    if target.is_dir():
        parser.error(f"'{target}' is a folder; expected the name of a file to write.")
    if not target.parent.is_dir():
        parser.error(f"there is no folder '{target.parent}'; make it, or name a file in another one.")
    sys.stdout.write(f"{build(target)}\n")


if __name__ == "__main__":
    main()

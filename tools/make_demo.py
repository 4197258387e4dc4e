"""Exports the demo model into the package: INT4 layers, an 8-bit table for embedding and head, its card and credits.

    python tools/make_demo.py CHECKPOINT

CHECKPOINT is the folder of the trained model (config.json, model.safetensors, tokenizer, README.md, SOURCES.md).
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from embedllm.export import Recipe, convert

DEMO = Path(__file__).parent.parent / "embedllm" / "demo"
LIMIT = 30_000_000  # bytes: what an installation may cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    checkpoint = parser.parse_args().checkpoint
    convert(checkpoint, DEMO, Recipe(head_bits=8, method="nearest"), replace=DEMO.exists(), verify=True)
    for name in ("README.md", "SOURCES.md"):
        shutil.copyfile(checkpoint / name, DEMO / name)
    size = sum(path.stat().st_size for path in DEMO.iterdir())
    if size > LIMIT:
        raise SystemExit(f"the demo has {size:,} bytes; expected at most {LIMIT:,}.")
    print(f"{DEMO}: {size:,} bytes")  # noqa: T201 - a script for the command line


if __name__ == "__main__":
    main()

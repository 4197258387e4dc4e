"""Exports the demo model into the package: calibrated INT4 layers, an 8-bit table for embedding and head, its card.

    python tools/make_demo.py CHECKPOINT DOCUMENTS.jsonl CHATS.jsonl

CHECKPOINT is the folder of the trained model (config.json, model.safetensors, tokenizer, README.md, SOURCES.md).
DOCUMENTS has {"text": ...} a line, CHATS {"messages": [...]}: what the quantizer is to do well on. After a change of a
graph alone, `embedllm graph embedllm/demo --variant NAME` needs none of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from embedllm.export import Recipe, convert
from embedllm.text.chat_template import ChatTemplate

DEMO = Path(__file__).parent.parent / "embedllm" / "demo"
LIMIT = 30_000_000  # bytes: what an installation may cost
CHATS = 100  # chats that are read as one document, since one alone is shorter than a window


def mixed(documents: Path, chats: Path, template: ChatTemplate) -> Iterator[str]:
    """Documents, and between them chats as the model reads and writes them."""
    said = [json.loads(line)["messages"] for line in chats.read_text(encoding="utf-8").splitlines()]
    written = [template.render(messages, add_generation_prompt=False) for messages in said]
    joined = ["".join(written[at : at + CHATS]) for at in range(0, len(written), CHATS)]
    texts = [json.loads(line)["text"] for line in documents.read_text(encoding="utf-8").splitlines()]
    every = len(texts) // len(joined) + 1
    for at, chat in enumerate(joined):
        yield from (*texts[at * every : (at + 1) * every], chat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("documents", type=Path)
    parser.add_argument("chats", type=Path)
    options = parser.parse_args()
    checkpoint = options.checkpoint
    cards = ("README.md", "SOURCES.md")
    for name in cards:  # which are no part of the package, and so it would not be replaced
        (DEMO / name).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "documents-and-chats.jsonl")
        lines = mixed(options.documents, options.chats, ChatTemplate.open(checkpoint))
        text.write_text("".join(json.dumps({"text": one}) + "\n" for one in lines), encoding="utf-8")
        recipe = Recipe(head_bits=8, method="gptq", symmetric=True)
        convert(checkpoint, DEMO, recipe, calibration=text, replace=DEMO.exists(), verify=True)
    for name in cards:
        shutil.copyfile(checkpoint / name, DEMO / name)
    size = sum(path.stat().st_size for path in DEMO.iterdir())
    if size > LIMIT:
        raise SystemExit(f"the demo has {size:,} bytes; expected at most {LIMIT:,}.")
    print(f"{DEMO}: {size:,} bytes")  # noqa: T201 - a script for the command line


if __name__ == "__main__":
    main()

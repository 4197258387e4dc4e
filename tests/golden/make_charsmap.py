"""Writes charsmap.json: a small map of characters as SentencePiece compiles it. Takes sentencepiece 0.2.3.

python tests/golden/make_charsmap.py
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

FILE = Path(__file__).with_name("charsmap.json")
SPACES = [
    *range(0x09, 0x0E),
    0x85,
    0xA0,
    0x1680,
    *range(0x2000, 0x200B),
    0x2028,
    0x2029,
    0x202F,
    0x205F,
    0x3000,
    0x2581,
]
RULES = {
    **{chr(code): " " for code in SPACES},
    **{chr(0xFF01 + place): chr(0x21 + place) for place in range(94)},  # full width
    "ﬁ": "fi", "½": "1\u20442", "㍿": "株式会社", "\u00ad": "", "…": "...",
    "e\u0301": "é", "a\u0308": "ä", "か\u3099": "が",
}  # fmt: skip


def codes(text: str) -> str:
    return " ".join(f"{ord(each):X}" for each in text)


if __name__ == "__main__":
    rules = FILE.with_suffix(".tsv")
    rules.write_text("".join(f"{codes(old)}\t{codes(new)}\n" for old, new in sorted(RULES.items())))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox", "jumps over the lazy dog"]), model_writer=model, vocab_size=40,
        model_type="unigram", normalization_rule_tsv=str(rules), hard_vocab_limit=False,
    )  # fmt: skip
    rules.unlink()
    found = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]  # made as it is loaded
    found.ParseFromString(model.getvalue())
    FILE.write_text(json.dumps(base64.b64encode(found.normalizer_spec.precompiled_charsmap).decode("ascii")) + "\n")

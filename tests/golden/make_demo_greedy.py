"""Writes demo_greedy.json: greedy replies of the demo checkpoint by transformers, in float32.

    python tests/golden/make_demo_greedy.py CHECKPOINT PROMPTS.jsonl

PROMPTS.jsonl: held-out conversations, a line each: {"messages": [...], "tools": [...]}; the first 50 without a tool
list and the first 10 with one are taken. Made with transformers 5.23.0 and torch 2.13.0.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers

LIMIT = 64  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("prompts", type=Path)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.prompts.read_text(encoding="utf-8").splitlines()]
    plain, tools = [r for r in rows if not r.get("tools")], [r for r in rows if r.get("tools")]
    step = len(plain) // 50
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(options.checkpoint, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.checkpoint)
    golden = []
    for row in [*plain[::step][:50], *tools[:10]]:
        prompt = tokenizer.apply_chat_template(
            row["messages"], tools=row.get("tools"), add_generation_prompt=True, tokenize=False
        )
        inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        out = model.generate(**inputs, max_new_tokens=LIMIT, do_sample=False)[
            0, inputs["input_ids"].shape[1] :
        ].tolist()
        stops = set(model.generation_config.eos_token_id)
        tokens = out[: next((i for i, token in enumerate(out) if token in stops), len(out))]
        entry = {"messages": row["messages"], "tools": row.get("tools"), "tokens": tokens}
        entry["prompt_tokens"] = inputs["input_ids"][0].tolist()
        golden.append({**entry, "text": tokenizer.decode(tokens, skip_special_tokens=True)})
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in golden)
    Path(__file__).with_name("demo_greedy.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Writes expected/*.json: what transformers makes of every conversation with every template in this folder.

    python tests/templates/make_expected.py

Made with transformers 5.24.0, jinja2 3.1.6, Python 3.11. An entry is the prompt, or why there is none:
{"refused": the template's own words} or {"failed": the type of the error}. The clock stands at CLOCK.
"""

from __future__ import annotations

import importlib
import json
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jinja2
import tokenizers

FOLDER = Path(__file__).parent
CLOCK = datetime(2025, 7, 4, 12, 0, 0)
LLAMA_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TOKENS = {  # where the special tokens are not Llama's
    "chatml": {"eos_token": "<|im_end|>"},
    "llama3_1": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "llama3_2": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "gemma2": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "gemma3": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "phi4_mini": {"eos_token": "<|endoftext|>"},
    "qwen3": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "command_r": {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"},
    "ernie": {"cls_token": "<|begin_of_sentence|>", "image_token": "<|image|>"},
    "gpt_oss": {"bos_token": "<|startoftext|>", "eos_token": "<|return|>"},
    "demo": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
}


def conversations() -> dict[str, dict[str, Any]]:
    """The arguments of each conversation, with tools in the place of their names."""
    tools = read("tools")
    given = read("conversations")
    for arguments in given.values():
        if "tools" in arguments:
            arguments["tools"] = [tools[name] for name in arguments["tools"]]
    return given


def expected(name: str) -> dict[str, Any]:
    """What transformers makes of every conversation with one template."""
    tokens = TOKENS.get(name, LLAMA_TOKENS)
    return {
        "tokens": tokens,
        "prompts": {title: outcome(name, tokens, arguments) for title, arguments in conversations().items()},
    }


def outcome(name: str, tokens: dict[str, str], arguments: dict[str, Any]) -> str | dict[str, str]:
    """The prompt of one conversation, or why there is none."""
    transformers = importlib.import_module("transformers")  # by name, since type checking must go without it
    clock = importlib.import_module("transformers.utils.chat_template_utils")
    engine = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=engine, **tokens)
    rest = dict(arguments)
    messages, variables = rest.pop("messages"), rest.pop("variables", {})
    closed = rest.pop("continue_final_message", False)
    ask = rest.pop("add_generation_prompt", True) and not closed
    template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    with mock.patch.object(clock, "datetime", SimpleNamespace(now=lambda: CLOCK)):
        try:
            return tokenizer.apply_chat_template(
                messages,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=ask,
                continue_final_message=closed,
                **rest,
                **variables,
            )
        except Exception as error:  # noqa: BLE001 # the kind of error is the result
            refused = type(error) is jinja2.TemplateError
            return {"refused": str(error)} if refused else {"failed": type(error).__name__}


def names() -> list[str]:
    """All templates."""
    return sorted(path.stem for path in FOLDER.glob("*.jinja"))


def read(name: str) -> dict[str, Any]:
    """A JSON file of this folder."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    (FOLDER / "expected").mkdir(exist_ok=True)
    for name in names():
        text = json.dumps(expected(name), ensure_ascii=False, indent=1)
        (FOLDER / "expected" / f"{name}.json").write_text(text + "\n", encoding="utf-8")

"""Prompts for the model's own replies: chats, tasks, beginnings of texts and general prompts, as token ids.

What is drawn at random has a seed. Every entry of a file is either trained on or held out, with all that is made of it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from general import general_prompts

Messages = list[dict[str, Any]]
HELD_OUT = 20  # every twentieth entry
_LONGEST = 400  # tokens
_OF_SUMS = 0.15  # share of the paragraphs that a sum comes with
_SYSTEM = (None, None, None, "You are a helpful assistant.", "You turn plain English into shell commands.")
_GENERAL_SYSTEM = (None,) * 9 + ("You are a helpful assistant.",)
_TASKS = {  # of a paragraph or a sentence {0}, and of a word {1}
    "summary": ("Summarize: {0}", "Summarize the following text in one sentence.\n\n{0}", "What is this about?\n{0}"),
    "question": ("What does '{1}' mean here? {0}", "What is {1}?", "Who is {1}?", "Why is {1} important?"),
    "translation": ("Translate to French: {0}", "Translate to German: {0}", "How do you say '{1}' in Spanish?"),
    "story": ("Write a short story about {1}.", "Tell me a story about a {1}.", "Continue the story: {0}"),
    "chat": ("Hello, I like {1}.", "Hi! Can you help me with {1}?", "Tell me something about {1}.", "Thanks. {0}"),
    "JSON": ("Return a JSON object with the words of: {0}", 'Answer in JSON with the keys "name" and "text": {0}'),
    "repetition": ("Repeat this: {0}", "Say it again, word by word:\n{0}", "Write '{1}' ten times."),
    "code": ("Write a Python function that returns {1}.", "Write a shell script for {1}.", "Explain this: {0}"),
}
_SUMS = ("What is {0} {2} {1}?", "Compute {0} {2} {1}.", "I have {0} apples and get {1} more. How many are there?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a reply is made to."""

    kind: str
    tokens: list[int]


class Prompts:
    """All prompts of a corpus, those that are trained on and those that are held out."""

    def __init__(
        self,
        corpus: Path,
        tokenizer: transformers.PreTrainedTokenizerBase,
        *,
        seed: int,
        general: int = 0,
        measured: Collection[str] = (),
    ) -> None:
        """corpus: the folder with chat_validation.jsonl, tldr_pairs.jsonl, fresh_slots.jsonl and validation.jsonl.

        general: how many are made from templates besides. measured: what a benchmark asks, which is left out.
        """
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._measured = {plain(text) for text in measured}
        self.trained: list[Prompt] = []
        self.held_out: list[Prompt] = []
        parts = (("chat_validation", self._chats), ("fresh_slots", self._chats), ("tldr_pairs", self._commands),
                 ("validation", self._texts))  # fmt: skip
        entries: list[dict[str, Any]] = []
        for name, prompts_of in parts:
            lines = (corpus / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
            entries = [json.loads(line) for line in lines]
            for number, entry in enumerate(entries):
                (self.trained if number % HELD_OUT else self.held_out).extend(self._short(prompts_of(entry)))
        held_out = entries[::HELD_OUT]  # of the texts, which are last
        trained = [entry for number, entry in enumerate(entries) if number % HELD_OUT]
        if general:
            self.trained += self._short(self._general(trained, general))
            self.held_out += self._short(self._general(held_out, general // HELD_OUT))

    @staticmethod
    def _short(prompts: Iterable[Prompt]) -> list[Prompt]:
        return [prompt for prompt in prompts if 0 < len(prompt.tokens) <= _LONGEST]

    def _general(self, texts: Sequence[dict[str, Any]], count: int) -> Iterator[Prompt]:
        """From templates, with paragraphs of prose."""
        paragraphs = [paragraph for entry in texts for paragraph in entry["text"].split("\n\n")]
        prose = [paragraph for paragraph in paragraphs if re.match(r"[A-Z][^|`#]{120,}[.?!]$", paragraph)]
        for kind, text in general_prompts(prose, count, self._random):
            yield self._asked(kind, text, _GENERAL_SYSTEM)

    def _chat(self, kind: str, messages: Messages, tools: Messages | None = None) -> Prompt:
        if plain(messages[-1]["content"]) in self._measured:
            return Prompt(kind=kind, tokens=[])  # and so left out
        text = self._tokenizer.apply_chat_template(messages, tools=None if tools is None else [*tools], tokenize=False,
                                                   add_generation_prompt=True)  # fmt: skip
        assert isinstance(text, str)  # as tokenize=False says
        return Prompt(kind=kind, tokens=self._tokenizer.encode(text, add_special_tokens=False))

    def _asked(self, kind: str, text: str, systems: Sequence[str | None] = _SYSTEM) -> Prompt:
        system = self._random.choice(systems)
        before: Messages = [] if system is None else [{"role": "system", "content": system}]
        return self._chat(kind, [*before, {"role": "user", "content": text}])

    def _chats(self, entry: dict[str, Any]) -> Iterator[Prompt]:
        """What the assistant has said is left to the model, in every turn."""
        messages, kind = entry["messages"], str(entry.get("kind") or entry.get("group"))
        for end, message in enumerate(messages):
            if end and message["role"] == "assistant":
                yield self._chat(kind, messages[:end], entry.get("tools"))
        if messages[-1]["role"] != "assistant":
            yield self._chat(kind, messages, entry.get("tools"))

    def _commands(self, entry: dict[str, Any]) -> Iterator[Prompt]:
        description, tool, command = entry["description"], entry["tool"], entry["command"]
        asked = (f"How do I {description[:1].lower()}{description[1:]}?", f"{description} with {tool}", description)
        yield from (self._asked("command", text) for text in asked)
        yield self._asked("explain", f"What does `{command}` do?")

    def _texts(self, entry: dict[str, Any]) -> Iterator[Prompt]:
        """Beginnings of the text's paragraphs, and tasks about them."""
        chosen = self._random
        for paragraph in entry["text"].split("\n\n"):
            tokens = self._tokenizer.encode(paragraph, add_special_tokens=False)
            if len(tokens) < 24:
                continue
            yield Prompt(kind="text", tokens=tokens[: chosen.randint(8, min(128, len(tokens) - 8))])
            sentence = " ".join(paragraph.split()[: chosen.randint(6, 60)])
            words = [word.strip(".,:;()`'\"*#[]") for word in sentence.split()]
            word = chosen.choice([each for each in words if len(each) > 3] or ["time"])
            kind = chosen.choice(list(_TASKS))
            yield self._asked(kind, chosen.choice(_TASKS[kind]).format(sentence, word))
            if chosen.random() < _OF_SUMS:
                one, other, sign = chosen.randint(1, 99), chosen.randint(1, 99), chosen.choice("+-*")
                yield self._asked("mathematics", chosen.choice(_SUMS).format(one, other, sign))


def plain(text: str) -> str:
    """The words alone, by which two prompts are found to ask the same."""
    return " ".join(re.findall(r"[^\W_]+", text.casefold()))

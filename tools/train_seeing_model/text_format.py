"""The tokenizer and the chat template, and turns as token ids for training."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<end_of_utterance>",
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
)
PAD, START, END, IMAGE, FAKE, GLOBAL = range(len(SPECIAL))
TILE_TOKENS = 64

# as SmolVLM's, but: no spaces before contents, and the images of a message before its texts
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>{% endif %}{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
_SPLIT = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\n")


def make_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """BPE whose merges are the prefixes of the words of these texts, and bytes for all else.

    Only words after a space and words that begin with a capital have merges. What is in quotes is read from a picture:
    it stays single letters, however common the word.
    """
    prefixes: set[str] = set()
    for text in texts:
        for word in _SPLIT.findall(re.sub(r'"\w+', '"', text)):
            word = word.replace(" ", "Ġ")
            if word[0] == "Ġ" or word[0].isupper() or word[0] == '"':
                prefixes.update(word[:end] for end in range(2, len(word) + 1))
    ordered = sorted(prefixes, key=lambda prefix: (len(prefix), prefix))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*SPECIAL, *letters, *ordered]
    names += [f"<unused{place}>" for place in range(-len(names) % 32)]
    vocabulary = {name: place for place, name in enumerate(names)}
    merges = [(prefix[:-1], prefix[-1]) for prefix in ordered]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return tokenizer


class Layout:
    """Turns of one picture as rows of ids, groups, positions and labels; see model.visible for groups."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: dict[str, list[int]] = {}
        user, self._reply = self.encode("User:"), self.encode("\nAssistant:")
        self._picture = [*user, FAKE, GLOBAL, *[IMAGE] * TILE_TOKENS, FAKE]
        self.prefix = [START, *self._picture]
        self.bare = [START, *user]  # of a turn without a picture
        self._next = [*self.encode("\n"), *user]

    def encode(self, text: str) -> list[int]:
        """Ids of a text; those of its words are kept, since the pre-tokenizer splits there."""
        ids: list[int] = []
        for piece in _SPLIT.findall(text):
            if piece not in self._ids:
                self._ids[piece] = self._tokenizer.encode(piece, add_special_tokens=False).ids
            ids += self._ids[piece]
        return ids

    def prompt(self, question: str) -> list[int]:
        """Of a first turn with a picture, up to the answer."""
        return [*self.prefix, *self.encode(question), END, *self._reply]

    def rows(
        self, turns: Iterable[tuple[str, str, bool]], length: int, *, is_chat: bool, system: str = ""
    ) -> tuple[list[int], list[int], list[int], list[int]]:
        """Of (question, answer, sees). is_chat: each turn follows the one before; else each follows the picture.
        system: of a chat."""
        ids = (
            [START, *self.encode("System:" + system), END, *self.encode("\n"), *self._picture]
            if system
            else self.prefix
        )
        ids, groups = list(ids), [0] * len(ids)
        positions, labels = list(range(len(ids))), [-100] * len(ids)
        is_first = True
        for number, (question, answer, sees) in enumerate(turns, start=1):
            if is_chat:
                head, group, first = ([] if is_first else self._next), 0, len(ids)
            elif sees:
                head, group, first = [], number, len(self.prefix)
            else:
                head, group, first = self.bare, -number, 0
            asked = [*head, *self.encode(question), END, *self._reply]
            said = [*self.encode(answer), END]
            if len(ids) + len(asked) + len(said) > length:
                break
            is_first = False
            count = len(asked) + len(said)
            ids += asked + said
            groups += [group] * count
            positions += range(first, first + count)
            # a label is what the next token is to be
            labels += [-100] * (len(asked) - 1) + said + [-100]
        short = length - len(ids)
        return ids + [PAD] * short, groups + [0] * short, positions + [0] * short, labels + [-100] * short

"""Which special tokens of a rendered prompt the chat template wrote, and which came with what it was given.

A template writes the marks of a turn as text, such as "<|im_end|>". The same text in a message, a tool result, a tool's
description or a document is only text: it must not become a token. So a template is rendered a second time with the
first character of each such text replaced by a mask that no text can hold. Where both prompts are the same but for the
masks, the places of the masks are those of the content. Standard library only. The twin of
bindings_web/src/package/content_marks.js.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from embedllm.errors import TemplateError
from embedllm.types import JSON

NO_TOKEN = "\ufffc"  # in the place of a character: no special token has it
_MASK = "\udc00"  # half a surrogate pair, which no tokenizer takes; tojson may write it as the escape below
_ESCAPED = "\\udc00"
_CONTENT = ("messages", "tools", "documents")  # of a template's variables
_STRUCTURE = ("role", "type")  # their values are the application's own, and templates make marks of them
_MOST_RENDERINGS = 64  # to find what a template reads; what takes more is an attack

Render = Callable[[Mapping[str, JSON]], str]
_Group = tuple[bool, str]  # whether an assistant's message holds it; the special token's text, "" for a part of one


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """What a chat template wrote.

    literal: the characters at which no special token begins, whatever stands there: they came with the messages.
    """

    text: str
    literal: frozenset[int] = frozenset()

    @property
    def marked(self) -> str:
        """The text with NO_TOKEN in each of these places."""
        letters = list(self.text) if self.literal else []
        for place in self.literal:
            letters[place] = NO_TOKEN
        return "".join(letters) if self.literal else self.text


class ContentMarks:
    """Finds the texts of special tokens in what a template is given."""

    def __init__(self, special_texts: Collection[str]) -> None:
        texts = sorted((text for text in special_texts if text), key=len, reverse=True)
        self._whole = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._beginnings = {text[:count] for text in texts for count in range(1, len(text))}
        self._longest = max(map(len, texts), default=0)

    def render(self, render: Render, variables: Mapping[str, JSON]) -> RenderedPrompt:
        """The prompt of a template, the same text as without this class.

        A special token's text that the template looks for in a message, and so writes otherwise when it is masked,
        counts as the template's own in a message of the assistant, whose reasoning templates part from its text; in
        any other it counts as text, wherever it stands in the prompt.
        Raises what render raises.
        """
        text = render(variables)
        groups: set[_Group] = set()
        for key in _CONTENT:
            self._walk(variables.get(key), note=groups.add)
        if not groups:
            return RenderedPrompt(text)
        search = _Search(text, partial(self._masked, render, variables))
        masked_groups = search.maskable(sorted(groups))
        places = search.literal(masked_groups)
        if places is None:
            masked_groups, places = set(), frozenset()
        for is_assistant, special in sorted(groups - masked_groups):
            is_read = search.is_read((is_assistant, special))
            if special and not (is_read and is_assistant) and search.adds((is_assistant, special)):
                places |= {match.start() for match in re.finditer(re.escape(special), text)}
        return RenderedPrompt(text, places)

    def _masked(self, render: Render, variables: Mapping[str, JSON], groups: Collection[_Group]) -> str | None:
        """The prompt with the groups masked, None where the template fails on it."""
        changed = {key: self._walk(variables[key], groups=groups) for key in _CONTENT if key in variables}
        try:
            return render({**variables, **changed})
        except TemplateError:
            return None

    def _walk(
        self,
        value: JSON,
        *,
        groups: Collection[_Group] = (),
        note: Callable[[_Group], object] | None = None,
        is_assistant: bool = False,
        is_structure: bool = False,
    ) -> JSON:
        """The value with some groups masked. note: called with each group that is found."""
        inner = partial(self._walk, groups=groups, note=note)
        if isinstance(value, str):
            return self._text(value, groups, note, is_assistant, is_structure)
        if isinstance(value, dict):
            is_assistant = is_assistant or value.get("role") == "assistant"
            return {
                self._text(name, groups, note, is_assistant, is_structure=True): inner(
                    item, is_assistant=is_assistant, is_structure=name in _STRUCTURE
                )
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            items = [inner(item, is_assistant=is_assistant) for item in value]
            return tuple(items) if isinstance(value, tuple) else items
        return value

    def _text(
        self,
        text: str,
        groups: Collection[_Group],
        note: Callable[[_Group], object] | None,
        is_assistant: bool,
        is_structure: bool,
    ) -> str:
        places = [(place, (is_assistant, special)) for place, special in self._places(text, is_structure)]
        if note is not None:
            for _, group in places:
                note(group)
        masked = [place for place, group in places if group in groups]
        if not masked:
            return text
        letters = list(text)
        for place in masked:
            letters[place] = _MASK
        return "".join(letters)

    def _places(self, text: str, is_structure: bool) -> Iterator[tuple[int, str]]:
        """Where the text of a special token begins, and, at the end of a text, a part of one: another may follow."""
        at = 0
        while match := self._whole.search(text, at):
            at = match.start() + 1
            yield match.start(), match[0]
        if is_structure:
            return
        for end in {len(text), len(text.rstrip())}:
            for start in range(max(0, end - self._longest), end):
                if text[start:end] in self._beginnings:
                    yield start, ""


class _Search:
    """Finds which groups can be masked without another change of the prompt, in a limited number of renderings."""

    def __init__(self, text: str, masked: Callable[[Collection[_Group]], str | None]) -> None:
        self._text = text
        self._masked = masked
        self._left = _MOST_RENDERINGS
        self._template_groups: set[_Group] = set()

    def maskable(self, groups: Sequence[_Group]) -> set[_Group]:
        """By halves: mostly all of them are, or all but one or two that the template reads."""
        if self._left <= 0:
            return set()
        self._left -= 1
        if self.literal(groups) is not None:
            return set(groups)
        if len(groups) == 1:
            self._template_groups.add(groups[0])
            return set()
        middle = len(groups) // 2
        return self.maskable(groups[:middle]) | self.maskable(groups[middle:])

    def literal(self, groups: Collection[_Group]) -> frozenset[int] | None:
        """Where the masks of these groups stand; None where the prompt becomes another."""
        return _differences(self._text, self._masked(groups)) if groups else frozenset()

    def is_read(self, group: _Group) -> bool:
        """Whether it is known that the template looks for it."""
        return group in self._template_groups

    def adds(self, group: _Group) -> bool:
        """Whether the prompt may have this special token's text out of the content, as far as its number tells."""
        alone = self._masked({group}) if group in self._template_groups else None
        return alone is None or self._text.count(group[1]) > alone.count(group[1])


def _differences(text: str, masked: str | None) -> frozenset[int] | None:
    """Where the masks stand in a prompt; None where it differs in more than these."""
    for candidate in () if masked is None else (masked, masked.replace(_ESCAPED, _MASK)):
        if len(candidate) != len(text):
            continue
        places = [match.start() for match in re.finditer(_MASK, candidate)]
        letters = list(candidate)
        for place in places:
            letters[place] = text[place]
        if "".join(letters) == text:
            return frozenset(places)
    return None

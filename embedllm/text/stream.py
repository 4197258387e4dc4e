"""Tokens to text as they come: whole characters only, and stop strings that span chunks."""

from __future__ import annotations

from collections.abc import Sequence

from embedllm.text.lone_surrogates import check_text
from embedllm.text.protocols import TextCodec
from embedllm.text.token_bytes import REPLACEMENT, is_byte_token

_WINDOW = 12  # tokens decoded at most for each new one, outside of a run of byte tokens
_CONTEXT = 4  # tokens kept when the window is cut: the last character lies in them, it has at most four bytes


class TextStream:
    """Text out of tokens that come one by one, each piece given once it can no longer change.

    The pieces, with what `flush` gives, are together exactly decode(all tokens), for any tokens. Held back are: a
    character of which some bytes are still to come, and a whole run of byte tokens ("<0xE6>"), since one wrong byte
    would turn all of the run into replacement characters.
    """

    def __init__(
        self,
        tokenizer: TextCodec,
        *,
        special: bool = False,
        mark_tokens: frozenset[int] = frozenset(),
        before: Sequence[int] = (),
        is_whole: bool = False,
    ) -> None:
        """special: with all special tokens. mark_tokens: with these.

        before: the tokens of a prompt that is continued: its text and the pieces are then decode() of all tokens, and
        a space between both, which many decoders take off the beginning of a text, stays.
        is_whole: a character that is incomplete before does not go on in the tokens, and is no part of the pieces.
        """
        self._tokenizer = tokenizer
        self._dropped = frozenset() if special else tokenizer.special_tokens - mark_tokens
        self._special = special or bool(mark_tokens)
        self._window: list[int] = []  # the last tokens, enough of them to decode the next one in place
        self._emitted_chars = 0  # characters of the window's text that were given out
        self._is_whole = False  # all of them were, and some; then `_emitted_chars` is not kept
        self._begin(before, is_whole=is_whole)

    def _begin(self, before: Sequence[int], *, is_whole: bool) -> None:
        """Takes the end of a prompt as given: a few tokens, and all of a run of byte tokens."""
        for token in reversed(before):
            spelling = self._tokenizer.token_text(token)
            if spelling is None or token in self._dropped:
                continue
            if len(self._window) >= _CONTEXT and not is_byte_token(spelling):
                break
            self._window.insert(0, token)
            if len(self._window) >= _WINDOW:
                break
        if self._window:
            text = self._decode()
            self._emitted_chars = len(text if is_whole else text.rstrip(REPLACEMENT))

    def push(self, token: int) -> str:
        """Take one token; the text that is certain now, often empty."""
        if self._is_whole and (piece := self._tokenizer.appended_text(token)) is not None:
            self._window = [token]
            return piece
        spelling = self._tokenizer.token_text(token)
        if spelling is None or token in self._dropped:
            return ""  # it leaves no trace in decode() either: the text around it joins
        if self._is_whole:
            self._emitted_chars, self._is_whole = len(self._decode()), False
        self._window.append(token)
        if is_byte_token(spelling):
            return ""
        text = self._decode()
        # A last replacement character may be the start of a character; what comes before it is certain.
        certain = len(text) - text.endswith(REPLACEMENT)
        piece = text[self._emitted_chars : certain]
        self._emitted_chars = certain
        self._is_whole = 0 < certain == len(text)
        if len(self._window) > _WINDOW:
            self._window = self._window[-_CONTEXT:]
            self._emitted_chars = len(self._decode()) - (len(text) - certain)
        return piece

    def flush(self) -> str:
        """The rest of the text; the next token begins another one."""
        rest = "" if self._is_whole else self._decode()[self._emitted_chars :]
        self._window = []
        self._emitted_chars, self._is_whole = 0, False
        return rest

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, special=self._special)


def text_after(tokenizer: TextCodec, before: Sequence[int], tokens: Sequence[int], *, special: bool = False) -> str:
    """The text of tokens that continue those before them."""
    stream = TextStream(tokenizer, special=special, before=before)
    return "".join([*map(stream.push, tokens), stream.flush()])


class StopStrings:
    """Finds the first of some strings in a text that comes in pieces, however it is split.

    The match that begins first wins, the shorter of two that begin together. Held back is the longest end of the
    text that could still become a match.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if isinstance(strings, str) or not all(isinstance(string, str) and string for string in strings):
            raise ValueError(f"stop strings are a list of texts that are not empty, found {strings!r}.")
        for string in strings:
            check_text(string, "a stop string")
        self._strings = tuple(strings)
        self._buffer = ""
        self.matched: str | None = None  # the stop string that was found

    def push(self, piece: str) -> str:
        """Take the next piece of text; what is certain to lie before any match. After a match: always empty."""
        if not self._strings:
            return piece
        if self.matched is not None:
            return ""
        text = self._buffer + piece
        start = self._open_start(text)
        match = self._first(text)
        if match is not None and match[0] <= start:
            start, self.matched = match
            self._buffer = ""
        else:
            self._buffer = text[start:]
        return text[:start]

    def flush(self) -> str:
        """The text is at its end: what was held back, as far as a match."""
        text, self._buffer = self._buffer, ""
        match = self._first(text)
        if match is None:
            return text
        self.matched = match[1]
        return text[: match[0]]

    def _first(self, text: str) -> tuple[int, str] | None:
        """Where the first match begins, and which string it is."""
        match = min(
            ((text.find(string), len(string), string) for string in self._strings if string in text), default=None
        )
        return None if match is None else (match[0], match[2])

    def _open_start(self, text: str) -> int:
        """Where the longest end of the text begins that is the beginning of a stop string; its length if none is."""
        longest = max(map(len, self._strings))
        for start in range(max(0, len(text) - longest + 1), len(text)):
            if any(string.startswith(text[start:]) for string in self._strings):
                return start
        return len(text)

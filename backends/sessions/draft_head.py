"""A head (MTP, EAGLE-3) that drafts from the hidden states of the target model's sequence.

The head has a KV cache of its own, of the tokens whose hidden states were there to be read. It may begin anywhere in a
sequence: its attention knows distances only, and what it drafts is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from embedllm.backends.base import GivesHidden, KeptHidden
from embedllm.backends.checks import check_rewind

if TYPE_CHECKING:
    from embedllm.backends.base import Device, Session
    from embedllm.types import Logits

H = TypeVar("H")  # hidden states of consecutive tokens, where the device has them

# Tokens that are read at once where drafts have paused, in which the head has read nothing, or where its KV is full:
# more of them would cost what the limits of speculation do not count. The KV then begins with them.
_CAUGHT_UP = 32


class ReadingHead(Protocol[H]):
    """A head's own sequence."""

    longest: int  # tokens that it holds
    most: int  # tokens of a read

    @property
    def position(self) -> int:
        """Tokens that it has read."""
        ...

    @property
    def hidden(self) -> KeptHidden[H] | None:
        """Of its own tokens, for reading guesses; None: it makes several guesses in one read."""
        ...

    def read(self, tokens: Sequence[int], hidden: H, guesses: int) -> Logits:
        """Appends tokens, each with the hidden state of the one before; the logits behind the last one.

        guesses: that are wanted one after the other; of a head that guesses on the logits are `GuessesOn`.
        """
        ...

    def rewind(self, position: int) -> None: ...

    def interrupt(self, stop: bool = True) -> None: ...

    def close(self) -> None: ...


class HeadHost(Protocol[H]):
    """What runs a head."""

    device: Device
    context: int  # tokens
    remedy: str

    def open_head(self) -> ReadingHead[H]: ...

    def close(self) -> None: ...


class DraftHeadEngine(Generic[H]):
    """A head. It is an engine so that its sequences are fed as those of a draft model are."""

    def __init__(self, host: HeadHost[H], tokens: tuple[int, ...] | None = None) -> None:
        """tokens: that its logits are of, where these are not all of them in their order."""
        self._host = host
        self.device = host.device
        self.context = self.chunk = host.context  # one feed: tokens without a hidden state are passed over
        self.remedy = host.remedy
        self.tokens = tokens

    def open(self, capacity: int = 0) -> DraftHeadSession[H]:
        """A session that follows none yet; room is taken as it is needed."""
        return DraftHeadSession(self._host.open_head)

    def close(self) -> None:
        self._host.close()


class DraftHeadSession(Generic[H]):
    """Drafts for the sequence that it follows. Holds its tokens; of those that it can, their KV."""

    def __init__(self, open_head: Callable[[], ReadingHead[H]]) -> None:
        self.position = 0
        self._guess_count = 1  # guesses in a row, by the next feed
        self._inner = open_head()
        self._followed: GivesHidden[H] | None = None
        self._tokens: list[int] = []
        self._start = 0  # the token that the KV begins with
        self._read_end = 0  # tokens up to here were read with hidden states of the target model

    def follow(self, session: Session) -> None:
        """Reads the hidden states of that session from now on. ValueError where it keeps none."""
        if not isinstance(session, GivesHidden) or session.hidden is None:
            raise ValueError("a head that drafts needs a session that keeps hidden states.")
        session.hidden.keep()
        self._followed = cast("GivesHidden[H]", session)

    @property
    def is_ready(self) -> bool:
        """Whether there is the hidden state of the last token of that session: not while its KV came from elsewhere."""
        followed = self._followed
        hidden = None if followed is None else followed.hidden
        return followed is not None and hidden is not None and hidden.first < followed.position <= hidden.stop

    @property
    def guesses_on(self) -> bool:
        """Whether a feed makes as many guesses as were wanted; else each is fed for the next one."""
        return self._inner.hidden is None

    def want(self, guesses: int) -> None:
        """Says how many the next feed shall make, of a head that guesses on."""
        self._guess_count = max(1, guesses)

    @property
    def capacity(self) -> int:
        return self._inner.longest

    def feed(self, tokens: Sequence[int]) -> Logits:
        """As Session.feed: the logits of the token behind the last one.

        Where the target model has read all but the last token, everything is read with its hidden states, also drafts
        that were read with the head's own before. Else it is one more token of a draft.
        """
        followed = self._followed
        assert followed is not None
        hidden = followed.hidden
        assert hidden is not None  # as follow() has checked
        end, inner = len(self._tokens) + len(tokens), self._inner
        if end - 1 > min(followed.position, hidden.stop):
            assert len(tokens) == 1, "a draft goes on token by token"
            assert inner.hidden is not None
            logits = inner.read(tokens, inner.hidden.get(inner.position - 1, inner.position), 1)
            self._tokens += tokens
            self.position = end
            return logits
        first = hidden.first + 1
        begin = max(self._read_end, first)
        has_room = end - self._start + self._guess_count <= inner.longest
        if inner.position and begin == self._read_end and end - begin <= _CAUGHT_UP and has_room:
            inner.rewind(begin - self._start)
        else:
            begin = max(first, end - (_CAUGHT_UP if self._read_end else inner.most))
            inner.rewind(0)
            self._start = begin
        inputs = [*self._tokens, *tokens][begin:]
        logits = inner.read(inputs, hidden.get(begin - 1, end - 1), self._guess_count)
        self._tokens += tokens
        self.position = self._read_end = end
        return logits

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        del self._tokens[position:]
        self.position = position
        self._read_end = min(self._read_end, position)
        self._inner.rewind(min(self._inner.position, max(0, position - self._start)))

    def interrupt(self, stop: bool = True) -> None:
        self._inner.interrupt(stop)

    def close(self) -> None:
        self._inner.close()
        self._followed = None

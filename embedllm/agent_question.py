"""What a loop of tools begins with: messages for a model, or what is said to a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from embedllm.conversation.conversation import Conversation
from embedllm.model import Model
from embedllm.text.chat_template import Message, Tool
from embedllm.text.prompt import check_messages

if TYPE_CHECKING:
    from embedllm.text.chat_template import JSON


@dataclass(slots=True, kw_only=True)
class Question:
    """What the loop begins with."""

    messages: Sequence[Message]
    tools: Sequence[Tool]
    talk: Conversation | None = None
    _said: int = 0  # of all messages since the first one, how many the conversation has
    _result: Message | None = None  # of a tool, said last: there when the reply to it has any text

    @classmethod
    def of(
        cls,
        model: Model | Conversation,
        messages: str | Message | Sequence[Message],
        tools: Sequence[Tool] | None,
        variables: Mapping[str, JSON] | None,
    ) -> Question:
        """Raises ValueError for what does not go together."""
        if isinstance(model, Model):
            check_messages(messages)
            if tools is None:
                raise ValueError("there are no tools; give functions or schemas.")
            return cls(messages=cast("Sequence[Message]", messages), tools=tools)
        if tools is not None or variables is not None:
            raise ValueError("a conversation has tools and variables of its own; give them to Model.conversation().")
        if not isinstance(messages, str | Mapping):
            raise ValueError(f"messages is {messages!r:.80}; to a conversation a text or one message is said.")
        if not model.tools:
            raise ValueError("this conversation has no tools; give them to Model.conversation().")
        said: Message = {"role": "user", "content": messages} if isinstance(messages, str) else messages
        return cls(messages=[said], tools=model.tools, talk=model)

    def new_of(self, said: Sequence[Message]) -> Message:
        """What is to be said of all messages so far; those before it, which are new as well, go into the history."""
        assert self.talk is not None
        self._result = said[-1] if self._said else None
        new, self._said = said[self._said :], len(said) + 1  # the reply to it will be there, too
        self.talk.messages += new[:-1]
        return new[-1]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within the block an error leaves the conversation as it was; a cancel leaves it every result of a call."""
        before = None if self.talk is None else list(self.talk.messages)
        try:
            yield
        except BaseException:
            if self.talk is not None and before is not None:
                self.talk.messages[:] = before
            raise
        if self.talk is not None and self._result is not None:
            messages = self.talk.messages
            if not any(message is self._result for message in messages):
                messages.append(self._result)

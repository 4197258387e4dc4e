"""A chat that remembers its history, and keeps the KV cache of it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, Unpack, get_args

from embedllm.cancel import Cancel, given_or_own
from embedllm.generation.async_stream import AsyncStream
from embedllm.generation.chunk import Chunk
from embedllm.generation.completion import Completion, collect
from embedllm.generation.options import PromptOptions, ReplyOptions, WhenFull, lists_options
from embedllm.generation.request import Request
from embedllm.generation.run_in_thread import run_in_thread
from embedllm.generation.runner import Runner
from embedllm.images.parts import has_images
from embedllm.kv_cache.context_shift import check_movable
from embedllm.kv_cache.sequence import CachedSequence
from embedllm.kv_cache.sequence_handle import SequenceHandle
from embedllm.model.context_policy import WHOLE_HISTORY, PendingTurn, VisibleHistory, drop_oldest, shift_context
from embedllm.sampling.options import Sampling
from embedllm.text.chat_template import Message, Tool
from embedllm.text.prompt import check_messages
from embedllm.text.prompt_length import check_length, message_text

if TYPE_CHECKING:
    from embedllm.backends.base import Device
    from embedllm.package.package import Package
    from embedllm.text.chat_template import JSON
    from embedllm.text.prompt import Prompt
    from embedllm.text.protocols import ModelCodec

_Turn: TypeAlias = AbstractContextManager[Callable[[Chunk], None]]  # takes the chunks of the reply, and its end


class _UnderWay:
    """Is there as long as the reply of a turn is being read."""


class ChatModel(Protocol):
    """What a conversation needs of its Model (embedllm/model/model.py)."""

    package: Package
    tokenizer: ModelCodec
    runner: Runner
    context: int

    @property
    def device(self) -> Device: ...

    @property
    def kind(self) -> dict[str, str]: ...

    def prompt_tokens(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
    ) -> list[int]: ...

    def build_request(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        limit: int | None = None,
        **options: Unpack[PromptOptions],
    ) -> Request: ...


class Conversation:
    """Messages and the KV cache of what they became; made by Model.conversation(). One turn at a time.

    tools: what the model may call; run_tools runs them. when_full: see Model.conversation().
    adapter: of the turns that name no other; another one computes the whole history again.
    """

    def __init__(
        self,
        model: ChatModel,
        system: str | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, JSON] | None = None,
        when_full: WhenFull = "error",
        adapter: str | None = None,
    ) -> None:
        if when_full not in (modes := get_args(WhenFull)):
            raise ValueError(f"when_full is {when_full!r}; expected {', '.join(map(repr, modes))}.")
        self.model = model
        """The model that answers."""
        if not isinstance(system, str | None):
            raise ValueError(f"system is {system!r}; expected the text of a system prompt, or None.")
        self._messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.tools = tools
        """What the model may call; run_tools runs them."""
        self.adapter = adapter
        """Of the turns that name no other."""
        self._variables = variables
        self._when_full: WhenFull = when_full
        self._visible_history = WHOLE_HISTORY
        self._handle: SequenceHandle | None = None
        self._under_way: weakref.ref[_UnderWay] = weakref.ref(_UnderWay())  # the turn whose reply is being read
        if when_full == "shift":
            sequence = model.runner.call(self._hold(0).open)
            try:
                check_movable(sequence.session, model.device.name, model.package.decoder)
            except ValueError:
                self.close()
                raise

    @property
    def messages(self) -> list[Message]:
        """The history, a list that may be changed between turns, or set: what no longer is as the cache has it is
        computed again. To set what is no list raises ValueError.
        """
        return self._messages

    @messages.setter
    def messages(self, messages: list[Message]) -> None:
        if not isinstance(messages, list):
            raise ValueError(f"messages is {messages!r:.80}; expected a list of messages, [] for none.")
        self._messages = messages

    @property
    def when_full(self) -> WhenFull:
        """The context policy: what happens to a turn that does not fit into the context."""
        return self._when_full

    @lists_options(ReplyOptions)
    def say(
        self,
        text: str | Message,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[ReplyOptions],
    ) -> Completion:
        """Adds the user's message and the model's reply to the history; gives the reply.

        text: what the user says, or a whole message (a tool's result, say). Its images go into the history as data
        URLs. options: as of Model.generate().
        When it fails (ContextFull, TemplateError, DeviceError) the history stays as it was.
        """
        return collect(self.stream(text, sampling, cancel=cancel, **options))

    @lists_options(ReplyOptions)
    def stream(
        self,
        text: str | Message,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[ReplyOptions],
    ) -> Generator[Chunk, None, None]:
        """As say(), token by token.

        Of a reply that is cancelled or left early, the history gets what there was; without any text, nothing.
        """
        turn, request = self._request(text, sampling, options)
        return self._stream(turn, request, given_or_own(cancel))

    @lists_options(ReplyOptions)
    async def asay(
        self,
        text: str | Message,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[ReplyOptions],
    ) -> Completion:
        """As say(), without blocking the event loop."""
        chunks = await self.aopen_stream(text, sampling, cancel=cancel, **options)
        return collect([chunk async for chunk in chunks])

    @lists_options(ReplyOptions)
    def astream(
        self,
        text: str | Message,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[ReplyOptions],
    ) -> AsyncStream:
        """As stream(), for `async for`. The history is tokenized before this returns; see Model.astream()."""
        turn, request = self._request(text, sampling, options)
        sequence = self._hold(len(request.prompt))
        return self.model.runner.astream(request, given_or_own(cancel), sequence, noting=turn)

    @lists_options(ReplyOptions)
    async def aopen_stream(
        self,
        text: str | Message,
        sampling: Sampling | None = None,
        *,
        cancel: Cancel | None = None,
        **options: Unpack[ReplyOptions],
    ) -> AsyncStream:
        """As astream(), whose history is tokenized in a thread; see Model.aopen_stream()."""
        used_cancel, runner = given_or_own(cancel), self.model.runner
        turn, request = await runner.make(lambda: self._request(text, sampling, options))
        return runner.astream(request, used_cancel, self._hold(len(request.prompt)), noting=turn)

    def _request(self, text: str | Message, sampling: Sampling | None, options: ReplyOptions) -> tuple[_Turn, Request]:
        """The turn in which it is said, and what the model shall run."""
        if not isinstance(text, str | Mapping):
            raise ValueError(f"text is {text!r:.80}; expected what the user says, as a text or a message.")
        history = [*self.messages]
        message: Message = {"role": "user", "content": text} if isinstance(text, str) else text
        if has_images([message]):
            from embedllm.images.prompt import portable  # loaded for messages with images only

            message = portable(message)
        options = {"adapter": self.adapter, **options}
        request, visible_history = self._apply_context_policy([*self.messages, message], sampling, options)
        self.model.runner.check(request)
        return self._turn(message, visible_history, history), request

    def _check_idle(self) -> None:
        if self._under_way() is not None:
            raise ValueError("this conversation has a reply under way; finish, close or cancel it first")

    def _apply_context_policy(
        self, messages: Sequence[Message], sampling: Sampling | None, options: ReplyOptions
    ) -> tuple[Request, VisibleHistory]:
        """The request, and the part of the history that the model sees."""
        check_messages(messages)  # a list of numbers would be taken for token ids
        model, variables = self.model, self._variables
        check_length(message_text(messages[-1]), model.tokenizer, model.context)
        limit = model.context if self.when_full == "error" else None  # a longer history is shortened
        tools = None if options.get("tool_choice") == "none" else self.tools
        turn = PendingTurn(
            messages=messages,
            request=lambda shown: model.build_request(
                shown, sampling, limit, tools=self.tools, variables=variables, **options
            ),
            tokens=lambda shown: model.prompt_tokens(shown, tools=tools, variables=variables),
            context=model.context,
        )
        if self.when_full == "drop-oldest":
            return drop_oldest(turn, self._visible_history)
        if self.when_full == "shift":
            kv_tokens = self._sequence.tokens if self._sequence is not None else ()
            return shift_context(turn, self._visible_history, kv_tokens, model.package.decoder)
        return turn.request(messages), WHOLE_HISTORY

    @property
    def _sequence(self) -> CachedSequence | None:
        return None if self._handle is None else self._handle.sequence

    def _hold(self, capacity: int) -> SequenceHandle:
        """A sequence of its own from now on, with room for that many tokens at first."""
        if self._handle is None:
            self._handle = SequenceHandle(self.model.runner.sequences, capacity)
        return self._handle

    def _stream(self, turn: _Turn, request: Request, cancel: Cancel) -> Generator[Chunk, None, None]:
        with turn as note:
            sequence = self._hold(len(request.prompt))
            for chunk in self.model.runner.stream(request, cancel, sequence):
                note(chunk)
                yield chunk

    @contextmanager
    def _turn(
        self, message: Message, visible_history: VisibleHistory, history: Sequence[Message]
    ) -> Iterator[Callable[[Chunk], None]]:
        """Within the block, chunks are collected; at its end the messages go into the history, unless it failed.

        history: what was said before when the turn was made, which its prompt has.
        """
        self._check_idle()
        if self.messages != history:
            raise ValueError(
                "the history has changed since this stream was made, so that its prompt does not have all of it; make "
                "a stream when it is read"
            )
        under_way = _UnderWay()  # goes with this frame, so that no interrupt can leave the conversation taken
        self._under_way = weakref.ref(under_way)
        chunks: list[Chunk] = []
        is_said = False

        def note(chunk: Chunk) -> None:
            nonlocal is_said
            chunks.append(chunk)
            is_said = (
                is_said
                or bool(chunk.text or chunk.reasoning or chunk.tool_calls or chunk.call_deltas)
                or chunk.finish_reason not in (None, "cancelled", "timeout")
            )

        try:
            yield note
        except Exception:
            is_said = False  # the turn can be said again
            raise
        finally:
            del under_way
            if is_said:
                self.messages += [message, collect(chunks).message]
                self._visible_history = replace(visible_history, dropped_tokens=chunks[-1].statistics.dropped_tokens)

    async def asave(self, path: str | os.PathLike[str]) -> None:
        """As save(), without blocking the event loop. Cancelling the task ends it, and what was there stays."""
        await run_in_thread(lambda cancel: self._save(path, cancel))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes history and KV cache into one file, which Model.open_conversation() reads; replaces it as a whole.

        The file holds the messages and their KV unencrypted: docs/format.md#kv-files. The KV goes as far as the last
        turn did: of messages that were taken out or changed since then, tokens are still in it, until the next turn;
        of a history that was cleared, nothing. Raises OSError, and ValueError while a reply is under way.
        """
        self._save(path, Cancel())

    def _save(self, path: str | os.PathLike[str], cancel: Cancel) -> None:
        """As save(); raises Interrupted when it is cancelled."""
        from embedllm.model.saved_conversation import SavedConversation, write_conversation

        saved = SavedConversation(
            messages=self.messages,
            tools=self.tools,
            variables=self._variables,
            when_full=self.when_full,
            first_seen=self._first_seen,
            dropped_tokens=self._visible_history.dropped_tokens,
            adapter=self.adapter,
        )
        self._check_idle()
        sequence = self._sequence if self.messages else None  # a history that was cleared is not to be read in a file
        runner = self.model.runner
        reserved = None if self._sequence is None else runner.sequences.reserve(self._sequence)
        try:
            if reserved is not None:
                runner.call(reserved.__enter__)
            write_conversation(Path(path), saved, sequence=sequence, model=self.model.kind, cancel=cancel)
        finally:
            if reserved is not None:
                runner.call(lambda: reserved.__exit__(None, None, None))

    @classmethod
    def open(
        cls,
        model: ChatModel,
        path: str | os.PathLike[str],
        *,
        when_full: WhenFull | None = None,
        cancel: Cancel | None = None,
    ) -> Conversation:
        """As Model.open_conversation(); raises Interrupted when it is cancelled."""
        from embedllm.model.saved_conversation import read_conversation, restore_sequence

        saved, file = read_conversation(Path(path))
        conversation = cls(model, tools=saved.tools, variables=saved.variables, adapter=saved.adapter,
                           when_full=when_full or saved.when_full)  # fmt: skip
        conversation.messages = list(saved.messages)
        if saved.first_seen is not None:
            conversation._visible_history = VisibleHistory(
                first=saved.messages[saved.first_seen], dropped_tokens=saved.dropped_tokens
            )
        runner = model.runner
        try:
            handle = restore_sequence(file, runner.sequences, model=model.kind, adapters=runner.adapters,
                                      cancel=given_or_own(cancel))  # fmt: skip
        except BaseException:
            conversation.close()
            raise
        if handle is not None:
            conversation.close()
            conversation._handle = handle
        return conversation

    @property
    def _first_seen(self) -> int | None:
        """Where in the history what the model sees of it begins; None: at its beginning."""
        places = (at for at, message in enumerate(self.messages) if message is self._visible_history.first)
        return next(places, None)

    def close(self) -> None:
        """Frees the KV cache; the history stays, and the next turn computes what the prefix cache has not kept."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

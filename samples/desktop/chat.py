"""What is done in the model's thread: turns of the open conversation, its file, and the replies of the two panes."""

from __future__ import annotations

import dataclasses
import json
import random
from itertools import takewhile

import embedllm

from . import tools
from .core import ModelThread
from .events import Answered, Filled, Found, Listed, Notice, Opened, Question, Ran, Spoken, Turn
from .store import Entry, Store

_WARMTH = 0.7  # the least temperature of a reply that is asked for again: a greedy one would come out the same
_PANE_TOKENS = 512  # of a reply in a pane
_TOOL_ROUNDS = 4


class Chat:
    """The open conversation. Every method is a job of the thread.

    thread: has the model. store: where conversations are kept.
    """

    def __init__(self, thread: ModelThread, store: Store) -> None:
        self._thread = thread
        self._store = store
        self._entry = Entry()
        self._is_new_kv = False  # whether the model has read more than the KV file holds

    def begin(self) -> None:
        """Tells the saved conversations."""
        entries, problems = self._store.entries()
        self._thread.tell(Listed(tuple(entries)))
        for problem in problems:
            self._thread.tell(Notice(problem))

    def find_devices(self) -> None:
        """Tells what this machine has; runtimes that are imported for it may take a second."""
        self._thread.tell(Found(tuple(embedllm.devices())))

    def load(self, path: str, device: str | None) -> None:
        """Takes another model; the open conversation goes on with it."""
        self.keep()
        self._thread.load(path, device)
        self._resume()

    def open(self, entry: Entry) -> None:
        self.keep()
        self._entry = entry
        self._resume()
        self._thread.tell(Opened(entry.id))

    def say(self, text: str, cancel: embedllm.Cancel, sampling: embedllm.Sampling | None = None) -> None:
        """A turn, and its line in the file."""
        try:
            self._thread.say(text, cancel, sampling)
        finally:
            self._note()

    def regenerate(self, cancel: embedllm.Cancel) -> None:
        """The last reply once more, with another seed; the old one comes back when none is made."""
        llm, talk = self._parts()
        last = max((place for place, message in enumerate(talk.messages) if message["role"] == "user"), default=None)
        if last is None:
            raise ValueError("there is no reply yet that could be made again.")
        text, old = str(talk.messages[last]["content"]), talk.messages[last:]
        del talk.messages[last:]
        warmth = max(llm.sampling.temperature, _WARMTH)
        other = dataclasses.replace(llm.sampling, temperature=warmth, seed=random.randrange(2**31))
        try:
            self._thread.say(text, cancel, other)
        finally:
            if len(talk.messages) == last:
                talk.messages += old
            self._note()

    def rename(self, name: str, title: str) -> None:
        """Another title, in the file too."""
        if name == self._entry.id:
            self._entry = dataclasses.replace(self._entry, title=title)
        self._store.rename(name, title)

    def delete(self, name: str) -> None:
        """Forgets a conversation."""
        if name == self._entry.id:
            self._entry, self._is_new_kv = Entry(), False
            self._resume()
        self._store.delete(name)

    def keep(self) -> None:
        """Writes the KV of the open conversation, so that it goes on at once when it is opened again."""
        if not self._is_new_kv or self._thread.talk is None:
            return
        self._is_new_kv = False
        try:
            self._thread.talk.save(self._store.kv_file(self._entry.id))
            self._store.prune()
        except OSError as error:  # what was said is safe; the model reads it again next time
            self._thread.tell(Notice(f"the state of '{self._entry.title}' could not be kept: {error}"))

    def fill(self, text: str, schema: str, cancel: embedllm.Cancel) -> None:
        """A reply that fulfils a JSON schema. Raises ValueError for what is none."""
        llm, _ = self._parts()
        try:
            schema_object = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the schema is no JSON: {error}.") from error
        if not isinstance(schema_object, dict):
            raise ValueError(f"the schema is {type(schema_object).__name__}; expected a JSON object.")
        form: embedllm.Message = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema_object}}
        messages: list[embedllm.Message] = [{"role": "user", "content": text}]
        for chunk in llm.stream(messages, response_format=form, max_tokens=_PANE_TOKENS, cancel=cancel):
            self._thread.tell(Filled(chunk))

    def use_tools(self, text: str, cancel: embedllm.Cancel) -> None:
        """An answer for which the model may call tools, each after it was allowed."""
        llm, _ = self._parts()

        def confirm(call: embedllm.ToolCall) -> bool:
            question = Question(call)
            self._thread.tell(question)
            return question.wait(cancel)

        done = embedllm.run_tools(
            llm, [{"role": "user", "content": text}], tools.SCHEMAS, functions=tools.FUNCTIONS,
            max_rounds=_TOOL_ROUNDS, max_tokens=_PANE_TOKENS, confirm=confirm, cancel=cancel,
            on_call=lambda outcome: self._thread.tell(Ran(outcome)),
            on_chunk=lambda chunk: self._thread.tell(Spoken(chunk)),
        )  # fmt: skip
        self._thread.tell(Answered(done.completion))

    def _parts(self) -> tuple[embedllm.Model, embedllm.Conversation]:
        if self._thread.llm is None or self._thread.talk is None:
            raise ValueError("no model is loaded; choose one above.")
        return self._thread.llm, self._thread.talk

    def _resume(self) -> None:
        """The entry as a conversation of the model, with its KV where there is one for it."""
        llm = self._thread.llm
        if llm is None:
            return
        if self._thread.talk is not None:
            self._thread.talk.close()
        file = self._store.kv_file(self._entry.id)
        try:
            self._thread.talk = llm.open_conversation(file) if file.exists() else _begun(llm)
        except (embedllm.PackageError, OSError) as error:
            self._thread.talk = _begun(llm)
            self._thread.tell(Notice(f"the conversation is read again by the model: {error}"))
        # what was said is in the entry: a KV file may be older, and then serves as far as it goes. Messages that are in
        # both stay the same objects: by them a conversation knows what it dropped
        old, new = self._thread.talk.messages, self._entry.messages
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
        self._thread.talk.messages = [*old[:same], *new[same:]]
        self._is_new_kv = False

    def _note(self) -> None:
        """Writes what was said, and tells it."""
        if self._thread.talk is None:
            return
        messages, is_written = self._thread.talk.messages, True
        if tuple(messages) != self._entry.messages:
            self._entry, self._is_new_kv = self._entry.with_messages(messages), True
            is_written = False
        self._thread.tell(Turn(self._entry))  # whether it can be written or not
        if not is_written:
            self._store.write(self._entry)


def _begun(llm: embedllm.Model) -> embedllm.Conversation:
    """One that goes on when it outgrows the context: its oldest turns are not read any more."""
    return llm.conversation(when_full="drop-oldest")

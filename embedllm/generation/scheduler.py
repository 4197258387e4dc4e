"""The scheduler of a model: waiting and running requests, and what the next iteration feeds. It has no thread.

As vLLM has it: each iteration takes one step of all running replies in one run of the device, and beside them pieces of
the prompts of others, within a budget of tokens (chunked prefill). A request is a generator that asks for feeds and
gives chunks (loop.py), so that everything that chooses tokens is its own. Standard library only.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from embedllm.backends.base import BatchRow, Interrupted
from embedllm.errors import Busy, DeviceError, with_advice
from embedllm.generation.job import Ask, Job
from embedllm.generation.loop import Feed
from embedllm.kv_cache.sequence import CachedSequence

if TYPE_CHECKING:
    from embedllm.kv_cache.sequence_pool import SequencePool
    from embedllm.types import Logits

_Rows: TypeAlias = "Callable[[Sequence[BatchRow]], Sequence[Logits]]"  # of an engine: feeds several sessions in one run
_Part: TypeAlias = "tuple[Ask, int]"  # what is fed next, and how many of its tokens
MAX_WAITING = 1024  # requests; each costs its prompt
_FULL = 8  # sequences that step, beside which a whole prompt budget is read
_LEAST_WHOLE = 2  # tokens of a prompt that is read together with others
_BESIDE_TURNS = 64  # the same budget on a device that takes turns
_WAKE_S = 1 / 60  # seconds, the time of a display's frame, in which readers are woken once
# iterations with something to feed: then a little is done of what can wait, too; earlier where much waits
_TIDY_EVERY = 32
MAX_RUNNING = 16  # requests, where neither memory nor the device says another number


class Scheduler:
    """The requests of one model. Its methods are called in the thread of the device's loop, if nothing else is said."""

    def __init__(self, pool: SequencePool, *, max_running: int = MAX_RUNNING, max_waiting: int = MAX_WAITING) -> None:
        """max_running: requests that are fed in turns or together; more wait, or are rejected beyond max_waiting."""
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.waiting: list[Job] = []  # by rank
        self.running: list[Job] = []  # in the order in which they were admitted
        self.preempted = 0  # times, so far
        self._iterations = 0
        self._is_closed = False
        self._woken_s = -math.inf
        self._pool = pool

    def submit(self, job: Job) -> None:
        """Queues a request; one too many ends with Busy at once."""
        if self._is_closed:  # after its caller has looked
            job.outbox.end(ValueError("this model was closed"))
            return
        new = sum(other.is_rejectable for other in self.waiting)
        free = max(0, self.max_running - self.active())  # for as many that wait, where there is memory
        if job.is_rejectable and new >= self.max_waiting + free:
            message = (
                f"the queue is full: {self.active()} requests run and {new} wait. Try again later, or load the model "
                "with larger max_sequences and max_waiting."
            )
            job.outbox.end(Busy(message, running=self.active(), waiting=new))
            return
        insort(self.waiting, job, key=lambda one: one.rank)

    def cancel_all(self) -> None:
        """Ends all that waits and runs at the next step; from any thread."""
        for job in [*self.waiting, *self.running]:
            job.cancel.cancel()

    def end_all(self) -> None:
        """Ends all that waits and runs, now: the model is closed. What is in the middle of its own code, after that."""
        self._is_closed = True
        self.cancel_all()
        self._end_cancelled()

    def fail_all(self, cause: Exception) -> None:
        """Ends all that waits and runs: each raises a DeviceError of that cause."""
        for job in [*self.waiting, *self.running]:
            error = DeviceError(f"the engine loop failed ({type(cause).__name__}: {cause}); the log has more.")
            error.__cause__ = cause
            if job.is_busy:  # its own code had the loop serve others: it ends where it goes on
                job.cancel.cancel()
            else:
                self._stop(job, error)

    def idle_s(self) -> float | None:
        """Seconds until the next request runs out of time; None: none does."""
        first_s = min((job.deadline_s for job in [*self.waiting, *self.running]), default=math.inf)
        return None if first_s == math.inf else max(0.0, first_s - time.monotonic())

    def finish(self) -> None:
        """Does what could wait until now, and frees the model: the loop ends."""
        self._pool.close()

    def step(self, beside: int = 0) -> bool:
        """Runs one iteration: ends what was cancelled, admits what has room, feeds, gives. False: nothing to do.

        beside: replies of other models that the device decodes in turn with these.
        """
        ended = self._end_cancelled()
        self._admit()
        self._make_room()
        jobs = [job for job in self.running if job.is_active][: self.max_running]
        for job in jobs:
            if not job.asks:  # it paused after a chunk
                self._advance(job)
        asks = [ask for job in jobs for ask in job.asks if not ask.is_answered]
        steps = [ask for ask in asks if not ask.feed.is_prompt]
        runs = _runs(steps, _pieces(steps, [ask for ask in asks if ask.feed.is_prompt], beside))
        prompts = [run for run in runs if run[1][0][0].feed.is_prompt]
        for rows, parts in runs[: len(runs) - len(prompts)]:
            self._feed(rows, parts)
        self._resume(jobs)
        self._wake_readers(is_due=bool(prompts))  # before they are read
        for rows, parts in prompts:
            # unless what ran meanwhile has fed it, ended its request or preempted it: the model, called by its own code
            due = [(ask, count) for ask, count in parts if ask.job in self.running and ask in ask.job.asks]
            self._feed(rows, [(ask, count) for ask, count in due if ask.left >= count])
            self._resume([ask.job for ask, _ in due])  # its first token does not wait for the prompts of others
        self._iterations += 1
        if asks and self._iterations % max(1, _TIDY_EVERY // (1 + self._pool.untidy)):
            return True
        return self._pool.tidy() or bool(asks) or ended

    def _wake_readers(self, *, is_due: bool) -> None:
        """Gives readers their chunks, those of quick steps a few at once.

        Each that is woken makes the loop wait for Python's lock: with 64 it cost a GPU a third of its steps.
        """
        now_s = time.monotonic()
        if is_due or now_s - self._woken_s >= _WAKE_S:
            self._woken_s = now_s
            for job in self.running:
                job.outbox.flush()

    def active(self) -> int:
        """Requests that go on with the next iteration."""
        return sum(job.is_active for job in self.running)

    def decoding(self) -> int:
        """Requests whose next feed is a step, and no piece of a prompt."""
        return sum(any(not ask.feed.is_prompt for ask in job.asks) for job in self.running)

    def _end_cancelled(self) -> bool:
        now_s = time.monotonic()
        ended = [job for job in [*self.waiting, *self.running] if job.is_over(now_s) and not job.is_busy]
        for job in ended:
            if job.steps is None:
                job.outbox.put(job.unstarted(job))
            self._stop(job, None if job.steps is None else Interrupted())
        return bool(ended)

    def _stop(self, job: Job, error: BaseException | None) -> None:
        """Ends a request that waits or runs: its own code raises the error, where that has begun."""
        if job in self.waiting:
            self.waiting.remove(job)
            self.running.append(job)
        if job.steps is None:
            self._end(job, error)
        else:
            self._advance(job, error=error)

    def _admit(self) -> None:
        while self.waiting and self.active() < self.max_running:
            job = next((job for job in self.waiting if not (job.outbox.is_full or self._awaits_prefix(job))), None)
            if job is None or (self.active() and not self._pool.make_room(job.tokens, job.sequence)):
                return
            self.waiting.remove(job)
            self.running.append(job)
            if job.steps is not None:
                self._recall(job)
                continue
            job.shared.clear()
            job.queued_s = time.monotonic() - job.submitted_s
            job.steps = job.begin(job)
            self._advance(job)

    def _awaits_prefix(self, job: Job) -> bool:
        """Whether a request that came before it reads a prefix that both have, whose KV it takes then.

        One after the other all that came before are done, so it does not wait for ever.
        """
        return job.steps is None and any(
            ask.feed.is_prompt and len(ask.sequence.tokens) < self._count_shared(job, ask)
            for other in self.running
            if other.rank <= job.rank and other.is_active and not other.is_list
            for ask in other.asks
        )

    def _count_shared(self, job: Job, ask: Ask) -> int:
        """How many tokens of its prompt a request takes from one that is being read; 0: too few to wait for them."""
        if ask.job not in job.shared:
            prompt = ask.job.prompt
            job.shared[ask.job] = self._pool.shared(job.prompt, job.adapter, ask.sequence, prompt, own=job.sequence)
        return job.shared[ask.job]

    def _make_room(self) -> None:
        """Preempts requests while the KV of all takes more memory than there is: at least one stays that can go on.

        Those that nobody reads come first, then those admitted last.
        """
        while not self._pool.make_room(0) and len(self.running) > 1:
            able = [job for job in reversed(self.running) if job.can_wait]
            paused = [job for job in able if job.outbox.is_full]
            active = [job for job in able if not job.outbox.is_full]
            if not (victims := [*paused, *active[: self.active() - 1]]):
                return
            last = victims[0]
            assert last.sequence is not None  # it can wait
            last.outbox.flush()
            try:
                last.sequence.evict()
            except Exception as error:  # noqa: BLE001  # of the device: this request's
                self._advance(last, error=error)
                continue
            last.tokens = len(last.sequence.evicted)
            last.rank = -math.inf  # it has been served before those that wait
            self.running.remove(last)
            self.waiting.insert(0, last)
            self.preempted += 1

    def _recall(self, job: Job) -> None:
        """Goes on with a request that was preempted: its KV comes back, or is computed again as a prompt is."""
        assert job.sequence is not None
        try:
            missing = job.sequence.recall()
        except Exception as error:  # noqa: BLE001  # of the device: this request's
            self._advance(job, error=error)
            return
        if missing:
            job.after_recall, job.asks = job.asks, [_ask(job, Feed(job.sequence, missing, is_prompt=True))]

    def _feed(self, rows: _Rows | None, parts: Sequence[_Part]) -> None:
        """Feeds the given number of tokens of each ask; rows: by one call of this, None: alone."""
        if rows is None or len(parts) == 1:
            for ask, count in parts:
                self._feed_alone(ask, count)
            return
        ready: list[tuple[Ask, Sequence[int]]] = []
        for ask, count in parts:
            try:
                ask.sequence.prepare(count)
                ready.append((ask, ask.feed.tokens[ask.fed : ask.fed + count]))
            except Exception as error:  # noqa: BLE001  # of this request only: its context is full, say
                _fail(ask, error)
        if not ready:
            return
        try:
            batch = [BatchRow(ask.sequence.session, tokens) for ask, tokens in ready]
            logits = ready[0][0].sequence.loop.call(lambda: rows(batch))  # as _feed_alone
        except Interrupted:  # one that had to be fed alone in it; to none was anything appended
            return self._feed(None, [(ask, len(tokens)) for ask, tokens in ready])
        except Exception as error:  # noqa: BLE001  # every request that was part of it raises it
            for ask, _ in ready:
                _fail(ask, error)
            return
        for (ask, tokens), row in zip(ready, logits, strict=True):
            ask.sequence.note_appended(tokens)
            _note(ask, len(tokens), (row,))

    def _feed_alone(self, ask: Ask, count: int) -> None:
        feed, sequence = ask.feed, ask.sequence
        tokens = feed.tokens if count == len(feed.tokens) else feed.tokens[ask.fed : ask.fed + count]
        try:  # a draft model may be on another device, which has a loop of its own
            rows = sequence.loop.call(lambda: sequence.feed_all(tokens) if feed.is_all else (sequence.feed(tokens),))
        except BaseException as error:  # noqa: BLE001  # the request's, which raises it
            _fail(ask, error)
        else:
            _note(ask, count, rows)

    def _resume(self, jobs: Iterable[Job]) -> None:
        """Gives the requests what they asked for, and lets them go on."""
        for job in jobs:
            asks = job.asks
            if job.steps is None or job.is_busy or not asks or not all(ask.is_answered for ask in asks):
                continue
            error = next((ask.error for ask in asks if ask.error is not None), None)
            if job.after_recall is not None and error is None:
                job.asks, job.after_recall = job.after_recall, None
                continue
            self._advance(job, [ask.rows for ask in asks] if job.is_list else asks[0].rows, error=error)

    def _advance(self, job: Job, rows: object = None, *, error: BaseException | None = None) -> None:
        """Runs a request's own code until it asks for the next feeds, or ends."""
        assert job.steps is not None
        job.asks, job.after_recall = [], None
        job.is_busy = True
        try:
            step = job.steps.send(rows) if error is None else job.steps.throw(error)
            while not isinstance(step, (Feed, list)):
                job.outbox.put(step)
                if job.outbox.is_full and getattr(step, "finish_reason", None) is None:
                    return  # until its reader has caught up; a reply that is over lets go of its sequence
                step = next(job.steps)
            job.is_list = isinstance(step, list)
            if isinstance(step, list):
                job.asks, job.sequence = [_ask(job, feed) for feed in step], None
                return
            ask = _ask(job, step)
            job.asks = [ask]
            if job.sequence is not ask.sequence and self._pool.owns(ask.sequence):  # else it is a draft model's
                job.sequence = ask.sequence
        except StopIteration:
            self._end(job, None)
        except BaseException as problem:  # noqa: BLE001  # the caller's, whatever it is
            self._end(job, problem)
        finally:
            job.is_busy = False
        if self._is_closed and job.steps is not None:  # closed by what its own code called
            self._advance(job, error=Interrupted())

    def _end(self, job: Job, error: BaseException | None) -> None:
        self.running.remove(job)
        job.steps = None
        job.outbox.end(None if error is None else with_advice(error))


def _ask(job: Job, feed: Feed) -> Ask:
    assert isinstance(feed.sequence, CachedSequence)  # which all jobs feed
    return Ask(job, feed, feed.sequence)


def _pieces(steps: Sequence[Ask], prompts: Sequence[Ask], beside: int) -> list[_Part]:
    """Which prompts are read in this iteration, and how many tokens of each; the first come first.

    beside: as step() has it; those replies wait for these pieces, too.
    """
    budgets: dict[int, int] = {}
    stepping = Counter(id(ask.sequence.engine) for ask in steps if prompts)
    pieces: list[_Part] = []
    for ask in prompts:
        engine = id(ask.sequence.engine)
        budget = budgets.setdefault(engine, _prompt_budget(ask.sequence, stepping[engine] + beside))
        if budget > 0:
            most = min(ask.left, budget, ask.sequence.max_feed)
            count = ask.sequence.piece(ask.feed.tokens, ask.fed, most, position=len(ask.sequence.tokens))
            pieces.append((ask, count))
            budgets[engine] -= count
    return pieces


def _runs(steps: Sequence[Ask], pieces: Sequence[_Part]) -> list[tuple[_Rows | None, list[_Part]]]:
    """What is fed in one run, where an engine can do that; None: that is fed alone. Those with steps come first.

    Pieces of prompts go into the run of the steps, or whole ones that are about as long into one of their own.
    """
    runs: list[tuple[_Rows | None, list[_Part]]] = []
    latest: dict[object, list[_Part]] = {}
    stepping = {id(ask.sequence.batches) for ask in steps if pieces and not ask.feed.is_all}
    for part in [*((ask, len(ask.feed.tokens)) for ask in steps), *pieces]:
        ask, count = part
        feed, sequence = ask.feed, ask.sequence
        rows, kind, most = None, ask, 1
        if (engine := sequence.batches) is not None:
            most = engine.max_batch
            if not feed.is_prompt or (engine.mixes_lengths and id(engine) in stepping):
                if not feed.is_all and (count == 1 or engine.mixes_lengths):
                    rows, kind = engine.run_batch, id(engine)
            elif (reads := sequence.prompt_batches) and not sequence.tokens and ask.left == count >= _LEAST_WHOLE:
                rows, kind = reads.read_prompts, (id(engine), count.bit_length())
        if (group := latest.get(kind)) is None or len(group) == most:
            group = latest[kind] = []
            runs.append((rows, group))
        group.append(part)
    return runs


def _prompt_budget(sequence: CachedSequence, stepping: int) -> int:
    """Tokens of prompts that one iteration reads beside the steps of others, which wait for it meanwhile."""
    engine = sequence.engine
    if not stepping:
        return engine.chunk
    if sequence.batches is None:
        return min(engine.chunk, _BESIDE_TURNS)
    # a step of few takes less time than one of many, and so may what is read beside it
    return max(1, sequence.batches.prompt_budget * max(_FULL // 4, min(stepping, _FULL)) // _FULL)


def _fail(ask: Ask, error: BaseException) -> None:
    """Notes what a feed raised. Without memory, some of a sequence's buffers may have grown and others not."""
    ask.error = error
    if isinstance(error, MemoryError):
        ask.sequence.has_failed = True


def _note(ask: Ask, count: int, rows: Sequence[Logits]) -> None:
    ask.fed += count
    if ask.left:
        return
    ask.rows = rows
    if ask.feed.meanwhile is not None:
        try:  # the rows may be under way yet: nobody waits for them before all that were fed together were here
            ask.feed.meanwhile()
        except Exception as error:  # noqa: BLE001  # of this request only: its grammar's
            ask.error = error

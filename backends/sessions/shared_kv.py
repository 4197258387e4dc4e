"""KV of several sequences in buffers that one run reads and writes, [slots, kv heads, capacity, D], a slot for each.

A sequence is copied to a slot when it first takes part in a run of several, and holds a view of the slot from then on,
so that whatever it is fed by itself is written there, too. It gets buffers of its own again when it outgrows the shared
ones by itself, and when it stays away from a few runs that have to compute its row with theirs. A sequence that is
alone has buffers of its own, and nothing is copied. For one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from embedllm.backends.sessions.sparse_memory import empty_rows, move_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.base import Cached
    from embedllm.backends.sessions.window_retention import WindowedKvRetention

_MISSED = 3  # runs, after which a sequence that took no part leaves
_STEP = 256  # tokens; capacities are multiples of it, but for the context
_GROWTH = 1.5  # each growth copies the KV of all, so that a token costs a constant number of copies on average


class Member(Protocol):
    """A sequence that may have a slot."""

    position: int  # tokens held
    capacity: int
    kv: dict[str, NDArray[Cached]]  # by name, [1, kv heads, capacity, D]
    retention: WindowedKvRetention
    shared: SharedKv | None  # where it has a slot; set by SharedKv

    def hold(self, kv: dict[str, NDArray[Cached]], capacity: int) -> None:
        """Reads and writes these from now on, which may be some of them."""
        ...


class SharedKv:
    """The buffers, and whose slot is which."""

    def __init__(self, *, slots: int, context: int, release: Callable[[], None]) -> None:
        """slots: at most. context: tokens that a sequence can hold at most.

        release: called before buffers go, so that nothing else holds them.
        """
        self.kv: dict[str, NDArray[Cached]] = {}  # by name, [slots, kv heads, capacity, D]
        self.capacity = 0
        self.members: list[Member] = []  # by their slots
        self._most_slots = slots
        self._context = context
        self._release = release
        self._missed: dict[Member, int] = {}  # runs in a row

    def join(self, together: Sequence[Member]) -> range:
        """Gives each of them a slot with room for one more token; the slots from the first of theirs to the last.

        The others between them have such room, too. Raises MemoryError; then each holds what it held.
        """
        new = [member for member in together if member.shared is not self]
        for _ in range(len(self.members) + len(new) - self._most_slots):
            away = [member for member in self.members if member not in together]
            self.leave(max(away, key=lambda member: self._missed.get(member, 0)))
        self._reserve(together, len(self.members) + len(new))
        for member in new:
            self._move(member, len(self.members))
            self.members.append(member)
            member.shared = self
        for member in [one for one in self.members if one not in together and one.position >= self.capacity]:
            self.leave(member)
        slots = [self.members.index(member) for member in together]
        return range(min(slots), max(slots) + 1)

    def end_run(self, together: Collection[Member], slots: range) -> None:
        """Notes who took part. One that lay between them too often leaves: one a run, as its KV is copied."""
        for member in self.members[slots.start : slots.stop]:
            self._missed[member] = 0 if member in together else self._missed.get(member, 0) + 1
        self._let_one_go()

    def end_feed(self, member: Member) -> None:
        """Notes that a member was fed by itself. The last one leaves when that is all that happens."""
        if len(self.members) == 1:
            self._missed[member] = self._missed.get(member, 0) + 1
            self._let_one_go()

    def leave(self, member: Member, *, room: int = 1) -> None:
        """Gives a member buffers of its own, with room for that many more tokens, and its slot to the last one.

        Raises MemoryError; then it holds what it held.
        """
        position = member.position
        capacity = self._rounded(position + room)
        own = {
            name: empty_rows(
                (1, view.shape[1], capacity, view.shape[3]), view.dtype, is_windowed=member.retention.is_windowed(name)
            )
            for name, view in member.kv.items()
        }
        for name, target in own.items():
            move_rows(name, member, target)
        member.hold(own, capacity)
        self.close(member)

    def close(self, member: Member) -> None:
        """Gives the slot of a member to the last one; what it holds there is lost."""
        slot, last = self.members.index(member), self.members.pop()
        self._missed.pop(member, None)
        member.shared = None
        if last is not member:
            self.members[slot] = last
            self._move(last, slot)
        if not self.members:
            self._release()
            self.kv, self.capacity = {}, 0

    def _let_one_go(self) -> None:
        member = max(self.members, key=lambda one: self._missed.get(one, 0))
        if self._missed.get(member, 0) > _MISSED:
            self.leave(member)

    def _rounded(self, tokens: int) -> int:
        return min(-(-tokens // _STEP) * _STEP, self._context)

    def _reserve(self, together: Sequence[Member], count: int) -> None:
        """Makes room for `count` members, and for one more token of those that step."""
        slots = len(next(iter(self.kv.values()))) if self.kv else 0
        longest = max(member.position for member in together)
        if longest < self.capacity and count <= slots:
            return
        if count > slots:
            slots = min(max(count, 2 * slots), self._most_slots)
        capacity = self.capacity
        if longest >= capacity:
            capacity = self._rounded(max(longest + 1, int(longest * _GROWTH)))
        one = together[0]
        larger = {  # all of them before anything is moved; memory is taken as it is written
            name: empty_rows(
                (slots, view.shape[1], capacity, view.shape[3]),
                view.dtype,
                is_windowed=one.retention.is_windowed(name),
            )
            for name, view in one.kv.items()
        }
        self._release()
        for name, target in larger.items():
            for slot, member in enumerate(self.members):
                move_rows(name, member, target[slot : slot + 1])
                member.hold({name: target[slot : slot + 1]}, capacity)
            self.kv[name] = target  # the smaller one goes
        self.capacity = capacity

    def _move(self, member: Member, slot: int) -> None:
        """Copies what a sequence holds to a slot, one buffer after the other."""
        for name, shared in self.kv.items():
            move_rows(name, member, shared[slot : slot + 1])
            member.hold({name: shared[slot : slot + 1]}, self.capacity)

"""Which sequence lies in which slot, and the moves that bring those that step side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.backends.gpu.kv_slots import Move, SlotTable, padded_width


def may_wait(owner: str) -> bool:
    return not owner.startswith("full")


def table_of(*owners: str) -> SlotTable[str]:
    table: SlotTable[str] = SlotTable()
    for owner in owners:
        table.take(owner)
    return table


@pytest.mark.parametrize(("count", "width"), [(1, 1), (2, 4), (3, 4), (5, 8), (9, 32), (33, 64), (64, 64)])
def test_a_step_is_padded_to_a_width_that_is_fast(count: int, width: int) -> None:
    assert padded_width(count, 64) == width
    assert padded_width(min(count, 16), 16) == min(width, 16)


def test_the_first_free_slot_is_taken() -> None:
    table = table_of("a", "b", "c")
    table.release("b")
    assert (table.take("d"), table.take("e"), len(table)) == (1, 3, 4)
    for owner in ("c", "e"):
        table.release(owner)
    assert len(table) == 2


def test_nothing_moves_while_all_that_step_are_within_the_width() -> None:
    table = table_of("a", "b", "c", "d")
    assert table.arrange(["a", "d"], 4, may_wait=may_wait) == []
    assert table.arrange(["d", "a", "b"], 4, may_wait=may_wait) == []


def test_those_outside_go_to_free_slots_first() -> None:
    table = table_of("a", "b", "c", "d", "e")
    table.release("b")
    assert table.arrange(["a", "c", "e"], 4, may_wait=may_wait) == [Move(4, 1)]
    assert table.owners(6) == ["a", "e", "c", "d", None, None]


def test_those_that_wait_make_room_where_no_slot_is_free() -> None:
    table = table_of("a", "b", "c")
    assert table.arrange(["a", "c"], 2, may_wait=may_wait) == [Move(1, 3), Move(2, 1)]


def test_one_that_is_full_does_not_wait_within_the_width() -> None:
    table = table_of("full", "b", "c")
    assert table.arrange(["b", "c"], 4, may_wait=may_wait) == [Move(0, 4)]


@given(data=st.data())
def test_moves_keep_what_is_held_and_end_as_asked(data: st.DataObject) -> None:
    """With a fake copy: what lies in each slot is a list."""
    names = [f"{kind}{at}" for kind in ("full", "x") for at in range(data.draw(st.integers(1, 20)))]
    table, held = table_of(*names), {}
    for name in data.draw(st.lists(st.sampled_from(names), unique=True)):
        table.release(name)
    held = {table.slot(name): name for name in names if name in table}
    stepping = data.draw(st.lists(st.sampled_from(names), unique=True))
    stepping = [name for name in stepping if name in table]
    if not stepping:
        return
    width = data.draw(st.integers(len(stepping), 64))
    before = dict(held)
    table.undo(table.arrange(stepping, width, may_wait=may_wait))
    assert before == {table.slot(name): name for name in names if name in table}
    for move in table.arrange(stepping, width, may_wait=may_wait):
        assert move.to not in held
        held[move.to] = held.pop(move.source)
    assert held == {table.slot(name): name for name in names if name in table}
    assert all(table.slot(name) < width for name in stepping)
    assert all(may_wait(name) or name in stepping for name in table.owners(width) if name is not None)

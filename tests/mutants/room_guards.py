"""Guards of who gives up what is kept, where a server makes room on its straight way."""

from __future__ import annotations

from tests.mutants.mutant import LUA, Guard, Mutant

__all__ = ("GUARDS",)

_ROOM = "tests/broker/redis/test_straight_room.py::"


def _room(name: str, protects: str, test: str, *edits: tuple[str, str]) -> Guard:
    mutants = (Mutant(f"{LUA}lib/fast_path/exchange_forget.lua", edits),)
    return Guard(f"room: {name}", protects, _ROOM + test, mutants)


GUARDS: tuple[Guard, ...] = (
    _room(
        "turns",
        "of tenants that keep about the same, the oldest of all go",
        "test_where_all_hold_about_the_same_the_oldest_go_straight",
        ("limit = min(till or huge, heads[front + 1] or huge)", "limit = till or huge"),
    ),
    _room(
        "heads",
        "it is noted before which moment nothing of a tenant's order is past its time",
        "test_where_all_hold_about_the_same_the_oldest_go_straight",
        ("  queue.heads = moved\n", "  queue.heads = {}\n"),
    ),
    _room(
        "how many each gives",
        "of several that keep much, the one that keeps most gives until others keep as much",
        "test_several_that_hold_much_give_straight[3]",
        ("gives[name], over = given + many, over - many", "gives[name], over = given + over, 0"),
    ),
    _room(
        "of another room",
        "who keeps much gives before others, also if the room was larger when that was noted",
        "test_who_holds_much_of_a_smaller_room_gives_first",
        (" or straight.share(queue, tenant) > 1 / LEAST then", " then"),
    ),
)

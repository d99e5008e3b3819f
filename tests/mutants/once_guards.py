"""Guards of the way on which a server lends one task of each of many tenants in one go."""

from __future__ import annotations

from tests.mutants.mutant import LUA, Guard, Mutant

__all__ = ("GUARDS",)

_ONCE = "tests/broker/redis/test_straight_once.py::"


def _once(name: str, protects: str, test: str, file: str, *edits: tuple[str, str]) -> Guard:
    mutants = (Mutant(f"{LUA}lib/fast_path/{file}.lua", edits),)
    return Guard(f"once: {name}", protects, _ONCE + test, mutants)


GUARDS: tuple[Guard, ...] = (
    _once(
        "turns",
        "who may be served again before others is given a place among them",
        "test_a_task_that_costs_little_may_be_followed_by_another",
        "exchange_once",
        (
            "if tag <= last_tag and (tag < last_tag or not less(last_name, name)) then",
            "if false then",
        ),
    ),
    _once(
        "limits",
        "limits and pauses of a tenant hold",
        "test_a_limit_or_a_pause_of_one_tenant_holds[change0]",
        "exchange_once",
        ("or opening ~= free or not NEXT_TURN[turn] then", "or not NEXT_TURN[turn] then"),
    ),
    _once(
        "hours",
        "what ends is counted in its hour",
        "test_ends_in_another_hour_are_the_engines",
        "exchange_tenants",
        ("byte(flags) == PARKED or sub(flags, 6) ~= hour then", "byte(flags) == PARKED then"),
    ),
    _once(
        "orders",
        "what was cancelled counts for an order of its own",
        "test_what_is_cancelled_counts_for_an_order_of_its_own[7-False]",
        "exchange_tenants",
        (
            "(dead == NO_DEAD and completed or completed + unpacked('<I', dead, 5)) >= large then",
            "completed >= large then",
        ),
    ),
    _once(
        "cancelled",
        "what was cancelled is no order of its own, and stays",
        "test_cancelled_ones_stand_beside_what_ends",
        "exchange_tenants",
        (
            ".. NUMBER[completed] .. dead .. middle .. flags",
            ".. NUMBER[completed] .. NO_DEAD .. middle .. flags",
        ),
    ),
    _once(
        "put back",
        "what was taken from lines goes back, and no more than that",
        "test_histories_of_many_tenants_leave_the_same[4]",
        "exchange_loans",
        ("  exchange.popped[#exchange.popped] = #keys -- more may be read behind these\n", ""),
    ),
    _once(
        "forgotten",
        "of tenants whose tasks are forgotten those are active that have something to do",
        "test_those_of_whom_others_are_forgotten_are",
        "exchange_tenants",
        (
            "new = tasks .. NUMBER[completed] .. dead",
            "new = tasks .. NUMBER[completed + 1] .. dead",
        ),
    ),
    _once(
        "queues",
        "ends of several queues go straight in any order",
        "test_ends_of_several_queues_in_any_order_go_straight[ABA]",
        "exchange_ends",
        ("only == nil and queue, true", "not only and queue, true"),
    ),
)

"""Guards of the straight way into a server: it declines what is not for it, before it writes."""

from __future__ import annotations

from tests.mutants.mutant import LUA, Guard, Mutant

__all__ = ("GUARDS",)

_TESTS = "tests/broker/redis/test_straight_way.py::"
_FILE = LUA + "lib/straight_entry.lua"


def _guard(name: str, protects: str, test: str, *edits: tuple[str, str]) -> Guard:
    return Guard(name, protects, _TESTS + test, (Mutant(_FILE, edits),))


GUARDS: tuple[Guard, ...] = (
    _guard(
        "straight: numbers",
        "the last number again gets its answer, and an earlier one is out of order",
        "test_a_repeated_call_gets_the_same_answer_and_stores_nothing",
        (" or not is_new_call() then", " then"),
    ),
    _guard(
        "straight: limits",
        "limits and pauses of a queue hold on the straight way as well",
        "test_limits_and_pauses_are_the_engines[a queue that may be full]",
        ("or most >= 0 or tenant_most", "or tenant_most"),
    ),
    _guard(
        "straight: pause",
        "nobody is woken for a queue that is paused",
        "test_limits_and_pauses_are_the_engines[a pause of the queue]",
        ("if paused ~= 0 or most", "if most"),
    ),
    _guard(
        "straight: tenant",
        "a tenant that is paused stays so",
        "test_limits_and_pauses_are_the_engines[a pause of the tenant]",
        ("    elseif status ~= READY then\n      return nil\n", ""),
    ),
    _guard(
        "straight: bytes",
        "a tenant has no more bytes than it may have",
        "test_bytes_are_counted_up_to_the_limit",
        (" or live_bytes > top then", " then"),
    ),
    _guard(
        "straight: known",
        "a task that is known is not stored again",
        "test_what_is_not_plain_is_left_to_the_engine[a known id]",
        ("  for i = 1, n do if found[i] then return nil end end\n", ""),
    ),
    _guard(
        "straight: twice",
        "an id that comes twice in a call is one task",
        "test_what_is_not_plain_is_left_to_the_engine[an id that comes twice]",
        (" or seen[id] then", " then"),
    ),
    _guard(
        "straight: types",
        "it decides before its first write: keys of another type leave all as it was",
        "test_keys_of_another_type_leave_all_as_it_was[who is known]",
        ("  if not is('zset', P .. 'idle') then return nil end\n", ""),
    ),
    _guard(
        "straight: undone",
        "what the server took in before it refused is taken back",
        "test_keys_of_another_type_leave_all_as_it_was[the second line]",
        ("    for r = 1, done do call('RPOP', lines[r], runs[r][3]) end\n", ""),
    ),
    _guard(
        "straight: blocks",
        "the stream of events is cut when a block is full",
        "test_a_block_of_events_is_closed_by_the_engine",
        ("weight <= 0 or filled >= M.cap / BLOCKS", "weight <= 0"),
    ),
)

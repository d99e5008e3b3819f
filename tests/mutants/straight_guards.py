"""Guards of the straight ways of a server: they leave to the engine what is not for them."""

from __future__ import annotations

from tests.mutants.mutant import LUA, Guard, Mutant

__all__ = ("GUARDS",)

_TESTS = "tests/broker/redis/test_straight_way.py::"
_FILE = LUA + "lib/straight_entry.lua"
_EXCHANGE = "tests/broker/redis/test_straight_exchange.py::"
_SMALL = "tests/broker/redis/test_straight_small.py::"


def _guard(name: str, protects: str, test: str, *edits: tuple[str, str]) -> Guard:
    return Guard(name, protects, _TESTS + test, (Mutant(_FILE, edits),))


def _small(name: str, protects: str, test: str, file: str, *edits: tuple[str, str]) -> Guard:
    mutants = (Mutant(f"{LUA}lib/{file}.lua", edits),)
    return Guard(f"small exchange: {name}", protects, _SMALL + test, mutants)


def _exchange(name: str, protects: str, test: str, file: str, *edits: tuple[str, str]) -> Guard:
    return Guard(name, protects, _EXCHANGE + test, (Mutant(f"{LUA}lib/{file}.lua", edits),))


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
    _exchange(
        "straight exchange: worker",
        "nobody ends what another has on loan",
        "test_ends_under_another_token_or_of_another_worker_are_fenced",
        "straight_settle",
        (" and sub(its, FATE_END + 1) == begin", ""),
    ),
    _exchange(
        "straight exchange: twice",
        "of two settlements of a task in a call the first counts",
        "test_one_that_is_settled_twice_in_a_call_is_settled_in_its_order",
        "settle",
        ("      if latest[id] then twice = true end\n", ""),
    ),
    _exchange(
        "straight exchange: tied",
        "whoever waits for a task hears of its end",
        "test_a_watched_one_is_the_engines",
        "straight_settle",
        ("if not q or tied[ids[k]] then", "if not q then"),
    ),
    _exchange(
        "straight exchange: charge",
        "run time is charged where the queue says so",
        "test_limits_hold_on_the_straight_way[run time that is charged]",
        "straight_settle",
        ("if kind.limited or q.charge ~= 0 then", "if kind.limited then"),
    ),
    _exchange(
        "straight exchange: held",
        "a held task that ends has begun",
        "test_held_tasks_begin_and_end_in_one_call",
        "straight_settle",
        ("      begin_held(t, f, n)\n", ""),
    ),
    _exchange(
        "straight exchange: room",
        "a tenant that holds much has an order of its own",
        "test_what_is_kept_is_forgotten_alike[2]",
        "straight_settle",
        (">= room or t[DONE_BYTES] >= room_bytes then", "< 0 then"),
    ),
    _exchange(
        "straight exchange: limits",
        "limits of tenants and queues hold for every task",
        "test_limits_hold_on_the_straight_way[a tenant's concurrency]",
        "straight_fetch",
        ("    if limited and not passes(q, t, n) then break end\n", ""),
    ),
    _exchange(
        "straight exchange: limiters",
        "a task that needs a limiter is lent by the engine",
        "test_a_fetch_goes_past_what_is_not_plain",
        "straight_fetch",
        ("      if last_kind.limited then break end\n", ""),
    ),
    _exchange(
        "straight exchange: records",
        "where entries may stand for more than a message their records are read",
        "test_a_fetch_goes_past_what_is_not_plain",
        "straight_fetch",
        ("local is_plain = t[SPECIAL] == 0 and sum ==", "local is_plain = true or sum =="),
    ),
    _exchange(
        "straight exchange: levels",
        "levels take turns",
        "test_the_order_is_that_of_the_engine_however_many_are_asked_for[64]",
        "straight_fetch",
        ("if not cut and level > 0 and", "if false and"),
    ),
    _small(
        "token",
        "a settlement under an earlier token changes nothing",
        "test_a_call_is_fenced_repeated_or_refused_as_ever",
        "straight_exchange",
        ("\n        or number ~= tonumber(ARGV[run + 1]) then", " then"),
    ),
    _small(
        "worker",
        "nobody ends what another has on loan",
        "test_a_call_is_fenced_repeated_or_refused_as_ever",
        "straight_exchange",
        ("sub(r, FATE_END + 1, to) ~= begin or ", ""),
    ),
    _small(
        "numbers",
        "the last number again gets its answer, and an earlier one is out of order",
        "test_a_call_is_fenced_repeated_or_refused_as_ever",
        "straight_exchange",
        ("many + n == 0 or not is_next_call() then", "many + n == 0 then"),
    ),
    _small(
        "limits",
        "limits of a queue hold in small calls as well",
        "test_limits_pauses_and_room_hold_in_small_calls[a queue's concurrency]",
        "straight_exchange",
        ("concurrency >= 0 or rate > 0 or charge ~= 0", "rate > 0 or charge ~= 0"),
    ),
    _small(
        "gates",
        "limits of a tenant hold in small calls as well",
        "test_limits_pauses_and_room_hold_in_small_calls[a tenant's concurrency]",
        "straight_exchange",
        ("t[SPECIAL] + t[GATED] > 0", "t[SPECIAL] > 0"),
    ),
    _small(
        "ties",
        "whoever waits for a task hears of its end",
        "test_a_watched_one_is_the_engines_in_a_small_call_as_well",
        "straight_exchange",
        ("  if not ties then return true end\n", "  do return true end\n"),
    ),
    _small(
        "types",
        "it decides before its first write: keys of another type leave all as it was",
        "test_a_key_of_another_type_leaves_all_as_it_was[idle]",
        "straight_exchange",
        ("  if not straight.has_type('zset', P .. 'idle') then return nil end\n", ""),
    ),
    _small(
        "room",
        "who holds most gives its own oldest",
        "test_room_is_made_alike[1-2]",
        "straight_room",
        ("or share > most or share == most", "or share < most or share == most"),
    ),
    _small(
        "look",
        "a worker that looks for work sees the limits of queues",
        "test_a_look_sees_limits_and_pauses[change0]",
        "straight_ready",
        ("      if concurrency >= 0 or rate > 0 then return nil end\n", ""),
    ),
)

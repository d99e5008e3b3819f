"""Guards of the straight ways of a server: they leave to the engine what is not for them."""

from __future__ import annotations

from tests.mutants.mutant import LUA, Guard, Mutant

__all__ = ("GUARDS",)

_TESTS = "tests/broker/redis/test_straight_way.py::"
_FILE = LUA + "lib/fast_path/enqueue.lua"
_EXCHANGE = "tests/broker/redis/test_straight_exchange.py::"
_RECORDS = "tests/broker/redis/test_straight_records.py::"
_ENTRY = "tests/broker/redis/test_straight_entry.py::"
_FLOWS = "tests/broker/redis/test_straight_flows.py::"
_ONE = "tests/broker/redis/test_straight_one.py::"
_SMALL = "tests/broker/redis/test_straight_small.py::"

_NUMBERS = (
    "    if #number < last or #number == last and not less(sub(kept, 1, last), number) then"
    " return false end\n",
    "",
)
_IDLE = (
    "if type(till) == 'table' then return false end",
    "if type(till) == 'table' then return 0 end",
)


def _guard(name: str, protects: str, test: str, *edits: tuple[str, str]) -> Guard:
    return Guard(name, protects, _TESTS + test, (Mutant(_FILE, edits),))


def _one(name: str, protects: str, test: str, *edits: tuple[str, str]) -> Guard:
    mutants = (Mutant(f"{LUA}lib/fast_path/enqueue_one.lua", edits),)
    return Guard(f"straight one: {name}", protects, _TESTS + test, mutants)


def _entry(name: str, protects: str, test: str, *edits: tuple[str, str]) -> Guard:
    mutants = (Mutant(f"{LUA}lib/fast_path/enqueue_records.lua", edits),)
    return Guard(f"straight records: {name}", protects, _ENTRY + test, mutants)


def _small(name: str, protects: str, test: str, file: str, *edits: tuple[str, str]) -> Guard:
    mutants = (Mutant(f"{LUA}lib/{file}.lua", edits),)
    return Guard(f"small exchange: {name}", protects, _SMALL + test, mutants)


def _small_one(name: str, protects: str, test: str, *edits: tuple[str, str]) -> Guard:
    mutants = (Mutant(f"{LUA}lib/fast_path/exchange_one.lua", edits),)
    return Guard(f"one exchange: {name}", protects, _ONE + test, mutants)


def _exchange(name: str, protects: str, test: str, file: str, *edits: tuple[str, str]) -> Guard:
    tests = test if "::" in test else _EXCHANGE + test
    return Guard(name, protects, tests, (Mutant(f"{LUA}lib/{file}.lua", edits),))


GUARDS: tuple[Guard, ...] = (
    _exchange(
        "straight: numbers",
        "the last number again gets its answer, and an earlier one is out of order",
        _TESTS + "test_a_repeated_call_gets_the_same_answer_and_stores_nothing",
        "fast_path/last_answer",
        _NUMBERS,
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
        ("      elseif status ~= READY then\n        return nil\n", ""),
    ),
    _guard(
        "straight: bytes",
        "a tenant has no more bytes than it may have",
        "test_bytes_of_several_are_counted_up_to_the_limit",
        (
            "sub(before_enqueued, 5) ~= same_hour or live_bytes > top then",
            "sub(before_enqueued, 5) ~= same_hour then",
        ),
        ("its_hour ~= hour or live_bytes > top then", "its_hour ~= hour then"),
    ),
    _exchange(
        "straight: settings",
        "what is set for a tenant holds from its first task on",
        _TESTS + "test_a_new_tenant_is_the_engines_where_tenants_have_settings",
        "fast_path/hand_off",
        ("  if meta.settings > 0 then return nil end\n", ""),
    ),
    _guard(
        "straight: known",
        "a task that is known is not stored again",
        "test_what_is_not_plain_is_left_to_the_engine[a known id among others]",
        ("  for i = 1, total do if found[i] then return false end end\n", ""),
    ),
    _guard(
        "straight: twice",
        "an id that comes twice in a call is one task",
        "test_what_is_not_plain_is_left_to_the_engine[an id that comes twice]",
        ("unpack(values)) == total then return true end", "unpack(values)) then return true end"),
    ),
    _one(
        "bytes",
        "a tenant has no more bytes than it may have",
        "test_bytes_are_counted_up_to_the_limit",
        ("hour_text or live_bytes > top then", "hour_text then"),
        ("hour or live_bytes > top or status", "hour or status"),
    ),
    _one(
        "blocks",
        "the stream of events is cut when a block is full",
        "test_a_block_of_events_is_closed_by_the_engine[1]",
        ("weight <= 0 or filled >= meta.cap / BLOCKS", "weight <= 0"),
    ),
    _one(
        "known",
        "a task that is known is not stored again",
        "test_what_is_not_plain_is_left_to_the_engine[a known id]",
        ("if done ~= 1 then", "if type(done) == 'table' then"),
    ),
    _one(
        "undone",
        "what the server took in before it refused is taken back",
        "test_keys_of_another_type_leave_all_as_it_was[a line-one]",
        ("  call('HDEL', prefix .. 'tasks', id)\n", ""),
    ),
    _exchange(
        "answers: an hour",
        "a call of a minute in which nobody says so does not shorten how long answers are kept",
        "tests/broker/conformance/test_calls.py::"
        "test_answers_are_kept_for_an_hour_after_the_last_of_many_calls[valkey]",
        "lease",
        ("KEPT=3660 HOUR_LONG=3600", "KEPT=3660 HOUR_LONG=0"),
    ),
    _exchange(
        "straight: types",
        "it decides before its first write: keys of another type leave all as it was",
        _TESTS + "test_keys_of_another_type_leave_all_as_it_was[who is known-two]",
        "fast_path/last_answer",
        _IDLE,
    ),
    _guard(
        "straight: undone",
        "what the server took in before it refused is taken back",
        "test_keys_of_another_type_leave_all_as_it_was[the second line-two]",
        ("    for run = 1, done do call('RPOP', lines[run], counts[run]) end\n", ""),
    ),
    _guard(
        "straight: blocks",
        "the stream of events is cut when a block is full",
        "test_a_block_of_events_is_closed_by_the_engine[2]",
        ("weight <= 0 or filled >= meta.cap / BLOCKS", "weight <= 0"),
    ),
    _exchange(
        "straight exchange: worker",
        "nobody ends what another has on loan",
        "test_ends_under_another_token_or_of_another_worker_are_fenced",
        "fast_path/ends",
        ("if fits and sub(begins, FATE_END + 1) ~= begin then", "if false then"),
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
        "fast_path/ends",
        ("if not queue or ties and ties ~= 'd' then", "if not queue then"),
    ),
    _exchange(
        "straight exchange: charge",
        "run time is charged where the queue says so",
        "test_limits_hold_on_the_straight_way[run time that is charged]",
        "fast_path/ends",
        ("if kind.limited or queue.charge ~= 0 then", "if kind.limited then"),
    ),
    _exchange(
        "straight exchange: held",
        "a held task that ends has begun",
        "test_held_tasks_begin_and_end_in_one_call",
        "fast_path/ends",
        ("  begin_held(plain, ids, first_group, last_group)\n", ""),
    ),
    _exchange(
        "straight exchange: room",
        "a tenant that holds much has an order of its own",
        "test_what_is_kept_is_forgotten_alike[2]",
        "fast_path/ends",
        (">= room or tenant[DONE_BYTES] >= room_bytes then", "< 0 then"),
    ),
    _exchange(
        "straight exchange: limits",
        "limits of tenants and queues hold for every task",
        "test_limits_hold_on_the_straight_way[a tenant's concurrency]",
        "fast_path/fetch",
        ("    if limited and not passes(queue, tenant, lent) then break end\n", ""),
    ),
    _exchange(
        "straight exchange: limiters",
        "a task that needs a limiter is lent by the engine",
        "test_a_fetch_goes_past_what_is_not_plain",
        "fast_path/fetch",
        ("      if last_kind.limited then break end\n", ""),
    ),
    _exchange(
        "straight exchange: records",
        "where entries may stand for more than a message their records are read",
        "test_a_fetch_goes_past_what_is_not_plain",
        "fast_path/fetch",
        ("local is_plain = tenant[SPECIAL] == 0 and sum ==", "local is_plain = true or sum =="),
    ),
    _exchange(
        "straight exchange: keys",
        "a key that is held until a task starts is free from then on",
        _RECORDS + "test_a_key_that_is_freed_at_the_start_is_the_engines",
        "fast_path/fetch",
        ("hold < MOVED and hold ~= 1 and", "hold < MOVED and"),
    ),
    _exchange(
        "straight exchange: released keys",
        "a key that is held until a task is done is free from then on",
        _RECORDS + "test_tasks_with_records_are_lent_and_end_straight"
        "[a unique key until it is done]",
        "fast_path/ends",
        ("do unique.free_key(keys[place], ids[place]) end", "do break end"),
    ),
    _exchange(
        "straight entry: keys",
        "one task holds a unique key",
        _RECORDS + "test_a_key_that_is_held_is_held_by_one",
        "fast_path/records",
        ("  if held and unique.holder(held) then return nil end\n", ""),
    ),
    _exchange(
        "straight layout: parents",
        "a member whose parent is over is laid out as the engine says",
        _FLOWS + "test_what_is_unusual_goes_the_long_way[a parent that failed]",
        "fast_path/records",
        ("its_record:byte(1) ~= DEFERRED then", "its_record:byte(1) > CANCELLED then"),
    ),
    _exchange(
        "dependents: the last dependency",
        "a task whose last dependency is met is let go",
        _RECORDS + "test_a_fan_out_that_is_joined_is_released_alike[70]",
        "dependencies",
        ("if index.size - index.gone < 2 or", "if"),
    ),
    _exchange(
        "dependents: forgotten",
        "those who wait for a task that is forgotten are told all the same",
        _RECORDS + "test_those_who_wait_for_a_task_that_is_forgotten_are_told_in_the_next_call",
        "dependencies",
        ("    dependents.spill(task.id)\n", ""),
    ),
    _exchange(
        "what sleeps: undone",
        "a call that cannot be carried out leaves what sleeps as it was",
        _RECORDS + "test_what_sleeps_under_a_key_of_another_type_leaves_all_as_it_was[enqueued]",
        "call",
        ("do call('ZREM', key, args[i]) end", "do break end"),
    ),
    _exchange(
        "what sleeps: put back",
        "a call that cannot be carried out leaves what sleeps as it was",
        _RECORDS + "test_what_sleeps_under_a_key_of_another_type_leaves_all_as_it_was[released]",
        "call",
        ("do call('ZADD', key, LAST_ASLEEP, args[i]) end", "do break end"),
    ),
    _exchange(
        "straight exchange: levels",
        "levels take turns",
        "test_the_order_is_that_of_the_engine_however_many_are_asked_for[64]",
        "fast_path/fetch",
        ("if not cut and level > 0 and", "if false and"),
    ),
    _small(
        "token",
        "a settlement under an earlier token changes nothing",
        "test_a_call_is_fenced_repeated_or_refused_as_ever",
        "fast_path/exchange_ends",
        ("number ~= tonumber(ARGV[run + 1]) or deadline", "deadline"),
    ),
    _small(
        "worker",
        "nobody ends what another has on loan",
        "test_a_call_is_fenced_repeated_or_refused_as_ever",
        "fast_path/exchange_ends",
        ("sub(begins, FATE_END + 1) ~= begin or ", ""),
    ),
    _small(
        "numbers",
        "the last number again gets its answer, and an earlier one is out of order",
        "test_a_call_is_fenced_repeated_or_refused_as_ever",
        "fast_path/last_answer",
        _NUMBERS,
    ),
    _small(
        "limits",
        "limits of a queue hold in small calls as well",
        "test_limits_pauses_and_room_hold_in_small_calls[a queue's concurrency]",
        "fast_path/exchange",
        ("concurrency >= 0 or rate > 0 or charge ~= 0", "rate > 0 or charge ~= 0"),
    ),
    _small(
        "gates",
        "limits of a tenant hold in small calls as well",
        "test_limits_pauses_and_room_hold_in_small_calls[a tenant's concurrency]",
        "fast_path/exchange_tenants",
        (" and opening == free and", " and"),
        ("tenant[SPECIAL] + tenant[GATED] > 0", "tenant[SPECIAL] > 0"),
    ),
    _small(
        "ties",
        "whoever waits for a task hears of its end",
        "test_a_watched_one_is_the_engines_in_a_small_call_as_well",
        "fast_path/exchange_ends",
        ("  if not exchange.ties then return true end\n", "  do return true end\n"),
    ),
    _small(
        "types",
        "it decides before its first write: keys of another type leave all as it was",
        "test_a_key_of_another_type_leaves_all_as_it_was[idle]",
        "fast_path/last_answer",
        _IDLE,
    ),
    _small(
        "lines",
        "what was taken from lines goes back if the call is the engine's after all",
        "test_what_is_not_plain_puts_lines_back_as_they_were",
        "fast_path/exchange",
        ("    straight.put_back(exchange)\n", ""),
    ),
    _small_one(
        "token",
        "a settlement under an earlier token changes nothing",
        "test_a_token_of_an_earlier_loan_is_the_engines",
        (" or number ~= tonumber(ARGV[13])", ""),
    ),
    _small_one(
        "worker",
        "nobody ends what another has on loan",
        "test_nor_one_that_is_held_or_on_loan_to_another_or_not_any_more",
        ("\n    or sub(record, FATE_END + 1, to) ~= begin then", " then"),
    ),
    _small_one(
        "ties",
        "whoever waits for a task hears of its end",
        "test_neither_is_one_that_somebody_waits_for",
        ("elseif call('HGET', prefix .. 'ties', done) or meta.jobs", "elseif meta.jobs"),
    ),
    _small_one(
        "room",
        "no more is kept than there is room for",
        "test_where_room_is_full_somebody_gives",
        ("\n    or completed + cancelled >= most then", " then"),
    ),
    _small_one(
        "more",
        "who asks for more gets all that wait",
        "test_who_asks_for_more_where_more_wait_gets_all",
        ("queued == 0 or wanted > 1 and queued > 1", "queued == 0"),
    ),
    _exchange(
        "one exchange: lines",
        "what was taken from a line goes back if the call is the engine's after all",
        _ONE + "test_neither_is_an_unusual_task_that_comes_next[a-a limiter]",
        "fast_path/exchange",
        ("    straight.put_back(exchange)\n", ""),
    ),
    _small(
        "light",
        "a tenant that has nothing more to do is no longer among the active ones",
        "test_a_hundred_of_as_many_tenants_go_straight[250]",
        "fast_path/exchange_tenants",
        (
            "if byte(flags, 5) ~= 0 then sleeps, flags = true,",
            "if false then sleeps, flags = true,",
        ),
    ),
    _small(
        "room",
        "who holds most gives its own oldest",
        "test_room_is_made_alike[1-2]",
        "fast_path/exchange_forget",
        ("or share > most or share == most", "or share < most or share == most"),
    ),
    _small(
        "look",
        "a worker that looks for work sees the limits of queues",
        "test_a_look_sees_limits_and_pauses[change0]",
        "fast_path/exchange",
        ("      if concurrency >= 0 or rate > 0 then return nil end\n", ""),
    ),
    _entry(
        "held keys",
        "one task holds a unique key",
        "test_what_is_unusual_is_left_to_the_engine[a key that is held]",
        ("  for i = 1, #keys do if found[i] then return false end end\n", ""),
    ),
    _entry(
        "keys of a call",
        "of two tasks of a call with one key the first is the one",
        "test_what_is_unusual_is_left_to_the_engine[a key that comes twice]",
        ("  if keys[key] then return false end\n", ""),
    ),
    _entry(
        "known ids",
        "a task that is known is not stored again",
        "test_what_is_unusual_is_left_to_the_engine[a known id]",
        ("  for i = 1, #ids do if found[i] then return false end end\n", ""),
    ),
    _entry(
        "parents",
        "only a parent that the call has brought is known to be new",
        "test_what_is_unusual_is_left_to_the_engine[a parent of an earlier call]",
        ("if not seen[parent] or its_dependents", "if its_dependents"),
    ),
    _entry(
        "dependents",
        "a parent with many dependents has them where the engine looks for them",
        "test_what_is_unusual_is_left_to_the_engine[one dependent too many]",
        ("its_dependents > FEW_DEPENDENTS or ", ""),
    ),
    _entry(
        "deadlines",
        "a deadline is watched",
        "test_what_is_unusual_is_left_to_the_engine[a deadline]",
        ("if deadline ~= '' or number", "if number"),
    ),
    _entry(
        "bytes",
        "a tenant has no more bytes than it may have, also in tasks that sleep",
        "test_bytes_are_counted_up_to_the_limit[options0]",
        (
            "if its_hour ~= hour or live_bytes > top then return nil end\n  return pack(SLEEPER",
            "if its_hour ~= hour then return nil end\n  return pack(SLEEPER",
        ),
    ),
    _entry(
        "alarm",
        "who waits wakes for what is due earlier than it knew",
        "test_who_waits_wakes_for_what_is_due_earlier[2.0-1]",
        ("    ring(prefix .. 'bell')\n", ""),
    ),
    _entry(
        "due",
        "a tenant is looked at when its first task is due",
        "test_a_tenant_is_looked_at_when_its_first_task_is_due",
        ("if not known or dues[i] < known then", "if not known then"),
    ),
    _entry(
        "undone",
        "what the server took in before it refused is taken back",
        "test_what_sleeps_under_a_key_of_another_type_leaves_that_of_others_as_it_was",
        ("do call('ZREM', key, list[i]) end", "do break end"),
    ),
    _entry(
        "types",
        "it decides before its first write: keys of another type leave all as it was",
        "test_keys_of_another_type_leave_all_as_it_was[ties]",
        (" and takes('hash', 'ties', parent_texts)", ""),
    ),
)

"""Guards of time, numbering and what was declared."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, Mutant, lua, memory

__all__ = ("GUARDS",)

_NUMBERS = SUITE + "test_numbers.py::"
_TIME = SUITE + "test_time.py::"
_CLOCK = "fairlead/model/clock.py"
_WITNESS = "tests/broker/redis/test_witness.py::"
_LOSS = "tests/broker/redis/test_loss.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "letters by time",
        "mail of a server that was emptied is not taken for mail that was read",
        _NUMBERS + "test_letters_are_numbered_by_the_time_in_microseconds_or_more",
        (
            memory("state.py", ("next_number(self.letters, self.now)", "self.letters + 1")),
            lua("lib/events.lua", ("next_number(meta.letters)", "meta.letters + 1")),
        ),
    ),
    Guard(
        "entries by time",
        "a promoted server that lost its last writes reuses no id of an event",
        _NUMBERS + "test_entries_of_events_are_numbered_by_the_time_in_microseconds_or_more",
        (
            memory("event_log.py", ("next_number(self._last, now)", "self._last + 1")),
            lua("lib/events.lua", ("next_number(meta.entry)", "meta.entry + 1")),
        ),
    ),
    Guard(
        "lost tail",
        "a reader whose last event was lost is told",
        _NUMBERS + "test_gap_tells_a_reader_that_the_event_it_read_last_was_lost",
        (
            memory("event_log.py", ("            gap = True\n", "            gap = foreign\n")),
            lua("events.lua", ("gap = gap or (entry > dropped and", "gap = gap or (false and")),
        ),
    ),
    Guard(
        "slew",
        "time agrees with a clock again that was set back",
        _TIME + "test_a_clock_that_was_set_back_is_waited_for_at_nine_tenths_of_its_pace",
        (
            memory(_CLOCK, ("max(ahead - less, 0.0) if", "ahead if")),
            lua("lib/call.lua", ("ahead = math.max(ahead - less, 0)", "ahead = ahead")),
        ),
    ),
    Guard(
        "leap",
        "a clock that is set forward ends no retention, deadline, window or lease at once",
        _TIME
        + "test_a_leap_of_the_clock_ends_no_retention_no_deadline_no_window_and_no_lease[*-3600.0]",
        (
            memory(_CLOCK, ("if not 0.0 <= passed <= seen + SILENCE:", "if not 0.0 <= passed:")),
            lua("hello.lua", ("elseif seen and last > 0 and", "elseif false and")),
            lua("lib/call.lua", ("elseif passed > SILENCE and meta.now > 0", "elseif false")),
        ),
    ),
    Guard(
        "silence",
        "time does not stay behind after a weekend without calls",
        _TIME + "test_time_goes_on_while_nobody_calls[*-259200.0]",
        (
            memory("session.py", ("steady - self._steady, steady", "0.0, steady")),
            Mutant(
                "fairlead/broker/redis/session.py",
                (("repr(max(self.steady() - wrote, 0.0))", '"0.0"'),),
                "valkey",
            ),
        ),
    ),
    Guard(
        "declared",
        "what was set at run time outlives an unchanged declaration",
        SUITE + "test_declarations.py::"
        "test_the_same_declaration_again_leaves_what_was_set_meanwhile",
        (
            memory("operator_verbs.py", ("    return known != change\n", "    return True\n")),
            lua("lib/settings.lua", ("return known == digest", "return false")),
        ),
    ),
    Guard(
        "declared again",
        "schedules and limits come back after a data loss",
        "tests/worker/test_declarations.py::"
        "test_schedules_and_limits_hold_again_after_the_server_was_emptied",
        (
            Mutant(
                "fairlead/worker/declarer.py",
                (("or met == self._known:", "or self._known is not None:"),),
            ),
        ),
    ),
    Guard(
        "life",
        "chosen ids run when the counter of their lives has gone round",
        _LOSS + "test_chosen_ids_run_after_the_counter_of_their_lives_has_gone_round",
        (lua("lib/task.lua", ("(meta.life - 1) % 4294967295 + 1", "meta.life")),),
    ),
    Guard(
        "layout",
        "tasks of another layout are refused, and not read wrongly or passed over",
        _LOSS + "test_a_shard_that_a_later_release_wrote_is_refused_by_name",
        (lua("lib/call.lua", ("if meta.layout ~= LAYOUT and", "if meta.layout == 0 and")),),
    ),
    Guard(
        "witness",
        "a reader that polls, or a look into an outbox, does not make time fall behind",
        _WITNESS + "test_a_named_reader_who_polls_all_night_does_not_make_time_fall_behind",
        (
            Mutant(
                "fairlead/broker/redis/scripts.py",
                (
                    (
                        "writes_time=_CONCLUDES in sources.parts((name,)) and not twice,",
                        "writes_time=not (twice and reads),",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "told again",
        "a call that is repeated after an outage does not make time fall behind",
        _WITNESS + "test_an_answer_that_is_given_again_is_a_witness_of_the_time",
        (
            lua(
                "lib/call.lua",
                (
                    "  call('HSET', prefix .. 'meta', 'numbers', packed_numbers())\n",
                    "",
                ),
            ),
        ),
    ),
    Guard(
        "forgotten too",
        "a queue that was deleted and is declared again has its limits",
        SUITE
        + "test_declarations.py::"
        + "test_what_was_declared_for_a_queue_that_was_deleted_is_declared_anew",
        (
            memory("state.py", ('self.declared.pop(("q", queue.name), None)', "pass")),
            lua("lib/queue.lua", ("write('HDEL', prefix .. 'declared', 'q' .. SEP .. name)", "")),
        ),
    ),
    Guard(
        "closed for good",
        "who waits for work opens no connection after the broker was closed",
        "tests/broker/redis/test_blocking.py::"
        "test_who_waits_in_an_outage_opens_nothing_after_a_close",
        (
            Mutant(
                "fairlead/broker/redis/waits.py",
                (("        if self.here.is_over:\n", "        if False:\n"),),
            ),
        ),
    ),
)

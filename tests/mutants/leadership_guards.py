"""Guards of leadership: one leads at a time, and who led before is kept out by numbers."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, Mutant, lua, memory

__all__ = ("GUARDS",)

_LEADERSHIP = SUITE + "test_leadership.py::"

GUARDS = (
    Guard(
        "one leader",
        "nobody leads while another one does",
        _LEADERSHIP + "test_the_first_one_leads_and_the_others_hear_of_it",
        (
            memory(
                "leadership.py",
                (
                    "            return _seen(found, now)\n        if name not in",
                    "            pass\n        if name not in",
                ),
            ),
            lua("lead.lua", ("if not term or holder == caller then", "if true then")),
        ),
    ),
    Guard(
        "end of a leader",
        "a leader whose time is over holds nobody up",
        _LEADERSHIP + "test_when_its_time_is_over_another_one_leads_in_a_new_term",
        (
            memory("leadership.py", ("is not None and found.until > now else", "is not None else")),
            lua("lead.lua", ("if (tonumber(till) or 0) > now then", "if till then")),
        ),
    ),
    Guard(
        "terms grow",
        "no two holders have one term, not even in one microsecond",
        _LEADERSHIP + "test_whoever_gives_it_up_makes_room_at_once_for_a_new_term",
        (
            memory(
                "operator_verbs.py",
                ("holder, seconds, number,", "holder, seconds, int(shard.now),"),
            ),
            lua(
                "lead.lua",
                ("meta.token = next_number(meta.token)", "meta.token = floor(now * 1000000)"),
            ),
        ),
    ),
    Guard(
        "line of a term",
        "calls of a leader of an older term are out of order",
        "tests/broker/redis/test_terms.py::"
        "test_after_a_restart_the_leader_leads_on_and_the_older_line_stays_out_of_order",
        (
            Mutant(
                "fairlead/broker/numbered_calls.py",
                (("self._number = first - 1", "self._number = 0"),),
            ),
        ),
    ),
    Guard(
        "line in all shards",
        "a new leader ends the line of the older one in every shard with one call",
        "tests/broker/redis/test_shard_verbs.py::"
        "test_a_line_of_a_later_term_ends_the_earlier_one_in_each_shard_that_it_calls",
        (
            Mutant(
                "fairlead/broker/sharded/session.py",
                (
                    (
                        "(configure, shard) for shard in self.stores",
                        "(configure, shard) for shard in [self.default]",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "worker of a task",
        "a tenant does not hear which worker runs its tasks",
        "tests/api/live/test_sent_events.py::test_a_token_of_a_tenant_sees_only_what_belongs_to_it",
        (Mutant("fairlead/api/live/selection.py", (("workers=False", "workers=True"),)),),
    ),
)

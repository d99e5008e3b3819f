"""Guards of what happens to tasks while the broker is away, and when it is back."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_MODEL = "tests/model/test_outage.py::"
_SUBMITTER = "tests/fallback/test_submitter.py::"
_DRAINER = "tests/fallback/test_drainer.py::"
_LINKED = "tests/fallback/test_linked.py::"
_REPLAY = "tests/fallback/test_replay.py::"
_OUTAGE = "fairlead/model/outage.py"
_FALLBACK = "fairlead/fallback/"


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(file if "/" in file else _FALLBACK + file, ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "hysteresis",
        "one good probe does not send everybody back to a broker that comes and goes",
        _MODEL + "test_only_good_probes_in_a_row_lead_out_of_it",
        _at(_OUTAGE, "self._good + 1 if good else 0", "self._good + 1"),
    ),
    Guard(
        "relapses",
        "a broker that comes and goes is probed less and less often",
        _MODEL + "test_each_relapse_doubles_the_pause_and_a_quiet_while_ends_that",
        _at(_OUTAGE, "2.0 ** min(self._relapses, 16)", "2.0 ** 0"),
    ),
    Guard(
        "ramp",
        "a drain begins slowly",
        _MODEL + "test_a_drain_begins_with_a_tenth_and_takes_half_at_most",
        _at(_OUTAGE, "busy * crowd / share", "0.0 * crowd"),
    ),
    Guard(
        "calls set the pace",
        "a drain gives way to calls that become slow",
        _MODEL + "test_a_drain_is_slower_as_long_as_calls_are_and_then_as_fast_as_before",
        _at(_OUTAGE, "if excess > self.EXCESS:", "if False:"),
    ),
    Guard(
        "careful drain",
        "a drain goes slowly towards what made calls slow",
        _MODEL + "test_a_drain_is_soon_below_what_was_too_much_and_careful_beyond_that",
        _at(_OUTAGE, "self.CAREFUL ** min(passed, 1.0)", "self.FASTER"),
    ),
    Guard(
        "moments of a batch",
        "no batch of a drain keeps a slow broker busy for long",
        _MODEL + "test_a_batch_of_a_drain_keeps_the_broker_busy_for_moments_only",
        _at(_OUTAGE, "int(self.BUSY / self._best)", "self.BATCH"),
    ),
    Guard(
        "boot clock",
        "a clock that is set changes no delay",
        _MODEL + "test_time_counts_by_the_clock_that_nobody_can_set",
        _at(_OUTAGE, "if then.boot_id and then.boot_id == now.boot_id:", "if False:"),
    ),
    Guard(
        "ambiguity is spooled",
        "a call whose reply was lost is not an error to its caller",
        _SUBMITTER + "test_trouble_of_the_broker_leads_into_the_spool[Ambiguous]",
        _at("outages.py", "Unreachable | Ambiguous", "Unreachable"),
    ),
    Guard(
        "refusals are raised",
        "what the broker means is not taken for an outage",
        _SUBMITTER + "test_what_the_broker_means_is_raised",
        _at(
            "submitter.py", "            if not leads_to_spool(error):\n                raise\n", ""
        ),
    ),
    Guard(
        "away is away",
        "nobody waits for a broker that is known to be away",
        _SUBMITTER + "test_a_call_is_repeated_once_and_then_nobody_waits_for_the_broker",
        _at("submitter.py", "return outages.is_away(self.shard)", "return False"),
    ),
    Guard(
        "caller without time",
        "an impatient caller does not send all others into the spool",
        _SUBMITTER + "test_a_caller_without_time_does_not_make_an_outage",
        _at("submitter.py", "if ends < silent_at and now >= ends - _EARLY:", "if False:"),
    ),
    Guard(
        "children of spooled tasks",
        "a task does not run before the spooled one that it depends on",
        _SUBMITTER + "test_a_task_that_depends_on_a_spooled_one_is_spooled_behind_it",
        _at("submitter.py", "if dependency.id in spooled or", "if"),
    ),
    Guard(
        "refused dependency",
        "a task does not run as if one had completed that the broker never took",
        _SUBMITTER + "test_a_dependency_that_was_refused_at_the_drain_does_not_count_as_done",
        _at(
            "spooled_ids.py",
            "return Dependency(dependency.id) if dependency.id in self._refused else dependency",
            "return dependency",
        ),
    ),
    Guard(
        "doubt and a full spool",
        "nobody is told that nothing was done where something may have been",
        _SUBMITTER + "test_an_ambiguous_call_that_finds_the_spool_full_stays_ambiguous",
        _at("submitter.py", "if isinstance(error, Ambiguous):  # that", "if False:  # that"),
    ),
    Guard(
        "own line",
        "a full queue holds back no tenant but the one that filled it",
        _DRAINER + "test_a_full_queue_holds_back_the_tenant_that_filled_it_and_no_other",
        _at(
            "drainer.py",
            "if self._full.get((message.queue, message.tenant), 0.0) > now:",
            "if any(till > now for till in self._full.values()):",
        ),
    ),
    Guard(
        "held parents",
        "a child waits in the spool as long as its parent does",
        _DRAINER + "test_a_full_queue_holds_back_the_tenant_that_filled_it_and_no_other",
        _at(
            "drainer.py",
            "return any(dependency.id in self._behind for dependency in submission.depends_on)",
            "return False",
        ),
    ),
    Guard(
        "time since the call",
        "an outage makes no delay longer",
        _DRAINER + "test_delays_and_deadlines_count_from_the_call",
        _at("codec.py", "elapsed(self.moment, now))", "0.0)"),
    ),
    Guard(
        "expired at the drain",
        "what is past its deadline when it arrives is marked, workers or not",
        _DRAINER + "test_delays_and_deadlines_count_from_the_call",
        _at("drainer.py", "            await self._bury(shard)\n", "            pass\n"),
    ),
    Guard(
        "stand-ins",
        "a child of a task whose unique key was taken waits for the one that has it",
        _DRAINER + "test_a_unique_key_is_settled_at_the_drain_and_children_follow",
        _at("drainer.py", "self._fallback.ids.replace(item.id, receipt.id)", "pass"),
    ),
    Guard(
        "confirmed behind the broker",
        "a drain that is killed has confirmed nothing that the broker does not have",
        "tests/fallback/test_deaths.py::"
        "test_a_drain_that_is_killed_loses_nothing_and_doubles_nothing[drain_read-1]",
        _at(
            "drainer.py",
            '        fault_injection.reached("drain_read")\n',
            "        spool.confirm([each.sequence for each in records])\n"
            '        fault_injection.reached("drain_read")\n',
        ),
    ),
    Guard(
        "bound incarnations",
        "a reconnect does not hide which calls a server has lost",
        _REPLAY + "test_the_lost_tail_is_sent_again_and_nothing_else",
        _at("fairlead/broker/redis/connection.py", "elif known is not wire:", "elif False:"),
    ),
    Guard(
        "numbers tell",
        "a restart that loses nothing sends nothing again",
        _REPLAY + "test_a_restart_that_loses_nothing_sends_nothing",
        _at("replay.py", "each.number > last[each.incarnation]", "True"),
    ),
    Guard(
        "another generation",
        "an emptied server gets what it had, also where a call came before the look",
        _REPLAY + "test_an_emptied_server_gets_all_of_the_last_minute",
        _at("replay.py", "if known is not None and known[0] != found[0]:", "if False:"),
    ),
    Guard(
        "replay in pieces",
        "a large replay does not hold up the loop, and is not cut off by its own size",
        _REPLAY + "test_a_large_replay_goes_in_pieces_and_takes_the_time_that_it_needs",
        _at("replay.py", "if len(tasks) >= _PIECE:", "if False:"),
    ),
    Guard(
        "replayed once",
        "what was sent again is not sent once more with the rest that found no room",
        _REPLAY + "test_what_finds_no_room_in_the_spool_waits_and_is_sent_once",
        _at("replay.py", "                lost.popleft()\n", "                break\n"),
    ),
    Guard(
        "age without looks",
        "an outage of more than a minute makes no call too old to be compared",
        _REPLAY + "test_the_window_is_bounded_in_time_and_size",
        _at(
            "recent_enqueues.py",
            "calls = self._calls.get(shard)\n            while",
            "calls = min(self._calls.values(), key=lambda each: each[0].at)\n            while",
        ),
    ),
    Guard(
        "idle processes",
        "a process that enqueues nothing more stops to ask who the broker is",
        _REPLAY + "test_an_idle_process_stops_to_ask_and_holds_nothing",
        _at("replay.py", "        window.seen(shard, began)\n", ""),
    ),
    Guard(
        "first look",
        "what a server loses within a second of the first call is not taken for its history",
        _REPLAY + "test_what_is_lost_before_the_first_look_is_sent_again",
        _at("replay.py", "if known == found and", "if known in (None, found) and"),
    ),
    Guard(
        "linked and bound",
        "a call to several servers does not hide which of its forerunners one of them has lost",
        _LINKED + "test_exactly_what_a_server_lost_is_sent_again",
        _at(
            "numbered_enqueues.py",
            "replace(call, bound=True)",
            "replace(call, bound=not self._is_linked)",
        ),
    ),
    Guard(
        "completed by number",
        "a call that is completed under its number does not hide what a server has lost",
        _LINKED + "test_exactly_what_a_server_lost_is_sent_again",
        _at(
            "numbered_enqueues.py",
            "incarnation, limit.in_doubt) < least:",
            "incarnation, limit.in_doubt) < 0:",
        ),
    ),
    Guard(
        "linked numbers",
        "a restart that loses nothing sends no task again that names one of another server",
        _LINKED + "test_a_restart_that_loses_nothing_sends_nothing",
        _at(
            "numbered_enqueues.py",
            "yield shard, incarnation_of(incarnation, number)",
            "yield shard, incarnation",
        ),
    ),
    Guard(
        "stand-ins are not sent again",
        "a task for which the broker named another one does not run on its own after a failover",
        _REPLAY + "test_a_task_for_which_another_stands_is_not_sent_again",
        _at("recent_enqueues.py", " and each.id == tasks[place].message.id", ""),
    ),
    Guard(
        "committed calls in the window",
        "the stricter durability does not have the weaker promise",
        _REPLAY + "test_what_must_not_be_spooled_is_sent_again_as_well",
        _at("fairlead/client/submit_path.py", "if self._line is None or", "if True or"),
    ),
    Guard(
        "one shard",
        "a server that is away costs the others nothing",
        "tests/fallback/test_shards.py::test_a_server_that_is_away_costs_the_others_nothing",
        _at(
            "submitter.py",
            "                groups.setdefault(self._lane_of(each), []).append(place)\n",
            "                groups.setdefault(self._lane(LINKED), []).append(place)\n",
        ),
    ),
)

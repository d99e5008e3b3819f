"""Guards of outcomes in the spool: settled once, in time, and under the number they went with."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_OUTCOMES = "tests/fallback/test_outcomes.py::"
_OUTBOX = "tests/worker/test_outcome_outbox.py::"
_WATCH = "tests/worker/test_lease_watch.py::"


def _at(file: str, old: str, new: str, test: str = "") -> Mutant:
    return Mutant(file, ((old, new),), test=test)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "outcomes kept",
        "an outcome that the broker does not take outlives its worker",
        _OUTBOX + "test_an_outcome_is_in_the_spool_while_the_broker_is_away_and_not_a_moment"
        "_longer",
        (
            _at(
                "fairlead/worker/syncer.py",
                "        self.outage.failed(error)\n        self._outbox.keep_soon()\n",
                "        self.outage.failed(error)\n",
            ),
            _at(
                "fairlead/worker/outcome_outbox.py",
                "                await self._outcomes.answered(done)\n",
                "                pass\n",
            ),
            _at(
                "fairlead/worker/outcome_outbox.py",
                "        while (batch := self._unkept()) is not None:\n",
                "        while False and (batch := self._unkept()) is not None:\n",
                test=_OUTBOX + "test_an_outcome_that_was_never_sent_is_in_the_spool_when_the"
                "_worker_has_stopped",
            ),
            _at(
                "fairlead/worker/outcome_outbox.py",
                "            if is_put_off and not batch.is_kept:\n",
                "            if False:\n",
                test=_OUTBOX + "test_what_a_shard_that_is_away_was_to_get_is_kept",
            ),
        ),
    ),
    Guard(
        "number of an outcome",
        "an outcome whose reply was lost is not taken for one that came too late",
        _OUTCOMES + "test_an_outcome_that_was_applied_before_its_reply_was_lost_is_not_said_to_be"
        "_fenced[memory]",
        (
            _at(
                "fairlead/fallback/outcomes.py",
                "store.exchange(Call(incarnation, number, until), settlements)\n    except",
                "store.exchange(Call(incarnation, number + 1, until), settlements)\n    except",
            ),
            _at(
                "fairlead/worker/outcome_outbox.py",
                "return self._planned[0] if self._planned else self._plan()",
                "self.renumber()\n"
                "        return self._planned[0] if self._planned else self._plan()",
                test=_OUTBOX + "test_each_outcome_is_kept_under_the_number_that_it_is_then_sent"
                "_with",
            ),
            _at(
                "fairlead/fallback/outcomes.py",
                "return [reply.settled[outcome.place] for outcome in kept]",
                "return reply.settled[: len(kept)]",
                test=_OUTCOMES + "test_what_is_left_of_a_lost_reply_is_found_by_its_place[memory]",
            ),
        ),
    ),
    Guard(
        "living workers",
        "nobody settles for a worker that lives",
        _OUTCOMES + "test_a_worker_that_lives_sends_its_own",
        (
            _at(
                "fairlead/fallback/outcomes.py",
                "if (os.getpid(), incarnation) in self._living:",
                "if False:",
            ),
        ),
    ),
    Guard(
        "outcomes before leases",
        "what ran to its end does not run again because its worker died in an outage",
        "tests/acceptance/test_worker_outages.py::"
        "test_the_outcomes_of_a_child_that_was_killed_in_an_outage_count",
        (
            _at(
                "fairlead/worker/process/crash_recovery.py",
                "    if not root or not spooled:\n",
                "    if True:\n",
            ),
            _at(
                "fairlead/worker/worker.py",
                "            await self.outcomes.adopt(self._store)\n",
                "            pass\n",
                test=_OUTBOX + "test_a_worker_settles_what_dead_ones_left_before_it_takes_their"
                "_leases_away",
            ),
            _at(
                "fairlead/worker/worker.py",
                "if not (kept or self.inflight.left):",
                "if not self.inflight.left:",
                test=_OUTBOX + "test_leases_whose_outcomes_are_kept_are_not_given_back_when_the"
                "_worker_stops",
            ),
        ),
    ),
    Guard(
        "outcomes without an answer",
        "outcomes are kept before a call that has no answer fails",
        _OUTBOX + "test_outcomes_are_in_the_spool_before_a_call_without_an_answer_has_failed",
        (
            _at(
                "fairlead/worker/syncer.py",
                "        self._is_silent = True\n        self._outbox.keep_soon()\n",
                "        self._is_silent = True\n",
            ),
            _at(
                "fairlead/worker/syncer.py",
                "        self._is_silent = True\n        self._outbox.keep_soon()\n",
                "        self._outbox.keep_soon()\n",
            ),
        ),
    ),
    Guard(
        "outcomes on their way",
        "what was being written to the spool when its worker died is settled as well",
        _OUTBOX + "test_a_supervisor_knows_of_an_outcome_in_the_spool_before_it_is_written",
        (
            _at(
                "fairlead/worker/outcome_outbox.py",
                "            self._spooling(*_key(outcome.settlement))\n        try:\n"
                "            sequences = await self._outcomes.keep(fresh)\n",
                "            pass\n        try:\n"
                "            sequences = await self._outcomes.keep(fresh)\n"
                "            for outcome in fresh:\n"
                "                self._spooling(*_key(outcome.settlement))\n",
            ),
            _at(
                "fairlead/worker/outcome_outbox.py",
                "if isinstance(error, SpoolFull):",
                "if False:",
                test=_OUTBOX + "test_a_spool_that_is_full_leaves_outcomes_in_memory",
            ),
        ),
    ),
    Guard(
        "threads that are left",
        "a process is not taken for gone while a thread of it holds its spool",
        "tests/runtime/test_identity.py::test_a_process_of_which_a_thread_is_left_has_not_ended",
        (_at("fairlead/runtime/identity.py", "and threads < 2 else", "else"),),
    ),
    Guard(
        "others' outcomes",
        "a supervisor gives others time to settle what they adopted",
        "tests/worker/process/test_crash_recovery.py::"
        "test_a_supervisor_waits_for_whoever_adopted_the_outcomes_before_it",
        (
            _at(
                "fairlead/worker/process/crash_recovery.py",
                "    while time.monotonic() < until:\n",
                "    while False:\n",
            ),
        ),
    ),
    Guard(
        "others' outcomes at the start",
        "a worker that starts gives those that start with it time to settle what they adopted",
        "tests/fallback/test_await_others.py::"
        "test_it_is_waited_for_who_adopted_outcomes_and_has_not_sent_them",
        (
            _at(
                "fairlead/fallback/outcomes.py",
                "        while looks < 2 and time.monotonic() < until:\n",
                "        while False:\n",
            ),
            _at(
                "fairlead/fallback/outcomes.py",
                "                await self.adopt(store)  # the other one may have died, too\n",
                "",
                test="tests/fallback/test_await_others.py::"
                "test_if_that_one_dies_too_its_outcomes_are_settled_here",
            ),
            _at(
                "fairlead/worker/recoverer.py",
                "if gone and self._outcomes is not None:",
                "if False:",
                test="tests/fallback/test_await_others.py::"
                "test_leases_of_a_dead_worker_are_ended_after_that",
            ),
        ),
    ),
    Guard(
        "outcomes unknown",
        "the outcome of a task that the broker lost can be seen",
        _OUTCOMES + "test_the_outcome_of_a_task_that_nobody_knows_is_kept_to_be_seen[memory]",
        (
            _at(
                "fairlead/fallback/outcomes.py",
                '            if answer == "unknown":\n',
                "            if False:\n",
            ),
        ),
    ),
    Guard(
        "delay of an outcome",
        "the time until a retry counts from the failure",
        _OUTCOMES + "test_the_delay_until_the_next_attempt_counts_from_the_outcome[memory-4.0]",
        (
            _at(
                "fairlead/fallback/outcomes.py",
                "    if not settlement.delay:\n",
                "    if True:\n",
            ),
            _at(
                "fairlead/worker/syncer.py",
                "exchange(call, self._outbox.due(batch))",
                "exchange(call, batch.settlements)",
                test=_OUTBOX + "test_the_delay_until_a_retry_counts_from_the_failure_not_from_the"
                "_end_of_the_outage",
            ),
        ),
    ),
    Guard(
        "lease watch",
        "an attempt ends before another worker may have its task",
        _WATCH + "test_what_runs_is_stopped_a_margin_before_the_end_of_its_lease",
        (
            _at(
                "fairlead/worker/lease_watch.py",
                "if now - kept_at < lease - margin(lease):",
                "if now - kept_at < lease:",
            ),
            _at(
                "fairlead/worker/lease_watch.py",
                "if not runs_once(attempt.lease.message.flags):",
                "if True:",
                test=_WATCH + "test_a_task_that_may_begin_only_once_goes_on",
            ),
            _at(
                "fairlead/worker/worker.py",
                "watch = [] if self.outcomes is None else [self.lease_watch]",
                "watch: list[LeaseWatch] = []",
                test=_WATCH + "test_with_a_spool_an_attempt_that_outlasts_its_lease_in_an_outage"
                "_is_released[True]",
            ),
        ),
    ),
)

"""Guards of tasks that run where they are spooled."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, Mutant, lua, memory

__all__ = ("GUARDS",)

_LOCAL = "tests/fallback/test_local_tasks.py::"
_ENDED = SUITE + "test_ended.py::"


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(file if "/" in file else "fairlead/fallback/" + file, ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "local claim",
        "a task that begins here stands in the spool as begun before its handler does",
        _LOCAL + "test_a_task_is_claimed_on_disk_before_its_handler_begins",
        _at(
            "local_tasks.py",
            '(Kind.LOCAL_STARTED, b"") for run in chosen.values()}\n'
            "        written = await self._append(started)\n",
            "True for run in chosen.values()}\n        written = started\n",
        ),
    ),
    Guard(
        "local claim failed",
        "a task whose claim is not on disk does not begin",
        _LOCAL + "test_a_task_whose_claim_the_disk_does_not_take_does_not_begin",
        _at(
            "local_tasks.py",
            "for run in chosen.values() if written[run.sequence]]",
            "for run in chosen.values()]",
        ),
    ),
    Guard(
        "local settling",
        "a broker that was away for a moment starts no tasks here",
        _LOCAL + "test_a_short_outage_starts_nothing",
        _at("local_tasks.py", "left = settling - outages.away_for(shard)", "left = 0.0"),
    ),
    Guard(
        "local doubt of the call",
        "a task that the broker may have got from its caller does not run here",
        _LOCAL + "test_a_task_that_the_broker_may_have_stays_in_the_spool",
        _at("local_tasks.py", " or task.doubt is not None", ""),
    ),
    Guard(
        "local doubt of the drain",
        "a task that the broker may have got from the drain does not run here",
        _LOCAL + "test_a_task_that_the_drain_has_sent_without_a_reply_stays_in_the_spool",
        _at("local_tasks.py", " or is_doubted(record.sequence)", ""),
    ),
    Guard(
        "local chosen id",
        "a task whose id the broker may know does not run here",
        _LOCAL + "test_what_only_the_broker_can_decide_stays_in_the_spool[id]",
        _at("local_tasks.py", '":" in message.id', "False"),
    ),
    Guard(
        "local running",
        "what runs here is not sent to the broker as well",
        _LOCAL + "test_what_runs_when_the_broker_is_back_is_not_sent_before_its_end",
        _at(
            "local_tasks.py",
            "if id in self.outcomes or id in self._running:",
            "if id in self.outcomes:",
        ),
    ),
    Guard(
        "local same id",
        "a task that ended here does not run again because it was enqueued twice",
        _LOCAL + "test_a_second_call_of_the_same_id_does_not_run_it_again",
        _at(
            "local_tasks.py",
            "if id in self.outcomes or id in self._running:",
            "if id in self._running:",
        ),
    ),
    Guard(
        "local dependents",
        "a task is not sent before the end of one that it depends on",
        _LOCAL + "test_a_task_that_depends_on_it_goes_after_its_end",
        _at(
            "local_tasks.py",
            "return any(each.id in self.outcomes for each in submission.depends_on)",
            "return False",
        ),
    ),
    Guard(
        "local begun by the dead",
        "what a dead process had begun is not begun by one process after the other",
        _LOCAL + "test_what_a_dead_process_had_begun_goes_to_the_broker",
        _at("local_tasks.py", " or record.started or ", " or "),
    ),
    Guard(
        "local end failed",
        "an end that is not on disk is not forgotten",
        _LOCAL + "test_an_end_that_the_disk_does_not_take_is_tried_again",
        _at("local_tasks.py", "                self._over.append((id, ended[id]))\n", ""),
    ),
    Guard(
        "local end kept",
        "an end that the broker lost is sent again as an end, and not as a task to run",
        _LOCAL + "test_an_end_that_the_broker_lost_again_is_sent_again_as_an_end",
        _at("codec.py", "            ended=submission.ended,\n", ""),
    ),
    Guard(
        "local version",
        "a release that knows no ends does not take one for a task to run",
        _LOCAL + "test_an_end_is_stored_in_a_version_of_its_own",
        _at("codec.py", "_VERSION if submission.ended is None else _ENDED", "_VERSION"),
    ),
    Guard(
        "local fenced",
        "that a task ran here and by a worker is counted",
        _LOCAL + "test_one_that_a_worker_runs_stands_and_is_told_and_counted",
        _at("local_outcomes.py", "                self.fenced += 1\n", ""),
    ),
    Guard(
        "ended elsewhere and waiting",
        "a task that ran elsewhere is not lent if it was enqueued here as well",
        _ENDED + "test_one_that_waits_gives_back_its_unique_key",
        (
            memory("enqueue.py", ("elif task.state not in WAITING:", "else:")),
            lua("lib/accept.lua", ("elseif not WAITS[task.state] then", "else")),
        ),
    ),
    Guard(
        "ended elsewhere and running",
        "the end of a run elsewhere does not overwrite what a worker does",
        _ENDED + "test_what_a_worker_runs_or_ran_stands",
        (
            memory(
                "enqueue.py", ("if task.state is to and task.reason == ended.reason:", "if True:")
            ),
            lua(
                "lib/accept.lua",
                ("if task.state == to and task.reason == reason then", "if true then"),
            ),
        ),
    ),
    Guard(
        "ended elsewhere again",
        "the same end again is no second run",
        _ENDED + "test_the_same_end_again_is_a_duplicate",
        (
            memory(
                "enqueue.py", ("if task.state is to and task.reason == ended.reason:", "if False:")
            ),
            lua(
                "lib/accept.lua",
                ("if task.state == to and task.reason == reason then", "if false then"),
            ),
        ),
    ),
    Guard(
        "ended elsewhere and another",
        "an end of other content does not end a task",
        _ENDED + "test_other_content_of_the_same_id_is_a_conflict",
        (
            memory("enqueue.py", ("elif not task.same_content(message):", "elif False:")),
            lua(
                "lib/accept.lua",
                ("elseif not same_content(task, head, blob) then", "elseif false then"),
            ),
        ),
    ),
)

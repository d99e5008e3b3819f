"""Guards of calls that share a trip in an outage, and of the drain where something goes wrong."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_DRAINER = "tests/fallback/test_drain_trouble.py::"
_SUBMITTER = "tests/fallback/test_submitter.py::"
_DISK = "tests/fallback/test_hung_disk.py::"


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant("fairlead/fallback/" + file, ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "own answer",
        "a caller whose task the broker has does not hear that a neighbour found the spool full",
        _SUBMITTER + "test_a_full_spool_is_no_answer_to_a_task_that_the_broker_has",
        _at(
            "submitter.py",
            "        return [own_copy(error) for _ in range(count)]\n",
            "        raise\n",
        ),
    ),
    Guard(
        "confirmed first",
        "a rejection that cannot be written does not let its neighbours be sent again",
        _DRAINER + "test_a_rejection_that_cannot_be_written_leaves_only_its_own_task",
        _at(
            "drainer.py",
            "        except SpoolFailed as error:\n",
            "        except KeyError as error:\n",
        ),
    ),
    Guard(
        "damaged task",
        "one task that the broker cannot take does not stop the drain of its shard",
        _DRAINER + "test_a_task_that_the_broker_cannot_take_does_not_stop_the_others",
        _at("drainer.py", "            elif len(items) > 1:\n", "            elif False:\n"),
    ),
    Guard(
        "refusing shard",
        "a broker that refuses everything is not asked about each task",
        _DRAINER + "test_a_broker_that_refuses_two_in_a_row_is_not_asked_about_the_rest",
        _at("drain_backoff.py", "if row >= _IN_A_ROW:", "if False:"),
    ),
    Guard(
        "slow is not away",
        "a drain over a slow link does not send new calls into the spool",
        _DRAINER + "test_a_batch_that_takes_its_time_gets_through_and_is_no_outage[500000]",
        _at("drainer.py", "if not await Prober(", "if True or await Prober("),
    ),
    Guard(
        "committed without time",
        "an impatient call that wants the broker does not send all others into the spool",
        _SUBMITTER + "test_a_caller_without_time_tells_nothing_about_the_broker[committed]",
        _at("submitter.py", "if is_silent or now < until - _EARLY:", "if True:"),
    ),
    Guard(
        "hurried callers",
        "one caller with little time does not cut the trip of all who share it",
        _SUBMITTER + "test_one_caller_without_time_does_not_spool_the_tasks_of_the_others",
        _at("submitter.py", "lane = self._hurried(lane.shard)", "pass"),
    ),
    Guard(
        "too old",
        "who waits for a task that became too old in the spool is told",
        "tests/fallback/test_background.py::"
        "test_a_task_that_became_too_old_is_refused_and_the_log_says_so",
        _at(
            "spooled_ids.py",
            "            _count(self._counts, id, -1)\n            if",
            "            if",
        ),
    ),
    Guard(
        "rest of a drain",
        "a full queue does not let the whole spool be read every second",
        _DRAINER + "test_a_spool_that_waits_is_not_read_all_the_time",
        _at("drainer.py", "        if rest < _HELD:\n", "        if True:\n"),
    ),
    Guard(
        "one background loop",
        "a process drains its spool once, however many loops begin at the same time",
        "tests/fallback/test_fallback.py::test_first_calls_of_several_threads_start_one_keeper",
        _at("fallback.py", "if self._pid != os.getpid() and not self._closed:", "if True:"),
    ),
    Guard(
        "disk that hangs",
        "a caller waits for the disk no longer than it said",
        _DISK + "test_a_caller_hears_in_its_time_that_the_task_is_in_doubt",
        _at("submitter.py", "fits=Room().takes, late=late, extra=_EXTRA", "fits=Room().takes"),
    ),
    Guard(
        "probes without a disk",
        "a broker that is back is found while the disk hangs",
        _DISK + "test_a_broker_that_is_back_takes_tasks_though_the_disk_hangs",
        _at("fallback.py", "timeout=patience)", "timeout=None)"),
    ),
    Guard(
        "nothing more for a disk that hangs",
        "what a disk that hangs is given does not pile up in memory",
        _DISK + "test_a_disk_that_hangs_is_given_nothing_more_and_the_refusal_is_definite",
        (Mutant("fairlead/spool/committer.py", (("> _HANGS:", "> 1e9:"),)),),
    ),
    Guard(
        "rest of a drain",
        "a drain rests for what it has to read again, not for what it sent",
        _DRAINER + "test_one_task_that_was_left_by_a_long_drain_waits_for_no_long_rest",
        _at("drainer.py", " * self.left / max(self._read, 1)", ""),
    ),
    Guard(
        "records of later releases",
        "an older release does not reject what a later one has spooled",
        "tests/fallback/test_drainer.py::"
        "test_a_record_of_a_later_release_stays_for_that_and_others_go_on",
        _at("codec.py", "raise LaterVersion(text) if version > _ENDED else ", "raise "),
    ),
    Guard(
        "fail fast",
        "no call waits for a broker that is known to be away",
        "tests/client/test_fail_fast_breaker.py::test_no_call_is_tried_while_the_broker_is_away",
        (
            Mutant(
                "fairlead/client/fail_fast_breaker.py",
                (('outages.state == "spooling" and', "False and"),),
            ),
        ),
    ),
)

"""Guards of repeats, lost replies and refusals that pass."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_REPEATS = "fairlead/broker/repeats.py"
_SYNCER = "fairlead/worker/syncer.py"
_NO_ANSWERS = "if not self.doubtful:"
_ANY_SPLIT = "if not batch.settlements:"
_POLICY = "tests/broker/test_repeats.py::"
_CONNECTION = "tests/broker/redis/test_connection.py::"
_LOGIN = "tests/broker/redis/test_login.py::"
_CLIENT = "tests/client/test_doubt.py::"
_WORKER = "tests/worker/test_doubt.py::"
_FAILURES = "tests/worker/run/test_broker_failures.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "doubt stays",
        "a call that may have been executed is never said to be not executed",
        _POLICY + "test_a_call_that_was_ambiguous_once_stays_so_whatever_comes_after[unreachable]",
        (
            Mutant(
                _REPEATS,
                (("if self.doubtful and not isinstance(self.last, Ambiguous):", "if False:"),),
            ),
            Mutant(
                _REPEATS,
                (
                    (
                        "self.doubtful = self.doubtful or isinstance(error, Ambiguous)",
                        "self.doubtful = isinstance(error, Ambiguous)",
                    ),
                ),
                test=_CLIENT
                + "test_an_enqueue_that_was_carried_out_is_never_said_to_be_not_executed",
            ),
        ),
    ),
    Guard(
        "doubt is repeated",
        "only a reply says what became of a call in doubt, so it is asked for after every error",
        _POLICY
        + "test_a_call_in_doubt_is_repeated_under_its_number_until_there_is_a_reply[server]",
        (
            Mutant(
                _REPEATS,
                (
                    (
                        "return error.passes or self.doubtful or self._limit.insists",
                        "return error.passes or self._limit.insists",
                    ),
                ),
            ),
            Mutant(
                "fairlead/broker/numbered_calls.py",
                (
                    (
                        "return verb(Call(call.incarnation, call.number, until, call.hasty))\n",
                        "number = self.reserve()\n"
                        "            return verb(Call(call.incarnation, number, until))\n",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "defects in doubt",
        "a defect does not say what became of a call in doubt",
        _POLICY + "test_a_defect_does_not_say_what_became_of_a_call_in_doubt",
        (
            Mutant(
                _REPEATS,
                (("if not self.doubtful or isinstance(error, FairleadError):", "if True:"),),
            ),
            Mutant(
                _REPEATS,
                (("if not self.doubtful or isinstance(error, FairleadError):", "if False:"),),
            ),
            Mutant(
                _REPEATS,
                (("if not self.doubtful or isinstance(error, FairleadError):", _NO_ANSWERS),),
                test=_POLICY + "test_an_answer_to_a_call_in_doubt_that_is_an_error_comes_out",
            ),
            Mutant(
                "fairlead/broker/redis/connection.py",
                (("except Exception as raised:", "except BrokerError as raised:"),),
                test=_CONNECTION + "test_a_defect_while_connecting_leaves_a_call_in_doubt",
            ),
        ),
    ),
    Guard(
        "outcomes in doubt",
        "an outcome that may have been applied goes under its number until there is a reply",
        _WORKER + "test_an_outcome_in_doubt_is_never_counted_as_refused[defect]",
        (
            Mutant(_SYNCER, (("if not batch.settlements or batch.in_doubt:", _ANY_SPLIT),)),
            Mutant(
                _SYNCER,
                (("except (Ambiguous, asyncio.CancelledError):", "except Ambiguous:"),),
                test=_WORKER + "test_an_outcome_in_doubt_is_never_counted_as_refused[cancelled]",
            ),
            Mutant(
                _SYNCER,
                (("except OutOfOrder:", "except BrokerError:"),),
                test=_WORKER + "test_an_outcome_in_doubt_is_never_counted_as_refused[refused]",
            ),
        ),
    ),
    Guard(
        "closed as it is made",
        "a server that closes a new connection at once is away; nothing crashes",
        _LOGIN + "test_a_connection_that_is_closed_in_the_moment_it_is_made_is_unreachable[run1]",
        (Mutant("fairlead/broker/redis/wire.py", (("if sock is not None:  #", "if True:  #"),)),),
    ),
    Guard(
        "what passes",
        "what passes by itself is waited for, and what does not is said at once",
        _POLICY + "test_what_passes_is_waited_for_and_raised_as_it_is_when_time_is_over[loading]",
        (
            Mutant(
                "fairlead/model/errors.py",
                (("self.passes = cause in _PASSING", "self.passes = False"),),
            ),
            Mutant(
                "fairlead/model/errors.py",
                (("self.passes = cause in _PASSING", "self.passes = True"),),
                test=_POLICY + "test_what_does_not_pass_is_raised_at_once[oom]",
            ),
            Mutant(
                _REPEATS,
                (
                    (
                        "        if isinstance(error, OutOfOrder):\n            return False",
                        "        if isinstance(error, OutOfOrder):\n            return True",
                    ),
                ),
                test=_POLICY + "test_a_number_that_was_overtaken_is_not_asked_about_again",
            ),
        ),
    ),
    Guard(
        "time of a call",
        "a call takes no longer than was said, whoever is before it",
        _POLICY + "test_the_time_limit_holds_while_others_are_before_it",
        (
            Mutant(
                "fairlead/broker/numbered_calls.py",
                (("timeout_at(None if until == math.inf else until)", "timeout_at(None)"),),
            ),
            Mutant(
                "fairlead/broker/numbered_calls.py",
                (
                    (
                        "call = Call(self.incarnation, number, until, limit",
                        "call = Call(self.incarnation, number, None, limit",
                    ),
                ),
                test=_POLICY + "test_the_time_limit_is_told_to_whoever_carries_the_call",
            ),
        ),
    ),
    Guard(
        "waiters wait",
        "who waits for a result waits through refusals that pass",
        _CLIENT + "test_who_waits_for_a_result_waits_through_refusals_that_pass",
        (
            Mutant(
                "fairlead/client/handle.py",
                (
                    (
                        "return await repeated(lambda _: ask(), Limit(math.inf), "
                        "after=first, failed=failed)",
                        "raise first",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "insistence",
        "a worker repeats an exchange until it knows what was lent to it",
        _WORKER + "test_a_refusal_after_a_lost_reply_leaves_no_lease_behind[auth]",
        (
            Mutant(
                "fairlead/worker/syncer.py",
                (
                    ("repeats import Insistence\n", "repeats import Insistence, Limit\n"),
                    (
                        "limit = self._outcomes if batch.settlements else self._fetches",
                        "limit = Limit(0.0)",
                    ),
                ),
            ),
            Mutant(
                _REPEATS,
                (("    insists = True\n", "    insists = False\n"),),
                test=_POLICY + "test_a_worker_insists_on_whatever_is_refused_until_it_stops",
            ),
        ),
    ),
    Guard(
        "progress",
        "progress that cannot be written fails no attempt",
        _WORKER
        + "test_progress_that_cannot_be_written_is_logged_once_and_not_the_handler_s_business"
        "[error2]",
        (
            Mutant(
                "fairlead/worker/run/progress_writer.py",
                (
                    (
                        "            self._unwritten.failed(error)\n",
                        "            self._unwritten.failed(error)\n            raise\n",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "released",
        "an attempt that cannot reach the broker is released and uses up no retry",
        _WORKER + "test_a_context_call_that_fails_in_an_outage_releases_the_attempt[False]",
        (
            Mutant(
                "fairlead/worker/run/attempt.py",
                (("failures.caused(error) and not stopped:", "False:"),),
            ),
        ),
    ),
    Guard(
        "released with others",
        "an outage that fails several calls of an attempt at once uses up no retry either",
        _FAILURES + "test_of_several_calls_that_fail_together_none_is_charged_to_the_task[gather]",
        (
            Mutant(
                "fairlead/worker/run/broker_failures.py",
                (
                    (
                        "            self._errors.add(error)\n",
                        "            self._errors.clear()\n            self._errors.add(error)\n",
                    ),
                ),
            ),
            Mutant(
                "fairlead/worker/run/broker_failures.py",
                (
                    (
                        "if isinstance(error, BaseExceptionGroup):\n            return all",
                        "if False:\n            return all",
                    ),
                ),
                test=_FAILURES
                + "test_of_several_calls_that_fail_together_none_is_charged_to_the_task[group]",
            ),
        ),
    ),
    Guard(
        "excused",
        "an attempt whose time the broker took is released and uses up no retry",
        _FAILURES + "test_an_attempt_that_is_out_of_time_because_it_waits_for_the_broker_is_not"
        "_charged[False]",
        (
            Mutant(
                "fairlead/worker/run/attempt.py",
                (("        if self.excused:\n", "        if False:\n"),),
            ),
        ),
    ),
    Guard(
        "full server",
        "an attempt that finds the server full is released and uses up no retry",
        _FAILURES + "test_a_full_server_that_keeps_a_handler_from_enqueueing_costs_no_retry",
        (
            Mutant(
                "fairlead/worker/run/broker_failures.py",
                (("if error.passes or _is_full(error):", "if error.passes:"),),
            ),
        ),
    ),
    Guard(
        "line of writes",
        "what handlers write does not wait for an exchange in doubt",
        _WORKER + "test_what_handlers_write_does_not_wait_for_an_exchange_in_doubt",
        (
            Mutant(
                "fairlead/worker/worker.py",
                (('Caller(f"{calls}:writes")', "self.syncer._caller"),),
            ),
        ),
    ),
    Guard(
        "ids of errors",
        "an error says which tasks it is about, so that they can be asked for or sent again",
        _CLIENT + "test_an_enqueue_that_was_carried_out_is_never_said_to_be_not_executed",
        (
            Mutant(
                "fairlead/client/errors.py", (("    error.ids = (message.id,)\n", "    pass\n"),)
            ),
            Mutant(
                "fairlead/client/submit_path.py",
                (
                    (
                        "error.ids = tuple(submission.message.id for submission in chunk)",
                        "error.ids = ()",
                    ),
                ),
                test="tests/client/test_client.py::"
                "test_a_batch_whose_reply_never_came_may_be_enqueued_again",
            ),
        ),
    ),
)

"""Guards of the short ways of client and worker: they take what is plain, and leave the rest."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_LINES = "tests/client/test_thread_lines.py::"
_LIGHT = "tests/worker/run/test_light_attempt.py::"
_BATCHES = "tests/client/test_large_batches.py::"
_TEMPLATE = "tests/client/test_template.py::"


def _guard(name: str, protects: str, test: str, file: str, *edits: tuple[str, str]) -> Guard:
    return Guard(name, protects, test, (Mutant(f"fairlead/{file}", edits),))


GUARDS: tuple[Guard, ...] = (
    _guard(
        "ids: fork",
        "a forked child makes no ids of its parent's randomness",
        "tests/runtime/test_ids.py::test_a_forked_child_makes_other_ids_with_randomness_of_its_own",
        "runtime/ids.py",
        ("at_fork(after_in_child=_drawn.clear)", "at_fork()"),
    ),
    _guard(
        "ids: clock",
        "an id begins with the moment at which it was made, also when the clock was set back",
        "tests/runtime/test_ids.py::test_an_id_begins_with_its_moment_whatever_moments_came_before",
        "runtime/ids.py",
        ("if now < least and now > least - _MOST_AHEAD:", "if now < least:"),
    ),
    _guard(
        "ids: moment",
        "an id tells the quarter of a microsecond at which it was made, as others tell theirs",
        "tests/runtime/test_ids.py::test_an_id_begins_with_its_moment_whatever_moments_came_before",
        "runtime/ids.py",
        ("rest * 64 // 15_625", "0"),
    ),
    _guard(
        "ids: variant",
        "an id has as much randomness as a UUID of version 7 has",
        "tests/runtime/test_ids.py::test_each_bit_of_chance_is_as_often_set_as_not",
        "runtime/ids.py",
        ("byte & 0x3F | 0x80", "byte & 0x1F | 0x80"),
    ),
    _guard(
        "bulk: on its way",
        "a call is written before the next one is packed",
        _BATCHES + "test_a_call_is_on_its_way_before_the_next_is_made_ready[new_event_loop1]",
        "client/submit_path.py",
        ("                    await asyncio.sleep(0)  # it is sent\n", ""),
    ),
    _guard(
        "bulk: own handle",
        "each handle is of the task of its own call",
        _BATCHES + "test_each_handle_is_of_its_own_call",
        "client/batch.py",
        ("spec = calls[start].spec", "spec = calls[0].spec"),
    ),
    _guard(
        "bulk: limits",
        "what one call among many needs counts for all of them",
        _BATCHES + "test_what_one_call_of_many_needs_counts_for_all[700]",
        "broker/submissions.py",
        ("        if like is not last:\n", "        if last is None:\n"),
    ),
    _guard(
        "short walk",
        "a plain task passes no more files than it has to",
        "tests/architecture/test_walk.py::test_the_walk_of_one_task_is_short",
        "client/client.py",
        (
            "if self._fallback is None and not self._around and self.codecs is None:",
            "if False:",
        ),
    ),
    _guard(
        "checks: like",
        "a message is only passed over for what it shares with one that passed",
        "tests/broker/test_submission_checks.py::test_what_is_wrong_is_refused_by_name"
        "[level-behind one that passed]",
        "model/message.py",
        ("        and message.level is like.level\n", ""),
    ),
    _guard(
        "checks: pattern",
        "only the very pattern that passed is not looked at again",
        "tests/broker/test_submission_checks.py::"
        "test_a_batch_with_one_that_is_wrong_is_refused[changes2]",
        "broker/submission_checks.py",
        ("if like is not last:", "if False:"),
    ),
    _guard(
        "receipts: as one",
        "a batch was accepted as a whole only if each task was",
        "tests/broker/redis/test_packed_submissions.py::"
        "test_one_answer_among_many_that_is_another_is_read[1]",
        "broker/redis/answers.py",
        (" and reply == _each(text, len(ids))", ""),
    ),
    _guard(
        "packed: head",
        "a task is sent with its own head, whatever the one before it had",
        "tests/broker/redis/test_packed_submissions.py::test_the_command_is_the_same[batch5]",
        "broker/redis/packed_submissions.py",
        (
            "if last is None or not shares_head(like.message, last.message):",
            "if last is None:",
        ),
    ),
    _guard(
        "packed: other thread",
        "a task is sent with its own head, whatever other threads send meanwhile",
        "tests/broker/redis/test_packed_submissions.py::"
        "test_a_head_that_another_thread_remembers_meanwhile_is_not_taken",
        "broker/redis/packed_submissions.py",
        (
            "            last = like\n",
            "            else:\n                head = _last[1]\n            last = like\n",
        ),
    ),
    _guard(
        "tasks of one moment",
        "tasks for one moment run in the order in which they were enqueued",
        "tests/client/test_submit_path.py::"
        "test_what_is_for_one_moment_has_one_delay_where_moments_are_not_kept",
        "client/submit_path.py",
        ("if not any(map(_at, likes_of(submissions) if kinds is None else kinds)):", "if True:"),
    ),
    _guard(
        "template: origin",
        "a task inherits the correlation id of where it is enqueued",
        _TEMPLATE + "test_what_comes_with_the_call_is_not_lost",
        "client/template.py",
        ("return self._is_free and not correlation_id.get()", "return self._is_free"),
    ),
    _guard(
        "template: signature",
        "a call that no handler takes is refused before it is written",
        _TEMPLATE + "test_calls_that_no_handler_takes_are_refused_also_behind_good_ones",
        "client/template.py",
        ("            known[None]\n", ""),
    ),
    _guard(
        "template: signatures",
        "a call of many that no handler takes is refused before any is written",
        _TEMPLATE + "test_calls_that_no_handler_takes_are_refused_also_behind_good_ones",
        "client/template.py",
        ("                types[None]\n", ""),
    ),
    _guard(
        "waiters: closed",
        "who waits for a result hears that the client was closed",
        "tests/client/test_waiters.py::"
        "test_who_waits_hears_that_the_client_was_closed_while_no_reply_came",
        "client/waiter.py",
        ("        if self._is_closed:\n", "        if False:\n"),
    ),
    _guard(
        "waiters: read",
        "a lost reply to a read does not make it wait for ever",
        "tests/client/test_waiters.py::"
        "test_who_waits_hears_that_the_client_was_closed_while_no_reply_came",
        "client/handle.py",
        ("            raise Unreachable(str(error)) from error\n", "            raise\n"),
    ),
    _guard(
        "lines: doubt",
        "what a thread sent and got no reply to stays in doubt",
        _LINES + "test_what_may_have_been_done_stays_in_doubt",
        "client/thread_lines.py",
        (
            "submit_again(call, row, left, lost)",
            "submit_again(call, row, left, None)",
        ),
    ),
    _guard(
        "lines: number",
        "a call that goes on over the portal keeps its number",
        _LINES + "test_a_lost_reply_is_asked_for_again_under_its_number[none]",
        "client/client.py",
        (
            "caller.ask_again(enqueue, call, within, after)",
            "caller.call(enqueue, within, number=call.number + 1)",
        ),
    ),
    _guard(
        "lines: lost",
        "nothing is sent over a connection that is known to be lost",
        _LINES + "test_of_a_server_that_is_gone_it_is_sure_that_nothing_was_done",
        "broker/redis/blocking_line.py",
        ("if session.is_closed or self._is_lost():", "if session.is_closed:"),
    ),
    _guard(
        "lines: silence",
        "where a thread's connection was silent, the idle one beside it is not waited for",
        _LINES + "test_where_a_line_is_silent_no_other_connection_is_waited_for",
        "broker/redis/blocking_line.py",
        ("and seconds >= _SILENCE:", "and False:"),
    ),
    _guard(
        "lines: fork",
        "a forked child has lines, and incarnations, of its own",
        _LINES + "test_a_forked_child_has_lines_of_its_own",
        "client/clients.py",
        (
            "        self._lines = ThreadLines(self.sync)  # what the parent",
            "        # what the parent",
        ),
    ),
    _guard(
        "light: stop",
        "an attempt that was told to stop by its own first step has not simply succeeded",
        _LIGHT + "test_a_lost_lease_settles_nothing[light]",
        "worker/run/light_attempt.py",
        ("is_unfit or self._why is not None or env.cut", "is_unfit or env.cut"),
    ),
    _guard(
        "light: cleanup",
        "what a handler left to be cleaned up is, before its outcome is reported",
        _LIGHT + "test_cleanups_come_before_the_outcome[light]",
        "worker/run/light_attempt.py",
        (" or env.cut or context._cleanups or", " or env.cut or"),
    ),
    _guard(
        "light: no coroutine",
        "an attempt whose handler never began has not returned",
        _LIGHT + "test_a_type_whose_loader_ends_an_iteration_has_not_returned[light]",
        "worker/run/light_attempt.py",
        ("            steps = _raised(stop)\n", "            steps = _returned(None)\n"),
    ),
    _guard(
        "light: types",
        "arguments that are no plain values of the types asked for are converted",
        _LIGHT + "test_arguments_that_do_not_fit_are_rejected[light]",
        "worker/run/light_attempt.py",
        ("list(map(type, args)) != plan.scalars", "False"),
    ),
    _guard(
        "light: kept",
        "nothing of a finished task is kept until the next one comes",
        _LIGHT + "test_nothing_of_one_that_is_over_is_kept[light]",
        "worker/run/light_attempt.py",
        (
            "        context = attempt = plan = args = kwargs = steps = value = None\n",
            "",
        ),
    ),
    _guard(
        "light: own stepper",
        "an attempt that waits goes on while others take their first steps",
        _LIGHT + "test_one_that_waits_after_all_goes_on_where_it_is[light]",
        "worker/run/light_attempt.py",
        (
            "        stepper, self.stepper = self.stepper, _begun(self)\n",
            "        stepper = self.stepper\n",
        ),
    ),
    _guard(
        "light: within another",
        "an attempt that begins within the first step of another runs",
        _LIGHT + "test_one_that_begins_within_the_first_step_of_another_is_a_full_one[light]",
        "worker/run/light_attempt.py",
        ("        if lights.running is not None:", "        if False:"),
    ),
    _guard(
        "rows: long id",
        "what a child shows of one task does not run into another's",
        "tests/worker/process/test_shared_state.py::"
        "test_an_id_that_is_too_long_leaves_the_next_row_alone",
        "worker/process/shared_state.py",
        ("name = name[:_LONGEST]", "name = name[:]"),
    ),
    _guard(
        "light: arguments",
        "arguments are passed as they are only if each is of the type that is asked for",
        _LIGHT + "test_arguments_that_do_not_fit_are_rejected[light]",
        "model/registry.py",
        (
            "if kinds == shape.scalars or kinds == shape.scalars[: len(kinds)]:",
            "if len(kinds) <= len(shape.scalars):",
        ),
    ),
    _guard(
        "loans: heads",
        "a loan has the head of its own task, and not of the one before",
        "tests/broker/conformance/test_enqueue.py::"
        "test_each_loan_of_a_call_is_the_task_as_it_was_enqueued[valkey]",
        "broker/redis/answers.py",
        ("if size != last_size or stored[begin:start] != last:", "if size != last_size:"),
    ),
    _guard(
        "ends: plain",
        "ends that look plain are refused for a time that is none, as others are",
        "tests/broker/conformance/test_checks.py::"
        "test_a_wrong_settlement_raises_and_changes_nothing[memory-run time NaN-alone]",
        "broker/checks.py",
        ("            or not 0.0 <= settlement.run_time < math.inf\n", ""),
    ),
    _guard(
        "ends: encoded",
        "the broker on a server refuses them as well, where it writes them out",
        "tests/broker/conformance/test_checks.py::"
        "test_a_wrong_settlement_raises_and_changes_nothing[valkey-run time NaN-alone]",
        "broker/redis/encode.py",
        ("            or not 0.0 <= run_time < infinite\n", ""),
    ),
    _guard(
        "ends: later",
        "what a shard that is away was to get stays on loan here",
        "tests/worker/process/test_shared_state.py::"
        "test_what_is_to_be_sent_again_stays_until_it_is_answered",
        "worker/inflight.py",
        ('        if "later" in answers:', "        if False:"),
    ),
    _guard(
        "ends: bytes",
        "an exchange carries no more results than 4 MiB, and the one that fills them",
        "tests/worker/test_outcome_outbox.py::"
        "test_an_exchange_carries_128_outcomes_or_4_mib_of_results",
        "worker/outcome_outbox.py",
        ("                if size >= MAX_BYTES:", "                if False:"),
    ),
    _guard(
        "queues of a fetch",
        "each queue is charged for what it gave itself",
        "tests/worker/test_worker.py::test_the_order_of_queues_learns_what_each_of_them_gave",
        "worker/processor.py",
        ("        several = len(ask.queues) > 1 ", "        several = False "),
    ),
    _guard(
        "light: middleware",
        "middleware is around every attempt, however short",
        _LIGHT + "test_middleware_that_comes_later_is_around_every_attempt[light]",
        "worker/run/light_attempt.py",
        ("if not quick or env.around or", "if not quick or"),
    ),
    _guard(
        "light: time",
        "the time of an attempt counts from its first step",
        _LIGHT + "test_its_time_counts_from_its_first_step[light]",
        "worker/run/executors.py",
        (
            "self._env.deadlines.add(self, self._since + ",
            "self._env.deadlines.add(self, self._loop.time() + ",
        ),
    ),
)

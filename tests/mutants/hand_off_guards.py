"""Guards of the hand-off: what is handed over to whom, and what becomes of what nobody collects."""

from __future__ import annotations

from tests.mutants.mutant import LUA, Guard, Mutant

__all__ = ("GUARDS",)

_BROKER = "tests/broker/redis/test_hand_off.py::"
_WORKER = "tests/worker/test_hand_off.py::"


def _lua(name: str, protects: str, test: str, file: str, *edits: tuple[str, str]) -> Guard:
    return Guard(name, protects, _BROKER + test, (Mutant(f"{LUA}{file}.lua", edits),))


def _python(name: str, protects: str, test: str, file: str, *edits: tuple[str, str]) -> Guard:
    return Guard(name, protects, test, (Mutant(f"fairlead/{file}.py", edits),))


GUARDS: tuple[Guard, ...] = (
    _lua(
        "hand-off: nothing waits",
        "no task is handed over past one that waits",
        "test_nothing_is_handed_over_past_a_task_that_waits",
        "lib/fast_path/enqueue_one",
        ("  if weight <= 0 and queued == 0 and hand_off(", "  if hand_off("),
    ),
    _lua(
        "hand-off: other queues",
        "nor past one in another queue of the worker",
        "test_nor_past_one_in_another_queue_of_the_worker",
        "lib/fast_path/hand_off",
        ("elseif nothing_else(queues, queue) and not", "elseif not"),
    ),
    _lua(
        "hand-off: due",
        "nor past one that is due",
        "test_nor_past_one_that_is_due",
        "lib/fast_path/hand_off",
        (" or meta.next <= now or meta.jobs", " or meta.jobs"),
    ),
    _lua(
        "hand-off: gate",
        "the limit of a tenant is not passed by",
        "test_a_limit_makes_it_a_wake_up[a limit of the tenant-before]",
        "lib/fast_path/hand_off",
        ("pause + gated + length0", "pause + length0"),
    ),
    _lua(
        "hand-off: limiter",
        "a task that needs a limiter asks it",
        "test_what_is_not_plain_is_a_wake_up[limiter]",
        "lib/fast_path/hand_off",
        ("or fields.limited or meta.next", "or meta.next"),
    ),
    _lua(
        "hand-off: offer",
        "nothing is handed over to a worker that has done something else since",
        "test_an_exchange_ends_the_wait_and_nothing_is_handed_over_from_then_on",
        "lib/fast_path/hand_off",
        (
            "'^(%d+)\\31take\\31o(%d)\\30([%d.e+]+)\\30(.*)$'",
            "'^(%d+)\\31%a+\\31()().*$'",
        ),
        ("nothing_else(queues, queue)", "true"),
        ("holds == '1', tonumber(lease)", "false, 30"),
    ),
    _lua(
        "hand-off: once",
        "an offer brings one task",
        "test_two_who_wait_get_one_each_the_first_first",
        "lib/fast_path/hand_off",
        (", name, number .. '\\31take\\31h' .. token .. '\\30' .. id)", ")"),
        ("and has_type('none', place)\n    and", "and"),
    ),
    _lua(
        "hand-off: sweep",
        "what lies there for a second goes back",
        "test_the_sweep_takes_it_back_after_a_second",
        "recover_expired",
        ("  if uncollected.clear(name) then count = count + 1 end\n", ""),
    ),
    _lua(
        "hand-off: charge",
        "what nobody collected is charged to nobody",
        "test_who_is_given_up_is_charged_nothing[unseen]",
        "lib/lease",
        ("crashed = task.id ~= lay and may_have_run(task)", "crashed = may_have_run(task)"),
    ),
    _lua(
        "hand-off: given up",
        "a worker that is gone is handed nothing",
        "test_who_is_given_up_is_handed_nothing_more",
        "lib/lease",
        ("  write('HSET', prefix .. 'answers', name, number .. '\\31take\\31c')\n", ""),
    ),
    _lua(
        "hand-off: lost reply",
        "a wait whose reply was lost has its task put back",
        "test_a_wait_whose_reply_was_lost_has_the_task_put_back_at_once",
        "offer",
        ("elseif before and many > 0 then", "elseif false then"),
    ),
    _lua(
        "hand-off: lying",
        "a wait that goes on collects what came meanwhile",
        "test_the_same_wait_collects_what_came_while_its_connection_was_cut",
        "offer",
        ("then return { 2, '', 0 } end", "then id = nil end"),
    ),
    _python(
        "hand-off: on its way",
        "a beat takes nothing back that a wait may still bring",
        _WORKER + "test_beats_take_nothing_back_that_is_on_its_way",
        "worker/inflight",
        ("        return min(self._answered, self._awaited - 1)", "        return self._awaited"),
    ),
    _python(
        "hand-off: same turn",
        "what is handed over begins in the task that waited for it",
        _WORKER + "test_it_begins_in_the_task_that_waited_for_it[return]",
        "worker/work_waiter",
        ("        is_lane = self._executor.enter()\n", "        is_lane = False\n"),
    ),
    _python(
        "hand-off: lane",
        "what is handed over while a lane is under way takes its turn there",
        _WORKER + "test_it_takes_its_turn_behind_a_lane_that_is_under_way",
        "worker/run/async_executor",
        ("        if self._awake is not None:\n            return False\n", ""),
    ),
    _python(
        "hand-off: never begun",
        "a wait that was cancelled before its first step is over",
        _WORKER + "test_a_wait_that_is_cancelled_before_its_first_step_is_over",
        "worker/work_waiter",
        ("        if not taking.done():", "        if False:"),
    ),
    _python(
        "hand-off: rest",
        "a worker that rests is handed nothing",
        _WORKER + "test_a_worker_that_rests_is_handed_nothing",
        "worker/work_waiter",
        ("            await self._syncer.say_nothing()\n", "            self._taking = None\n"),
    ),
    _python(
        "hand-off: close",
        "a broker that is closed is handed nothing",
        _BROKER + "test_a_closed_broker_is_handed_nothing",
        "broker/redis/hand_off",
        ("        _ = here.start(taker.withdraw())\n", "        taker.finish()\n"),
    ),
)

"""Guards of loans that go from one worker to another."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, Mutant, lua, memory

__all__ = ("GUARDS",)

_TRANSFERS = SUITE + "test_transfers.py::"
_REFERRALS = "tests/worker/test_referrals.py::"
_REFERRAL = "fairlead/model/referral.py"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "proof of a transfer",
        "only the loan of the caller can be given to another",
        _TRANSFERS + "test_what_is_not_the_caller_s_any_more_is_fenced",
        (
            memory(
                "recovery.py",
                (
                    "if task is None or not task.leased_as(ref.incarnation, ref.token):\n"
                    '            answers.append("fenced")',
                    'if task is None:\n            answers.append("fenced")',
                ),
            ),
            lua(
                "transfer.lua",
                (
                    "not task or not leased_as(task, ARGV[4 + 3 * place + 1], "
                    "tonumber(ARGV[4 + 3 * place + 2]))",
                    "not task",
                ),
            ),
        ),
    ),
    Guard(
        "room of a transfer",
        "a worker is lent no more than there is room for",
        _TRANSFERS + "test_it_takes_no_more_than_there_is_room_for",
        (
            memory("recovery.py", ("many + len(moved) >= room or task in moved", "task in moved")),
            lua("transfer.lua", ("or #moved >= room then", "then")),
        ),
    ),
    Guard(
        "cancelled transfer",
        "a task that is to be cancelled stays where the cancel was told",
        _TRANSFERS + "test_a_task_that_is_to_be_cancelled_stays",
        (
            memory("recovery.py", ("known is None or task.cancelling or", "known is None or")),
            lua("transfer.lua", ("not last or task.cancelling or", "not last or")),
        ),
    ),
    Guard(
        "letters of a transfer",
        "a loan is not taken back while the letter about it may be on its way",
        _TRANSFERS + "test_what_it_does_not_name_goes_back_after_its_next_exchange",
        (
            memory("recovery.py", ("to, known.number + 1, lease)", "to, known.number, lease)")),
            lua("transfer.lua", ("format('%.0f', last + 1)", "last")),
        ),
    ),
    Guard(
        "queue of a referral",
        "a worker is handed only what it would fetch itself",
        _REFERRALS + "test_a_worker_that_does_not_serve_the_queue_gets_nothing",
        (
            Mutant(
                _REFERRAL,
                (
                    (
                        "queue in self.queues and self.versions.get(task, 0) >= version",
                        "self.versions.get(task, 0) >= version",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "rest without room",
        "a task rests for as long as there has been no room, however many were refused",
        "tests/model/test_referral.py::"
        "test_many_batches_within_a_moment_make_no_task_rest_for_longer",
        (Mutant(_REFERRAL, (("now > self._last + 2 * self.pause", "now < self._last"),)),),
    ),
    Guard(
        "round trips",
        "a task that comes back rests before it is handed on again",
        "tests/model/test_referral.py::"
        "test_a_task_that_comes_back_rests_before_it_goes_again_ever_longer",
        (Mutant(_REFERRAL, (("rests = times % 2 == 1", "rests = False"),)),),
    ),
)

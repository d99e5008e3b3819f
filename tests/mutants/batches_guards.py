"""Guards of budgets of calls in bytes and steps."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, lua, memory

__all__ = ("GUARDS",)

GUARDS: tuple[Guard, ...] = (
    Guard(
        "unclaimed",
        "what a worker does not know of does not stay on loan to it",
        SUITE + "test_unclaimed.py::test_what_an_answered_exchange_lent_and_nobody_names_goes_back"
        "_uncharged",
        (
            memory("recovery.py", ("        if answered is not None:\n", "        if False:\n")),
            lua("beat.lua", ("local count = min(#ids, STEP)", "local count = 0")),
        ),
    ),
    Guard(
        "answered",
        "a loan whose reply is on its way stays with its worker",
        SUITE + "test_unclaimed.py::test_what_a_later_exchange_lent_stays_its_reply_may_be_on_its"
        "_way",
        (
            memory("recovery.py", ("if task.lent_by <= answered and ", "if ")),
            lua("beat.lua", ("if number <= answered and not", "if not")),
        ),
    ),
    Guard(
        "bytes of a fetch",
        "large tasks do not hold up a worker's link, nor the server",
        SUITE + "test_bytes.py::test_the_task_that_fills_4_mib_is_the_last_of_a_fetch",
        (
            memory(
                "exchange.py", ("        self.bytes = MAX_BYTES\n", "        self.bytes = 2**60\n")
            ),
            lua("lib/fetch.lua", ("bytes = BUDGET, counted", "bytes = 2 ^ 50, counted")),
        ),
    ),
    Guard(
        "bytes of a cancel",
        "ending many large tasks does not read them all",
        SUITE + "test_bytes.py::test_cancelled_tasks_drop_their_bodies_up_to_1_mib_in_a_call",
        (
            memory("holdings.py", ("if self.digested <= _DIGESTED or", "if True or")),
            lua("lib/leave.lua", ("if digested > DIGESTED and", "if false and")),
        ),
    ),
)

"""What a child shows in shared memory, and what is read of it when the child is dead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased, Message
from fairlead.worker.inflight import Inflight
from fairlead.worker.process.shared_state import Row, SharedState


def lease(id: str, token: int = 7) -> Leased:
    message = Message(id=id, queue="q", tenant="a", body=b"")
    return Leased(message=message, token=token, attempt=1, started=False)


def test_a_task_stands_on_the_board_from_its_loan_to_the_answer() -> None:
    shared_state = SharedState.made(4)
    inflight = Inflight("w", shared_state)
    one, two = lease("one"), lease("two", 8)
    inflight.lent([one, two], 4)
    inflight.begun(two, 3)

    assert shared_state.lent() == [Row("one", 7, 0, False), Row("two", 8, 3, True)]
    assert inflight.room == 2

    inflight.over("two", 8)
    inflight.over("two", 8)  # once is enough

    assert shared_state.lent() == [Row("one", 7, 0, False)]
    assert (inflight.room, shared_state.ended) == (3, 1)
    shared_state.close()


def test_what_is_to_be_sent_again_stays_until_it_is_answered() -> None:
    shared_state = SharedState.made(4)
    inflight = Inflight("w", shared_state)
    leases = [lease("one"), lease("two"), lease("three", 8)]
    inflight.lent(leases, 4)
    for each in leases:
        inflight.leave(each, late=False)
    ends = [Settlement(id=x.message.id, token=x.token, to=State.COMPLETED) for x in leases]

    inflight.answer(ends, ["applied", "later", "fenced"])

    assert shared_state.lent() == [Row("two", 7, 0, False)]
    assert [each.id for each in inflight.leases()] == ["two"]
    assert (inflight.room, inflight.left, shared_state.ended) == (3, 1, 2)

    inflight.answer(ends, ["applied"] * 3)  # once is enough

    assert shared_state.lent() == []
    assert (inflight.room, inflight.left, shared_state.ended) == (4, 0, 3)
    shared_state.close()


def test_the_longest_id_fits() -> None:
    shared_state = SharedState.made(1)
    id = "t" * 128 + ":" + "i" * 128
    shared_state.take([id], 2**63)
    assert shared_state.lent() == [Row(id, 2**63, 0, False)]
    shared_state.close()


def test_an_id_that_is_too_long_leaves_the_next_row_alone() -> None:
    shared_state = SharedState.made(2)
    rows = shared_state.take(["a", "b"], 1)
    shared_state.drop(rows["a"])
    shared_state.take(["x" * 300], 2)
    assert shared_state.lent() == [Row("x" * 264, 2, 0, False), Row("b", 1, 0, False)]
    assert rows == {"a": 0, "b": 1}
    shared_state.close()


def test_ids_of_several_lengths_are_shown_as_they_are() -> None:
    shared_state = SharedState.made(4)
    ids = ["a", "long", "b", "ö"]
    rows = shared_state.take(ids, 9)
    assert list(rows.values()) == [0, 1, 2, 3]
    assert shared_state.lent() == [Row(id, 9, 0, False) for id in ids]
    shared_state.close()


def test_rows_are_used_again_and_never_run_out() -> None:
    shared_state = SharedState.made(2)
    for token in range(1, 100):
        row = shared_state.take(["x"], token)["x"]
        shared_state.start(row, 1)
        shared_state.drop(row)
    assert shared_state.lent() == []
    assert shared_state.ended == 99
    shared_state.close()


def test_what_a_killed_process_wrote_can_be_read() -> None:
    shared_state = SharedState.made(8)
    code = (
        "import os, signal, sys\n"
        "from fairlead.worker.process.shared_state import SharedState\n"
        "shared_state = SharedState(int(sys.argv[1]), 8)\n"
        "shared_state.start(shared_state.take(['ran'], 1)['ran'], 2)\n"
        "shared_state.take(['held'], 1)\n"
        "shared_state.tick(0.5)\n"
        "shared_state.answer(0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code, str(shared_state.fd)]
    assert subprocess.run(command, pass_fds=[shared_state.fd]).returncode == -9

    assert shared_state.lent() == [Row("ran", 1, 2, True), Row("held", 1, 0, False)]
    assert (shared_state.ticks, shared_state.answers, shared_state.on_stack()) == (1, 1, "ran")
    shared_state.close()


def test_nobody_is_on_the_stack_of_a_child_that_has_not_said_so() -> None:
    shared_state = SharedState.made(1)
    assert shared_state.on_stack() is None
    row = shared_state.take(["held"], 1)["held"]
    shared_state.answer(row)
    assert shared_state.on_stack() is None  # held: its handler cannot be on any stack
    shared_state.answer(None)
    assert shared_state.on_stack() is None
    shared_state.close()


def test_nothing_of_a_board_is_left_open() -> None:
    SharedState.made(1).close()  # whatever the first one opens for good
    before = len(list(Path("/proc/self/fd").iterdir()))
    SharedState.made(3).close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before

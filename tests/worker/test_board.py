"""What a child shows in shared memory, and what is read of it when the child is dead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fairlead.model.message import Leased, Message
from fairlead.worker.board import Board, Row
from fairlead.worker.inflight import Inflight


def lease(id: str, token: int = 7) -> Leased:
    message = Message(id=id, queue="q", tenant="a", body=b"")
    return Leased(message=message, token=token, attempt=1, started=False)


def test_a_task_stands_on_the_board_from_its_loan_to_the_answer() -> None:
    board = Board.made(4)
    inflight = Inflight("w", board)
    one, two = lease("one"), lease("two", 8)
    inflight.lent([one, two], 4)
    inflight.begun(two, 3)

    assert board.lent() == [Row("one", 7, 0, False), Row("two", 8, 3, True)]
    assert inflight.room == 2

    inflight.over("two", 8)
    inflight.over("two", 8)  # once is enough

    assert board.lent() == [Row("one", 7, 0, False)]
    assert (inflight.room, board.ended) == (3, 1)
    board.close()


def test_the_longest_id_fits() -> None:
    board = Board.made(1)
    id = "t" * 128 + ":" + "i" * 128
    board.take(id, 2**63)
    assert board.lent() == [Row(id, 2**63, 0, False)]
    board.close()


def test_rows_are_used_again_and_never_run_out() -> None:
    board = Board.made(2)
    for token in range(1, 100):
        row = board.take("x", token)
        board.start(row, 1)
        board.drop(row)
    assert board.lent() == []
    assert board.ended == 99
    board.close()


def test_what_a_killed_process_wrote_can_be_read() -> None:
    board = Board.made(8)
    code = (
        "import os, signal, sys\n"
        "from fairlead.worker.board import Board\n"
        "board = Board(int(sys.argv[1]), 8)\n"
        "board.start(board.take('ran', 1), 2)\n"
        "board.take('held', 1)\n"
        "board.tick(0.5)\n"
        "board.answer(0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code, str(board.fd)]
    assert subprocess.run(command, pass_fds=[board.fd]).returncode == -9

    assert board.lent() == [Row("ran", 1, 2, True), Row("held", 1, 0, False)]
    assert (board.ticks, board.answers, board.on_stack()) == (1, 1, "ran")
    board.close()


def test_nobody_is_on_the_stack_of_a_child_that_has_not_said_so() -> None:
    board = Board.made(1)
    assert board.on_stack() is None
    row = board.take("held", 1)
    board.answer(row)
    assert board.on_stack() is None  # held: its handler cannot be on any stack
    board.answer(None)
    assert board.on_stack() is None
    board.close()


def test_nothing_of_a_board_is_left_open() -> None:
    Board.made(1).close()  # whatever the first one opens for good
    before = len(list(Path("/proc/self/fd").iterdir()))
    Board.made(3).close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before

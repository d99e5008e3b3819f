"""Whom a crash is charged to, by the stack that the fault handler wrote."""

from __future__ import annotations

import os

from fairlead.worker.process.shared_state import Row
from fairlead.worker.process.stack_dump import StackFile, blamed

PLACES = (("/app/tasks.py", "send"), ("/app/tasks.py", "report"), ("/app/more.py", "send"))
ROWS = [
    Row("a", 1, 0, True),
    Row("b", 1, 1, True),
    Row("c", 1, 1, True),
    Row("held", 1, 1, False),
]

CRASH = """Fatal Python error: Segmentation fault

Thread 0x00007f0000000001 (most recent call first):
  File "/app/tasks.py", line 3 in send
  File "/lib/threading.py", line 1 in run

Current thread 0x00007f0000000002 (most recent call first):
  File "/lib/ctypes/__init__.py", line 519 in string_at
  File "/app/tasks.py", line 40 in report
  File "/app/tasks.py", line 3 in send
  File "/lib/asyncio.py", line 5 in run

Extension modules: x (total: 1)
"""


def test_the_innermost_handler_of_the_thread_that_crashed_is_to_blame() -> None:
    assert blamed(CRASH, PLACES, ROWS) == ["b", "c"]  # which of the two, nobody can say


def test_another_thread_is_not() -> None:
    rows = [row for row in ROWS if row.id != "b" and row.id != "c"]
    assert blamed(CRASH, PLACES, rows) == ["a"]  # the next one on the same stack


def test_a_function_of_the_same_name_elsewhere_is_not() -> None:
    stack = 'Current thread 0x1 (most recent call first):\n  File "/x.py", line 1 in send\n'
    assert blamed(stack, PLACES, ROWS) == ["a", "b", "c"]


def test_without_a_stack_all_that_had_begun_are() -> None:
    assert blamed("", PLACES, ROWS) == ["a", "b", "c"]


def test_a_stack_file_forgets() -> None:
    file = StackFile()
    os.write(file.fd, b"one")
    assert file.read() == "one"
    file.clear()
    os.write(file.fd, b"two")
    assert file.read() == "two"
    file.close()

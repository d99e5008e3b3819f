"""What a child shows its supervisor in shared memory: what runs, and that its loop goes round.

A message could not be read any more once the child is dead, and would not be sent while it hangs.
The child writes, the supervisor reads. A reading of a living child may catch a row half written,
which does no harm: no lease has that name. Of a dead child nothing changes any more.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

_TICKS, _ANSWERS, _ON_STACK, _SETTLED, _FENCED, _UNSENT, _ENDED, _ABANDONED = range(8)
_FETCHED, _LAG, _FAILING = range(8, 11)  # read as floats
_WANTS, _ANSWERED = 11, 12
_HEADER = 128  # bytes

FREE, HELD, STARTED, CHARGED = range(4)
_ROW = struct.Struct("=BBHIQ264s")  # state, in the spool, length of the id, task, token, id
_ROW_HEAD = struct.Struct("=BBHIQ")  # the same up to the id
_TASK = 4  # where the task stands in a row
_LONGEST = _ROW.size - _ROW_HEAD.size  # bytes of an id
_SIZE = _ROW.size
_NONE = -1


def memory_file(size: int = 0) -> int:
    """A file without a name, in memory where the system has that; its descriptor."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("fairlead")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    if size:
        os.ftruncate(fd, size)
    return fd


class Row(NamedTuple):
    """A task that a child has on loan."""

    id: str
    token: int
    task: int  # the place of its name in the list that the child introduced itself with
    started: bool
    charged: bool = False  # also if another one ended the process
    spooled: bool = False  # its outcome is in the spool, or was on its way there


class SharedState:
    """Shared memory of a fixed size, made by the supervisor and opened by the child."""

    def __init__(self, fd: int, rows: int) -> None:
        self.fd = fd
        self.rows = rows
        self._memory = mmap.mmap(fd, _HEADER + rows * _SIZE)
        header = memoryview(self._memory)[:_HEADER]
        self._numbers = header.cast("q")
        self._times = header.cast("d")
        self._tasks = memoryview(self._memory).cast("I")
        self._free = list(range(rows - 1, -1, -1))  # of the child only

    @classmethod
    def made(cls, rows: int) -> SharedState:
        """A new one; its ``fd`` is for the child."""
        shared_state = cls(memory_file(_HEADER + rows * _SIZE), rows)
        shared_state._numbers[_ON_STACK] = _NONE
        return shared_state

    def close(self) -> None:
        """Let go of the memory."""
        self._numbers.release()
        self._times.release()
        self._tasks.release()
        self._memory.close()
        os.close(self.fd)

    # -- the child writes ------------------------------------------------------------------------

    def take(self, ids: Sequence[str], token: int) -> dict[str, int]:
        """Show tasks that were lent under a token; the number of the row of each."""
        memory, free = self._memory, self._free
        rows: dict[str, int] = {}
        head, length = b"", -1  # of the row before: most ids have one length
        for id in ids:
            name = id.encode()
            if len(name) != length:
                name = name[:_LONGEST]  # the next row is another task's
                length = len(name)
                head = _ROW_HEAD.pack(HELD, 0, length, 0, token)
            rows[id] = row = free.pop()
            text = head + name
            place = _HEADER + row * _SIZE
            memory[place : place + len(text)] = text
        return rows

    def start(self, row: int, task: int, *, once: bool = False) -> None:
        """Its handler is about to begin: a crash may be charged to it from now on.

        ``once``: the end of the process is, whoever caused it; it must not begin again.
        """
        place = _HEADER + row * _SIZE
        self._tasks[(place + _TASK) // self._tasks.itemsize] = task
        self._memory[place] = CHARGED if once else STARTED

    def charge(self, row: int) -> None:
        """Its time is up, and its handler goes on: the end of the process is its own."""
        self._memory[_HEADER + row * _SIZE] = CHARGED

    def spool(self, row: int) -> None:
        """Its outcome goes to the spool: whoever ends its lease should look there first."""
        self._memory[_HEADER + row * _SIZE + 1] = 1

    def unspool(self, row: int) -> None:
        """The spool has not got its outcome."""
        self._memory[_HEADER + row * _SIZE + 1] = 0

    def drop(self, *rows: int) -> None:
        """They are not ours any more."""
        memory = self._memory
        for row in rows:
            memory[_HEADER + row * _SIZE] = FREE
        self._free += rows
        self._numbers[_ENDED] += len(rows)

    def tick(self, lag: float) -> None:
        """The loop has come round, so many seconds late."""
        self._numbers[_TICKS] += 1
        self._times[_LAG] = lag

    def count(self, settled: int, fenced: int, unsent: int, abandoned: int) -> None:
        """Show the counters of the worker."""
        numbers = self._numbers
        numbers[_SETTLED], numbers[_FENCED], numbers[_UNSENT] = settled, fenced, unsent
        numbers[_ABANDONED] = abandoned

    def fetched(self, at: float, failing: float, *, wants: bool) -> None:
        """When the broker last answered, how long it fails, and if anything would be fetched."""
        self._times[_FETCHED], self._times[_FAILING] = at, failing
        self._numbers[_WANTS] = wants

    def answered(self, number: int) -> None:
        """Show up to which exchange all that was lent stands here."""
        self._numbers[_ANSWERED] = number

    def answer(self, row: int | None) -> None:
        """Say whose handler is on the stack of the loop."""
        self._numbers[_ON_STACK] = _NONE if row is None else row
        self._numbers[_ANSWERS] += 1

    # -- the supervisor reads --------------------------------------------------------------------

    def lent(self) -> list[Row]:
        """All tasks that the child has on loan."""
        memory, rows = self._memory, []
        for place in range(_HEADER, _HEADER + self.rows * _SIZE, _SIZE):
            if memory[place]:
                state, spooled, length, task, token, name = _ROW.unpack_from(memory, place)
                id = name[:length].decode(errors="replace")
                rows.append(Row(id, token, task, state >= STARTED, state == CHARGED, bool(spooled)))
        return rows

    def on_stack(self) -> str | None:
        """The id of the task whose handler was on the stack of the loop at the last answer."""
        row = self._numbers[_ON_STACK]
        if not 0 <= row < self.rows:
            return None
        state, _, length, _, _, name = _ROW.unpack_from(self._memory, _HEADER + row * _SIZE)
        return name[:length].decode(errors="replace") if state >= STARTED else None

    @property
    def last_answered(self) -> int:
        """The number of the last exchange of which all that was lent stands here, or did."""
        return self._numbers[_ANSWERED]

    @property
    def ticks(self) -> int:
        """How often the loop has come round."""
        return self._numbers[_TICKS]

    @property
    def answers(self) -> int:
        """How often the child has said what is on its stack."""
        return self._numbers[_ANSWERS]

    @property
    def ended(self) -> int:
        """Tasks that came and went."""
        return self._numbers[_ENDED]

    @property
    def counters(self) -> dict[str, int]:
        """The counters of the worker by name."""
        numbers = self._numbers
        return {
            "settled": numbers[_SETTLED],
            "fenced": numbers[_FENCED],
            "unsent": numbers[_UNSENT],
            "abandoned": numbers[_ABANDONED],
        }

    @property
    def wants(self) -> bool:
        """Whether it would fetch a task if there were one."""
        return bool(self._numbers[_WANTS])

    @property
    def times(self) -> tuple[float, float, float]:
        """Last fetch, lag of the loop, and how long the broker fails (0: it does not)."""
        return self._times[_FETCHED], self._times[_LAG], self._times[_FAILING]

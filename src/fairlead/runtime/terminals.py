"""Terminals that go away: whether this process ends with its own, and that it ends in order."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from fairlead.runtime.process_hooks import at_the_end


def ends_with_terminal() -> bool:
    """Whether HUP says that the terminal is gone. ``nohup`` says that it does not matter.

    Asks for the controlling terminal, the one whose end is signalled: input may come from a file.
    """
    if sys.platform == "win32" or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def end_without_outputs() -> None:
    """Have this process end with its own exit code, also if its terminal or pipe is gone by then.

    What was said to it and could not be written would be tried again behind all exit handlers, and
    Python makes the exit code 120 of that.
    """
    at_the_end(_let_go_of_outputs)


def _let_go_of_outputs() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # as in a program without a console on Windows
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):  # it is closed, or no file: nothing is tried again
                _lead_nowhere(stream.fileno())


def _lead_nowhere(fd: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != fd:  # as it is if that is closed, and the lowest that is free
        os.dup2(nowhere, fd)
        os.close(nowhere)

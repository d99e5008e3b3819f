"""Whether this process belongs to a terminal, and is to end with it."""

from __future__ import annotations

import os
import signal
import sys


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

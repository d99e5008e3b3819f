"""Whoever starts the tests, they and what they start find the same surroundings."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

__all__ = ()

# A shell starts a job in the background (`make test &`) deaf to SIGINT, nohup one that is deaf to
# SIGHUP, and whatever such a process starts is deaf as well. Here both signals are tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The tests start hundreds of Python processes. Where bytecode may not be written beside the source,
# each of them would compile all of it; so it goes to the virtual environment.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix, ".bytecode"))
    sys.dont_write_bytecode = False

# Containers often set it for their logs. Programs that the tests start write as they do elsewhere:
# what is left in a buffer when a terminal or a pipe is gone matters at their end.
os.environ.pop("PYTHONUNBUFFERED", None)

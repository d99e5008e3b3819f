"""What is done when the process ends, and what is done last.

Exit handlers run backward, so the last one is registered here, before anything that asks for
``at_exit``: what calls at exit still use, a server of one's own, is stopped after them.
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack

__all__ = ("at_exit", "at_the_end")

_last = ExitStack()
atexit.register(_last.close)

#: Have a function called when the process ends, before all that are called ``at_the_end``.
at_exit = atexit.register

#: Have a function called after all exit handlers, those of users too; backward among themselves.
at_the_end = _last.callback

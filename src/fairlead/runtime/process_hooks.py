"""Hooks of this process: what is called when it ends, what is called last, and around a fork.

Exit handlers run backward, so the last one is registered here, before anything that asks for
``at_exit``: what calls at exit still use, a server of one's own, is stopped after them.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from contextlib import ExitStack

_last = ExitStack()
atexit.register(_last.close)

#: Have a function called when the process ends, before all that are called ``at_the_end``.
at_exit = atexit.register

#: Have a function called after all exit handlers, those of users too; backward among themselves.
at_the_end = _last.callback


def at_fork(
    *,
    before: Callable[[], None] = lambda: None,
    after_in_parent: Callable[[], None] = lambda: None,
    after_in_child: Callable[[], None] = lambda: None,
) -> None:
    """Call these before and after every fork of this process; Windows has none."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=before, after_in_parent=after_in_parent, after_in_child=after_in_child
        )

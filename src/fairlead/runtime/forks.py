"""What is to be done around a fork, where there is such a thing: Windows has none."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ("at_fork",)


def at_fork(
    *,
    before: Callable[[], None] = lambda: None,
    after_in_parent: Callable[[], None] = lambda: None,
    after_in_child: Callable[[], None] = lambda: None,
) -> None:
    """Call these before and after every fork of this process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=before, after_in_parent=after_in_parent, after_in_child=after_in_child
        )

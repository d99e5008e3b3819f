"""How often Python looks for garbage in a process that works on thousands of tasks at once."""

from __future__ import annotations

import gc

_YOUNG = 10_000  # objects until the collector looks; a batch of tasks makes several thousands


def collect_less() -> None:
    """Look for garbage less often. Call it once, when everything is imported."""
    gc.freeze()  # what the imports made stays: no need to look through it again and again
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])

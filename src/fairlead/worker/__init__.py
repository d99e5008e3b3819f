"""Runs tasks: one file for each role of a worker. ``worker`` puts them together.

Nothing is imported here, nor in the other packages that most programs need no part of: a program
that enqueues loads no worker.
"""

from __future__ import annotations

__all__ = ()

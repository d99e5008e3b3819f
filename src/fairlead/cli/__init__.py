"""The command line: prints for people, data on stdout and talk on stderr."""

from __future__ import annotations

__all__ = ()

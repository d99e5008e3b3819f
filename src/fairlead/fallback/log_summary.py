"""Log lines about many tasks: the first of a kind in full, the others as a number."""

from __future__ import annotations

import logging
from collections.abc import Mapping


class LaterRecordsWarning:
    """Says once that there are records of a later release."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._is_told = False

    def found(self, why: Exception) -> None:
        """Take in that a record is left to the release that wrote it."""
        if not self._is_told:
            self._is_told = True
            text = "records of a later release stay in the spool until one runs: %s"
            self._log.warning(text, why)


class LogSummary:
    """Counts what is told of tasks, by kind, until ``end``."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._more: dict[tuple[int, str, str], int] = {}  # those that were not told

    def tell(self, level: int, text: str, kind: str, fields: Mapping[str, object]) -> None:
        """Log what became of a task, if it is the first of its kind."""
        key = level, text, kind
        if key in self._more:
            self._more[key] += 1
        else:
            self._more[key] = 0
            self._log.log(level, text, extra=fields)

    def end(self) -> None:
        """Log how many more there were of each kind, and begin anew."""
        found, self._more = self._more, {}
        for (level, text, kind), more in found.items():
            if more:
                fields = {"code": kind, "count": more}
                self._log.log(level, "%s: %d more (%s)", text, more, kind, extra=fields)

"""Writes what the program declares, when the worker starts and when the broker lost its data."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from fairlead.broker.records import Hello
from fairlead.model.errors import BrokerError

log = logging.getLogger("fairlead.worker")


class Declarer:
    """Declares again whenever the broker is another one than it was, or may have lost writes.

    ``write`` tells the broker of all schedules and limits; what it knows already changes nothing.
    """

    def __init__(self, write: Callable[[], Awaitable[object]] | None) -> None:
        self._write = write
        self._known: tuple[str, str] | None = None  # generation and replication that were told
        self._reason = ""  # why the last try failed

    async def declare(self, hello: Hello) -> None:
        """Write what is declared, unless this broker was told already; log what it refuses."""
        met = (hello.generation, hello.replication)
        if self._write is None or met == self._known:
            return
        again = self._known is not None
        try:
            await self._write()
        except BrokerError as error:  # tasks are run all the same; it is tried again
            if str(error) != self._reason:
                self._reason = str(error)
                fields = {"reason": self._reason}
                log.error("declarations not written", extra=fields)  # noqa: TRY400
            return
        self._known, self._reason = met, ""
        if again:
            log.warning("the broker changed: schedules and limits were declared again")

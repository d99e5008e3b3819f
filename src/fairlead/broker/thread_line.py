"""A line of a thread's own to a broker, for sync code that would only wait for an event loop.

Some brokers have it. It is a short way for one verb: whatever it does not do plainly, it leaves to
``enqueue`` of the broker, under the same incarnation and number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fairlead.broker.requests import Call, Receipt
from fairlead.broker.submissions import Row

if TYPE_CHECKING:
    from fairlead.broker import Store


class ThreadLine(Protocol):
    """One connection, for one thread. It is not opened anew: there is another line then."""

    def open(self, seconds: float) -> None:
        """Connect in that time. Raises ``BrokerError`` if that fails."""
        ...

    def enqueue(self, call: Call, row: Row, seconds: float) -> Receipt | None:
        """Enqueue one task, and wait for the answer for no longer than that.

        None if there is no plain answer: ask ``enqueue`` of the broker, under the same number.
        Raises ``Ambiguous`` if it may have been carried out.
        """
        ...

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that is good as far as is known."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


def thread_line_of(store: Store) -> ThreadLine | None:
    """Return a line to where the calls of the running loop go; None if there is none now.

    It is opened by the thread that uses it.
    """
    # Of its type: a store that only passes calls on must see all of them.
    found = getattr(type(store), "thread_line", None)
    return None if found is None else found(store)

"""A circuit breaker: calls fail at once while the broker is known to be away.

Probes find out when it is back. Who waits for a result goes on waiting, and asks the store itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fairlead.broker import Caller, Store
from fairlead.broker.repeats import Limit
from fairlead.broker.requests import Call
from fairlead.model.errors import BrokerError, Unreachable

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback

T = TypeVar("T")


class FailFastCaller(Caller):
    """Numbers calls, and makes none while all servers are away."""

    def __init__(self, incarnation: str, fallback: Fallback, *, limit: float) -> None:
        super().__init__(incarnation, limit=limit)
        self._fallback = fallback

    async def call(
        self,
        verb: Callable[[Call], Awaitable[T]],
        limit: Limit | None = None,
        *,
        number: int | None = None,
        failed: Callable[[BrokerError], None] | None = None,
    ) -> T:
        """Carry out ``verb`` as ``Caller`` does; raises ``Unreachable`` at once in an outage."""
        _check_present(self._fallback)
        return await super().call(verb, limit, number=number, failed=failed)


def fail_fast_store(store: Store, fallback: Fallback) -> Store:
    """Return a store whose reads raise ``Unreachable`` at once in an outage."""
    return cast(Store, _FailFastStore(store, fallback))


class _FailFastStore:
    """Passes everything on; numbered calls are looked at by their caller, before its rounds."""

    def __init__(self, store: Store, fallback: Fallback) -> None:
        self._store = store
        self._fallback = fallback

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not callable(verb):
            return verb

        @wraps(verb)
        async def present(*args: Any, **options: Any) -> Any:
            if not (args and isinstance(args[0], Call)):
                _check_present(self._fallback)
            return await verb(*args, **options)

        return present


def _check_present(fallback: Fallback) -> None:
    """Raise ``Unreachable`` if no server is there; with one that is, the call may be for it."""
    outages = fallback.outages
    if outages.state == "spooling" and len(outages.away()) == len(fallback.parts.stores):
        fallback.start()
        raise Unreachable("the broker is known to be away; the call was not tried")

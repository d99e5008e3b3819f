"""What an app works with: its broker, its ledger, and what it does while the broker is away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fairlead.app.broker_url import ledger_url, whole_url
from fairlead.broker import LIMIT, Store, call_limit, connect, split_limit
from fairlead.client import Clients
from fairlead.model.durations import Duration
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.runtime.natives import are_threads_patched
from fairlead.settings import Configured, configured, configured_fallback, configured_timeout

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback
    from fairlead.fallback.local import Finished, Handlers

__all__ = ("Opened", "open_clients")


class Opened(NamedTuple):
    """The clients of an app, and where its broker is."""

    clients: Clients
    url: str | None  # as other processes would open it; None: a store was given
    is_named: bool  # somebody said which broker


def open_clients(
    url: str | None,
    store: Store | None,
    *,
    shards: Mapping[str, str] | None,
    routes: Mapping[str, str] | None,
    namespace: str | None,
    timeout: Duration | None,
    ledger: str | None,
    fallback: str | None,
    spool: str | PathLike[str] | None,
    local_queues: Sequence[str] | None,
    handlers: Callable[[int, Finished], Handlers],
) -> Opened:
    """Return the clients of an app, as it was told or configured. Nothing is connected yet.

    ``handlers`` opens what runs spooled tasks in this process, so many at a time.
    """
    limit = call_limit(timeout)
    whole: str | None = None
    is_named = True
    if store is None:
        said = Configured(url) if url else configured()
        is_named = said.url is not None
        whole = whole_url(said, shards, routes, namespace)
        limit = limit or split_limit(whole)[1] or configured_timeout()
        store = connect(whole, is_default=not is_named, timeout=limit)
    kept = _fallback(store, fallback, spool, local_queues, handlers)
    return Opened(Clients(store, limit or LIMIT, ledger_url(ledger), kept), whole, is_named)


def _fallback(
    store: Store,
    fallback: str | None,
    spool: str | PathLike[str] | None,
    local_queues: Sequence[str] | None,
    handlers: Callable[[int, Finished], Handlers],
) -> Fallback | None:
    said = configured_fallback(fallback, spool, local_queues)
    if said.fallback == "none":
        return None
    # Here: most programs have none.
    from fairlead.fallback.fallback import Fallback, FallbackOptions
    from fairlead.spool import SpoolLimits

    own = said.spool
    limits = SpoolLimits(max_bytes=own.max_bytes, max_count=own.max_count, max_age=own.max_age)
    options = FallbackOptions(directory=Path(own.directory), limits=limits)
    if said.fallback == "spool":
        return Fallback(store, options)
    _check_local(said.local_queues)
    options = msgspec.structs.replace(
        options,
        local_queues=frozenset(said.local_queues),
        local_concurrency=said.local_concurrency,
    )
    return Fallback(store, options, partial(handlers, said.local_concurrency))


def _check_local(queues: Sequence[str]) -> None:
    if not queues:
        raise InvalidOption(
            "local_queues",
            list(queues),
            'at least one queue with fallback="local", like ["mail"]: its tasks run in this '
            "process while the broker is away",
        )
    if are_threads_patched():
        raise InvalidInput(
            "gevent has replaced the threads of this process, which handlers need: use "
            'fallback="spool" here, or patch only in programs that run no tasks'
        )

"""``create_queue``: an app on Redis if that is wanted and there, else one in memory."""

from __future__ import annotations

import asyncio
import importlib.util
import logging

from fairlead.app.facade import Fairlead
from fairlead.broker import address_of, connect
from fairlead.client import EventInfo
from fairlead.client.limits import QueueSettings
from fairlead.model.errors import BrokerError
from fairlead.model.names import DEFAULT_QUEUE
from fairlead.runtime.portal import portal
from fairlead.settings import configured
from fairlead.settings.queue_choice import QueueChoice, queue_choice

_MORE = 2.0  # seconds; on a busy machine what keeps us from the server is told late

_log = logging.getLogger("fairlead")


def create_queue(settings: object = None) -> Fairlead:
    """Return an app whose broker is chosen when the program starts.

    If Redis is wanted, its package is installed and the server answers in time, the app uses it,
    with the fallback on. Otherwise it keeps tasks in memory, and one warning says why.

    ``settings`` is a mapping or an object with any of ``use_redis``, ``redis_url``,
    ``redis_health_check_timeout``, ``priorities`` (a number for each label, the smaller first),
    ``strict_priorities``, ``max_in_memory`` and ``warn_depth`` (of the queue ``default``). What it
    does not say, the variables USE_REDIS_QUEUE, REDIS_URL and REDIS_HEALTH_CHECK_TIMEOUT do, then
    the settings of Fairlead. Raises ``InvalidInput`` for names that are not known and values that
    are wrong.

    Args:
        settings: A mapping or an object with these. Default: the environment says all.
    """
    choice = queue_choice(settings)
    why = _obstacle(choice) if choice.use_redis else None
    if why is not None:
        _log.warning("%s: tasks are kept in memory, and are gone when this process ends", why)
    if why is not None or not choice.use_redis:
        app = Fairlead("memory://", priorities=choice.priorities)
    else:
        app = Fairlead(choice.url, priorities=choice.priorities, fallback=choice.fallback)
    _limit(app, choice)
    return app


def _obstacle(choice: QueueChoice) -> str | None:
    """Return what keeps the app from using the server; None if nothing does."""
    if importlib.util.find_spec("redis") is None:
        return "the package redis is not installed"
    url = choice.url or configured().url or ""
    where = address_of(url)  # raises, now, for a URL that cannot be right
    try:
        portal.run(lambda: _greet(url, choice.timeout))
    except (BrokerError, TimeoutError) as error:
        return f"{where} gave no answer within {choice.timeout:g} s ({str(error) or 'silence'})"
    return None


async def _greet(url: str, timeout: float) -> None:
    store = connect(url, timeout=timeout)
    try:
        async with asyncio.timeout(timeout + _MORE):  # its own error says more than ours
            await store.hello()
    finally:
        await store.close()


def _limit(app: Fairlead, choice: QueueChoice) -> None:
    """Declare the limits of the queue, and let the broker know at once."""
    limits: QueueSettings = {}
    if choice.max_in_memory is not None:
        limits["max_waiting"] = choice.max_in_memory
    if choice.warn_depth is not None:
        limits["warn_depth"] = choice.warn_depth
    if choice.strict_priorities:
        limits["strict_priorities"] = True
    if not limits:
        return
    app.declare_queue(DEFAULT_QUEUE, **limits)
    if choice.warn_depth is not None:
        app.on("queue.warned", queue=DEFAULT_QUEUE, reader="fairlead.warn_depth")(_warn)
    try:
        portal.run(lambda: app._limits.write(app._clients.current()))
    except BrokerError as error:
        _log.warning("the limits of the queue are not set yet (%s); a worker will", error)


def _warn(event: EventInfo) -> None:
    _log.warning("the queue %s reached its warn_depth: %s", event.queue, event.reason)

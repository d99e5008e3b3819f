"""Is this message one that a broker may accept? Asked for every task, so it must be cheap."""

from __future__ import annotations

import re
from functools import lru_cache

from fairlead.model.errors import InvalidName, InvalidOption, TooLarge
from fairlead.model.message import LEVELS, Message, shares_head
from fairlead.model.names import check_limiter, check_queue, check_tenant
from fairlead.model.options import MAX_COST, MAX_LIMITERS, MIN_COST
from fairlead.model.values import MAX_BODY

__all__ = ("MAX_ENVELOPE", "MAX_TRACE", "check_flow_id", "check_message")

MAX_ENVELOPE = 4 * 1024  # bytes of a body around its arguments
MAX_TRACE = 16 * 1024  # bytes

_LOWEST = len(LEVELS) - 1
_LARGEST_BODY = MAX_BODY + MAX_ENVELOPE
_LARGEST_INT = 2**63 - 1  # what every store can hold
_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z").match
_ID_RULE = (
    "1 to 128 characters out of A-Z a-z 0-9 _ . -, alone or after the task's own tenant and a colon"
)
# The same few names come again and again; a name that is refused is not remembered.
_check_queue = lru_cache(maxsize=1_024)(check_queue)
_check_tenant = lru_cache(maxsize=8_192)(check_tenant)
_check_limiter = lru_cache(maxsize=1_024)(check_limiter)


def check_message(message: Message, like: Message | None = None) -> None:
    """Raise InvalidName, InvalidOption or TooLarge for what may not be stored.

    Only plain types pass: what is equal to one (True to 1, a member of an enum to its value) need
    not be stored or printed like it. ``like`` is a message that passed: of the same objects as
    there, which calls of one task share, nothing more is asked.
    """
    id, body, trace = message.id, message.body, message.trace
    if like is None or not shares_head(message, like):
        _check_head(message)
    if type(id) is not str or not (_ID(id) or _is_scoped(id, message.tenant)):
        raise InvalidName("task id", id, _ID_RULE)
    if type(body) is not bytes or len(body) > _LARGEST_BODY:
        _check_bytes("body", body, _LARGEST_BODY)
    if type(trace) is not bytes or len(trace) > MAX_TRACE:
        _check_bytes("trace", trace, MAX_TRACE)


def _check_head(message: Message) -> None:
    queue, tenant = message.queue, message.tenant
    if type(queue) is not str:
        raise InvalidName("queue", queue, "a plain text")
    _check_queue(queue)
    if type(tenant) is not str:
        raise InvalidName("tenant", tenant, "a plain text")
    _check_tenant(tenant)
    level, cost = message.level, message.cost
    if type(level) is not int or not 0 <= level <= _LOWEST:
        raise InvalidOption("level", level, f"a whole number from 0 to {_LOWEST}")
    if (type(cost) is not float and type(cost) is not int) or not MIN_COST <= cost <= MAX_COST:
        raise InvalidOption("cost", cost, f"a number from {MIN_COST:g} to {MAX_COST:g}")
    if message.limiters != ():
        _check_limiters(message.limiters)
    flags, version = message.flags, message.version
    if type(flags) is not int or not 0 <= flags <= _LARGEST_INT:
        raise InvalidOption("flags", flags, "a whole number, 0 or more, of 63 bits")
    if type(version) is not int or not 1 <= version <= _LARGEST_INT:
        raise InvalidOption("version", version, "a whole number, 1 or more, of 63 bits")


def check_flow_id(id: object, tenant: str) -> None:
    """Raise InvalidName for what cannot be the id of a flow: the rule is that of tasks."""
    if type(id) is not str or not (_ID(id) or _is_scoped(id, tenant)):
        raise InvalidName("flow id", id, _ID_RULE.replace("task", "flow"))


def _is_scoped(id: str, tenant: str) -> bool:
    return id.startswith(f"{tenant}:") and _ID(id, len(tenant) + 1) is not None


def _check_limiters(limiters: object) -> None:
    if type(limiters) is not tuple:
        raise InvalidOption("limiters", limiters, "a tuple of limiter names")
    if len(limiters) > MAX_LIMITERS:
        raise TooLarge("limiters", len(limiters), MAX_LIMITERS, "names")
    for name in limiters:
        if type(name) is not str:
            raise InvalidName("limiter", name, "a plain text")
        _check_limiter(name)
    if len(limiters) > 1 and len(set(limiters)) < len(limiters):
        raise InvalidOption("limiters", limiters, "a tuple that names each limiter once")


def _check_bytes(what: str, value: object, limit: int) -> None:
    if type(value) is not bytes:
        raise InvalidOption(what, value, "bytes")
    if len(value) > limit:
        raise TooLarge(f"the {what}", len(value), limit)

"""What a broker refuses before it does anything: the same for every broker, whatever it stores in.

All of these raise and change nothing. They look at what was passed in, never at what is stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn, get_args

import msgspec
from msgspec import UNSET

from fairlead.broker.requests import (
    MAX_ENQUEUE,
    MAX_EXCHANGE,
    MAX_PAGE,
    MAX_READERS,
    MAX_STEP,
    MAX_XCOM,
    READER_SILENCE,
    Alter,
    Change,
    Declaration,
    Fetch,
    Firing,
    LeaseRef,
    LimiterChange,
    QueueChange,
    Setting,
    TenantChange,
    WorkerOrder,
    Write,
)
from fairlead.broker.schedules import MAX_SPEC, ScheduleOrder
from fairlead.model.errors import InvalidInput, InvalidOption, Refused, TooLarge
from fairlead.model.lifecycle import TRANSITIONS, Settlement, State
from fairlead.model.limits import NO_BREAKER, UNLIMITED, Breaker, Limit
from fairlead.model.log_lines import is_chunk
from fairlead.model.message import LEVEL_NAMES, ErrorInfo
from fairlead.model.names import (
    check_key,
    check_limiter,
    check_queue,
    check_schedule,
    check_tenant,
)
from fairlead.model.states import COMPLETED

_ACTIONS = ("cancel", "requeue", "delete", "run", "prioritize")
_PLANS = ("create", "put", "pause", "resume", "skip", "delete")
#: Limits of a queue that None lifts.
CAPS = (
    "max_waiting",
    "max_tenant_waiting",
    "max_tenant_bytes",
    "max_tenant_pinned_bytes",
    "warn_depth",
)
_KEEPS = (
    "keep_completed",
    "keep_completed_count",
    "keep_completed_bytes",
    "keep_dead",
    "keep_dead_bytes",
)
_AFTER_RUNNING = TRANSITIONS[State.RUNNING]
_MIN_WEIGHT, _MAX_WEIGHT = 0.001, 1_000.0
_ERROR: tuple[type, ...] = (ErrorInfo, type(None))
_RESULT: tuple[type, ...] = (bytes, type(None))


def refuse_now(now: float) -> NoReturn:
    """Say that only a broker with a test clock is told what time it is."""
    raise InvalidOption("now", now, "left out, unless the broker has a test clock")


# -- schedules ---------------------------------------------------------------------------------


def check_slots(firings: Sequence[Firing]) -> None:
    """Refuse slots that are no moments."""
    for firing in firings:
        if firing.submission.ended is not None:
            raise InvalidInput(f"schedule {firing.schedule!r} cannot fire what has ended already")
        if not math.isfinite(firing.slot):
            raise InvalidOption("slot", firing.slot, "a finite unix time")
        if firing.next_at is not None and not firing.slot < firing.next_at < math.inf:
            raise InvalidOption("next_at", firing.next_at, "a finite unix time after the slot")


def check_plan(orders: Sequence[ScheduleOrder]) -> None:
    """Refuse what cannot be done with schedules."""
    if len(orders) > MAX_STEP:
        raise TooLarge("the batch", len(orders), MAX_STEP, "orders")
    for order in orders:
        check_schedule(order.name)
        if order.action not in _PLANS:
            raise InvalidOption("action", order.action, f"one of {', '.join(_PLANS)}")
        if order.action in ("create", "put"):
            check_queue(order.queue)
        if len(order.spec) > MAX_SPEC:
            raise TooLarge(f"schedule {order.name!r}", len(order.spec), MAX_SPEC)
        for option, at in (("next_at", order.next_at), ("last_slot", order.last_slot)):
            if at is not None and not math.isfinite(at):
                raise InvalidOption(option, at, "a finite unix time")


# -- exchange, beat ----------------------------------------------------------------------------


def check_transfer(refs: Sequence[LeaseRef], lease: float) -> None:
    """Refuse a call that breaks the rules of the verb."""
    if len(refs) > MAX_EXCHANGE:
        raise TooLarge("refs", len(refs), MAX_EXCHANGE, "tasks")
    check_lease("lease", lease)


def check_exchange(
    settlements: Sequence[Settlement], started: Sequence[LeaseRef], fetch: Fetch | None
) -> None:
    """Refuse a call that breaks the rules of the verb."""
    check_exchange_sizes(settlements, started, fetch)
    for settlement in settlements:
        # Nearly all end like this; a call for each would cost more than the look.
        if (
            settlement.to is not COMPLETED
            or settlement.delay
            or (settlement.result is not None and type(settlement.result) is not bytes)
            or settlement.error is not None
            or settlement.keep is not None
            or not 0.0 <= settlement.run_time < math.inf
        ):
            check_settlement(settlement)


def check_exchange_sizes(
    settlements: Sequence[Settlement], started: Sequence[LeaseRef], fetch: Fetch | None
) -> None:
    """The same, but for what each of the settlements is: that is seen where they are encoded."""
    for what, batch in (("settlements", settlements), ("started", started)):
        if len(batch) > MAX_EXCHANGE:
            raise TooLarge(what, len(batch), MAX_EXCHANGE, "tasks")
    if fetch is not None:
        if not 0 <= fetch.max <= MAX_EXCHANGE:
            raise InvalidOption("fetch.max", fetch.max, f"from 0 to {MAX_EXCHANGE}")
        if fetch.start is not None and not 0 <= fetch.start <= MAX_EXCHANGE:
            raise InvalidOption("fetch.start", fetch.start, f"from 0 to {MAX_EXCHANGE}")
        check_lease("fetch.lease", fetch.lease)


def check_settlement(settlement: Settlement) -> None:
    """Refuse a settlement that no broker could store."""
    # One look at what is nearly always right; written so that NaN fails as well.
    if not (
        settlement.to in _AFTER_RUNNING
        and 0.0 <= settlement.delay < math.inf
        and 0.0 <= settlement.run_time < math.inf
        and (settlement.keep is None or 0.0 <= settlement.keep < math.inf)
        and (settlement.error is None or isinstance(settlement.error, _ERROR))
        and (settlement.result is None or isinstance(settlement.result, _RESULT))
    ):
        _refuse(settlement)


def _refuse(settlement: Settlement) -> NoReturn:
    """Say what is wrong with a settlement."""
    if settlement.to not in _AFTER_RUNNING:
        raise InvalidInput(f"an attempt cannot end in {settlement.to!r}")
    for option in ("delay", "run_time", "keep"):
        seconds = getattr(settlement, option)
        if seconds is not None and not 0.0 <= seconds < math.inf:
            raise InvalidOption(option, seconds, "zero or more seconds")
    if not isinstance(settlement.error, _ERROR):
        raise InvalidOption("error", settlement.error, "an ErrorInfo")
    raise InvalidOption("result", settlement.result, "bytes")


def check_lease(option: str, lease: float) -> None:
    """Refuse a lease that would be over before it began, or never."""
    if not 0.0 < lease < math.inf:
        raise InvalidOption(option, lease, "a number of seconds above 0")


# -- alter, configure, write -------------------------------------------------------------------


def check_orders(orders: Sequence[Alter]) -> None:
    """Refuse what cannot be ordered."""
    if len(orders) > MAX_STEP:
        raise TooLarge("the batch", len(orders), MAX_STEP, "orders")
    for order in orders:
        if order.action not in _ACTIONS:
            raise InvalidOption("action", order.action, f"one of {', '.join(_ACTIONS)}")
        if order.action == "prioritize" and order.level not in range(len(LEVEL_NAMES)):
            raise InvalidOption("level", order.level, f"from 0 to {len(LEVEL_NAMES) - 1}")


def check_worker_order(order: str) -> None:
    """Refuse what no worker can do."""
    if order not in get_args(WorkerOrder):
        raise InvalidOption("order", order, f"one of {', '.join(get_args(WorkerOrder))}")


def check_changes(changes: Sequence[Change]) -> None:
    """Refuse what cannot be set."""
    for change in changes:
        if isinstance(change, Declaration):
            check_changes([change.change])
            continue
        changed_limit(UNLIMITED, change)
        if isinstance(change, TenantChange):
            check_tenant(change.tenant)
            if change.queue is not None:
                check_queue(change.queue)
            _check_weight(change)
        elif isinstance(change, QueueChange):
            check_queue(change.queue)
            for name in (*CAPS, *_KEEPS):
                value = getattr(change, name)
                if value is UNSET or (value is None and name in CAPS):
                    continue
                if value is None or not 0 <= value < math.inf:
                    raise InvalidOption(name, value, "zero or more")
        else:
            check_limiter(change.name)
            changed_breaker(NO_BREAKER, change)


def changed_limit(limit: Limit, change: Setting) -> Limit:
    """The limit with what the change says laid over it; refuses what no limit can be."""
    said: dict[str, Any] = {
        name: value
        for name in ("concurrency", "rate", "burst")
        if (value := getattr(change, name)) is not UNSET
    }
    return Limit(**{**msgspec.structs.asdict(limit), **said}) if said else limit


def changed_breaker(breaker: Breaker, change: LimiterChange) -> Breaker:
    """The same for the breaker of a limiter."""
    said: dict[str, Any] = {
        name: value
        for name in ("failures", "cooldown", "probes")
        if (value := getattr(change, name)) is not UNSET
    }
    return Breaker(**{**msgspec.structs.asdict(breaker), **said}) if said else breaker


def _check_weight(change: TenantChange) -> None:
    weight = change.weight
    if weight is not UNSET and not _MIN_WEIGHT <= weight <= _MAX_WEIGHT:  # false for NaN as well
        raise InvalidOption("weight", weight, f"from {_MIN_WEIGHT:g} to {_MAX_WEIGHT:g}")


def check_writes(writes: Sequence[Write]) -> None:
    """Refuse what cannot be written."""
    if len(writes) > MAX_ENQUEUE:
        raise TooLarge("the batch", len(writes), MAX_ENQUEUE, "writes")
    for item in writes:
        if len(item.value) > MAX_XCOM:
            raise TooLarge(f"the {item.kind} value", len(item.value), MAX_XCOM)
        if item.kind == "log" and not is_chunk(item.value):
            raise InvalidOption("log", len(item.value), "a chunk of lines")
        if item.kind == "xcom":
            check_key("XCom key", item.key)
            if not 0.0 < item.ttl < math.inf:
                raise InvalidOption("ttl", item.ttl, "a number of seconds above 0")


# -- reading -----------------------------------------------------------------------------------


def check_reader(reader: str | None, limit: int = 1) -> None:
    """Refuse a page of events that is too long, or for a reader that cannot have a place."""
    check_limit(limit)
    if reader is not None:
        check_key("reader", reader)


def too_many_readers() -> Refused:
    """The error for one more reader with a name, while all others still read."""
    days = READER_SILENCE // 86_400
    return Refused("readers", f"{MAX_READERS} named readers have read in the last {days} days")


def check_settings(queue: str | None, cursor: str | None) -> None:
    """Refuse a queue that cannot be, and a place in the settings that no page gave."""
    if queue is not None:
        check_queue(queue)
    if cursor is not None and cursor[:1] not in ("q", "t", "r"):
        raise InvalidOption("cursor", cursor, "one that an earlier page returned")


def check_limit(limit: int) -> None:
    """Refuse a page that is too long, or none at all."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidOption("limit", limit, f"from 1 to {MAX_PAGE}")


def other_verb(number: int, before: str, verb: str) -> InvalidInput:
    """The error for a number that comes again as another verb."""
    return InvalidInput(f"exchange {number} was {before}; it cannot be repeated as {verb}")

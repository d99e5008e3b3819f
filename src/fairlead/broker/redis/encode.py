"""Requests as the scripts read them; ``lua/<verb>.lua`` says what it reads.

What is sent for every task is written out in one loop per batch: a call per task would cost as much
as the work itself.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import UNSET

from fairlead.broker.checks import check_settlement
from fairlead.broker.redis.decode import blob, encode_error
from fairlead.broker.redis.layout import DIGITS, SIZES
from fairlead.broker.redis.wire import Value
from fairlead.broker.requests import (
    Alter,
    Change,
    Declaration,
    Fetch,
    Firing,
    LeaseRef,
    LimiterChange,
    QueueChange,
    Setting,
    Submission,
    TenantChange,
    Write,
)
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Message, shares_head

_POLICIES = {  # by whether it will read what it depends on
    (policy, uses): str(digit + (4 if uses else 0))
    for digit, policy in enumerate(("dead", "cancel", "wait", "run"))
    for uses in (False, True)
}
_HOLDS = {"started": "1", "done": "2", "window": "3"}
_ACTIONS = {"cancel": "c", "requeue": "r", "delete": "d", "run": "n", "prioritize": "p"}
_KINDS = {"progress": "p", "checkpoint": "c", "log": "l", "xcom": "x"}
_LONGEST_REASON = 16_000  # characters; a record has room for 64 kB
# No stored id holds any of these; in an id that somebody asks for they would be taken for ours.
_SEPARATORS = str.maketrans("\x1d\x1e\x1f", "\0\0\0")

_QUEUE_FIELDS = QueueChange.__struct_fields__[1:]
_TENANT_FIELDS = TenantChange.__struct_fields__[2:]
_LIMITER_FIELDS = LimiterChange.__struct_fields__[1:]
_NOWHERE: Mapping[str, str] = {}
_DIGEST = 16  # characters of a digest of what is declared
_MOST_HEADS = 50_000  # remembered; then all are forgotten, which is cheaper than to choose

_heads: dict[tuple[str, str, int, float, tuple[str, ...], int, int], bytes] = {}


# -- enqueue, fire -----------------------------------------------------------------------------


def head_of(message: Message) -> bytes:
    """Return what the server must know of a message; the same few heads are remembered."""
    queue, tenant, level, cost = message.queue, message.tenant, message.level, message.cost
    limiters, version, flags = message.limiters, message.version, message.flags
    key = (queue, tenant, level, cost, limiters, version, flags)
    head = _heads.get(key)
    if head is None:
        texts = (str(level), repr(float(cost)), ",".join(limiters), str(version), str(flags))
        head = "\x1f".join((queue, tenant, *texts)).encode()
        if len(_heads) >= _MOST_HEADS:
            _heads.clear()
        _heads[key] = head
    return head


def submission_args(
    submissions: Iterable[Submission], elsewhere: Mapping[str, str] = _NOWHERE
) -> list[Value]:
    """Runs of tasks: those of one head that want nothing special share it.

    ``elsewhere`` has the shards of dependencies that are not in this one.
    """
    args: list[Value] = []
    add = args.extend
    sizes = SIZES.pack
    # The head of the run that is being written (of others what they begin with), and where its
    # count is.
    run: bytes | str = b""
    place = 0
    like: Message | None = None  # the message before, and its head
    head = b""
    for item in submissions:
        message = item.message
        if like is None or not shares_head(message, like):
            head = head_of(message)
        like = message
        if message.extra:
            packed = blob(message)
        else:
            body, trace = message.body, message.trace
            packed = b"%b%b%b" % (sizes(len(body), len(trace)), body, trace)
        if wants_more(item):
            ended = item.ended
            kind = "G" if ended is None else "E"
            if run != kind:
                run, place = kind, len(args) + 1
                add((kind, 0))
            if ended is None:
                add((message.id, head, packed, options(item, elsewhere)))
            else:
                _, _, to, _, *rest = _settlement(ended)
                add((message.id, head, packed, to, *rest))
        else:
            if run is not head:
                run, place = head, len(args) + 2
                add(("P", head, 0))
            add((message.id, packed))
        args[place] += 1  # type: ignore[operator]
    return args


def wants_more(item: Submission) -> bool:
    """Whether it wants more than to be run, and so cannot share a run with others."""
    return bool(
        item.message.extra
        or item.delay
        or item.at is not None
        or item.depends_on
        or item.deadline is not None
        or item.unique is not None
        or item.fence is not None
        or item.ended is not None
    )


def options(item: Submission, elsewhere: Mapping[str, str] = _NOWHERE) -> str:
    """What a submission wants beside its message; see ``lua/lib/accept``."""
    unique, fence = item.unique, item.fence
    return "\x1e".join(
        (
            repr(item.delay if item.at is None else -item.at),
            "" if item.deadline is None else repr(item.deadline),
            _POLICIES[item.on_dependency_failure, item.uses_results],
            "0" if unique is None else _HOLDS[unique.until],
            "0" if unique is None else repr(unique.window),
            "" if unique is None else unique.key,
            "" if fence is None else _clean(fence.id),
            "" if fence is None else _clean(fence.incarnation),
            "" if fence is None else str(fence.token),
            "\x1d".join(edges(item, elsewhere)) if item.depends_on else "",
        )
    )


def edges(item: Submission, elsewhere: Mapping[str, str]) -> list[str]:
    """What a submission depends on, each with a sign for how it was given, or where it is."""
    given = (("!" if d.known else "?") + _clean(d.id) for d in item.depends_on)
    return [
        f"@{elsewhere[edge[1:]]}\x1f{edge[1:]}" if edge[1:] in elsewhere else edge
        for edge in dict.fromkeys(given)
    ]


def _clean(id: str) -> str:
    return id.translate(_SEPARATORS)


def firing_args(firings: Sequence[Firing], elsewhere: Mapping[str, str] = _NOWHERE) -> list[Value]:
    """Eight for each: schedule, slot, revision, the next slot, id, head, blob, options."""
    args: list[Value] = []
    for firing in firings:
        message = firing.submission.message
        head = head_of(message)
        next_at = "" if firing.next_at is None else repr(firing.next_at)
        args += (firing.schedule, repr(firing.slot), firing.revision, next_at)
        args += (message.id, head, blob(message), options(firing.submission, elsewhere))
    return args


HOLDS_ALARM = 3  # where it stands in the arguments of an exchange


def exchange_args(
    settlements: Sequence[Settlement], started: Sequence[LeaseRef], fetch: Fetch | None
) -> list[Value]:
    """What follows incarnation and number, with no alarm held.

    Raises for settlements that no broker could store.
    """
    queues: tuple[str, ...] = ()
    wanted, start, lease = -1, 0, 0.0
    if fetch is not None:
        queues, wanted, lease = fetch.queues, fetch.max, fetch.lease
        start = wanted if fetch.start is None else fetch.start
    runs, settled = _runs(settlements)
    args: list[Value] = [wanted, start, lease, "0"]
    args += (len(queues), runs, len(started), *queues, *settled)
    for ref in started:
        args += (ref.id, ref.incarnation, ref.token)
    return args


def _runs(settlements: Sequence[Settlement]) -> tuple[int, list[Value]]:
    """How many runs the settlements make, and the runs.

    Completed ones under one token, with nothing else to say but perhaps a result, share a run.
    """
    args: list[Value] = []
    token: int | None = None  # of the run that is being written; None: of special ones
    runs, results, place = 0, False, 0
    times: list[float] = []
    completed, infinite = State.COMPLETED, math.inf
    for item in settlements:
        result, run_time = item.result, item.run_time
        if (
            item.to is not completed
            or item.error is not None
            or item.keep is not None
            or item.delay
            or item.reason
            or not item.burn
            or not 0.0 <= run_time < infinite
            or (result is not None and type(result) is not bytes)
        ):
            check_settlement(item)
            if place == 0 or token is not None:
                _end_run(args, place, times)
                runs, token, place = runs + 1, None, len(args) + 1
                args += ("G", 0)
            args += _settlement(item)
            args[place] += 1  # type: ignore[operator]
            continue
        if item.token != token or (result is not None) is not results:
            _end_run(args, place, times)
            runs, token, results, place = runs + 1, item.token, result is not None, len(args) + 3
            args += ("P", token, "R" if results else "", 0, b"")
        args.append(item.id)
        if result is not None:
            args.append(result)
        times.append(run_time)
    _end_run(args, place, times)
    return runs, args


def _end_run(args: list[Value], place: int, times: list[float]) -> None:
    """Write how many there are in a run, and how long they ran."""
    if times:
        args[place], args[place + 1] = len(times), struct.pack(f"<{len(times)}d", *times)
        times.clear()


def _settlement(item: Settlement) -> tuple[Value, ...]:
    return (
        item.id,
        item.token,
        DIGITS[item.to],
        item.run_time,
        _more(item),
        b"" if item.result is None else item.result,
        b"" if item.error is None else encode_error(item.error),
    )


def _more(item: Settlement) -> str:
    keep = "" if item.keep is None else repr(item.keep)
    return (
        f"{'-' if item.result is None else 'R'}\x1f{item.delay!r}\x1f{'1' if item.burn else '0'}"
        f"\x1f{keep}\x1f{item.reason[:_LONGEST_REASON]}"
    )


_NAMED = 1_000  # leases that one call of beat compares


def held_args(held: Sequence[LeaseRef]) -> Iterator[list[Value]]:
    """For each call of beat: between which tokens it compares, and what is named there.

    The parts meet: whatever token an incarnation has a loan under, it is looked at once.
    """
    tokens: dict[int, list[str]] = {}
    for ref in held:
        tokens.setdefault(ref.token, []).append(ref.id)
    above: Value = "-inf"
    args: list[Value] = []
    count = 0
    for token in sorted(tokens):
        named = tokens[token]
        if args and count + len(named) > _NAMED:
            yield [above, args[-2], *args]
            above, args, count = args[-2], [], 0
        args += (token, "\x1f".join(named))
        count += len(named)
    yield [above, "+inf", *args]


def order_args(orders: Iterable[Alter]) -> list[Value]:
    """Three for each order: id, action (with its level, and how the task was seen), tenant."""
    args: list[Value] = []
    for order in orders:
        level = order.level if order.action == "prioritize" else ""
        seen = ""
        if order.seen is not None:
            seen = f"@{DIGITS[order.seen.state]}.{order.seen.generation}.{order.seen.attempts}"
        args += (order.id, f"{_ACTIONS[order.action]}{level}{seen}", order.tenant or "")
    return args


def change_args(changes: Iterable[Change]) -> list[Value]:
    """A letter for the kind of each change, what it is about, and its values.

    Before one that is declared stand another letter and the digest of what is declared.
    """
    args: list[Value] = []
    for change in changes:
        if isinstance(change, Declaration):
            declared = _one_change(change.change)
            digest = hashlib.sha256("\x1f".join(declared).encode()).hexdigest()
            args += ("d", digest[:_DIGEST], *declared)
        else:
            args += _one_change(change)
    return args


def _one_change(change: Setting) -> list[str]:
    if isinstance(change, QueueChange):
        args, fields = ["q", change.queue], _QUEUE_FIELDS
    elif isinstance(change, TenantChange):
        args, fields = ["t", change.tenant, change.queue or ""], _TENANT_FIELDS
    else:
        args, fields = ["l", change.name], _LIMITER_FIELDS
    return [*args, *(_said(getattr(change, field)) for field in fields)]


def _said(value: object) -> str:
    """A setting: nothing where nothing was said, a dash where a limit is lifted."""
    if value is UNSET:
        return ""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "1" if value else "0"
    return repr(value)


def write_args(writes: Iterable[Write]) -> list[Value]:
    """Seven for each write."""
    args: list[Value] = []
    for item in writes:
        lease = item.lease
        args += (lease.id, lease.incarnation, lease.token, _KINDS[item.kind])
        args += (item.key, item.value, item.ttl)
    return args

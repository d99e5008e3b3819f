"""Reads everything that a shard has stored, in steps that no other client has to wait for.

What cannot be understood becomes a finding at once; the rest is left to the checks. Bodies and
results are not kept, only their sizes: a walk takes about a kilobyte of memory for each task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol

import msgspec

from fairlead.broker.redis.audit import reading
from fairlead.broker.redis.audit.values import (
    COMPLETED,
    Conf,
    Gate,
    Limiter,
    Message,
    Queue,
    Record,
    Task,
    Tenant,
)
from fairlead.broker.redis.decode import read_edges, read_ties
from fairlead.broker.redis.keys import KINDS, Keys
from fairlead.broker.redis.layout import NUMBERS_FIELD, unpack_numbers
from fairlead.broker.redis.schedules import decoded

_STEP = 500  # members that one command asks for
_LARGE = 50  # the same, where each may have half a megabyte
_ANEW = 3  # times that a list is read, if it moves while it is
_AT_ONCE = 100  # keys whose first commands are sent together

Progress = Callable[[int], None]


class Command(Protocol):
    """Issues one command, as ``connection.Server.command`` does."""

    def __call__(self, *args: bytes | str | int | float) -> Awaitable[Any]: ...


class Shard(msgspec.Struct):
    """What is stored. Keys are named without the prefix, families by what follows their colon."""

    now: float = 0.0
    meta: dict[str, float] = {}
    tasks: dict[str, Task] = {}
    queues: dict[str, Queue] = {}
    confs: dict[str, Conf] = {}
    limiters: dict[str, Limiter] = {}
    gates: dict[str, Gate] = {}  # by queue, US, tenant
    tenants: dict[str, dict[str, Tenant]] = {}  # by queue
    hashes: dict[str, dict[str, Any]] = {}
    orders: dict[str, dict[str, float]] = {}  # sorted sets
    sets: dict[str, set[str]] = {}
    lists: dict[str, list[str]] = {}
    stream: tuple[int, int, int] = (0, 0, 0)  # entries, number of the first and of the last
    findings: list[str] = []

    def hash(self, name: str) -> dict[str, Any]:
        return self.hashes.get(name, {})

    def is_aside(self, task: Task) -> bool:
        """Whether it stands on no shelf because others will read its result."""
        if task.state != COMPLETED or task.id not in self.hash("pins"):
            return False
        return "o" not in self.hash("ties").get(task.id, "")

    def order(self, name: str) -> dict[str, float]:
        return self.orders.get(name, {})

    def family(self, name: str) -> Iterator[tuple[str, Any]]:
        """The keys of a family, such as ``held:``, without its name, and what they hold."""
        kinds: dict[str, Any] = {"hash": self.hashes, "zset": self.orders, "list": self.lists}
        kept: dict[str, Any] = kinds.get(KINDS[name], self.sets)
        for key, value in kept.items():
            if key.startswith(name):
                yield key[len(name) :], value


# What is kept of the values of a hash. Those that are not here are kept as text.
_READERS: dict[str, Callable[[bytes], Any]] = {
    "meta": bytes,
    "tasks": reading.read_message,
    "records": reading.read_record,
    "errors": reading.read_error,
    "queues": reading.read_queue,
    "settings": reading.read_conf,
    "tenant-settings": reading.read_settings,
    "limiters": reading.read_limiter,
    "gates": reading.read_gate,
    "tenants:": reading.read_tenant,
    "answers": reading.read_answer,
    "workers": reading.read_worker,
    "watchers": reading.read_watchers,
    "tally:": reading.read_tally,
    "before": read_edges,
    "ties": read_ties,
    "flows": reading.read_flow,
    "pins": reading.read_pins,
    "uses": reading.read_uses,
    "xcom": reading.read_xcom,
    "tombs": reading.read_tomb,
    "documents:": reading.read_document,
    "leaders": reading.read_leader,
    "schedules": lambda value: decoded("", value),
    **dict.fromkeys(("results", "progress", "checkpoints"), len),
}
_MEMBERS = frozenset(("flow:", "edges:"))  # lists of flows
_LARGE_VALUES = frozenset(
    ("tasks", "results", "progress", "checkpoints", "xcom", "answers", "schedules", "documents:")
)


async def walk(command: Command, keys: Keys, progress: Progress | None = None) -> Shard:
    """Everything under the shard's prefix. ``progress`` is told how many keys were read so far."""
    shard = Shard()
    names: list[str] = []
    seen: set[str] = set()
    async for page in _pages(command, "SCAN", _STEP, "MATCH", f"{keys.prefix}*"):
        for key in page:
            name = _text(shard, keys.suffix(key))
            if name is not None and name not in seen:
                seen.add(name)
                names.append(name)
    for start in range(0, len(names), _AT_ONCE):
        part = names[start : start + _AT_ONCE]
        await asyncio.gather(*(_load(command, keys.prefix, name, shard) for name in part))
        if progress is not None:
            progress(start + len(part))
    _put_together(shard)
    return shard


async def _load(command: Command, prefix: str, name: str, shard: Shard) -> None:
    """Read one key, if it is one of ours and of the type that ours have."""
    head, colon, _ = name.partition(":")
    family = head + colon
    wanted = KINDS.get(family)
    if wanted is None:
        shard.findings.append(f"the key {name!r} is none that Fairlead writes")
        return
    key = prefix + name
    found = (await command("TYPE", key)).decode()
    if found not in (wanted, "none"):
        shard.findings.append(f"the key {name!r} is a {found}, not a {wanted}")
    elif wanted == "hash":
        shard.hashes[name] = await _hash(command, key, name, family, shard)
    elif wanted == "zset":
        order = shard.orders[name] = dict[str, float]()
        read_member = _note if family == "trail:" else _entry
        async for page in _pages(command, "ZSCAN", _STEP, of=key):
            for member, score in _pairs(page):
                order[read_member(shard, name, member)] = float(score)
    elif wanted == "set":
        members = shard.sets[name] = set[str]()
        async for page in _pages(command, "SSCAN", _STEP, of=key):
            members.update(map(_name, page))
    elif wanted == "list":
        step, read = (_LARGE, _member) if family in _MEMBERS else (_STEP, _entry)
        entries = await _list(command, key, step)
        shard.lists[name] = [read(shard, name, entry) for entry in entries]
    else:
        shard.stream = await _stream(command, key)


async def _hash(command: Command, key: str, name: str, family: str, shard: Shard) -> dict[str, Any]:
    read = _READERS.get(family, bytes.decode)
    step = _LARGE if family in _LARGE_VALUES else _STEP
    fields: dict[str, Any] = {}
    async for page in _pages(command, "HSCAN", step, of=key):
        for field, value in _pairs(page):
            try:
                fields[_name(field)] = read(value)
            except ValueError:  # of which the lack of an encoding is one kind
                shard.findings.append(f"{name!r} holds what cannot be read for {_name(field)!r}")
    return fields


async def _list(command: Command, key: str, step: int) -> list[bytes]:
    """A list, read from its end: what is taken from its front meanwhile moves nothing.

    Where it moved in another way, as when gaps are closed, it is read anew, but not for ever.
    """
    found: list[bytes] = []
    for _ in range(_ANEW):
        found, whole = await _from_end(command, key, step)
        if whole:
            break
    return found[::-1]


async def _from_end(command: Command, key: str, step: int) -> tuple[list[bytes], bool]:
    """The entries of a list, the last one first, and whether none was missed.

    What is put to its end meanwhile is left out: each page begins with the entry that the one
    before it ended with, and if another one stands there, it is read on until that is found.
    """
    found: list[bytes] = []
    behind = 0  # entries from the end on that need not be read again
    while True:
        want = step + 1
        page: list[bytes] = await command("LRANGE", key, -(behind + want), -max(behind, 1))
        while found and page and found[-1] not in page:
            if len(page) <= want:  # up to the front: it was taken, or stands nearer to the end
                return found, False
            want *= 2
            page = await command("LRANGE", key, -(behind + want), -max(behind, 1))
        page.reverse()
        moved = page.index(found[-1]) if found and page else -1
        new = page[moved + 1 :]
        if not new:
            return found, True
        found += new
        behind += max(moved, 0) + len(new)


async def _stream(command: Command, key: str) -> tuple[int, int, int]:
    """How long a stream is, and the numbers of its first and last entry."""
    length = await command("XLEN", key)
    ends = [
        await command("XRANGE", key, "-", "+", "COUNT", 1),
        await command("XREVRANGE", key, "+", "-", "COUNT", 1),
    ]
    first, last = (int(end[0][0].partition(b"-")[0]) if end else 0 for end in ends)
    return length, first, last


async def _pages(
    command: Command, verb: str, step: int, *more: str, of: str | None = None
) -> AsyncIterator[list[bytes]]:
    """What a SCAN, or one of its kin, gives step by step."""
    where = () if of is None else (of,)
    cursor = b"0"
    while True:
        cursor, page = await command(verb, *where, cursor, *more, "COUNT", step)
        yield page
        if cursor == b"0":
            return


def _pairs(flat: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _entry(_shard: Shard, _list: str, raw: bytes) -> str:
    return _name(raw)


def _member(shard: Shard, list: str, raw: bytes) -> str:
    try:
        return reading.read_member(raw)
    except ValueError:
        shard.findings.append(f"{list!r} holds what cannot be read")
        return "\x1f\x1f\x1f"


def _note(shard: Shard, trail: str, raw: bytes) -> str:
    try:
        return reading.read_note(raw)
    except ValueError:
        shard.findings.append(f"{trail!r} holds what cannot be read")
        return "0\x1f0"


def _text(shard: Shard, raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        shard.findings.append(f"the key {_name(raw)!r} is none that Fairlead writes")
        return None


def _put_together(shard: Shard) -> None:
    """Make tasks of messages and records, and give the parts that all checks need a name."""
    for name, value in shard.hash("meta").items():
        if name not in ("generation", "run"):  # which are texts
            try:
                shard.meta |= (
                    unpack_numbers(value) if name == NUMBERS_FIELD else {name: float(value)}
                )
            except ValueError:
                shard.findings.append(f"'meta' holds what cannot be read for {name!r}")
    for id, (letters, few) in shard.hash("ties").items():
        shard.hashes["ties"][id] = letters
        for (life, member), number in few.items():  # as those that are many
            shard.orders.setdefault(f"after:{life}:{id}", {})[member] = number
    messages: dict[str, Message] = shard.hashes.pop("tasks", {})
    records: dict[str, Record] = shard.hashes.pop("records", {})
    for id in {**messages, **records}:
        try:
            shard.tasks[id] = reading.join(id, messages.get(id), records.get(id))
        except ValueError:
            shard.findings.append(f"task {id} has a head that cannot be read")
    shard.queues = shard.hash("queues")
    shard.confs = shard.hash("settings")
    shard.limiters = shard.hash("limiters")
    shard.gates = shard.hash("gates")
    shard.tenants = {
        name.removeprefix("tenants:"): fields
        for name, fields in shard.hashes.items()
        if name.startswith("tenants:")
    }

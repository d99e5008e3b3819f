"""Whether a server can be trusted with tasks: what it says of itself, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from fairlead.broker.records import Finding
from fairlead.broker.redis.audit.walk import Command
from fairlead.broker.redis.keys import Keys
from fairlead.broker.redis.layout import NUMBERS_FIELD, unpack_numbers
from fairlead.model.clock import SLEW, follow
from fairlead.model.durability import CLAIM
from fairlead.model.errors import Refused

_FULL, _NEARLY_FULL = 0.95, 0.8  # of the memory that the server may use
_CLOCKS = 1.0  # seconds by which two clocks may differ
_SLOW = 10_000  # microseconds
_RECENT = 3_600  # seconds for which something slow is worth telling
_ENTRIES = 128  # of the slow log


async def diagnose(command: Command, keys: Keys) -> list[Finding]:
    """A finding for each thing that was looked at; what may not be asked is said to be unknown."""
    raw = await _ask(command, "INFO")
    info = {} if raw is None else _parsed(raw)
    facts: list[Finding] = []
    if raw is None:
        text = "the server does not let this user ask what it is and how it stores"
        hint = "allow the command INFO to this user, or ask as another one"
        facts.append(Finding(name="server", status="warn", text=text, hint=hint))
    else:
        facts += _server(info)
        facts += _role(info)
        facts += _persistence(info, await _setting(command, "appendfsync"))
        facts += _memory(info, await _setting(command, "maxmemory-policy"))
    facts += await _clock(command, keys)
    facts += await _shard(command, keys)
    facts += await _slow(command)
    return facts


def _server(info: dict[str, str]) -> Iterator[Finding]:
    product = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "?")
    up = int(info.get("uptime_in_seconds", 0))
    text = f"{product} {version}, up for {_shown(up)}, {info.get('connected_clients', '?')} clients"
    if info.get("loading") == "1":
        hint = "wait until it has read its files"
        yield Finding(name="server", status="fail", text=f"{text}, still loading", hint=hint)
    else:
        yield Finding(name="server", status="ok", text=text)


def _role(info: dict[str, str]) -> Iterator[Finding]:
    replicas = int(info.get("connected_slaves", 0))
    if info.get("role") == "slave":
        hint = "use the address of the primary, or redis+sentinel:// so that it is found"
        text = "this is a replica: nothing can be written to it"
        yield Finding(name="role", status="fail", text=text, hint=hint)
    else:
        text = f"primary with {replicas} replica{'' if replicas == 1 else 's'}"
        yield Finding(name="role", status="ok", text=text)


def _persistence(info: dict[str, str], fsync: str) -> Iterator[Finding]:
    name = "persistence"
    if info.get("aof_enabled") != "1":
        text = "there is no append-only file: accepted tasks live only as long as the server does"
        hint = "set `appendonly yes` if they must survive it"
        yield Finding(name=name, status="warn", text=text, hint=hint)
    elif info.get("aof_last_write_status", "ok") != "ok":
        text = "the last write to the append-only file failed"
        yield Finding(name=name, status="fail", text=text, hint="look for a full or broken disk")
    elif fsync == "no":
        text = "the append-only file is written to the disk when the system likes (appendfsync no)"
        hint = "set `appendfsync everysec`, or `always` if not even a second may be lost"
        yield Finding(name=name, status="warn", text=text, hint=hint)
    else:
        means = {
            "always": "It is written to the disk before each answer",
            "everysec": "It is written to the disk each second: if the machine fails, or the "
            "server is killed while its disk is busy, up to two seconds may be lost",
        }.get(fsync, "How often it is written to the disk may not be asked")
        yield Finding(name=name, status="ok", text=f"{CLAIM} {means}")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        text = "the last attempt to save a snapshot failed"
        hint = "look into the server's log; it may refuse writes because of it"
        yield Finding(name="snapshots", status="warn", text=text, hint=hint)


def _memory(info: dict[str, str], asked: str) -> Iterator[Finding]:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    part = used / most if most else 0.0
    text = f"{used / 1e6:,.1f} MB are used" + (f" of {most / 1e6:,.1f}" if most else ", no limit")
    hint = "raise maxmemory, keep finished tasks for a shorter time, or work the backlog off"
    if part >= _NEARLY_FULL:
        status: Any = "fail" if part >= _FULL else "warn"
        yield Finding(name="memory", status=status, text=text, hint=hint)
    else:
        yield Finding(name="memory", status="ok", text=text)
    policy = info.get("maxmemory_policy") or asked
    if policy in ("", "noeviction"):
        means = "nothing is dropped when the memory is full" if policy else "may not be asked"
        yield Finding(name="eviction", status="ok", text=f"{policy or 'policy'}: {means}")
    else:
        text = f"maxmemory-policy is {policy}: when the memory is full the server may drop tasks"
        hint = "set `maxmemory-policy noeviction`; then it refuses new tasks instead"
        yield Finding(name="eviction", status="fail" if most else "warn", text=text, hint=hint)


async def _clock(command: Command, keys: Keys) -> list[Finding]:
    """Compare the server's clock with ours, and with the last moment that the shard knows."""
    before = time.time()
    seconds, micros = await command("TIME")
    after = time.time()
    there = int(seconds) + int(micros) / 1e6
    ahead = there - (before + after) / 2
    off = _off(there, await command("HGET", keys.meta, NUMBERS_FIELD))
    if abs(off) > _CLOCKS:
        way = ("back", "ahead of", "slower") if off > 0 else ("forward", "behind", "faster")
        text = (
            f"the server's clock was set {way[0]}: the broker's time is {_shown(abs(off))} "
            f"{way[1]} it, and goes a tenth {way[2]} for another {_shown(abs(off) / SLEW)}"
        )
        hint = "let the server follow a time server; delays and schedules are judged by this time"
        return [Finding(name="clock", status="warn", text=text, hint=hint)]
    if abs(ahead) - (after - before) / 2 > _CLOCKS:
        side = "ahead of" if ahead > 0 else "behind"
        text = f"the server's clock is {_shown(abs(ahead))} {side} the one of this machine"
        hint = "let both follow a time server; what is due is decided by the server's clock"
        return [Finding(name="clock", status="warn", text=text, hint=hint)]
    return [
        Finding(name="clock", status="ok", text="the server's clock agrees with this machine's")
    ]


def _off(clock: float, stored: bytes | None) -> float:
    """By how much the broker's time is ahead of its server's clock."""
    try:
        numbers = unpack_numbers(stored)
    except ValueError as error:
        raise Refused("corrupt", f"'numbers' of the shard's 'meta' is damaged: {error}") from None
    last, known = numbers["now"], numbers["ahead"]
    if not last:
        return 0.0
    silence = max(clock - (last - known), 0.0)  # its next caller will say whether that is true
    return follow(last, known, clock, silence)[1]


async def _shard(command: Command, keys: Keys) -> list[Finding]:
    (generation, layout), tasks = (
        await command("HMGET", keys.meta, "generation", "layout"),
        await command("HLEN", keys.tasks),
    )
    text = f"generation {generation.decode()}, layout {int(layout)}, {tasks:,} tasks are stored"
    return [Finding(name="shard", status="ok", text=text)]


async def _slow(command: Command) -> list[Finding]:
    entries = await _ask(command, "SLOWLOG", "GET", _ENTRIES)
    if entries is None:
        return [Finding(name="slow log", status="ok", text="it may not be asked")]
    (seconds, _) = await command("TIME")
    slow = [entry for entry in entries if entry[2] > _SLOW and entry[1] > int(seconds) - _RECENT]
    if not slow:
        text = "no command took longer than 10 ms within the last hour"
        return [Finding(name="slow log", status="ok", text=text)]
    worst = max(slow, key=lambda entry: int(entry[2]))
    what = b" ".join(worst[3][:2]).decode("utf-8", "replace")[:60]
    text = (
        f"{len(slow)} commands took longer than 10 ms within the last hour, "
        f"the longest {worst[2] / 1000:,.0f} ms: {what}"
    )
    hint = "while one runs all others wait; look whether something else uses this server or its CPU"
    return [Finding(name="slow log", status="warn", text=text, hint=hint)]


async def _setting(command: Command, name: str) -> str:
    """A setting of the server; empty if it may not be asked."""
    found = await _ask(command, "CONFIG", "GET", name)
    return found[1].decode() if found else ""


async def _ask(command: Command, *args: str | int) -> Any:
    """The answer; None where the server, or its provider, does not let us ask."""
    try:
        return await command(*args)
    except Refused:
        return None


def _parsed(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def _shown(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"

"""What a server is asked when it is first met: is it one that tasks can be trusted to?"""

from __future__ import annotations

import logging

import msgspec

from fairlead.broker.redis.discovery import Ask
from fairlead.model.errors import Refused

_OLDEST = 7  # major version of Redis; every Valkey is younger

_log = logging.getLogger(__name__)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself; empty where we may not ask."""

    run: str = ""  # changes with every start of the server
    replication: str = ""  # changes with every loss of its memory, and with every failover
    product: str = ""
    version: str = ""
    eviction: str = ""
    logs_writes: bool = True  # to an append-only file


async def examine(ask: Ask) -> Facts:
    """Ask a server who it is. Raises ``Refused`` if it is too old for our scripts."""
    try:
        info = _parsed(await ask("INFO"))
    except Refused as refused:
        if refused.cause != "auth":
            raise
        return Facts()  # a user that may not ask may still work
    product = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "")
    major = version.partition(".")[0]
    if product == "Redis" and major.isdecimal() and int(major) < _OLDEST:
        raise Refused(
            "version",
            f"the server is Redis {version}; Fairlead needs Valkey, or Redis {_OLDEST}.0 or later",
        )
    return Facts(
        run=info.get("run_id", ""),
        replication=info.get("master_replid", ""),
        product=product,
        version=version,
        eviction=info.get("maxmemory_policy", "") or await _eviction(ask),
        logs_writes=info.get("aof_enabled", "1") == "1",
    )


async def _eviction(ask: Ask) -> str:
    """For servers whose INFO does not tell."""
    try:
        found = await ask("CONFIG", "GET", "maxmemory-policy")
    except Refused:
        return ""
    return found[1].decode() if found else ""


def warn_about(facts: Facts) -> None:
    """Say what a server's configuration means for the tasks on it."""
    if facts.eviction not in ("", "noeviction"):
        _log.warning(
            "the server's maxmemory-policy is %s: when its memory is full it may drop tasks. Set "
            "`maxmemory-policy noeviction`; then it refuses new tasks instead",
            facts.eviction,
        )
    if not facts.logs_writes:
        _log.warning(
            "the server keeps no append-only file: accepted tasks live only as long as the server "
            "does. Set `appendonly yes` if they must survive it"
        )


def _parsed(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}

"""What ``fairlead doctor`` says of servers to which routes led before."""

from __future__ import annotations

from fairlead.broker import Store, connect
from fairlead.broker.records import Finding
from fairlead.broker.sharded.servers import KIND
from fairlead.broker.topology import LEVELS_SUFFIX, topology_of, with_shard
from fairlead.model.errors import FairleadError

_PATIENCE = 2.0  # seconds for a server to say whether it has tasks


async def former_servers(store: Store, url: str) -> list[Finding]:
    """Tell of shards that workers of the last 30 days had and that no route leads to now.

    One that has no tasks is passed over. Where a password is needed it cannot be known.
    """
    present = topology_of(url).servers
    found: list[Finding] = []
    page = await store.documents(KIND, limit=1000)
    for document in page.documents:
        shard, address = document.name, document.value.decode()
        if shard in present:
            continue
        count = await _waiting(with_shard(address, shard))
        if count == 0:
            continue
        base = shard.removesuffix(LEVELS_SUFFIX)
        has = (
            "may have tasks" if count is None else f"has {count:,} task{'' if count == 1 else 's'}"
        )
        found.append(
            Finding(
                name="routes",
                status="warn",
                text=f"shard {shard} on {address} {has} that no worker looks for: a route led "
                "there in the last 30 days, and none does now",
                hint=f'add the route "drain:{base}" = "{with_shard(address, base)}", with user and '
                "password if it has any, until nothing waits there",
            )
        )
    return found


async def _waiting(url: str) -> int | None:
    """How many tasks wait in a shard; None if it does not say."""
    other = connect(url, timeout=_PATIENCE)
    try:
        return (await other.snapshot(tenants=False)).depth
    except FairleadError:  # a password, or it is gone: what it has is not known, and that is told
        return None
    finally:
        await other.close()

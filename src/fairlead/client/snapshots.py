"""How many tasks there are: as the broker says, or as far as this process knows without it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from fairlead.broker.views import Snapshot
from fairlead.client.client import Client
from fairlead.fallback.outages import leads_to_spool
from fairlead.model.errors import BrokerError

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback

__all__ = ("read_snapshot",)


async def read_snapshot(
    client: Client, fallback: Fallback | None, queue: str | None, *, tenants: bool
) -> Snapshot:
    """Return the counts of one queue or of all.

    With a fallback the broker may be away: then the answer is what is in the spool of this process,
    and ``redis_active`` is False. Of one queue that is not known.
    """
    if fallback is None:
        return await client.snapshot(queue, tenants=tenants)
    if fallback.state != "spooling":
        try:
            found = await client.snapshot(queue, tenants=tenants)
        except BrokerError as error:
            if not leads_to_spool(error):
                raise
        else:
            return msgspec.structs.replace(found, spooled=fallback.spool.depth)
    spooled = fallback.spool.depth
    return Snapshot(now=time.time(), depth=spooled if queue is None else 0, spooled=spooled)

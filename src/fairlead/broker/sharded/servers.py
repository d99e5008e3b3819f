"""Keeps a record in the first shard of the servers that routes lead to, for ``fairlead doctor``.

Tasks that wait on a server to which no route leads any more are run by nobody. Only the record can
tell of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fairlead.broker.documents import DocumentChange
from fairlead.broker.protocol import Broker
from fairlead.broker.verbs import Call
from fairlead.model.errors import BrokerError
from fairlead.runtime.ids import new_id

__all__ = ("KIND", "register")

KIND = "server"  # of a document: the name of a shard and its address, without a password
_TTL = 30 * 86_400.0  # seconds, renewed by every worker that starts

_log = logging.getLogger(__name__)


async def register(first: Broker, addresses: Mapping[str, str]) -> bool:
    """Write down where the shards are, if they are on several servers; whether that is done."""
    if len(set(addresses.values())) < 2:
        return True
    changes = [
        DocumentChange(kind=KIND, name=shard, value=address.encode(), ttl=_TTL)
        for shard, address in addresses.items()
    ]
    try:
        for start in range(0, len(changes), 50):
            call = Call(f"servers-{new_id()}", 1)
            await first.write_documents(call, changes[start : start + 50])
    except BrokerError as error:  # the next hello tries again
        _log.debug("servers not written down", extra={"error": type(error).__name__})
        return False
    return True

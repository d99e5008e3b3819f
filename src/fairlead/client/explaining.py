"""Why a task is not running, asked by its handle."""

from __future__ import annotations

from fairlead.broker.explaining import Explanation, explain
from fairlead.client.client import Client
from fairlead.client.clients import Clients

__all__ = ("Explaining", "explained")


class Explaining:
    """The part of a handle that answers "why is it not running?"."""

    __slots__ = ()

    _clients: Clients
    id: str
    tenant: str

    def explain(self) -> Explanation:
        """Why the task is not running, from sync code; see ``aexplain``."""
        return self._clients.sync(lambda client: explained(client, self.id, self.tenant))

    async def aexplain(self) -> Explanation:
        """All that keeps the task from running, the most decisive reason first; two reads.

        A task that is forgotten is explained, too: its code is ``unknown``.
        """
        return await explained(self._clients.current(), self.id, self.tenant)


async def explained(client: Client, id: str, tenant: str) -> Explanation:
    """What there is to say of a task of this tenant; of any, if that is empty."""
    standing = await client.standing(id)
    if standing is not None and tenant not in ("", standing.record.message.tenant):
        standing = None
    return explain(id, standing, await client.workers())

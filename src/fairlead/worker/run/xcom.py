"""Values that tasks of one tenant leave for each other: ``ctx.xcom``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.broker.requests import MAX_XCOM
from fairlead.model.argument_packing import pack, unpack
from fairlead.model.names import check_key
from fairlead.model.options import Duration, seconds

if TYPE_CHECKING:
    from fairlead.worker.run.context import Context

TOO_LARGE = "return it as the result (up to 1 MiB), or store it elsewhere and leave where it is"
_DAY = 86_400.0


class XCom:
    """Small values that tasks of one tenant leave for each other, under keys, for a while."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    async def apush(self, key: str, value: Any, *, ttl: Duration = _DAY) -> None:
        """Leave a value of up to 64 KiB under a key of this tenant.

        Args:
            ttl: How long it is kept, in seconds or as a duration. Default: a day.
        """
        where = f"xcom value {check_key('xcom key', key)!r}"
        codecs = self._context._services.codecs
        data = pack(value, where, MAX_XCOM, advice=TOO_LARGE, codecs=codecs)
        life = seconds("ttl", ttl, least=0.001)
        await self._context._push(key, data, life)

    async def apull(self, key: str, default: Any = None) -> Any:
        """Return the value under a key of this tenant, as plain data.

        There is none once its TTL is over, unless this task depends on the one that wrote it.

        Args:
            default: What to return if there is none. Default: None.
        """
        where = f"xcom value {check_key('xcom key', key)!r}"
        data = await self._context._pull(key)
        return default if data is None else unpack(data, where, self._context._services.codecs)

    def push(self, key: str, value: Any, *, ttl: Duration = _DAY) -> None:
        """Leave a value of up to 64 KiB under a key of this tenant, from a sync handler.

        Args:
            ttl: How long it is kept, in seconds or as a duration. Default: a day.
        """

        async def call() -> None:
            await self.apush(key, value, ttl=ttl)

        self._context._wait("xcom.push", "xcom.apush", call)

    def pull(self, key: str, default: Any = None) -> Any:
        """Return the value under a key of this tenant, from a sync handler; see ``apull``.

        Args:
            default: What to return if there is none. Default: None.
        """
        return self._context._wait("xcom.pull", "xcom.apull", self.apull, key, default)

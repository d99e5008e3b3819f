"""What all requests to one server share: its client, its settings, who is let in."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

import msgspec

from fairlead.api.auth.access import SAFE, OriginCheck, bearer
from fairlead.api.auth.rate_limits import Rates
from fairlead.api.auth.token_cache import TokenCache
from fairlead.api.auth.tokens import KIND
from fairlead.api.http.mount import Connection
from fairlead.api.http.problems import BadRequest, BrokerAway, Forbidden, Unauthorized
from fairlead.api.http.route import SCOPES, Access, Headers
from fairlead.api.known_tasks import KnownTasks
from fairlead.api.settings import ApiSettings
from fairlead.api.views.audit import AUDIT, TENANTS_AUDIT, AuditLine
from fairlead.api.views.redaction import Redaction
from fairlead.client import Client, Clients
from fairlead.ledger.ledger import Ledger
from fairlead.model.errors import BrokerError, FairleadError

_log = logging.getLogger("fairlead.api")

_WARM_UP = 5.0  # seconds
_CATALOG = 1.0  # seconds to wait for it, where what was known before will do
_GREETED = 1.0  # seconds for which it is believed that the broker is there
_FORWARDED = (b"forwarded", b"via", b"x-real-ip")
_ALONE = (b"host", b"authorization", b"origin", b"content-type", b"idempotency-key")


class Service:
    """One server of the API in this process. It keeps nothing that another one would need."""

    def __init__(
        self,
        clients: Clients,
        settings: ApiSettings | None = None,
        known_tasks: KnownTasks | None = None,
    ) -> None:
        self.settings = settings or ApiSettings()
        self.known_tasks = known_tasks or KnownTasks()
        self.origin_check = OriginCheck(self.settings)
        self.redaction = Redaction(self.settings.redact)
        self.drained = asyncio.Event()  # set: this process is about to end
        self._rates = Rates(self.settings.token_rate, self.settings.tenant_rate)
        self.fallback = clients.fallback
        self._tokens = TokenCache(
            self.client, limit=self.settings.patience, outage=lambda: self.outage
        )
        self.counters = clients.counters  # of what is enqueued through this server
        self._clients = clients
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._notes: set[asyncio.Future[None]] = set()  # on their way to the audit trail
        self._greeting: asyncio.Task[bool] | None = None
        self._greeted_at = -math.inf  # by the loop's clock, when the broker answered last

    @property
    def draining(self) -> bool:
        """Whether this process is about to end."""
        return self.drained.is_set()

    @property
    def outage(self) -> float:
        """For how many seconds the broker has been known to be away; 0.0: it is not."""
        fallback = self.fallback
        if fallback is None or fallback.state != "spooling":
            return 0.0
        return max(time.time() - fallback.since, 0.001)

    @property
    def is_degraded(self) -> bool:
        """Whether tasks are kept on disk for the broker, or are on their way from there."""
        return self.fallback is not None and self.fallback.state in ("spooling", "draining")

    @property
    def catalog_patience(self) -> float | None:
        """How long to wait for what workers tell of their tasks; None: as for anything else."""
        if self.fallback is None:
            return None
        return 0.0 if self.outage else _CATALOG

    def is_spooled(self, id: str) -> bool:
        """Whether a task is on the disk of this server and not at the broker."""
        return self.fallback is not None and self.fallback.is_spooled(id)

    def client(self) -> Client:
        """The client of the running loop: one that gives up sooner than that of the app."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            self._client = Client(
                self._clients.store,
                around=self._clients.around,
                limit=self.settings.patience,
                counters=self.counters,
                fallback=self.fallback,
                priorities=self._clients.priorities,
            )
        return self._client

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of the app, for the running loop; None if it has none."""
        return self._clients.ledger_or_none

    async def authorize(
        self,
        connection: Connection,
        token: str | None = None,
        *,
        headers: Headers | None = None,
        stale: bool = False,
        again: bool = False,
    ) -> Access:
        """Who calls. Raises ``Forbidden``, ``Unauthorized`` or ``TooManyRequests``.

        ``token`` is one that came in another way than the header, never in the URL. With ``stale``
        a token that was valid a while ago will do while the broker is away. With ``again`` it was
        let in before, and is only looked at: that counts neither as a request nor as a guess.
        """
        headers = headers_of(connection) if headers is None else headers
        self.origin_check.check(headers, mutates=mutates(connection))
        peer: str = (connection.get("client") or ("", 0))[0]
        text = bearer(headers) if token is None else token
        if text is None:
            return self._without_token(headers, peer)
        access, rate = await self._tokens.find(text, peer, stale=stale, again=again)
        if not again:
            self._rates.check(access, rate)
        return access

    async def authorize_again(self, headers: Headers, access: Access) -> None:
        """Raise ``Unauthorized`` if the token of a caller who waited is no longer valid."""
        text = bearer(headers)
        if text is not None:
            await self._tokens.find(text, access.peer)

    def _without_token(self, headers: Headers, peer: str) -> Access:
        if not self.settings.open_to_loopback or not _is_loopback(peer):
            raise Unauthorized(
                "give a token in the header Authorization: Bearer fl_...", field="Authorization"
            )
        for name in headers:
            if name in _FORWARDED or name.startswith(b"x-forwarded-"):
                raise Forbidden(
                    "this came through a proxy: whoever is behind it needs a token",
                    field=name.decode("latin-1"),
                    rule="left out, or a token",
                )
        return Access(name="loopback", scopes=frozenset(SCOPES), peer=peer)

    async def check_broker(self) -> None:
        """Raise ``BrokerAway`` unless the broker answers soon, or did within the last second.

        Anybody may ask, and all who do share one question.
        """
        loop = asyncio.get_running_loop()
        if loop is self._loop and loop.time() - self._greeted_at < _GREETED:
            return
        asking = self._greeting
        if asking is None or asking.done() or asking.get_loop() is not loop:
            asking = self._greeting = loop.create_task(self._greet())
        if not await asyncio.shield(asking):
            raise BrokerAway("the broker does not answer", retry_after=2.0)

    async def is_ready(self) -> bool:
        """Return whether the broker is there, and nothing waits on disk for it.

        Raises ``BrokerAway`` if it is not there and the app has no fallback: with one, tasks are
        accepted all the same.
        """
        if self.is_degraded:
            return False
        try:
            await self.check_broker()
        except BrokerAway:
            if self.fallback is None:
                raise
            return False
        return True

    async def _greet(self) -> bool:
        try:
            async with asyncio.timeout(self.settings.patience):
                await self.client().now()
        except (BrokerError, TimeoutError):
            return False
        self._greeted_at = asyncio.get_running_loop().time()
        return True

    async def note(
        self, access: Access, action: str, target: str, details: Mapping[str, Any]
    ) -> None:
        """Write a line of the audit trail; where that fails, the log has it.

        The change was made: an error now would tell the caller that it was not. It is written even
        if the request ends meanwhile, because it took too long or its caller hung up.
        """
        line = AuditLine(
            token=access.token,
            name=access.name,
            peer=access.peer,
            action=action,
            target=target,
            tenant=access.tenant,
            details=dict(details),
        )
        writing = asyncio.ensure_future(self._write(line))
        self._notes.add(writing)
        writing.add_done_callback(self._notes.discard)
        await asyncio.shield(writing)

    async def _write(self, line: AuditLine) -> None:
        trail = AUDIT if line.tenant is None else TENANTS_AUDIT
        try:
            await self.client().note(trail, [msgspec.json.encode(line)])
        except FairleadError as error:
            _log.error(
                "a change is not in the audit trail (%s): %s of %s by token %s",
                type(error).__name__,
                line.action,
                line.target,
                line.token,
            )

    async def warm_up(self) -> None:
        """Have the broker ready for the first request; it need not be there yet."""
        try:
            async with asyncio.timeout(_WARM_UP):
                await self._clients.store.load_libraries()
                await self.client().catalogs.known(0.0)
        except (BrokerError, TimeoutError) as error:
            _log.warning("the broker does not answer yet: %s", type(error).__name__)

    async def has_tokens(self) -> bool:
        """Whether there is any token."""
        return bool((await self.client().store.documents(KIND, limit=1)).documents)

    async def close(self) -> None:
        """Finish what is outstanding; the app's broker stays open."""
        if self._notes:
            await asyncio.wait(list(self._notes))
        await self._tokens.close()
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.close()
            self._client = None


def headers_of(connection: Connection) -> Headers:
    """The headers of a connection by their names. Raises ``BadRequest`` where two contradict."""
    found: list[tuple[bytes, bytes]] = connection["headers"]
    headers = dict(found)
    if len(headers) != len(found):
        names = [name for name, _ in found]
        for name in _ALONE:
            if names.count(name) > 1:
                raise BadRequest("a header is given twice", field=name.decode(), rule="given once")
    return headers


def mutates(connection: Connection) -> bool:
    """Whether a request may change something."""
    return connection["type"] == "http" and connection["method"] not in SAFE


def _is_loopback(peer: str) -> bool:
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)

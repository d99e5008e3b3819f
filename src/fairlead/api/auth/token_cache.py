"""The tokens that were asked for lately: no request waits for the broker because of its token.

What is known of a token is at most two seconds old. Wrong tokens are remembered as well, and
counted by the address they come from; the number of reads that they can cause is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from fairlead.api.auth.rate_limits import Buckets
from fairlead.api.auth.tokens import KIND, USE, Stored, TokenUse, matches, parsed
from fairlead.api.http.problems import BrokerAway, TooManyRequests, Unauthorized
from fairlead.api.http.route import Access
from fairlead.broker.documents import Document, DocumentChange
from fairlead.client import Client
from fairlead.model.errors import BrokerError

_log = logging.getLogger("fairlead.api")

_FRESH = 1.0  # seconds after which a token is read anew, beside the request that uses it
_KNOWN = 2.0  # seconds after which no request goes on with what is known
_STALE = 300.0  # seconds after which even those who may use a stale token have to wait
_USE_KEPT = 90 * 86_400.0  # seconds
_MOST = 10_000  # tokens, and ids that are none, that are remembered
_USED = 60.0  # seconds between two notes that a token was used
_WRONG_RATE, _WRONG_BURST = 1.0, 20.0  # wrong tokens a second, of one peer
_READ_RATE, _READ_BURST = 50.0, 200.0  # reads a second of ids that nobody has seen, in all
_LEARN = 10.0  # seconds between two reads of all tokens, while there are guesses
_PAGE = 500  # tokens

_decode = msgspec.json.Decoder(Stored).decode


class _Entry:
    __slots__ = ("accesses", "read_at", "refresh", "stored", "used_at")

    def __init__(self) -> None:
        self.stored: Stored | None = None
        self.read_at = -math.inf
        self.refresh: asyncio.Task[None] | None = None
        self.used_at = -math.inf
        self.accesses: dict[str, Access] = {}  # by peer

    def hold(self, stored: Stored | None, read_at: float) -> None:
        """Remember what was read."""
        if stored != self.stored:
            self.stored = stored
            self.accesses.clear()
        self.read_at = read_at


class TokenCache:
    """Finds out who has a token."""

    def __init__(
        self,
        client: Callable[[], Client],
        *,
        limit: float = 1.5,
        clock: Callable[[], float] = time.monotonic,
        outage: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``limit`` is how many seconds one read may take.

        ``outage`` says for how many seconds the broker has been known to be away.
        """
        self._outage = outage
        self._client = client
        self._limit = limit
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._wrong = Buckets()
        self._reads = Buckets(most=1)
        self._learnt_at = -math.inf
        self._tasks: set[asyncio.Task[None]] = set()

    async def find(
        self, text: str, peer: str, *, stale: bool = False, again: bool = False
    ) -> tuple[Access, float | None]:
        """The caller, and the rate that the token allows. Raises problems 401, 429 and 503.

        With ``stale`` a token that was valid a while ago will do while the broker is away. With
        ``again`` it was let in before: it is no guess, however many others come from its address.
        """
        found = parsed(text)
        if found is None:
            raise self._wrong_token(peer)
        id, secret = found
        entry = await self._entry(id, None if again else peer, stale=stale)
        stored = entry.stored
        if stored is None or not matches(stored, secret):
            raise _wrong() if again else self._wrong_token(peer)
        if stored.expires_at is not None and time.time() >= stored.expires_at:
            raise Unauthorized("the token has expired", field="Authorization")
        self._used(id, entry, peer)
        access = entry.accesses.get(peer)
        if access is None:
            if len(entry.accesses) >= 1_000:
                entry.accesses.clear()
            access = entry.accesses[peer] = stored.access(id, peer)
        return access, stored.rate

    async def close(self) -> None:
        """Stop what goes on beside the requests."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _wrong_token(self, peer: str) -> Exception:
        late = self._wrong.take(peer, _WRONG_RATE, _WRONG_BURST)
        if late:
            return _too_many(late)
        return _wrong()

    async def _entry(self, id: str, peer: str | None, *, stale: bool) -> _Entry:
        entry = self._entries.get(id)
        age = _KNOWN if entry is None else self._clock() - entry.read_at
        if entry is not None and age < _FRESH:
            return entry
        if peer is not None and (entry is None or entry.stored is None):
            self._check_guesses(peer)
        if entry is None:
            entry = self._add(id)
        self._entries.move_to_end(id)
        if entry.refresh is None or entry.refresh.done():
            entry.refresh = self._begin(self._read(id, entry))
        outage = self._outage()
        will_do = stale and entry.stored is not None and age < _STALE + outage
        if age >= _KNOWN and not (outage and will_do):
            await asyncio.wait([entry.refresh])
            age = self._clock() - entry.read_at
            if age >= _KNOWN and not (stale and entry.stored is not None and age < _STALE + outage):
                raise BrokerAway("the broker does not answer", retry_after=2.0)
        return entry

    def _add(self, id: str) -> _Entry:
        entry = self._entries[id] = _Entry()
        while len(self._entries) > _MOST:
            self._entries.popitem(last=False)
        return entry

    def _check_guesses(self, peer: str) -> None:
        """Those who guess do not get to read the broker as often as they like."""
        late = 1.0
        if self._wrong.left(peer, _WRONG_RATE, _WRONG_BURST) >= 1.0:
            late = self._reads.take("", _READ_RATE, _READ_BURST)
        if late:
            self._learn()
            raise _too_many(late)

    def _learn(self) -> None:
        """Read all tokens now and then while somebody guesses.

        Behind a proxy all callers have one address. Those who have a token would not get in for as
        long as one of the others goes on with wrong ones; so they do when they try again.
        """
        now = self._clock()
        if now - self._learnt_at >= _LEARN:
            self._learnt_at = now
            _ = self._begin(self._read_all())

    async def _read_all(self) -> None:
        cursor: str | None = None
        more = True
        while more:
            began = self._clock()
            try:
                async with asyncio.timeout(self._limit):
                    page = await self._client().store.documents(KIND, cursor=cursor, limit=_PAGE)
            except (BrokerError, TimeoutError):
                return
            for document in page.documents:
                entry = self._entries.get(document.name)
                if entry is None:
                    entry = self._add(document.name)
                if entry.stored is None and entry.read_at < began:
                    entry.hold(_stored(document), began)
            cursor = page.cursor
            more = cursor is not None

    async def _read(self, id: str, entry: _Entry) -> None:
        began = self._clock()
        try:
            async with asyncio.timeout(self._limit):
                page = await self._client().store.documents(KIND, [id])
        except (BrokerError, TimeoutError):
            return  # it is as old as it is; whoever needs it newer is told
        finally:
            entry.refresh = None
        entry.hold(_stored(page.documents[0]) if page.documents else None, began)

    def _used(self, id: str, entry: _Entry, peer: str) -> None:
        now = self._clock()
        if now - entry.used_at >= _USED:
            entry.used_at = now
            _ = self._begin(self._note_use(id, peer))

    async def _note_use(self, id: str, peer: str) -> None:
        value = msgspec.json.encode(TokenUse(at=time.time(), peer=peer))
        change = DocumentChange(kind=USE, name=id, value=value, ttl=_USE_KEPT)
        try:
            await self._client().write_documents([change])
        except BrokerError as error:
            _log.warning("the last use of a token was not noted: %s", type(error).__name__)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _stored(document: Document) -> Stored | None:
    try:
        return _decode(document.value)
    except msgspec.DecodeError:
        return None  # of a later release, or damaged: nobody is let in by it


def _wrong() -> Unauthorized:
    return Unauthorized("the token is not valid", field="Authorization")


def _too_many(late: float) -> TooManyRequests:
    return TooManyRequests(
        "too many wrong tokens", field="Authorization", retry_after=max(late, 1.0)
    )

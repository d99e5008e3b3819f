"""The tasks that workers have: read from what they publish, without their code."""

from __future__ import annotations

import asyncio
import difflib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.broker import Store
from fairlead.broker.records import WorkerRecord
from fairlead.model.argument_types import Misfit, misfit
from fairlead.model.catalog import KIND, Catalog, TaskEntry, decode_catalog, digest_of
from fairlead.model.errors import InvalidArgument, InvalidInput
from fairlead.model.names import DEFAULT_QUEUE
from fairlead.model.registry import TaskSpec

if TYPE_CHECKING:
    from fairlead.client.client import Client

_FRESH = 5.0  # seconds that a reading is good for
DOUBTED = 1.0  # seconds, if it would mean a refusal: a worker may have come meanwhile
_MOST = 1_000  # documents that are read
_PAGE = 50

log = logging.getLogger("fairlead.client")


class KnownTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that some worker has, or had a moment ago.

    ``entries`` are what is told of it, the latest version first: more than one while workers of
    several releases run side by side, never none.
    """

    name: str
    """The name of the task."""
    entries: tuple[TaskEntry, ...]
    """What workers tell of it; several, if their releases differ."""
    workers: int = 0
    """How many workers have it now."""

    @property
    def current(self) -> TaskEntry:
        """What is told of its latest version."""
        return self.entries[0]

    @property
    def versions(self) -> tuple[int, ...]:
        """Its versions, the latest first."""
        return tuple(dict.fromkeys(entry.version for entry in self.entries))


async def known_tasks(client: Client, *, within: float = _FRESH) -> list[KnownTask]:
    """The tasks that workers have, by name; read again if that was ``within`` seconds ago or more.

    A task is known as long as the document of a worker that has it: until some minutes after the
    last of them has gone.
    """
    return list((await client.catalogs.known(within)).values())


async def known_task(
    client: Client, name: str, *, within: float = _FRESH
) -> tuple[KnownTask | None, Sequence[str]]:
    """What is known of one task, and all names; read anew before it is said to be unknown."""
    known = await client.catalogs.known(within)
    if name not in known:
        known = await client.catalogs.known(DOUBTED)
    return known.get(name), list(known)


def check_arguments(known: KnownTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskEntry:
    """Refuse arguments, given as plain data, that no worker would take.

    They pass if one of its entries takes them; it is returned, the earliest version of those that
    do, because workers of later ones may run it as well. ``InvalidArgument`` names the field, the
    value and the rule of the latest version. See ``fairlead.model.argument_types`` for what is not
    looked at: what passes here may still fail in the worker, never the other way round.
    """
    first: Misfit | None = None
    fitting: TaskEntry | None = None
    for entry in known.entries:
        found = None
        if entry.parameters is not None:
            found = misfit(entry.parameters, entry.definitions, args, kwargs)
        if found is None:
            fitting = entry
        elif first is None:
            first = found
    if fitting is None:
        assert first is not None  # noqa: S101 - there is at least one entry
        raise InvalidArgument(known.name, first.field, first.value, first.rule)
    return fitting


def closest_names(name: str, names: Sequence[str]) -> list[str]:
    """The names that somebody may have meant."""
    return difflib.get_close_matches(name[:200], names[:1000], n=2)


class Catalogs:
    """The reading of one client; those who ask at the same time share it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, KnownTask] = {}
        self._read_at = -math.inf  # by the loop's clock
        self._line = asyncio.Lock()
        self._documents: dict[str, Catalog | None] = {}  # by digest; None: not a catalog
        self._specs: dict[int, tuple[TaskEntry, TaskSpec]] = {}  # with the entry, or its id is lost
        self.warned: set[str] = set()  # names that a warning was logged of

    def fresh(self) -> dict[str, KnownTask]:
        """The tasks by name if they were read lately; nothing if they should be read again."""
        now = asyncio.get_running_loop().time()
        return self._known if now - self._read_at < _FRESH else {}

    @property
    def last(self) -> dict[str, KnownTask]:
        """The tasks by name as they were read last, however long ago; none if they never were."""
        return self._known

    def spec_of(self, entry: TaskEntry, make: Callable[[TaskEntry], TaskSpec]) -> TaskSpec:
        """What was made of an entry; made once for each reading."""
        made = self._specs.get(id(entry))
        if made is None:
            made = self._specs[id(entry)] = (entry, make(entry))
        return made[1]

    async def known(self, within: float) -> dict[str, KnownTask]:
        """The tasks by name, as they were no longer than so many seconds ago."""
        asked = asyncio.get_running_loop().time()
        if asked - self._read_at < within:
            return self._known
        async with self._line:
            if asked - self._read_at < within:  # somebody else has read meanwhile
                return self._known
            began = asyncio.get_running_loop().time()
            catalogs = await self._catalogs()
            workers = await self._store.workers()
            self._known, self._specs = _merged(catalogs, workers), {}
            self._read_at = began
            return self._known

    async def _catalogs(self) -> dict[str, Catalog]:
        found: dict[str, Catalog | None] = {}
        cursor: str | None = None
        while len(found) < _MOST:
            page = await self._store.documents(KIND, cursor=cursor, limit=_PAGE)
            for document in page.documents:
                name = document.name  # a digest: what it stands for does not change
                known = name in self._documents
                found[name] = self._documents[name] if known else _decoded(name, document.value)
            cursor = page.cursor
            if cursor is None:
                break
        self._documents = found
        return {name: catalog for name, catalog in found.items() if catalog is not None}


def _decoded(name: str, data: bytes) -> Catalog | None:
    try:
        if digest_of(data) != name:  # or it could change under the same name
            raise InvalidInput("its name is not its digest")
        return decode_catalog(data)
    except InvalidInput as error:
        log.warning("catalog not read", extra={"catalog": name, "reason": str(error)})
        return None


def _merged(
    catalogs: Mapping[str, Catalog], workers: Sequence[WorkerRecord]
) -> dict[str, KnownTask]:
    """What is told of each name, by all who tell of it."""
    counts: dict[str, int] = {}
    users: dict[str, int] = {}  # workers by digest
    for worker in workers:
        digest = worker.details.get("catalog")
        if isinstance(digest, str):
            users[digest] = users.get(digest, 0) + 1
        for name in worker.tasks:
            counts[name] = counts.get(name, 0) + 1
    entries: dict[str, list[TaskEntry]] = {}
    for digest in sorted(catalogs, key=lambda each: (-users.get(each, 0), each)):
        for entry in catalogs[digest].tasks:
            among = entries.setdefault(entry.name, [])
            if entry not in among:
                among.append(entry)
    for worker in workers:  # of another release, or without room in the broker
        for name in worker.tasks:
            if name not in entries:
                entries[name] = [_untold(name, worker)]
    return {
        name: KnownTask(
            name=name,
            entries=tuple(sorted(entries[name], key=lambda entry: -entry.version)),
            workers=counts.get(name, 0),
        )
        for name in sorted(entries)
    }


def _untold(name: str, worker: WorkerRecord) -> TaskEntry:
    """A task of which nothing but its name is told: in a queue that its worker serves."""
    queues = worker.queues or (DEFAULT_QUEUE,)
    queue = DEFAULT_QUEUE if DEFAULT_QUEUE in queues else queues[0]
    versions: Any = worker.details.get("versions")
    version = versions.get(name, 1) if isinstance(versions, dict) else 1
    return TaskEntry(name=name, version=version, queue=queue, is_cut=True)

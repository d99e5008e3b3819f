"""Who the servers of several shards are, what each says, and a record of them in the first one.

Tasks that wait on a server to which no route leads any more are run by nobody: ``fairlead doctor``
knows of them by the record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from fairlead.broker.documents import DocumentChange
from fairlead.broker.protocol import Broker
from fairlead.broker.records import Finding, Hello, Snapshot
from fairlead.broker.requests import Call
from fairlead.broker.sharded.places import Places
from fairlead.broker.topology import LEVELS_SUFFIX, with_shard
from fairlead.model.errors import BrokerError
from fairlead.runtime.ids import new_id

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


def joined_hello(
    answers: Mapping[str, Hello], known: Sequence[Hello | None], default: str
) -> Hello:
    """Return who the broker is; its generation changes with that of any shard.

    ``known`` is what each shard said last: one that is away is not another one until it says so.
    """
    first = answers.get(default) or next(iter(answers.values()))
    return Hello(
        now=max(answer.now for answer in answers.values()),
        generation="+".join("?" if each is None else each.generation for each in known),
        replication="+".join("?" if each is None else each.replication for each in known),
        layout=first.layout,
        ahead=max((answer.ahead for answer in answers.values()), key=abs),
        shard=default,
        heartbeat=first.heartbeat,
        lease=first.lease,
    )


def joined_findings(
    findings: Mapping[str, Sequence[Finding]], addresses: Mapping[str, str]
) -> list[Finding]:
    """Return the findings of all shards; of several servers each says whose it is.

    What shards of one server say alike is said once.
    """
    several = len(set(addresses.values())) > 1
    found: list[Finding] = []
    for shard, part in findings.items():
        for each in part:
            finding = each
            if several and shard in addresses:
                text = f"{addresses[shard]}: {each.text}"
                finding = msgspec.structs.replace(each, text=text)
            if finding not in found:
                found.append(finding)
    return found


def unserved(
    snapshots: Mapping[str, Snapshot], places: Places, addresses: Mapping[str, str]
) -> Iterator[Finding]:
    """Tell of tasks in shards where no fetch for their queue looks: those of a former route."""
    for shard, snapshot in snapshots.items():
        for queue, counts in snapshot.queues.items():
            if not counts.depth or shard in places.shards_of(queue):
                continue
            where = addresses.get(shard, f"shard {shard}")
            base = shard.removesuffix(LEVELS_SUFFIX)
            target = where if base == places.default else with_shard(where, base)
            tasks = f"{counts.depth:,} task{'' if counts.depth == 1 else 's'}"
            yield Finding(
                name="routes",
                status="warn",
                text=f"queue {queue} has {tasks} on {where}, where no route of it leads to: "
                "workers do not look for them there",
                hint=f'add the route "drain:{base}" = "{target}", with user and password if it '
                "has any, until they are done",
            )

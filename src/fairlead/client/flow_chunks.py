"""Cuts a large flow into parts, each of which is sent with a call of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fairlead.broker.flows import FlowPart, Share
from fairlead.broker.requests import MAX_ENQUEUE, MAX_TENANTS, Submission
from fairlead.model.errors import TooLarge

_MAX_BYTES = 4 * 1024 * 1024  # of bodies in one part
_MAX_EDGES = 2_000  # in one part


def flow_parts(
    id: str, tenant: str, name: str, submissions: Sequence[Submission]
) -> Iterator[FlowPart]:
    """Return the parts of a flow, in order; the first says how many tasks go where."""
    counts = Counter((each.message.queue, each.message.tenant) for each in submissions)
    shares = tuple(Share(queue, tenant, count) for (queue, tenant), count in counts.items())
    if len(shares) > MAX_TENANTS:
        raise TooLarge("the flow", len(shares), MAX_TENANTS, "tenants of queues")
    for number, members in enumerate(flow_chunks(submissions)):
        yield FlowPart(
            flow=id,
            number=number,
            tenant=tenant,
            name=name,
            shares=() if number else shares,
            members=tuple(members),
        )


def flow_chunks(submissions: Sequence[Submission]) -> Iterator[list[Submission]]:
    """Return the members of each part, as many as one call can take."""
    chunk: list[Submission] = []
    size = edges = 0
    for each in submissions:
        size += len(each.message.body)
        edges += len(each.depends_on)
        if chunk and (len(chunk) == MAX_ENQUEUE or size > _MAX_BYTES or edges > _MAX_EDGES):
            yield chunk
            chunk, size, edges = [], len(each.message.body), len(each.depends_on)
        chunk.append(each)
    yield chunk

"""What a broker refuses of a flow before it does anything: the same for every broker."""

from __future__ import annotations

from fairlead.broker.flows import MAX_EDGES, MAX_FLOW, MAX_MEMBERS, MAX_SHARES, FlowOrder, FlowPart
from fairlead.broker.submission_checks import check_flow_id, check_submissions
from fairlead.model.errors import InvalidInput, InvalidOption, TooLarge
from fairlead.model.names import check_key, check_queue, check_tenant

_ACTIONS = ("cancel", "retry")


def check_part(part: FlowPart) -> None:
    """Refuse a part that breaks the rules of the verb."""
    check_tenant(part.tenant)
    check_flow_id(part.flow, part.tenant)
    if part.number < 0:
        raise InvalidOption("number", part.number, "0 for the first part, 1 for the next, ...")
    if part.name:
        check_key("flow name", part.name)
    _check_shares(part)
    _check_members(part)


def _check_shares(part: FlowPart) -> None:
    if (part.number == 0) != bool(part.shares):
        raise InvalidOption("shares", part.shares, "said by the first part, and by no other")
    if len(part.shares) > MAX_SHARES:
        raise TooLarge("the flow", len(part.shares), MAX_SHARES, "tenants of queues")
    for share in part.shares:
        check_queue(share.queue)
        check_tenant(share.tenant)
        if share.count < 1:
            raise InvalidOption("count", share.count, "1 or more")
    total = sum(share.count for share in part.shares)
    if total > MAX_FLOW:
        raise TooLarge("the flow", total, MAX_FLOW, "tasks")
    if len({(share.queue, share.tenant) for share in part.shares}) < len(part.shares):
        raise InvalidOption("shares", part.shares, "one for each tenant of a queue")


def _check_members(part: FlowPart) -> None:
    if len(part.members) > MAX_MEMBERS:
        raise TooLarge("the part", len(part.members), MAX_MEMBERS, "tasks")
    check_submissions(part.members)
    edges = sum(len(member.depends_on) for member in part.members)
    if edges > MAX_EDGES:
        raise TooLarge("the part", edges, MAX_EDGES, "dependencies")
    places = {member.message.id: i for i, member in enumerate(part.members)}
    if len(places) < len(part.members):
        raise InvalidInput(f"flow {part.flow}: a part names each of its tasks once")
    for i, member in enumerate(part.members):
        id = member.message.id
        if member.fence is not None or member.unique is not None:
            raise InvalidInput(f"task {id}: members of a flow have neither a fence nor a key")
        for dependency in member.depends_on:
            if places.get(dependency.id, -1) >= i:
                raise InvalidInput(
                    f"task {id} depends on {dependency.id}, which has to be written before it"
                )


def check_flow_order(order: FlowOrder) -> None:
    """Refuse what cannot be ordered."""
    if order.action not in _ACTIONS:
        raise InvalidOption("action", order.action, f"one of {', '.join(_ACTIONS)}")


def check_members(start: int, limit: int) -> None:
    """Refuse a listing that begins nowhere, or is too long."""
    if start < 0:
        raise InvalidOption("start", start, "zero or more")
    if not 1 <= limit <= MAX_MEMBERS:
        raise InvalidOption("limit", limit, f"from 1 to {MAX_MEMBERS}")

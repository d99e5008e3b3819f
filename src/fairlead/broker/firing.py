"""What is enqueued for a schedule: the same whether a worker fires a slot or somebody asks now."""

from __future__ import annotations

from fairlead.broker.schedules import ScheduleRecord
from fairlead.broker.verbs import Firing, Submission
from fairlead.model.message import Message, Trace
from fairlead.model.schedule import SCHEDULE_HEADER, SLOT_HEADER, ScheduleSpec, slot_id, stamp

__all__ = ("firing_of", "submission_of")


def firing_of(
    record: ScheduleRecord, spec: ScheduleSpec, slot: float, next_at: float | None
) -> Firing:
    """The firing of one slot; ``next_at`` is the slot after it."""
    id = slot_id(spec.template.tenant, record.name, slot)
    return Firing(
        schedule=record.name,
        slot=slot,
        submission=submission_of(record.name, spec, id, slot),
        revision=record.revision,
        next_at=next_at,
    )


def submission_of(name: str, spec: ScheduleSpec, id: str, slot: float | None = None) -> Submission:
    """What the broker gets for a schedule; its headers tell the handler where it came from."""
    template = spec.template
    headers = {SCHEDULE_HEADER: name}
    if slot is not None:
        headers[SLOT_HEADER] = stamp(slot)
    message = Message(
        id=id,
        queue=template.queue,
        tenant=template.tenant,
        level=template.level,
        cost=template.cost,
        limiters=template.limiters,
        body=template.body,
        trace=Trace(correlation_id=id, headers=headers).encode(),
    )
    return Submission(message=message, deadline=template.deadline, unique=template.unique)

"""Which tasks are meant: by state, queue, tenant, name, error and time."""

from __future__ import annotations

import msgspec

from fairlead.api.http.problems import Invalid
from fairlead.api.views.tasks import state_named
from fairlead.api.views.timestamps import Moment, moment
from fairlead.broker.records import TaskRecord
from fairlead.client import PageSelection
from fairlead.client.task_pages import has_error, has_name
from fairlead.model.lifecycle import State


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left out does not matter. Moments are RFC 3339; they are about ``enqueued_at``."""

    state: str | None = None  # ours, or pending, dead_letter, ...
    queue: str | None = None
    tenant: str | None = None
    name: str | None = None  # of the task; with a * at its end, the beginning of it
    error: str | None = None  # a part of "type: message", or the reason
    since: Moment | None = None
    until: Moment | None = None


def state_of(asked: TaskFilter) -> State | None:
    """The state that is asked for, in our words. Raises ``Invalid`` for a word that is none."""
    if asked.state is None:
        return None
    state = state_named(asked.state)
    if state is None:
        words = ", ".join(State)
        raise Invalid("there is no such state", field="state", value=asked.state, rule=words)
    return state


def matches(record: TaskRecord, asked: TaskFilter) -> bool:
    """Whether a task is meant, as far as the broker does not see to it itself."""
    if asked.name is not None and not has_name(record, asked.name):
        return False
    if asked.error is not None and not has_error(record, asked.error):
        return False
    if asked.since is None and asked.until is None:
        return True
    at = moment(record.enqueued_at or None)  # as callers see it, in microseconds
    if at is None:
        return False
    return (asked.since is None or asked.since <= at) and (asked.until is None or at < asked.until)


def selection_of(
    asked: TaskFilter, state: State | None, tenant: str | None, cursor: str | None = None
) -> PageSelection:
    """What the broker sees to; ``tenant`` is the one that the caller may see, whatever is asked."""
    selection: PageSelection = {"cursor": cursor}
    if state is not None:
        selection["state"] = state
    if asked.queue is not None:
        selection["queue"] = asked.queue
    if tenant is not None:
        selection["tenant"] = tenant
    return selection

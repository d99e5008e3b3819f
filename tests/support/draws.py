"""What the state machine draws: submissions, ends, changes, and how often it does what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st

from fairlead.broker.requests import (
    Change,
    LimiterChange,
    QueueChange,
    Submission,
    TenantChange,
)
from fairlead.model.lifecycle import State
from fairlead.model.options import Dependency, Unique
from tests.support.store import ERROR, submit


def task_id(number: int) -> str:
    """Most ids look like those that Fairlead makes: a broker may know a shorter way for them."""
    return f"t{number}" if number % 3 == 0 else f"{number:032x}"


IDS = st.integers(0, 59).map(task_id)
ANY = st.integers(0, 1_000)  # one of what there is, whatever that is
TENANTS = st.sampled_from("abc")
QUEUES = st.sampled_from(["x", "y"])
CLIENTS = st.sampled_from(["w1", "w2", "w3"])
LIMITERS = st.sampled_from([(), (), (), ("l1",), ("l1", "l2")])
POLICIES = st.sampled_from(["dead", "cancel", "wait", "run"])
UNIQUES = st.none() | st.builds(
    Unique,
    key=st.sampled_from(["k1", "k2"]),
    until=st.sampled_from(["started", "done", "window"]),
    window=st.sampled_from([1.0, 10.0]),
)
LEVELS = st.integers(0, 3) | st.integers(0, 7)
DEPENDENCIES = st.lists(st.builds(Dependency, ANY.map(str), st.booleans()), max_size=2)
SUBMISSIONS = st.builds(
    submit,
    IDS,
    TENANTS,
    QUEUES,
    level=LEVELS,
    limiters=LIMITERS,
    cost=st.sampled_from([1.0, 1.0, 1.0, 0.5, 3.0]),
    body=st.sampled_from([b"x", b"x", b"x", b"y"]),
    delay=st.sampled_from([0.0, 0.0, 0.0, 1.0, 7.0]),
    deadline=st.sampled_from([None, None, None, 5.0, 20.0]),
    after=st.just(()) | DEPENDENCIES,
    policy=POLICIES,
    unique=UNIQUES,
)
ENDS: list[dict[str, Any]] = [
    {"to": State.COMPLETED},
    {"to": State.COMPLETED, "result": b"r", "run_time": 0.5},
    {"to": State.RETRYING, "delay": 2.0, "error": ERROR, "run_time": 3.0},
    {"to": State.RETRYING, "delay": 5.0, "error": ERROR, "burn": False, "reason": "unroutable"},
    {"to": State.DEAD, "reason": "exhausted", "error": ERROR},
    {"to": State.QUEUED, "burn": False, "reason": "released"},
    {"to": State.SCHEDULED, "burn": False, "delay": 3.0, "reason": "snoozed"},
    {"to": State.CANCELLED},
    {"to": State.COMPLETED, "keep": 0.0},
    {"to": State.COMPLETED, "result": b"kept", "keep": 10.0},
    {"to": State.DEAD, "reason": "rejected", "keep": 0.0},
]
END = st.sampled_from(ENDS)
RARELY = st.sampled_from([False, False, False, True])
LIMITS = st.sampled_from([None, None, None, 0, 1, 2, 5])
RATES = st.sampled_from([None, None, 0.1, 0.5, 3.0])
BURSTS = st.sampled_from([1, 1, 2, 3])
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(QueueChange, queue=QUEUES, paused=RARELY),
    st.builds(QueueChange, queue=QUEUES, concurrency=LIMITS),
    st.builds(
        QueueChange,
        queue=QUEUES,
        max_waiting=st.sampled_from([None, None, 12]),
        max_tenant_waiting=st.sampled_from([None, None, 5]),
    ),
    st.builds(QueueChange, queue=QUEUES, max_tenant_bytes=st.sampled_from([None, 150, 450])),
    st.builds(QueueChange, queue=QUEUES, rate=RATES, burst=BURSTS),
    st.builds(QueueChange, queue=QUEUES, charge_run_time=st.booleans()),
    st.builds(QueueChange, queue=QUEUES, strict_priorities=st.booleans()),
    st.builds(QueueChange, queue=QUEUES, warn_depth=st.sampled_from([None, 2, 5])),
    st.builds(
        QueueChange,
        queue=QUEUES,
        keep_completed=st.sampled_from([3600.0, 5.0]),
        keep_completed_count=st.sampled_from([10_000, 0, 2]),
        keep_completed_bytes=st.sampled_from([1_000_000, 450]),
        keep_dead=st.sampled_from([604_800.0, 15.0]),
    ),
    st.builds(TenantChange, tenant=TENANTS, queue=st.none() | QUEUES, rate=RATES, burst=BURSTS),
    st.builds(LimiterChange, name=st.sampled_from(["l1", "l2"]), rate=RATES, burst=BURSTS),
    st.builds(TenantChange, tenant=TENANTS, queue=st.none() | QUEUES, paused=RARELY),
    st.builds(TenantChange, tenant=TENANTS, queue=st.none() | QUEUES, concurrency=LIMITS),
    st.builds(TenantChange, tenant=TENANTS, weight=st.sampled_from([0.5, 1.0, 3.0])),
    st.builds(LimiterChange, name=st.sampled_from(["l1", "l2"]), concurrency=LIMITS),
)


def resolved(submission: Submission, names: list[str]) -> Submission:
    """The submission with its dependencies by name instead of by number."""
    found = {names[int(d.id) % len(names)]: d.known for d in submission.depends_on}
    edges = tuple(Dependency(name, known) for name, known in found.items())
    return msgspec.structs.replace(submission, depends_on=edges)


F = TypeVar("F", bound=Callable[..., None])
OPS: dict[str, st.SearchStrategy[dict[str, Any]]] = {}  # by name: what it is called with
OFTEN: list[str] = []  # each as often as it is to be drawn


def op(weight: int, **arguments: st.SearchStrategy[Any]) -> Callable[[F], F]:
    """One thing the machine can do.

    Not a rule of its own: Hypothesis leaves out rules at random, and draws those that are left
    equally often. Few runs would get as far as a task that is lent, and hardly any beyond.
    """

    def add(method: F) -> F:
        OPS[method.__name__] = st.fixed_dictionaries(arguments)
        OFTEN.extend([method.__name__] * weight)
        return method

    return add

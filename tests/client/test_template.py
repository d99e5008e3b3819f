"""The short way to a submission: it gives what the long way gives, or nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from fairlead import Context, Fairlead, InvalidInput
from fairlead.broker.redis.packed_submissions import PackedSubmissions
from fairlead.broker.submissions import filled
from fairlead.client.batch import submissions_of
from fairlead.client.call import BoundTask
from fairlead.client.task import Sender
from fairlead.model.argument_packing import MAX_BODY, pack_arguments
from fairlead.model.message import Body, Trace
from fairlead.runtime.correlation import correlation
from fairlead.runtime.ids import new_id

app = Fairlead("memory://")


@app.task(version=3, max_retries=7, queue="mail")
def work(*values: Any) -> None: ...


@app.task
def takes(ctx: Context, a: int, b: str = "") -> None: ...


@app.task
def keyed(a: int, *, b: int) -> None: ...


OPTIONS: list[dict[str, Any]] = [
    {},
    {"tenant": "acme", "queue": "other", "priority": "high", "cost": 2, "limiters": ["smtp"]},
    {"delay": 5, "deadline": "1m", "unique": "k", "unique_for": 3},
    {"max_retries": 0, "timeout": 1.5, "retention": "1h", "on_dependency_failure": "wait"},
    {"id": "mine", "tenant": "acme"},
]


def ready(sender: Sender[..., Any], *args: Any) -> BoundTask:
    """A kind that has made a submission of such arguments before."""
    sender.call(*args).submission()
    return sender._bound


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    "args", [(), (1,), ("a", -(2**63), 2**64 - 1), (None, True, False, "é"), ("x" * 70_000,)]
)
def test_it_equals_the_long_way(options: dict[str, Any], args: tuple[Any, ...]) -> None:
    template = ready(work.using(**options), *args).ready
    assert template is not None
    id = new_id()
    row = template.plain(id, args, {})
    assert row is not None
    plain = filled(row)
    assert plain == template.submission(id, pack_arguments(args, {}), None, (), None)
    body = Body.decode(plain.message.body)
    assert body.encode() == plain.message.body
    assert not plain.message.trace  # 36 bytes of each task that waits
    assert Trace.of(plain.message) == Trace(correlation_id=id)
    assert (body.task, body.task_version, body.arguments) == (
        work.name, 3, pack_arguments(args, {}),
    )  # fmt: skip
    assert body.max_retries == options.get("max_retries")


@pytest.mark.parametrize(
    "args",
    [("\ud800",), (2**64,), (1.5,), (b"x",), ([],), ({},), ("x" * 2**20,), (work.call().output,)],
)
def test_what_is_not_plain_to_see_is_looked_at(args: tuple[Any, ...]) -> None:
    kind = ready(work, 1)
    ready(work, "")
    with suppress(InvalidInput):
        ready(work, *args)
    assert kind.ready is not None
    assert kind.ready.plain(new_id(), args, {}) is None


def test_the_largest_plain_arguments_are_taken() -> None:
    text = "x" * (MAX_BODY - len(pack_arguments(["x" * 70_000], {})) + 70_000)
    template = ready(work, text).ready
    assert template is not None
    assert template.plain("id", (text,), {}) is not None
    assert template.plain("id", (text + "x",), {}) is None


def test_calls_that_no_handler_takes_are_refused_also_behind_good_ones() -> None:
    loose: Sender[..., Any] = app.task(name="loose")(lambda a, b: None)
    cases: list[tuple[Sender[..., Any], tuple[Any, ...], tuple[Any, ...]]] = [
        (takes, (1, ""), ()),
        (takes, (1, ""), (1, "", 2)),
        (keyed, (), (1,)),
        (loose, (1, 2), (1,)),
        (loose, (1, 2), (1, 2, 3)),
    ]
    for sender, good, args in cases:
        kind = BoundTask(sender._bound.spec, sender._bound.priorities)
        template = kind.template((), {})
        template.note_types(good)
        assert template.bodies([good, args, good]) == [template.body(good)]
        with pytest.raises(InvalidInput, match="cannot be called like this"):
            Sender(kind, app._clients).call(*args).submission()
    assert takes.call(1).submission().message.body == takes.call(1).submission().message.body


def test_what_comes_with_the_call_is_not_lost() -> None:
    kind = ready(work)
    first = work.call()
    assert kind.ready is not None
    assert kind.ready.plain(new_id(), (), {}) is not None
    assert kind.ready.plain(new_id(), (), {"a": 1}) is None
    with correlation("origin"):
        assert kind.ready.plain(new_id(), (), {}) is None
        assert Trace.of(work.call(1).submission().message).correlation_id == "origin"
    said = ready(work.using(correlation_id="said"))
    assert said.ready is not None
    assert said.ready.plain(new_id(), (), {}) is None
    after = ready(work.using(depends_on=[first]))
    assert after.ready is not None
    assert after.ready.plain(new_id(), (), {}) is None
    assert [d.id for d in work.using(depends_on=[first]).call(1).submission().depends_on] == [
        first.id
    ]


def test_a_priority_function_is_asked_for_every_call() -> None:
    sender = work.using(priority=lambda n: "high" if n > 1 else "low")
    assert [sender.call(n).submission().message.level for n in (1, 2, 1)] == [3, 1, 3]
    assert sender._bound.ready is None


@pytest.mark.parametrize("origin", [None, "origin"])
def test_calls_of_a_batch_are_what_each_is_alone(origin: str | None) -> None:
    late = work.using(delay=5)
    calls = [
        *(sender.call(n) for n in range(3) for sender in (work, late, takes)),
        work.call(1.5),
        work.call("é" * 300),
        *(work.using(tenant=f"t{n % 2}").call() for n in range(4)),
        keyed.call(1, b=2),
        work.using(id="mine").call(),
    ]
    with correlation(origin):
        alone = [call.submission() for call in calls]
        made, together = submissions_of(calls, app._registry)
    assert made == calls
    assert list(together) == alone
    assert [*together[2:5], together[-1]] == [*alone[2:5], alone[-1]]
    for some in (slice(None), slice(9, 11), slice(12, 13)):
        packed, listed = PackedSubmissions(together[some]), PackedSubmissions(alone[some])
        assert (packed.length, packed.tail) == (listed.length, listed.tail)

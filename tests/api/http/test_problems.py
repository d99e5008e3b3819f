"""Errors of ours as problems."""

from __future__ import annotations

import pytest

from fairlead.api.http import problems
from fairlead.api.http.problems import Problem, problem_of
from fairlead.model import errors

FOUND: tuple[tuple[Exception, int, str], ...] = (
    (errors.InvalidInput("x"), 422, "invalid"),
    (errors.InvalidName("queue", "a b", "a name"), 422, "invalid"),
    (errors.InvalidOption("delay", -1, "a duration"), 422, "invalid"),
    (errors.InvalidCron("* *", "too short"), 422, "invalid"),
    (errors.UnknownPriority("x", ("high",)), 422, "invalid"),
    (errors.UnknownTask("x"), 422, "invalid"),
    (errors.NotSerializable("argument 0", object(), "odd"), 422, "invalid"),
    (errors.TooLarge("the arguments", 2, 1), 413, "too-large"),
    (errors.DependencyCycle(("a", "b")), 422, "invalid"),
    (errors.UnknownDependency("a", "b"), 422, "invalid"),
    (errors.UnknownSchedule("x"), 404, "not-found"),
    (errors.ScheduleConflict("x", "is taken"), 409, "conflict"),
    (errors.Conflict("x"), 409, "conflict"),
    (errors.QueueFull("mail", 10), 429, "queue-full"),
    (errors.QueueFull("mail", 10, "acme"), 429, "queue-full"),
    (errors.QueueInUse("mail", 1, 0), 409, "conflict"),
    (errors.Unreachable("x"), 503, "broker-away"),
    (errors.Ambiguous("x"), 503, "in-doubt"),
    (errors.Refused("loading", "x"), 503, "broker-away"),
    (errors.Refused("oom", "x"), 503, "broker-full"),
    (errors.OutOfOrder("x", 1, 2), 503, "broker-away"),
    (errors.Fenced("x", 1), 409, "conflict"),
    (errors.ResultGone("x"), 404, "not-found"),
)


@pytest.mark.parametrize(("error", "status", "slug"), FOUND, ids=lambda each: str(each)[:20])
def test_each_error_has_its_problem(error: Exception, status: int, slug: str) -> None:
    problem = problem_of(error)
    assert problem is not None
    assert (problem.status, problem.body.type) == (status, f"/problems/{slug}")
    assert problem.body.detail
    if status in (429, 503):
        assert problem.headers["retry-after"] == "2"


def test_what_is_no_error_of_a_caller_has_none() -> None:
    assert problem_of(RuntimeError("x")) is None
    assert problem_of(KeyError("x")) is None


def test_types_are_stable_and_belong_to_one_status() -> None:
    kinds = [
        kind
        for kind in vars(problems).values()
        if isinstance(kind, type) and issubclass(kind, Problem)
    ]
    slugs = {kind.slug: kind.status for kind in kinds}
    assert slugs == {
        "bad-request": 400,
        "unauthorized": 401,
        "forbidden": 403,
        "not-found": 404,
        "method-not-allowed": 405,
        "request-timeout": 408,
        "conflict": 409,
        "too-large": 413,
        "unsupported-media-type": 415,
        "invalid": 422,
        "queue-full": 429,
        "too-many-requests": 429,
        "unexpected": 500,
        "broker-away": 503,
        "broker-full": 503,
        "draining": 503,
        "in-doubt": 503,
        "ledger-away": 503,
        "spool-full": 429,
        "spool-failed": 503,
        "spooled": 503,
    }


def test_ids_of_a_call_that_failed_are_told() -> None:
    error = errors.Ambiguous("no reply")
    error.ids = ("a", "b")
    problem = problem_of(error)
    assert problem is not None
    assert problem.body.ids == ("a", "b")

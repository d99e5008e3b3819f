"""One policy for all repeats: what passes is waited for, doubt stays, and a call has one limit."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Iterator

import pytest

from fairlead.broker import Caller
from fairlead.broker.repeats import Insistence, Limit, Rounds
from fairlead.broker.requests import Call
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    Conflict,
    OutOfOrder,
    Refused,
    Unreachable,
)

PASSING = ("loading", "noreplicas", "clusterdown", "busy", "moving", "misconf")
LATER = [Unreachable("connection refused"), *(Refused(cause, "x") for cause in PASSING)]
LATER += [Refused("oom", "x"), Refused("auth", "x"), Refused("server", "x")]


class Verb:
    """Fails with errors from a list, then answers; notes what it was called with."""

    def __init__(self, errors: Iterable[Exception] = ()) -> None:
        self._errors: Iterator[Exception] = iter(errors)
        self.calls: list[Call] = []

    async def __call__(self, call: Call) -> str:
        self.calls.append(call)
        error = next(self._errors, None)
        if error is not None:
            raise error
        return "done"

    @property
    def numbers(self) -> list[int]:
        return [call.number for call in self.calls]


def within(seconds: float) -> Limit:
    return Limit(asyncio.get_running_loop().time() + seconds)


@pytest.mark.parametrize("later", LATER, ids=lambda e: getattr(e, "cause", "unreachable"))
async def test_a_call_that_was_ambiguous_once_stays_so_whatever_comes_after(
    later: BrokerError,
) -> None:
    verb = Verb(itertools.chain([Ambiguous("executed, reply lost")], itertools.repeat(later)))
    with pytest.raises(Ambiguous, match="may have been executed") as caught:
        await Caller("c").call(verb, within(0.3))
    assert caught.value.__cause__ is later
    assert len(verb.calls) > 2
    assert set(verb.numbers) == {1}


@pytest.mark.parametrize("later", LATER, ids=lambda e: getattr(e, "cause", "unreachable"))
async def test_a_call_in_doubt_is_repeated_under_its_number_until_there_is_a_reply(
    later: BrokerError,
) -> None:
    verb = Verb([Ambiguous("lost"), later, later])
    assert await Caller("c").call(verb) == "done"
    assert verb.numbers == [1, 1, 1, 1]


async def test_a_defect_does_not_say_what_became_of_a_call_in_doubt() -> None:
    verb = Verb([Ambiguous("lost"), ZeroDivisionError("x"), ZeroDivisionError("x")])
    assert await Caller("c").call(verb) == "done"
    assert verb.numbers == [1, 1, 1, 1]

    verb = Verb(itertools.chain([Ambiguous("lost")], itertools.repeat(ZeroDivisionError("x"))))
    with pytest.raises(Ambiguous, match="ZeroDivisionError") as caught:
        await Caller("c").call(verb, within(0.2))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)

    verb = Verb([Unreachable("not sent"), ZeroDivisionError("x")])
    with pytest.raises(ZeroDivisionError):  # nothing is in doubt: it comes out at once
        await Caller("c").call(verb)
    assert verb.numbers == [1, 1]


async def test_an_answer_to_a_call_in_doubt_that_is_an_error_comes_out() -> None:
    verb = Verb([Ambiguous("lost"), Conflict("t")])
    with pytest.raises(Conflict):
        await Caller("c").call(verb)
    assert verb.numbers == [1, 1]


@pytest.mark.parametrize("error", LATER[:7], ids=lambda e: getattr(e, "cause", "unreachable"))
async def test_what_passes_is_waited_for_and_raised_as_it_is_when_time_is_over(
    error: BrokerError,
) -> None:
    assert error.passes
    verb = Verb([error, error])
    assert await Caller("c").call(verb) == "done"
    with pytest.raises(type(error)) as caught:
        await Caller("c").call(Verb(itertools.repeat(error)), within(0.2))
    assert caught.value is error


@pytest.mark.parametrize("cause", ["oom", "auth", "server", "full"])
async def test_what_does_not_pass_is_raised_at_once(cause: str) -> None:
    verb = Verb(itertools.repeat(Refused(cause, "x")))
    with pytest.raises(Refused):
        await Caller("c").call(verb)
    assert verb.numbers == [1]


async def test_a_number_that_was_overtaken_is_not_asked_about_again() -> None:
    verb = Verb([Ambiguous("lost"), OutOfOrder("c", 1, 2)])
    with pytest.raises(Ambiguous):
        await Caller("c").call(verb)
    assert len(verb.calls) == 2


async def test_the_time_limit_is_told_to_whoever_carries_the_call() -> None:
    verb, limit = Verb([Unreachable("x")]), within(7.0)
    await Caller("c").call(verb, limit)
    assert [call.until for call in verb.calls] == [limit.until] * 2


def test_a_refusal_that_is_sure_is_not_made_a_doubt_by_a_last_round_without_time() -> None:
    refused, lost = Refused("noreplicas", "x"), Ambiguous("lost")
    assert Rounds(Limit(10.0)).failed(refused, now=9.9, wait=0.0) == 0.0
    with pytest.raises(Refused):
        Rounds(Limit(10.0)).failed(refused, now=9.96, wait=0.0)
    assert Rounds(Limit(10.0)).failed(lost, now=9.96, wait=0.0) == 0.0  # it may find out


async def test_the_time_limit_holds_while_others_are_before_it() -> None:
    caller = Caller("c")
    stuck = asyncio.create_task(caller.call(Verb(itertools.repeat(Unreachable("x"))), within(30)))
    await asyncio.sleep(0)
    verb, began = Verb(), time.monotonic()
    with pytest.raises(Unreachable, match="not sent"):
        await caller.call(verb, within(0.1))
    assert time.monotonic() - began < 5  # the one before it has thirty
    assert verb.calls == []
    stuck.cancel()


async def test_who_is_cancelled_in_flight_does_not_break_the_line() -> None:
    caller = Caller("c")
    sent = asyncio.Event()

    async def never(call: Call) -> str:
        sent.set()
        await asyncio.Event().wait()
        return ""

    calls = [asyncio.create_task(caller.call(never)) for _ in range(2)]
    await sent.wait()
    calls[1].cancel()  # still in the line
    calls[0].cancel()  # in flight
    await asyncio.wait(calls)
    verb = Verb()
    assert await caller.call(verb) == "done"
    assert verb.numbers == [2]


@pytest.mark.slow
async def test_a_worker_insists_on_whatever_is_refused_until_it_stops() -> None:
    limit, verb = Insistence(), Verb(LATER)
    heard: list[BrokerError] = []
    assert await Caller("w").call(verb, limit, failed=heard.append) == "done"
    assert heard == LATER
    assert verb.numbers == [1] * (len(LATER) + 1)
    assert {call.until for call in verb.calls} == {None}  # each round has the store's own time

    stuck = asyncio.create_task(
        Caller("w").call(Verb(itertools.repeat(Refused("auth", "x"))), limit)
    )
    await asyncio.sleep(0.05)
    limit.end(asyncio.get_running_loop().time())
    with pytest.raises(Refused):
        await asyncio.wait_for(stuck, 2)

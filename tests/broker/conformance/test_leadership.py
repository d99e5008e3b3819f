"""One of several processes leads at a time; each time it is another term, whose number grows."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from fairlead.broker import Store
from fairlead.broker.leadership import MAX_LEADERS, Leadership
from fairlead.model.errors import InvalidInput, Refused
from tests.support.fair import WITH_REAL_CLOCK
from tests.support.store import NOW, Client, submit

FIRST = int(NOW * 1_000_000)


async def lead(broker: Store, holder: str, now: float = NOW, ttl: float = 10.0) -> Leadership:
    return await broker.lead("manager", holder, ttl=ttl, now=now)


async def release(broker: Store, holder: str, now: float = NOW) -> Leadership:
    return await broker.lead("manager", holder, release=True, now=now)


async def test_the_first_one_leads_and_the_others_hear_of_it(broker: Store) -> None:
    held = await lead(broker, "m1")
    assert (held.holder, held.until, held.now) == ("m1", NOW + 10, NOW)
    assert held.term >= FIRST

    seen = await lead(broker, "m2", NOW + 5)
    assert seen == Leadership(term=held.term, holder="m1", until=NOW + 10, now=NOW + 5)


async def test_a_holder_that_asks_in_time_keeps_its_term(broker: Store) -> None:
    held = await lead(broker, "m1")
    again = await lead(broker, "m1", NOW + 9.999)
    assert again == Leadership(term=held.term, holder="m1", until=NOW + 9.999 + 10, now=NOW + 9.999)
    assert (await lead(broker, "m2", NOW + 15)).holder == "m1"
    brief = await lead(broker, "m1", NOW + 15, ttl=1.0)
    assert (brief.term, brief.until) == (held.term, NOW + 16)


async def test_when_its_time_is_over_another_one_leads_in_a_new_term(broker: Store) -> None:
    first = await lead(broker, "m1")
    assert (await lead(broker, "m2", NOW + 9.999)).holder == "m1"
    second = await lead(broker, "m2", NOW + 10)
    assert second.holder == "m2"
    assert second.term > first.term
    assert second.term >= (NOW + 10) * 1_000_000
    assert (await lead(broker, "m1", NOW + 11)).term == second.term


async def test_the_last_holder_has_a_new_term_as_well_once_its_time_was_over(
    broker: Store,
) -> None:
    first = await lead(broker, "m1")
    again = await lead(broker, "m1", NOW + 10)
    assert again.holder == "m1"
    assert again.term > first.term


async def test_whoever_gives_it_up_makes_room_at_once_for_a_new_term(broker: Store) -> None:
    first = await lead(broker, "m1")
    nobody = Leadership(term=0, holder="", until=NOW, now=NOW)
    assert await release(broker, "m1") == nobody
    assert await release(broker, "m1") == nobody  # a lost reply, asked for again
    second = await lead(broker, "m2")
    assert second.holder == "m2"
    assert second.term > first.term  # in the same microsecond
    await release(broker, "m2")
    assert (await lead(broker, "m2")).term > second.term


async def test_only_the_holder_can_give_it_up(broker: Store) -> None:
    held = await lead(broker, "m1")
    assert await release(broker, "m2") == held
    assert await lead(broker, "m3") == held
    over = await release(broker, "m2", NOW + 10)
    assert over == Leadership(term=0, holder="", until=NOW + 10, now=NOW + 10)


async def test_terms_grow_with_all_other_numbers_that_are_given(broker: Store) -> None:
    c = Client(broker)
    first = await lead(broker, "m1")
    (lease,) = await c.run(submit("t"))
    assert lease.token > first.term
    await release(broker, "m1")
    assert (await lead(broker, "m1")).term > lease.token


async def test_names_do_not_know_each_other(broker: Store) -> None:
    one = await broker.lead("one", "m1", now=NOW)
    two = await broker.lead("two ", "m2", now=NOW)
    assert (one.holder, two.holder) == ("m1", "m2")
    await broker.lead("one", "m1", release=True, now=NOW)
    assert (await broker.lead("two ", "m1", now=NOW)).holder == "m2"


async def test_so_many_names_are_held_and_those_that_are_over_make_room(broker: Store) -> None:
    for n in range(MAX_LEADERS):
        assert (await broker.lead(f"n{n}", "m1", ttl=10 + n, now=NOW)).holder == "m1"
    with pytest.raises(Refused) as caught:
        await broker.lead("more", "m1", now=NOW)
    assert caught.value.cause == "leaders"
    assert (await broker.lead("more", "m1", release=True, now=NOW)).holder == ""
    assert (await broker.lead("n7", "m2", now=NOW)).holder == "m1"

    assert (await broker.lead("more", "m1", now=NOW + 12)).holder == "m1"  # n0, n1, n2 are over
    assert (await broker.lead("n99", "m2", now=NOW + 12)).holder == "m1"
    for n in range(2):
        assert (await broker.lead(f"n{n}", "m2", now=NOW + 12)).holder == "m2"
    with pytest.raises(Refused):
        await broker.lead("n2", "m2", now=NOW + 12)


@pytest.mark.parametrize("ttl", [0.0, 0.999, 300.001, math.inf, math.nan, -1.0])
async def test_a_time_that_nobody_can_lead_for_is_refused(broker: Store, ttl: float) -> None:
    with pytest.raises(InvalidInput, match="ttl"):
        await lead(broker, "m1", ttl=ttl)
    assert (await release(broker, "m2")).holder == ""
    for fits in (1.0, 300.0):
        assert (await lead(broker, "m1", ttl=fits)).until == NOW + fits


@pytest.mark.parametrize("bad", ["", " ", "a\nb", "a\x1fb", "\ud800"])
async def test_names_that_cannot_be_are_refused(broker: Store, bad: str) -> None:
    for name, holder in ((bad, "m1"), ("manager", bad)):
        with pytest.raises(InvalidInput):
            await broker.lead(name, holder, now=NOW)
    assert (await release(broker, "m2")).holder == ""


async def test_names_have_a_length_that_fits(broker: Store) -> None:
    held = await broker.lead("é" * 128, "é" * 100, now=NOW)
    assert held.holder == "é" * 100
    for name, holder in (("é" * 128 + "a", "m1"), ("manager", "é" * 100 + "a")):
        with pytest.raises(InvalidInput):
            await broker.lead(name, holder, now=NOW)


@pytest.mark.parametrize("make", WITH_REAL_CLOCK.values(), ids=WITH_REAL_CLOCK)
async def test_time_is_that_of_the_broker(make: Callable[[], Store]) -> None:
    broker = make()
    before = (await broker.hello()).now
    held = await broker.lead("manager", "m1", ttl=30.0)
    after = (await broker.hello()).now
    assert before <= held.now <= after
    assert held.until == held.now + 30.0
    assert before * 1_000_000 - 1 <= held.term <= after * 1_000_000
    await broker.close()

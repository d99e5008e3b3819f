"""The term in the ledger: effects of an older one change nothing."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.ledger.ledger import Ledger
from fairlead.model.ledger_errors import LostLeadership


async def test_a_later_term_is_taken_and_an_earlier_one_refused(ledger: Ledger) -> None:
    await ledger.take_leadership(term=10, holder="one")
    await ledger.take_leadership(term=10, holder="one")  # again: the answer was lost
    with pytest.raises(LostLeadership) as refused:
        await ledger.take_leadership(term=9, holder="late")
    assert (refused.value.term, refused.value.found) == (9, 10)
    found = await ledger.leadership()
    assert (found.term, found.holder) == (10, "one")


async def test_an_effect_in_flight_delays_the_next_leader(ledger: Ledger) -> None:
    await ledger.take_leadership(term=1, holder="old")
    taken = asyncio.Event()

    async def take() -> None:
        await ledger.take_leadership(term=2, holder="new")
        taken.set()

    async with asyncio.TaskGroup() as tasks:
        async with ledger.transaction() as old:
            await old.move_place(term=1, shard="s", generation="g", entry=5, index=0)
            tasks.create_task(take())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(taken.wait(), 0.2)
        await asyncio.wait_for(taken.wait(), 10)
    assert (await ledger.places())["s"].entry == 5  # committed before, not after
    with pytest.raises(LostLeadership):
        await ledger.move_place(
            term=1, shard="s", generation="g", entry=6, index=0, was_generation="g", was_entry=5
        )
    assert (await ledger.places())["s"].entry == 5

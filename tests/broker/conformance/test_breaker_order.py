"""Whatever breakers do, one fetch of n gives what n fetches of one give, in every broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker import Store
from fairlead.broker.requests import LimiterChange
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased
from tests.support.fair import WITH_TEST_CLOCK, examples, opened, taken
from tests.support.store import NOW, Client, completed, dead, failed, ids, released, submit

End = Callable[[Leased], Settlement]

late = partial(failed, delay=1_000.0)  # a failure that does not come back while the test lasts


def crashed(lease: Leased) -> Settlement:
    return msgspec.structs.replace(failed(lease), reason="crashed")


QUEUES = ("x", "y")
NAMES = ("api", "db")
ENDS: tuple[End, ...] = (completed, completed, failed, late, dead, released, crashed)
SETTINGS = st.fixed_dictionaries(
    {
        "failures": st.sampled_from([None, 1, 1, 2, 3]),
        "cooldown": st.sampled_from([0.5, 2.0, 5.0]),
        "probes": st.integers(1, 3),
        "concurrency": st.sampled_from([None, None, 1, 2, 4]),
        "rate": st.sampled_from([None, None, 3.0]),
    }
)
ROUNDS = 12
# At some rounds other settings, or (None) the worker is gone.
HAPPENS = st.dictionaries(st.integers(0, ROUNDS - 1), st.none() | SETTINGS, max_size=3)
TASK = st.tuples(
    st.sampled_from(QUEUES),
    st.integers(0, 4),  # tenant
    st.sampled_from([(), NAMES[:1], NAMES[1:], NAMES, NAMES[::-1]]),
    st.integers(0, len(ENDS) - 1),  # how its attempts end
)


async def history(
    make: Callable[[], Store],
    settings: Sequence[dict[str, object]],
    happens: dict[int, dict[str, object] | None],
    tasks: Sequence[tuple[str, int, tuple[str, ...], int]],
    size: int,
) -> list[object]:
    """What is dispatched, round by round, and how the breakers stand after each."""
    said: list[object] = []
    running: list[Leased] = []
    now = NOW
    async with opened(make) as broker:
        c = Client(broker)
        for name, options in zip(NAMES, settings, strict=True):
            await c.configure(LimiterChange(name=name, **options))  # type: ignore[arg-type]
        await c.enqueue(
            *(
                submit(str(i), f"t{tenant}", queue, limiters=names)
                for i, (queue, tenant, names, _) in enumerate(tasks)
            )
        )
        for number in range(ROUNDS):
            now += 0.75
            change = happens.get(number, {})
            if change is None:
                await broker.give_back("w1", now=now)
                running.clear()
            elif change:
                await c.configure(LimiterChange(name="api", **change), now=now)  # type: ignore[arg-type]
            found = await taken(c, 6, min(size, 6), QUEUES, now=now)
            running += found
            done = [lease for lease in running if int(lease.message.id) % 3 != number % 3]
            ends = [ENDS[tasks[int(lease.message.id)][3]](lease) for lease in done]
            await c.settle(*ends, now=now)
            running = [lease for lease in running if lease not in done]
            said += [ids(found), (await broker.snapshot(now=now)).limiters]
            if number % 3 == 1:  # what is wrong stays wrong, and at the end it is asked again
                assert await broker.audit(now=now) == []
    return said


@pytest.mark.parametrize("make", WITH_TEST_CLOCK.values(), ids=WITH_TEST_CLOCK)
@given(
    settings=st.lists(SETTINGS, min_size=2, max_size=2),
    happens=HAPPENS,
    tasks=st.lists(TASK, min_size=5, max_size=30),
    size=st.sampled_from([2, 6]),
)
@examples(60)
def test_one_fetch_of_n_equals_n_fetches_of_one_whatever_breakers_do(
    make: Callable[[], Store],
    settings: list[dict[str, object]],
    happens: dict[int, dict[str, object] | None],
    tasks: list[tuple[str, int, tuple[str, ...], int]],
    size: int,
) -> None:
    async def all_alike() -> None:
        at_once = await history(make, settings, happens, tasks, size)
        assert at_once == await history(make, settings, happens, tasks, 1)
        in_memory = WITH_TEST_CLOCK["memory"]
        assert at_once == await history(in_memory, settings, happens, tasks, size)

    asyncio.run(all_alike())

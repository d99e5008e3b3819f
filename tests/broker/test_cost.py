"""What a task costs does not depend much on how much waits, nor on how many tenants do."""

import gc
from collections.abc import Iterator

import pytest

from benchmarks.memory import Load, costs

WARM_UP = 60_000  # tasks; fills what a queue keeps of completed ones and of events

ONE = Load(1_000, 1)
SMALL = Load(1_000, 100)
LARGE = Load(300_000, 30_000)  # `fairlead bench memory` has a million of a hundred thousand


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Leave no heap of tasks behind, for the collector to find while another test is timed."""
    yield
    gc.collect()


@pytest.mark.long(20)
@pytest.mark.slow
@pytest.mark.serial
async def test_a_backlog_of_300_times_costs_less_than_two_and_a_half_times_as_much() -> None:
    small, large = await costs([SMALL, LARGE], rounds=3, tasks=20_000, warm_up=WARM_UP)
    assert large.total < 2.5 * small.total, f"{large} against {small}"


@pytest.mark.slow
@pytest.mark.serial
async def test_one_tenant_alone_costs_no_more_than_a_hundred_do() -> None:
    one, many = await costs([ONE, SMALL], rounds=20, tasks=3_000, warm_up=WARM_UP)
    assert one.total <= 1.1 * many.total, f"{one} against {many}"

"""The bench measures what it says: a backlog that stays, and calls that do what they should."""

import gc
import json

import pytest

from fairlead.cli.bench import loads
from fairlead.cli.benchmarks.memory import Bench, Load, costs
from tests.cli.running import fairlead


def test_the_figures_have_the_shape_that_scripts_rely_on() -> None:
    answer = fairlead("bench", "--quick", "--json", "--scale", "0.002")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert [row["tenants"] for row in found["rows"]] == [1, 2, 20, 20]
    assert [row["limited"] for row in found["rows"]] == [False, False, False, True]
    for row in found["rows"]:
        parts = row["enqueue_us"] + row["fetch_us"] + row["settle_us"]
        assert row["total_us"] == pytest.approx(parts, abs=0.01)
        assert row["tasks_per_second"] == pytest.approx(1e6 / row["total_us"], rel=0.01)
    small, largest = found["rows"][1], found["rows"][2]
    assert found["growth"]["ratio"] == pytest.approx(
        largest["total_us"] / small["total_us"], rel=0.01
    )
    assert found["one_tenant"]["ratio"] == pytest.approx(
        found["rows"][0]["total_us"] / small["total_us"], rel=0.01
    )
    assert len(found["process"]) == 3
    assert all(way["tasks_per_second"] > 0 and way["cpu_us"] > 0 for way in found["process"])


def test_people_get_tables_without_control_codes_and_progress_apart_from_them() -> None:
    answer = fairlead("bench", "memory", "--quick", "--scale", "0.002")
    assert answer.returncode == 0, answer.stderr
    assert "\x1b" not in answer.stdout + answer.stderr
    assert "all three" in answer.stdout
    assert "worker, no-op handlers, 100 at a time" in answer.stdout
    assert "times what" in answer.stdout
    assert "bench: round 3 of 3\n" in answer.stderr
    assert "bench:" not in answer.stdout


def test_the_largest_backlog_is_left_out_of_a_quick_bench() -> None:
    assert Load(1_000_000, 100_000) in loads(quick=False)
    assert max(loads(quick=True)) == Load(100_000, 10_000, limited=True)


@pytest.mark.parametrize("limited", [False, True])
async def test_the_backlog_of_every_tenant_stays_as_large_as_it_is(limited: bool) -> None:
    bench = Bench(Load(600, 30, limited))
    await bench.prepare(lambda text: None, warm_up=300)
    await bench.cost(1_000)
    queue = (await bench.broker.snapshot()).queues["bench"]
    assert queue.depth == 600
    assert len(queue.tenants) == 30
    # One batch is always out: it is replaced at the beginning of the next step.
    assert all(abs(counts.ready - 20) <= 4 for counts in queue.tenants.values())
    assert await bench.broker.audit() == []


async def test_long_preloads_are_told_of() -> None:
    said: list[str] = []
    await costs([Load(200, 2)], rounds=2, tasks=100, warm_up=100, say=said.append)
    assert said == ["200 of 2 tenants: preloading", "round 1 of 2", "round 2 of 2"]


async def test_the_collector_is_as_it_was_afterwards() -> None:
    await costs([Load(100, 1)], rounds=1, tasks=100, warm_up=100)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0

"""The bench measures what it says: a backlog that stays, and calls that do what they should."""

import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import flows, ledger, workers
from benchmarks.memory import Bench, Load, costs
from benchmarks.memory_report import loads
from benchmarks.server import sizes
from benchmarks.server_load import FEATURES, Backlog, Feature, Trial
from benchmarks.server_memory import Growth
from benchmarks.server_probe import Meter, Place, Probe, plain_sets
from benchmarks.server_report import aims, show
from fairlead.broker import connect
from fairlead.model.errors import InvalidOption
from tests.architecture.source import ROOT
from tests.cli.running import answered, fairlead
from tests.support.servers import server

BENCH = (sys.executable, "-m", "benchmarks")
HAS_TOOL = bool(shutil.which("redis-benchmark") or shutil.which("valkey-benchmark"))


def test_make_bench_and_the_command_line_measure_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the clone, and anywhere else with an editable install of it."""
    told = subprocess.run([*BENCH, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert "Usage: python -m benchmarks [OPTIONS]" in told.stdout
    monkeypatch.chdir(tmp_path)
    answer = answered("bench", "memory", "--url", "redis://host")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "is for the server only (next: fairlead bench --help)" in answer.stderr


def test_without_the_source_tree_the_command_says_where_the_benchmarks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.cli.bench.__file__", f"{tmp_path}/lib/site/fairlead/cli/bench.py")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "command.py").touch()  # of another project
    answer = answered("bench", "--quick")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith(
        "error: the benchmarks are part of the source tree: clone it and run make bench (next: "
    )
    assert answered("bench", "--help").returncode == 0


def test_the_figures_have_the_shape_that_scripts_rely_on() -> None:
    answer = fairlead("bench", "memory", "--quick", "--json", "--scale", "0.002")
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


# -- on a server ------------------------------------------------------------------------------


def test_without_the_tool_there_are_no_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with server() as running:
        probe = Probe(running.url)
        assert plain_sets(probe, 100) is None
        probe.close()


@pytest.mark.parametrize("limited", [False, True])
async def test_the_backlog_on_a_server_stays_as_well(limited: bool) -> None:
    with server() as running:
        probe = Probe(running.url)
        backlog = Backlog(running.url, "bench", Load(1_000, 50, limited))
        await backlog.prepare(lambda text: None, warm_up=500)
        entering, passing = Meter(probe), Meter(probe)
        await backlog.run(1_000, entering, passing)
        broker = connect(running.url)
        queue = (await broker.snapshot()).queues["bench"]
        assert (queue.depth, queue.running, len(queue.tenants)) == (1_000, 0, 50)
        assert entering.tasks == passing.tasks == 1_000
        assert min(meter.cost().function_us for meter in (entering, passing)) > 0
        assert await broker.audit() == []
        await broker.close()
        await backlog.close()
        probe.close()


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.queue)
async def test_each_feature_is_used_and_nothing_is_left(feature: Feature) -> None:
    with server() as running:
        trial = Trial(running.url, feature, tenants=10)
        await trial.prepare(200)
        broker = connect(running.url)
        queue = (await broker.snapshot()).queues[feature.queue]
        assert (queue.depth, queue.running, queue.completed) == (0, 0, 200)
        await broker.close()
        await trial.close()


def test_a_server_with_tasks_on_it_is_not_touched() -> None:
    with server() as running:
        running.admin("SET", "mine", "1")
        answer = answered("bench", "server", "--quick", "--scale", "0.001", "--url", running.url)
        assert answer.returncode == 2
        assert "empty database" in answer.stderr
        assert running.admin("DBSIZE") == 1


def test_an_address_is_for_the_server_and_for_one_without_tls() -> None:
    answer = answered("bench", "memory", "--url", "redis://:secret@host")
    assert (answer.returncode, "secret" in answer.stderr) == (2, False)
    for url in ("rediss://:secret@host", "redis+cluster://host", "memory://"):
        with pytest.raises(InvalidOption) as caught:
            Place.parse(url)
        assert "secret" not in str(caught.value)


def test_places_are_read_from_their_addresses() -> None:
    assert Place.parse("redis://host/3") == Place("host", 6379, database=3)
    assert Place.parse("valkey://me:pass%40word@[::1]:7000") == Place(
        "::1", 7000, user="me", password="pass@word"
    )
    assert Place.parse("unix://:x@/tmp/s?db=2") == Place(path="/tmp/s", password="x", database=2)


def test_a_quick_bench_of_a_server_is_smaller_in_every_way() -> None:
    quick, full = sizes(quick=True), sizes(quick=False)
    assert full.large == Load(1_000_000, 100_000)
    assert quick.large == Load(100_000, 10_000)
    assert [load.tenants for load in quick.loads] == [load.tenants for load in full.loads]


def test_memory_may_grow_by_a_twentieth_or_two_megabytes() -> None:
    assert Growth(10_000_000, 12_000_000).allowed == 2 * 1024 * 1024
    assert Growth(100_000_000, 104_000_000).allowed == 5_000_000
    assert Growth(10, 8).bytes == -2


# -- everything -------------------------------------------------------------------------------


@pytest.mark.long(80)
@pytest.mark.slow
@pytest.mark.timeout(360)
def test_without_a_choice_everything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """One run for all: most of what each part takes is the start of servers and workers."""
    answer = fairlead("bench", "--quick", "--json", "--scale", "0.02", seconds=300.0)
    assert answer.returncode == 0, answer.stderr
    assert "bench: server, features: round 3 of 3\n" in answer.stderr
    found = json.loads(answer.stdout)
    assert found.keys() == {"memory", "worker", "flow", "api", "ledger", "spool", "server"}
    assert [found[part]["broker"] for part in ("memory", "server")] == ["memory", "server"]
    worker_is_measured(found["worker"])
    flow_is_measured(found["flow"])
    api_is_measured(found["api"])
    ledger_is_measured(found["ledger"])
    server_is_measured(found["server"])

    workers.show(found["worker"])
    flows.show(found["flow"])
    ledger.show(found["ledger"])
    show(found["server"])
    out = capsys.readouterr().out
    assert "cores of an idle worker" in out
    assert "of the speed of plain tasks" in out
    assert "From commit to start" in out
    assert "appendonly yes, appendfsync everysec" in out
    assert "x SET" in out
    assert ("redis-benchmark not found: no ratios" in out) != HAS_TOOL


def worker_is_measured(found: dict[str, Any]) -> None:
    """From the first start to the last outcome."""
    assert [row["name"] for row in found["rows"]] == [row.name for row in workers.ROWS]
    for row in found["rows"]:
        assert row["rate"] > 0
        # The machine counts these in hundredths of a second, and there are few tasks.
        assert min(row["worker_us"], row["server_us"], row["cores"]) >= 0
    assert any(row["worker_us"] for row in found["rows"])
    assert any(row["server_us"] for row in found["rows"])
    assert 0 <= found["idle_cores"] < 1
    assert found["aims"] == workers.aims(found)


def flow_is_measured(found: dict[str, Any]) -> None:
    """Beside plain tasks."""
    assert found["tasks"] == 10 * (20 + 2) + 1
    assert [row["name"] for row in found["rows"]] == ["plain tasks", "10 fan-outs of 20, joined"]
    for row in found["rows"]:
        assert min(row[key] for key in ("enqueued", "rate", "p99_ms", "calls")) > 0
        assert 0 <= row["slow"] <= row["calls"]
    plain, flow = found["rows"]
    assert found["ratio"] == pytest.approx(flow["rate"] / plain["rate"])


def api_is_measured(found: dict[str, Any]) -> None:
    """As a whole."""
    post, get, lines, many, event = found["rows"]
    assert all(row["rate"] > 0 for row in (post, get, lines, many))
    assert post["p50_ms"] <= post["p95_ms"] <= post["p99_ms"]
    assert event["p50_ms"] <= event["p99_ms"]
    assert [aim["met"] for aim in found["aims"]] == [
        aim["value"] >= aim["aim"] if aim["least"] else aim["value"] <= aim["aim"]
        for aim in found["aims"]
    ]


def ledger_is_measured(found: dict[str, Any]) -> None:
    """Step by step."""
    assert found["tasks"] == 500
    assert len(found["rows"]) == 4
    for row in found["rows"]:
        assert min(row["rate"], row["python_us"]) > 0
        assert min(row["postgres_us"], row["server_us"]) >= 0  # counted in hundredths of a second
    worker = found["worker"]
    assert worker["ratio"] == pytest.approx(worker["with"] / worker["without"])
    assert 0 < found["commit_to_start"]["p50_ms"] <= found["commit_to_start"]["p99_ms"]
    assert found["aims"] == ledger.aims(found)


def server_is_measured(found: dict[str, Any]) -> None:
    """With the proof that it keeps what a server must keep."""
    assert len(found["rows"]) == 7
    for row in found["rows"]:
        assert min(row[key] for key in ("tasks_per_second", "function_us", "python_us")) > 0
        assert (row["set_ratio"] is not None) == HAS_TOOL
    assert len(found["sets"]) == (2 if HAS_TOOL else 0)
    assert len(found["lives"]) == 7
    assert all(life["server_us"] > 0 and life["function_us"] > 0 for life in found["lives"])
    assert found["growth"]["ratio"] == pytest.approx(
        found["growth"]["to_us"] / found["growth"]["from_us"], rel=0.01
    )
    assert [each["name"] for each in found["features"]] == [each.name for each in FEATURES]
    assert found["features"][0]["more_function_us"] == 0
    assert found["memory"]["bytes_per_task"] > 100
    assert found["latency"]["p50_ms"] > 0
    proof = found["proof"]
    assert (proof["appendonly"], proof["appendfsync"]) == ("yes", "everysec")
    assert proof["event_entries_written"] > 0
    assert proof["events_readable"]
    assert proof["finished_tasks_kept"] > 0
    assert found["aims"] == aims(found)
    assert len(found["aims"]) == 12

"""The tables say what was measured: medians, how far rounds differ, ratios, goals met or missed."""

from __future__ import annotations

import json

import pytest

from benchmarks.peers.catalog import FAIRLEAD, PEERS
from benchmarks.peers.goals import GOALS, best, judge
from benchmarks.peers.installation import Installed, Missing
from benchmarks.peers.measures import MEASURES, spread
from benchmarks.peers.report import Report, describe
from benchmarks.peers.rounds import Results, row_name

BY_NAME = {peer.name: peer for peer in PEERS}
FIGURES = {figure.key: figure for each in MEASURES for figure in each.figures}
KNOWN: dict[str, dict[str, list[float | None]]] = {
    "fairlead": {
        "processing": [50_000, 60_000, 40_000],
        "processing-2": [55_000, 54_000, 44_000],
        "p50": [1.0, 1.2, 0.8],
        "bytes": [320.0, 320.0, 320.0],
    },
    "fairlead, 1,000 tenants": {"processing": [25_000, 36_000, 24_000]},
    "fairlead, 10,000 tenants": {"processing": [10_000, 12_000, 8_000]},
    "bullmq": {
        "processing": [10_000, 10_000, 10_000],
        "processing-2": [9_000, None, 11_000],
        "p50": [2.0, 2.0, 2.0],
        "bytes": [700.0, 700.0, 700.0],
    },
    "rq": {"processing": [None, None, None], "p50": [0.5, 0.6, 0.4]},
}


def results() -> Results:
    found = Results()
    for row, figures in KNOWN.items():
        for key, values in figures.items():
            for value in values:
                found.add(row, key, value)
    found.troubles.append("rq, processing: 3 of 600 tasks ran")
    return found


def report() -> Report:
    return Report(
        results(),
        list(FIGURES.values()),
        [
            Installed(FAIRLEAD, ("python",), "fairlead 0.1.0"),
            Installed(BY_NAME["bullmq"], ("node",), "bullmq 6.7.0, ioredis 6.0.0"),
            Installed(BY_NAME["rq"], ("python",), "rq 2.12.0, redis 8.1.0"),
        ],
        [Missing(BY_NAME["sidekiq"], "it is not installed")],
        describe(server="Valkey 9.1.2", rounds=3, date="2026-11-18", load=(0.5, 1.25), cpus=2),
    )


def cells(text: str, first: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {first} ")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_medians_and_half_of_the_distance_between_rounds() -> None:
    shown = cells(report().tables().partition("best peer")[0], "Fairlead     ")
    assert shown[:5] == ["Fairlead", "0.1.0", "100", "50,000 ±20 %", "54,000 ±10 %"]
    assert "1.00 ±20 %" in shown
    assert shown[-1] == "320 ±0 %"
    assert cells(report().tables(), "Fairlead, 1,000 tenants")[3] == "25,000 ±24 %"


def test_a_round_that_failed_is_left_out_of_the_median() -> None:
    found = results()
    cell = found.cell("bullmq", "processing-2")
    assert cell is not None
    assert cell.median == 10_000
    assert cell.spread == pytest.approx(0.1)
    assert found.cell("rq", "processing") is None
    assert cells(report().tables(), "RQ ")[3] == "-"
    assert "- failed: rq, processing: 3 of 600 tasks ran" in report().tables()


def test_a_single_round_has_no_spread() -> None:
    found = Results()
    found.add("fairlead", "sync", 5.0)
    cell = found.cell("fairlead", "sync")
    assert cell == (5.0, None)
    assert spread([2.0, 4.0, 3.0]) == pytest.approx(1 / 3)


def test_ratios_are_of_figures_of_the_same_round() -> None:
    found = results()
    # 0.5, 0.6 and 0.6: the ratio of the medians would be 0.5.
    ratio = found.ratio("fairlead, 1,000 tenants", "processing", "fairlead")
    assert ratio is not None
    assert ratio.median == pytest.approx(0.6)
    gone = found.ratio("fairlead", "processing-2", "bullmq")
    assert gone is not None
    assert gone.median == pytest.approx((55 / 9 + 4) / 2)  # the second round has no other


def test_goals_are_met_at_their_very_value_or_only_beyond_as_they_say() -> None:
    verdicts = {
        each.goal.title: each.verdict for each in judge(results(), list(FIGURES.values()))
    }  # fmt: skip
    assert verdicts == {
        "processing, as a multiple of BullMQ": "met",  # 5 of 5
        "1,000 tenants, as a part of one": "met",
        "10,000 tenants, as a part of one": "missed",
        "2 processes, as a multiple of 1": "met",
        "idle latency p50, as a part of Sidekiq's": "not measured",
        "idle latency p99, as a part of Sidekiq's": "not measured",
        "one by one, sync, as a multiple of Sidekiq": "not measured",
        "50 callers, as a multiple of BullMQ": "not measured",
        "bulk, as a multiple of Sidekiq": "not measured",
        "bytes of a waiting task": "met",  # 320 of 320
    }
    by_title = {goal.title: goal for goal in GOALS}
    assert not by_title["2 processes, as a multiple of 1"].holds(1.0)
    assert not by_title["idle latency p50, as a part of Sidekiq's"].holds(1.0)


def test_a_goal_is_judged_only_if_its_figures_were_asked_for() -> None:
    asked = [FIGURES["processing-2"], FIGURES["bytes"]]
    assert [each.goal.key for each in judge(results(), asked)] == ["bytes"]


def test_the_best_peer_has_the_most_or_the_least_as_the_figure_wants_it() -> None:
    found = {each.figure.key: each for each in best(results(), list(FIGURES.values()))}
    assert found["processing"].peer == "bullmq"  # and not Fairlead with many tenants
    assert found["p50"].peer == "rq"
    assert found["p50"].ratio.median == pytest.approx(2.0)
    assert set(found) == {"processing", "processing-2", "p50", "bytes"}


def test_a_missing_peer_is_a_row_and_says_why() -> None:
    text = report().tables()
    assert cells(text, "Sidekiq")[1:] == ["not here", *"-" * 10]
    assert "- Sidekiq is not here: it is not installed" in text
    assert "not measured: Sidekiq is not here" in text


def test_every_line_of_a_table_has_the_same_columns() -> None:
    blocks = [block for block in report().tables().split("\n\n") if block.startswith("|")]
    assert len(blocks) == 3
    for block in blocks:
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_scripts_get_the_same_figures() -> None:
    found = json.loads(json.dumps(report().as_dict()))
    assert found["rounds"] == KNOWN
    assert found["rows"]["fairlead"]["processing"] == {"median": 50_000, "spread": 0.2}
    assert found["rows"]["rq"]["processing"] is None
    assert found["missing"] == {"sidekiq": "it is not installed"}
    assert found["versions"]["bullmq"] == "bullmq 6.7.0, ioredis 6.0.0"
    assert [each["verdict"] for each in found["goals"]].count("met") == 4
    assert found["troubles"] == ["rq, processing: 3 of 600 tasks ran"]


def test_rows_are_named_for_their_tenants() -> None:
    assert row_name("fairlead") == "fairlead"
    assert row_name("fairlead", 10_000) == "fairlead, 10,000 tenants"

"""The page about metrics says what the table in the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairlead.api import metrics as api_metrics
from fairlead.broker.stats import BUCKETS
from fairlead.telemetry import counters
from fairlead.telemetry.metrics_table import METRICS, Where
from tests.runtime.programs import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text()
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
HEADINGS: dict[Where, str] = {
    "broker": "## Of the broker",
    "process": "## Of each process",
    "worker": "## Of a worker",
}


@pytest.mark.parametrize("where", HEADINGS)
def test_each_table_is_that_of_the_code(where: Where) -> None:
    section = PAGE.partition(HEADINGS[where])[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `.+$", section, re.MULTILINE)
    expected = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{each}`' for each in metric.labels)}"
        f" | {metric.help} |"
        for metric in METRICS
        if metric.where == where
    ]
    assert rows == expected


def test_the_bounds_are_those_of_the_code() -> None:
    bounds = PAGE.partition("## Bounds")[2]
    for number in (
        api_metrics._MAX_QUEUES,
        api_metrics._MAX_LIMITERS,
        api_metrics._WORST,
        counters.MAX_TASKS,
        counters.MAX_QUEUES,
        counters.MAX_ROWS,
    ):
        assert f"{number:,}" in bounds
    assert f"{BUCKETS[-1]:,} s" in PAGE


def test_other_pages_name_only_metrics_that_exist() -> None:
    names = {metric.name for metric in METRICS}
    for page in ("how-to/metrics.md", "how-to/deploy.md"):
        text = (ROOT / "docs" / page).read_text()
        for name in re.findall(r"\b(?:fairlead|taskqueue)_[a-z_]+", text):
            stem = re.sub(r"_(bucket|sum|count)$", "", name)
            assert any(each.startswith(stem) for each in names), f"{page}: {name}"


@pytest.mark.parametrize("page", ["metrics", "tracing"])
def test_the_examples_print_what_the_page_says(page: str) -> None:
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
    found = re.findall(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    )
    assert found
    for program, printed in found:
        assert run(program) == printed

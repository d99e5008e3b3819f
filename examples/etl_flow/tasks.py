"""fairlead worker etl_flow.tasks:app"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from fairlead import Context, Fairlead, FlowHandle

app = Fairlead()


@app.task(queue="etl")
def count_file(path: str) -> dict[str, int]:
    """Add up the amounts of one file, by country."""
    found: Counter[str] = Counter()
    with Path(path).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["country"]] += int(row["amount"])
    return dict(found)


@app.task(queue="etl")
def join(ctx: Context) -> dict[str, int]:
    """Add up what all files came to."""
    total: Counter[str] = Counter()
    for counts in ctx.results.named("count_file"):
        total.update(counts)
    return dict(total)


@app.task(queue="etl")
def load(total: dict[str, int], target: str) -> str:
    """Write the report."""
    lines = [f"{country},{amount}" for country, amount in sorted(total.items())]
    Path(target).write_text("\n".join(["country,amount", *lines, ""]), encoding="utf-8")
    return target


def report(files: list[Path], target: Path) -> FlowHandle[str]:
    """Enqueue it all, or nothing: the files side by side, then what they come to."""
    joined = join.call()
    counted = [count_file.call(str(path)) for path in files]
    return app.enqueue_flow(counted >> joined >> load.call(joined.output, str(target)))

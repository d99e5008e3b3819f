"""The figures of a server as tables, and what they were meant to be."""

from __future__ import annotations

from typing import Any

__all__ = ("aims", "show")

_RATIOS = (0.8, 1.5, 1.2, None, 0.8, 0.5, 0.4)  # to SET, in the order of the rows
_SERVER_US = (15.0, 35.0, None, 60.0)  # of a whole life, in the order of the loads
_GROWTH = 2.0
_BYTES = 320
_MB = 1024 * 1024


def aims(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What was aimed at, what came out, and whether that is enough."""
    made: list[dict[str, Any]] = []

    def add(name: str, value: float | None, aim: float, *, unit: str, least: bool = False) -> None:
        if value is None:
            met = None
        else:
            met = value >= aim if least else value <= aim
        made.append(
            {"name": name, "unit": unit, "value": value, "aim": aim, "least": least, "met": met}
        )

    for row, ratio in zip(found["rows"], _RATIOS, strict=True):
        if ratio is not None:
            add(row["name"], row["set_ratio"], ratio, unit="x SET", least=True)
    for life, most in zip(found["lives"], _SERVER_US, strict=False):
        if most is not None:
            name = f"enqueue + settle + fetch, {life['name']}"
            add(name, life["server_us"], most, unit="server µs")
    growth, memory = found["growth"], found["memory"]
    name = f"{growth['to']} against {growth['from']}"
    add(name, growth["ratio"], _GROWTH, unit="x function µs")
    add("a task that waits", memory["bytes_per_task"], _BYTES, unit="bytes")
    name = f"memory after {memory['more']:,} more tasks"
    grown, allowed = (round(memory[f"{key}_bytes"] / _MB, 2) for key in ("grown", "allowed"))
    add(name, grown, allowed, unit="MB more")
    return made


def show(found: dict[str, Any]) -> None:
    """Print everything."""
    from fairlead.cli.common.tables import console, table

    out = console()
    machine, proof = found["machine"], found["proof"]
    rates = table(
        f"On a server ({found['server']}, Python {machine['python']}, {machine['cpus']} CPUs)",
        *("what", "tasks/s", "x SET", "server µs", "function µs", "Python µs"),
    )
    for row in (*found["sets"], *found["rows"]):
        ratio, python = row["set_ratio"], row["python_us"]
        rates.add_row(
            row["name"],
            f"{row['tasks_per_second']:,}",
            "" if ratio is None else f"{ratio:.2f}",
            f"{row['server_us']:.1f}",
            f"{row['function_us']:.1f}",
            "" if python is None else f"{python:.1f}",
        )
    out.print(rates)
    if not found["sets"]:
        out.print("redis-benchmark not found: no ratios\n")
    lives = table("From enqueue to settle, µs a task", "backlog", "server", "function")
    for life in found["lives"]:
        lives.add_row(life["name"], f"{life['server_us']:.1f}", f"{life['function_us']:.1f}")
    out.print(lives)
    features = table(
        "What features cost, µs a task, and how much more than plain tasks of the same round",
        *("feature", "function", "more", "server", "more"),
    )
    for each in found["features"]:
        features.add_row(
            each["name"],
            *(
                text
                for name in ("function_us", "server_us")
                for text in (f"{each[name]:.1f}", f"{each[f'more_{name}']:+.1f}")
            ),
        )
    out.print(features)
    wanted = table("Aims", "what", "figure", "aim", "unit", "")
    for aim in found["aims"]:
        wanted.add_row(
            aim["name"],
            "?" if aim["value"] is None else f"{aim['value']:,g}",
            f"{'≥' if aim['least'] else '≤'} {aim['aim']:,g}",
            aim["unit"],
            {True: "met", False: "missed", None: "not measured"}[aim["met"]],
        )
    out.print(wanted)
    wait, memory = found["latency"], found["memory"]
    out.print(
        f"Idle, from enqueue to the handler: p50 {wait['p50_ms']:.2f} ms, p99 "
        f"{wait['p99_ms']:.2f} ms, longest {wait['max_ms']:.2f} ms."
    )
    out.print(
        f"Used memory after {memory['first']:,} tasks were done: "
        f"{memory['before_bytes'] / _MB:.1f} MB, after {memory['more']:,} more: "
        f"{memory['after_bytes'] / _MB:.1f} MB."
    )
    out.print(
        f"All was on: appendonly {proof['appendonly']}, appendfsync {proof['appendfsync']} (the "
        f"file has {proof['aof_bytes'] / _MB:,.0f} MB and was rewritten {proof['aof_rewrites']} "
        f"times); {proof['event_entries_written']:,} entries "
        f"of events written and {proof['event_trims']:,} times trimmed; "
        f"{proof['finished_tasks_kept']:,} finished tasks kept."
    )

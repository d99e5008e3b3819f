"""The command line: what to measure, progress on stderr, and only the result on stdout."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import redis

from benchmarks.peers.catalog import FAIRLEAD, PEERS
from benchmarks.peers.installation import ROOT, Installed, Installer, Missing
from benchmarks.peers.measures import FULL, MEASURES, QUICK, Sizes
from benchmarks.peers.processes import Failure, Processes
from benchmarks.peers.report import Report, describe
from benchmarks.peers.rounds import measure
from benchmarks.peers.server import Server

__all__ = ("main",)

_FOLDER = ROOT / ".bench"

Named = TypeVar("Named")


def main(arguments: Sequence[str] | None = None) -> int:
    """Install, measure and print; return the exit code."""
    parser = _parser()
    said = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    sizes = _sizes(quick=said.quick, rounds=said.rounds, scale=said.scale)
    load = os.getloadavg()[0]
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    try:
        with Processes() as processes:
            installer = Installer(said.folder.absolute(), processes, _say)
            found = [installer.install(each) for each in (FAIRLEAD, *said.peers)]
            if isinstance(found[0], Missing):  # without it there is nothing to compare
                raise Failure(f"{FAIRLEAD.title}: {found[0].why}")
            here = [each for each in found if isinstance(each, Installed)]
            missing = [each for each in found if isinstance(each, Missing)]
            for each in missing:
                _say(f"{each.peer.title} is not here: {each.why}")
            server = Server(processes)
            try:
                results = measure(here, said.measures, sizes, server, processes, _say)
            finally:
                server.close()
    except (Failure, redis.RedisError) as failure:
        _say(f"failed: {failure}")
        return 1
    except KeyboardInterrupt:
        _say("stopped")
        return 130
    machine = describe(
        server=server.version, rounds=sizes.rounds, date=date, cpus=os.cpu_count() or 1,
        load=(load, os.getloadavg()[0]),
    )  # fmt: skip
    figures = [figure for each in said.measures for figure in each.figures]
    report = Report(results, figures, here, missing, machine)
    print(json.dumps(report.as_dict()) if said.json else report.tables())
    return 0


def _sizes(*, quick: bool, rounds: int | None, scale: float) -> Sizes:
    """Return how much is done; a smaller scale is for tests."""
    sizes = QUICK if quick else FULL
    return Sizes(
        rounds=rounds or sizes.rounds,
        share=sizes.share * scale,
        seconds=sizes.seconds * scale,
        paced=max(round(sizes.paced * scale), 5),
        filled=sizes.filled * scale,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench ARGS=peers",
        description="Measure Fairlead and other task queues on one server, in one run. "
        "What they need is installed into a folder of its own.",
    )
    parser.add_argument(
        "--peers", type=_chosen(PEERS, "peer"), default=PEERS, metavar="NAME,...",
        help=f"beside Fairlead: {', '.join(each.name for each in PEERS)} (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--measures", type=_chosen(MEASURES, "measure"), default=MEASURES, metavar="NAME,...",
        help=f"{', '.join(each.name for each in MEASURES)} (default: all)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=_positive, help="default: 3, and 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="one round with less of everything")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--folder", type=Path, default=_FOLDER, help="where peers are installed (default: .bench)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)
    return parser


def _chosen(every: Sequence[Named], what: str) -> Callable[[str], list[Named]]:
    """Return a reader of names, which keeps the order of the whole list."""
    by_name: dict[str, Named] = {getattr(each, "name"): each for each in every}  # noqa: B009

    def read(text: str) -> list[Named]:
        wanted = {name.strip() for name in text.split(",") if name.strip()}
        unknown = wanted - by_name.keys()
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))}: no such {what}; there are {', '.join(by_name)}"
            )
        return [each for name, each in by_name.items() if name in wanted]

    return read


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def _leave(number: int, _frame: object) -> None:
    """End as by an error: what was started is stopped on the way out."""
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)

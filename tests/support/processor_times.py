"""Say who took the processor: ``pytest --processor-times`` lists the files and tests with most.

Counted is what the test process and the processes that it started and waited for took, with what
is set up for a test and taken down after it. Servers that outlive their test are not counted.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from operator import itemgetter

import pytest

__all__ = ("ProcessorTimes",)

_MOST = 60
_NAME = "processor"


class ProcessorTimes:
    """The plugin that measures, in each process, and sums up in the first."""

    def __init__(self) -> None:
        self._tests: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        return (yield from self._measured(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        return (yield from self._measured(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        return (yield from self._measured(item))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A report has what was measured in all phases until then.
        if report.when == "teardown":
            for name, seconds in report.user_properties:
                if name == _NAME and isinstance(seconds, float):
                    self._tests[report.nodeid] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files: defaultdict[str, float] = defaultdict(float)
        for test, seconds in self._tests.items():
            files[test.partition("::")[0]] += seconds
        terminalreporter.section(f"processor time of tests: {sum(files.values()):.0f} s", "-")
        for table in (files, self._tests):
            for name, seconds in sorted(table.items(), key=itemgetter(1), reverse=True)[:_MOST]:
                terminalreporter.line(f"{seconds:7.2f} s  {name}")

    def _measured(self, item: pytest.Item) -> Generator[None]:
        before = _taken()
        try:
            return (yield)
        finally:
            item.user_properties.append((_NAME, _taken() - before))


def _taken() -> float:
    """Seconds of processor of this process and of the ended ones that it has waited for."""
    return sum(os.times()[:4])

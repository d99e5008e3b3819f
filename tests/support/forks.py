"""Run tests in several processes, forked from the one that has collected them.

Imports and collection happen once, and a fork begins at once: ``pytest --jobs 4``. A fork asks for
one test after the other, and always knows the next one, so that pytest keeps what both of them use.
Tests marked ``serial`` come after all the others, in two processes. One that fails there is run
once more, alone: it measures, and its neighbor may have been in the way. So is any test that fails
while the machine stands still, which no time limit survives. The summary lists what was run again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis.internal import charmap

from fairlead.broker.redis.scripts import libraries
from tests.support.order import Lanes, seconds_of

__all__ = ("Forks", "importing_from_the_end")

_SERIAL_JOBS = 2  # most of what the timing tests take is waiting
_END_SECONDS = 60.0  # for a fork that has run its last test: to tidy up and end
_LOOK_SECONDS = 0.05
_TICK_SECONDS = 0.25
_STANDSTILL_SECONDS = 2.0  # a tick that takes this long; a busy machine delays it by far less

_Report = dict[str, Any]


class Forks:
    """The plugin of the process that has collected the tests."""

    def __init__(self, config: pytest.Config, jobs: int) -> None:
        self._config, self._jobs = config, jobs
        self._forks: dict[Connection, _Fork] = {}
        self._again: dict[int, list[_Report]] = {}  # tests that are to be run alone, and why
        self._alone = False
        self._stood_still = 0.0  # when that was noticed last

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> object:
        """Run what was collected. In a fork this returns as well, and pytest ends there, too."""
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            return None  # pytest itself says so
        if session.config.option.collectonly:
            return None
        for script in libraries():
            assert script.source  # linked once for all forks, and in no call with a time limit
        reporter: Any = session.config.pluginmanager.getplugin("terminalreporter")
        reporter.showfspath = False  # tests of many files end at a time
        seconds = [seconds_of(item) for item in session.items]
        serial = [item.get_closest_marker("serial") is not None for item in session.items]
        for kind, jobs in ((False, self._jobs), (True, min(self._jobs, _SERIAL_JOBS))):
            numbers = [number for number, found in enumerate(serial) if found is kind]
            if not self._run_all(session, Lanes(numbers, seconds.__getitem__, jobs)):
                return True  # this is a fork
        self._alone = True
        for number in self._again:
            if not self._run_all(session, Lanes([number], seconds.__getitem__, 1)):
                return True
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the tests that failed beside a neighbor or in a standstill, with how."""
        for reports in self._again.values():
            for data in reports:
                first = self._config.hook.pytest_report_from_serializable(
                    config=self._config, data=data
                )
                if first.failed:
                    terminalreporter.section(f"run again alone: {first.nodeid}", "-")
                    terminalreporter.line(first.longreprtext)

    def _run_all(self, session: pytest.Session, lanes: Lanes[int]) -> bool:
        try:
            return self._run(session, lanes)
        finally:
            for fork in self._forks.values():
                fork.kill()
                fork.close()
            self._forks.clear()

    def _run(self, session: pytest.Session, lanes: Lanes[int]) -> bool:
        """Have a fork for each lane run its tests; return False in such a fork, after its last."""
        tick = time.monotonic()  # the first fork may run while the others are made
        for place in range(lanes.count):
            if not self._fork(session, lanes, place):
                return False
        while self._forks:
            heard = wait(list(self._forks), _TICK_SECONDS)
            before, tick = tick, time.monotonic()
            if tick - before > _STANDSTILL_SECONDS:
                self._stood_still = tick
            for connection in heard:
                assert isinstance(connection, Connection)
                if not self._hear(session, lanes, connection):
                    return False
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
        return True

    def _hear(self, session: pytest.Session, lanes: Lanes[int], connection: Connection) -> bool:
        """Take one answer of a fork, or see to it that another takes the place of one that died."""
        fork = self._forks[connection]
        try:
            reports = connection.recv()
        except (EOFError, ConnectionResetError):
            del self._forks[connection]
            with contextlib.closing(fork):
                if fork.has_ended_well():
                    return True
                self._take(session, fork, [self._obituary(session, fork)])
            for number in fork.orders:
                lanes.give_back(number)
            return self._fork(session, lanes, fork.place)
        self._take(session, fork, reports)
        fork.order(lanes.next(fork.place))
        return True

    def _take(self, session: pytest.Session, fork: _Fork, reports: list[_Report]) -> None:
        """Report what a fork says of its test, or have it run again."""
        number = fork.orders.pop(0)
        item = session.items[number]
        is_in_doubt = fork.began < self._stood_still or item.get_closest_marker("serial")
        fork.began = time.monotonic()
        failed = any(each["outcome"] == "failed" for each in reports)
        if failed and is_in_doubt and not self._alone:
            self._again[number] = reports
        else:
            self._report(item, reports)

    def _fork(self, session: pytest.Session, lanes: Lanes[int], place: int) -> bool:
        """Fork, and give the fork two tests; return False in the fork when all of its are done."""
        first = lanes.next(place)
        if first is None:
            return True
        output = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the fork lives
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for other in self._forks.values():
                other.close()
            self._forks.clear()  # they are not children of this process
            with theirs, output:
                _serve(session, theirs, output.fileno())
            return False
        theirs.close()
        fork = self._forks[ours] = _Fork(pid, place, ours, output)
        fork.order(first)
        fork.order(lanes.next(place))
        return True

    def _report(self, item: pytest.Item, reports: list[_Report]) -> None:
        hook = self._config.hook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in reports:
            report = hook.pytest_report_from_serializable(config=self._config, data=data)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _obituary(self, session: pytest.Session, fork: _Fork) -> _Report:
        """What there is to say of the test in which a fork died."""
        text = f"the test process ended with {fork.status}; it said:\n{fork.said()}"
        if not fork.orders:
            pytest.exit(f"after its last test {text}", pytest.ExitCode.INTERNAL_ERROR)
        item = session.items[fork.orders[0]]
        keywords: dict[str, Any] = dict.fromkeys(item.keywords, 1)
        report = pytest.TestReport(item.nodeid, item.location, keywords, "failed", text, "call")
        hook = self._config.hook
        data: _Report = hook.pytest_report_to_serializable(config=self._config, report=report)
        return data


class _Fork:
    """What the first process knows of one that runs tests."""

    def __init__(self, pid: int, place: int, connection: Connection, output: IO[bytes]) -> None:
        self.pid, self.place = pid, place
        self.orders: list[int] = []
        self.began = time.monotonic()  # its present test
        self.status = ""
        self._connection, self._output = connection, output

    def order(self, number: int | None) -> None:
        """Tell the fork which test comes after those it knows of; None: no other."""
        if number is not None:
            self.orders.append(number)
        with contextlib.suppress(BrokenPipeError):  # its end is heard next
            self._connection.send(number)

    def said(self) -> str:
        """Return what the fork wrote past pytest: the stacks of a test that took too long, say."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def has_ended_well(self) -> bool:
        """Wait for the end of a fork that says nothing any more."""
        until = time.monotonic() + _END_SECONDS
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = f"signal {-code}" if code < 0 else f"exit code {code}"
                return code in (0, 1) and not self.orders  # pytest's own codes
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                until = float("inf")
            time.sleep(_LOOK_SECONDS)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def close(self) -> None:
        self._connection.close()
        self._output.close()


class _Reports:
    """The plugin of a fork: what pytest says of the test that runs."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._found: list[_Report] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._found.append(hook.pytest_report_to_serializable(config=self._config, report=report))

    def take(self) -> list[_Report]:
        found, self._found = self._found, []
        return found


class _Silence:
    """In place of the terminal reporter of a fork: it says nothing, but can be written to."""

    def __init__(self, reporter: Any) -> None:
        self._tw = reporter._tw


def _serve(session: pytest.Session, orders: Connection, output: int) -> None:
    """In a fork: run what is ordered, until there is nothing more."""
    config = session.config
    config.workerinput = {}  # type: ignore[attr-defined]  # tells plugins that others sum up
    _begin_output_anew(config, output)
    reports = _Reports(config)
    config.pluginmanager.register(reports)
    number = orders.recv()
    while number is not None:
        following = orders.recv()
        nextitem = None if following is None else session.items[following]
        item = session.items[number]
        config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        orders.send(reports.take())
        number = following


def _begin_output_anew(config: pytest.Config, output: int) -> None:
    """Write to a file of this process, and have pytest capture in another: forks share theirs."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    os.dup2(output, 1)
    os.dup2(output, 2)
    capture.start_global_capturing()
    capture.suspend_global_capture()
    reporter = config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Silence(reporter), "terminalreporter")


@contextlib.contextmanager
def importing_from_the_end(config: pytest.Config) -> Iterator[None]:
    """Have a fork import what is collected meanwhile, the last file first, if several may work.

    Most of the first collection is to compile: each of the two finds what the other has compiled.
    Before that it has Hypothesis work out and store what text may consist of, once for all forks.
    """
    is_all = "tests" in [Path(arg).name for arg in config.args]
    pid = os.fork() if is_all and config.getoption("jobs") > 1 else None
    if pid == 0:
        charmap.intervals_from_codec("utf-8")
        for path in sorted(config.rootpath.glob("tests/**/test_*.py"), reverse=True):
            # What cannot be imported says so when it is collected.
            with contextlib.suppress(Exception, pytest.skip.Exception):
                import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))
        os._exit(0)
    try:
        yield
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

"""Run Django's own tests of tasks and of its two backends, with Fairlead's backend in their place.

    python -m tests.contrib.django_own_suite FOLDER [names of tests]

FOLDER is Django's source, which has the tests: `pip download --no-deps --no-binary :all: django`.
Exits with 0 if exactly the tests fail that are named here. Needs Django 6, so Python 3.12.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import django
from django.conf import settings

__all__ = ("CANNOT_PASS",)

#: Tests that cannot hold for a backend with a broker, and why.
CANNOT_PASS = {
    "DummyBackendTestCase.test_refresh_result": "writes into the list of the dummy's results",
    "DummyBackendTestCase.test_refresh_result_async": "the same",
    "DummyBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": (
        "here tasks wait for the commit, unless ON_COMMIT is False"
    ),
    "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": (
        "the same"
    ),
    "ImmediateBackendTestCase.test_cannot_get_result": "asserts that results cannot be read",
    "ImmediateBackendTestCase.test_cannot_refresh_result": "the same",
    "ImmediateBackendTestCase.test_cannot_pass_run_after": "asserts that tasks cannot be deferred",
    "ImmediateBackendTestCase.test_throws_keyboard_interrupt": (
        "expects the handler to run in the thread that enqueues"
    ),
}


def replace_backends() -> None:
    """Put Fairlead's backend where Django has its dummy and its immediate one."""
    from django.tasks.backends import dummy, immediate

    from fairlead import Fairlead
    from fairlead.contrib.django import FairleadBackend

    class InMemory(FairleadBackend):
        """One that keeps its tasks in this process, and is empty after `clear`."""

        app = Fairlead("memory://")

        @property
        def queue(self) -> Fairlead:
            return type(self).app

        def clear(self) -> None:
            self.app.purge()

        @property
        def results(self) -> list[Any]:
            with ThreadPoolExecutor(1) as thread:  # coroutines read it, too, which Fairlead refuses
                return thread.submit(self._queued).result()

        def _queued(self) -> list[Any]:
            return [self.get_result(task.id) for task in self.app.page(state="queued").tasks]

    class Served(InMemory):
        """One whose tasks have run when `enqueue` returns."""

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            if result.enqueued_at is not None:
                worker = threading.Thread(target=asyncio.run, args=(self.app.drain(),))
                worker.start()
                worker.join()
                result.refresh()
            return result

    dummy.DummyBackend = InMemory
    immediate.ImmediateBackend = Served


def main(folder: str, *names: str) -> int:
    sys.path[:0] = [str(Path(folder) / "tests")]
    settings.configure(
        USE_TZ=True,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["fairlead.contrib.django"],
        ALLOWED_HOSTS=["testserver"],
    )
    django.setup()
    replace_backends()
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{name}*" for name in names] or None
    suite = unittest.TestSuite(
        loader.loadTestsFromName(f"tasks.{module}")
        for module in ("test_tasks", "test_dummy_backend", "test_immediate_backend")
    )
    done = unittest.TextTestRunner(verbosity=1).run(suite)
    # A part of a test has its own name behind that of the test.
    whole = (case.id().partition(" ")[0] for case, _ in done.failures + done.errors)
    failed = {".".join(name.split(".")[-2:]) for name in whole}
    print(f"{done.testsRun} tests, {len(failed)} failed: {', '.join(sorted(failed))}")
    return int(not names and failed != CANNOT_PASS.keys())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Tasks, and a program that tries what Django's backends promise; run in a process of its own.

    python -m tests.contrib.django_tasks_project

Exits with 0 if all of it holds. Django is configured once for a process, so no test does it here.
"""

from __future__ import annotations

import asyncio
import os
import sys
import unittest
from datetime import timedelta
from typing import Any
from unittest import mock

import django
from django.conf import settings

BACKEND = {
    "BACKEND": "fairlead.contrib.django.FairleadBackend",
    "QUEUES": [],
    "OPTIONS": {"URL": "memory://"},
}
OTHER = {
    **BACKEND,
    "OPTIONS": {
        "URL": "memory://",
        "ON_COMMIT": False,
        "TENANT": "tests.contrib.django_tasks_project:tenant_of",
    },
}

if not settings.configured:
    settings.configure(
        USE_TZ=True,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["fairlead.contrib.django"],
        TASKS={"default": BACKEND, "other": OTHER},
    )
    django.setup()

from django.core.checks import Error
from django.db import connection, transaction
from django.utils import timezone

from fairlead import InvalidInput, Retry
from fairlead.contrib.django import FairleadBackend, api
from fairlead.testing import Kit

if api._IS_OWN:
    from django.tasks import task
else:
    from django_tasks import task


@task()
def noop(*args: Any, **kwargs: Any) -> None:
    return None


@task()
async def anoop(*args: Any, **kwargs: Any) -> None:
    return None


@task(priority=10)
def answer() -> int:
    return 42


@task()
def fails() -> None:
    raise ValueError("it failed")


@task()
def exits() -> None:
    raise SystemExit("it exits")


@task()
async def afails() -> None:
    raise ValueError(ValueError("inside"))


@task()
def odd() -> object:
    return {1, 2}


@task(takes_context=True)
def own_id(context: Any, attempt: int) -> str:
    assert context.attempt == attempt
    return str(context.task_result.id)


@task()
def again() -> None:
    raise Retry


def tenant_of(task: Any, args: list[Any], kwargs: dict[str, Any]) -> str:
    return str(kwargs["company"])


class BackendTests(unittest.TestCase):
    def setUp(self) -> None:
        self.kit = self.enterContext(Kit(api.task_backends["default"].queue))

    def finished(self, result: Any, *, status: str = "SUCCESSFUL") -> Any:
        self.kit.drain(raise_errors=False)
        result.refresh()
        self.assertEqual(result.status, status)
        self.assertTrue(result.is_finished)
        self.assertGreaterEqual(result.finished_at, result.started_at)
        self.assertEqual(result.last_attempted_at, result.started_at)
        self.assertEqual(result.attempts, 1)
        return result

    def test_all_that_a_backend_may_support_is_supported(self) -> None:
        backend = api.task_backends["default"]
        self.assertIsInstance(backend, FairleadBackend)
        self.assertTrue(backend.supports_defer)
        self.assertTrue(backend.supports_async_task)
        self.assertTrue(backend.supports_get_result)
        self.assertTrue(backend.supports_priority)
        self.assertEqual(list(backend.check()), [])

    def test_a_task_is_ready_then_successful(self) -> None:
        for each in (noop, anoop):
            result = each.enqueue(1, two=3)
            self.assertEqual((result.status, result.attempts), ("READY", 0))
            self.assertIsNotNone(result.enqueued_at)
            with self.assertRaisesRegex(ValueError, "not finished"):
                _ = result.return_value
            self.finished(result)
            self.assertIsNone(result.return_value)
            self.assertEqual(result.task, each)
            self.assertEqual((result.args, result.kwargs), ([1], {"two": 3}))

    def test_async_code_enqueues_and_reads_too(self) -> None:
        async def enqueue() -> Any:
            result = await answer.aenqueue()
            await self.kit.adrain()
            await result.arefresh()
            return result, await answer.aget_result(result.id)

        for result in asyncio.run(enqueue()):
            self.assertEqual(result.return_value, 42)

    def test_errors_are_told_with_their_class_and_traceback(self) -> None:
        for each, kind, text in (
            (fails, ValueError, "ValueError: it failed\n"),
            (exits, SystemExit, "SystemExit: it exits\n"),
            (afails, ValueError, "ValueError: inside\n"),
            (odd, TypeError, "Unsupported type: <class 'set'>\n"),
        ):
            result = self.finished(each.enqueue(), status="FAILED")
            (error,) = result.errors
            self.assertIs(error.exception_class, kind)
            self.assertTrue(error.traceback.endswith(text), error.traceback)
            with self.assertRaisesRegex(ValueError, "Task failed"):
                _ = result.return_value

    def test_a_context_names_the_task_and_the_attempt(self) -> None:
        result = own_id.enqueue(1)
        self.assertEqual(self.finished(result).return_value, result.id)

    def test_results_are_found_by_id_and_task(self) -> None:
        result = answer.enqueue()
        self.assertEqual(answer.get_result(result.id).task, answer)
        with self.assertRaises(api.TaskResultDoesNotExist):
            answer.get_result("123")
        with self.assertRaisesRegex(Exception, "Task does not match"):
            noop.get_result(result.id)

        def native(a: int, b: int, c: int) -> None: ...

        handle = self.kit.app.task(name="native")(native).enqueue(1, 2, 3)
        with self.assertRaises(api.TaskResultDoesNotExist):
            answer.get_result(handle.id)
        result = answer.enqueue()
        self.kit.app.handle(result.id).cancel()
        with self.assertRaises(api.TaskResultDoesNotExist):
            result.refresh()

    def test_a_result_is_the_same_wherever_it_is_read(self) -> None:
        result = answer.enqueue()
        self.assertEqual(answer.get_result(result.id), result)

    def test_a_clock_that_is_ahead_contradicts_no_start(self) -> None:
        with mock.patch("fairlead.contrib.django.backend.datetime") as clock:
            clock.now.return_value = timezone.now() + timedelta(hours=1)
            result = answer.enqueue()
        self.finished(result)
        self.assertLessEqual(result.enqueued_at, result.started_at)

    def test_run_after_is_waited_for(self) -> None:
        after = timezone.now() + timedelta(hours=1)
        result = answer.using(run_after=after).enqueue()
        self.assertEqual(self.kit.drain(), 0)
        self.assertEqual(answer.get_result(result.id).task.run_after, after)
        self.kit.clock.advance("61m")
        self.finished(result)

    def test_priorities_stand_for_levels_and_are_kept(self) -> None:
        levels = {100: "critical", 51: "critical", 50: "high", 0: "normal", -100: "low"}
        for number in levels:
            result = noop.using(priority=number).enqueue(number)
            self.assertEqual(noop.get_result(result.id).task.priority, number)
        found = {each.arguments["args"][0]: each.priority for each in self.kit.enqueued("noop")}
        self.assertEqual(found, levels)

    def test_a_task_waits_for_the_transaction(self) -> None:
        with transaction.atomic():
            result = answer.enqueue()
            self.assertIsNone(result.enqueued_at)
            self.kit.not_enqueued("answer")
        self.kit.enqueued("answer")
        self.assertIsNotNone(result.enqueued_at)
        self.assertEqual(answer.get_result(result.id), result)
        self.finished(result)
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            answer.enqueue()
            1 / 0  # noqa: B018
        self.assertEqual(len(self.kit.enqueued("answer")), 1)

    def test_no_connection_is_opened_outside_of_transactions(self) -> None:
        with mock.patch.object(connection, "ensure_connection") as opened:
            answer.enqueue()
        opened.assert_not_called()

    def test_options_choose_the_tenant_and_leave_transactions_alone(self) -> None:
        with transaction.atomic():
            other = noop.using(backend="other", queue_name="mail")
            result = other.enqueue(company="acme")
            (enqueued,) = self.kit.enqueued("noop")
        self.assertEqual((enqueued.tenant, enqueued.queue), ("acme", "mail"))
        self.assertEqual(self.finished(result).backend, "other")

    def test_signals_are_sent_in_order(self) -> None:
        seen: list[tuple[str, str, object]] = []

        def note(name: str) -> Any:
            return lambda sender, task_result, **_: seen.append((name, task_result.status, sender))

        for name in ("enqueued", "started", "finished"):
            signal, receiver = getattr(api, f"task_{name}"), note(name)
            signal.connect(receiver, weak=False)
            self.addCleanup(signal.disconnect, receiver)
        self.finished(fails.enqueue(), status="FAILED")
        self.assertEqual(
            seen,
            [
                ("enqueued", "READY", FairleadBackend),
                ("started", "RUNNING", FairleadBackend),
                ("finished", "FAILED", FairleadBackend),
            ],
        )

    def test_wrong_arguments_are_refused_at_once(self) -> None:
        with self.assertRaisesRegex(InvalidInput, "too many positional"):
            answer.enqueue(1)
        with self.assertRaises(TypeError):
            noop.enqueue(object())
        with self.assertRaisesRegex(Exception, "aware datetime"):
            answer.using(run_after=timezone.now().replace(tzinfo=None))

    def test_a_retry_that_is_not_allowed_is_a_failure(self) -> None:
        result = self.finished(again.enqueue(), status="FAILED")
        self.assertIs(result.errors[0].exception_class, Retry)

    def test_wrong_options_are_told_by_the_checks(self) -> None:
        for options, text in (
            ({"URI": "memory://"}, "URI"),
            ({"APP": "shop:app", "URL": "memory://"}, "APP names an app"),
            ({"ON_COMMIT": "never"}, "ON_COMMIT"),
        ):
            backend = FairleadBackend("default", {"OPTIONS": options})
            (found,) = backend.check()
            self.assertIsInstance(found, Error)
            self.assertIn(text, str(found.msg))

    def test_connections_are_looked_after(self) -> None:
        with mock.patch("fairlead.contrib.django.runs.close_old_connections") as closed:
            answer.enqueue()
            self.kit.drain()
        self.assertEqual(closed.call_count, 2)


if __name__ == "__main__":
    os.environ.setdefault("FAIRLEAD_URL", "memory://")
    # By its own name: a task is found by that of its module.
    unittest.main("tests.contrib.django_tasks_project", argv=[sys.argv[0], *sys.argv[1:]])

"""Django's tasks with Fairlead. Django is configured once for a process, so each has one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import server

pytest.importorskip("django", reason="Django is not installed")

ROOT = Path(__file__).parents[2]
MANAGE = (sys.executable, "-W", "error::ResourceWarning", "django_shop/manage.py")


def run(*command: str, folder: Path = ROOT, url: str = "memory://") -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "FAIRLEAD_URL": url},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_backend_keeps_what_django_says_of_backends() -> None:
    assert "Ran 18 tests" in run(sys.executable, "-m", "tests.contrib.django_tasks_project")


@pytest.mark.skipif("DJANGO_SOURCE" not in os.environ, reason="DJANGO_SOURCE names no source")
def test_the_tests_of_django_pass_but_those_that_are_known() -> None:
    run(sys.executable, "-m", "tests.contrib.django_own_suite", os.environ["DJANGO_SOURCE"])


def test_the_example_passes_its_tests() -> None:
    assert "Ran 3 tests" in run(*MANAGE, "test", "django_shop", folder=ROOT / "examples")


def test_the_settings_of_the_example_are_sound() -> None:
    assert "no issues" in run(*MANAGE, "check", folder=ROOT / "examples")


@pytest.mark.slow
def test_manage_py_starts_a_worker(tmp_path: Path) -> None:
    with server("valkey") as running:
        environment = {
            **os.environ,
            "FAIRLEAD_URL": running.url,
            "PYTHONPATH": str(ROOT / "examples"),
            "DJANGO_SETTINGS_MODULE": "django_shop.settings",
        }
        manage = [sys.executable, "-m", "django"]
        subprocess.run(
            [*manage, "migrate", "--run-syncdb"], cwd=tmp_path, env=environment, check=True
        )
        worker = subprocess.Popen(
            [*manage, "fairlead_worker", "--concurrency", "1"], cwd=tmp_path, env=environment
        )
        try:
            program = (
                "import django, time; django.setup()\n"
                "from django_shop.models import Order\n"
                "from django_shop.tasks import send_receipt\n"
                "result = send_receipt.enqueue(Order.objects.create(customer='Ada').pk)\n"
                "ends = time.monotonic() + 60\n"
                "while not result.is_finished and time.monotonic() < ends:\n"
                "    time.sleep(0.1); result.refresh()\n"
                "print(result.return_value, len(result.worker_ids[0]) > 0)\n"
            )
            done = subprocess.run(
                [sys.executable, "-c", program],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=90,
            )
            assert done.stdout == "receipt for Ada, attempt 1 True\n", done.stderr
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0

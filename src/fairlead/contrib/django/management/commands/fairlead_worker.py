"""``manage.py fairlead_worker``: run the tasks of a backend."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import click
from django.core.management.base import BaseCommand

from fairlead.contrib.django.api import task_backends
from fairlead.contrib.django.options import VARIABLE

_TARGET = "fairlead.contrib.django.worker:app"


class Command(BaseCommand):
    """Takes the options of `fairlead worker`, and hands them on."""

    help = "Run the tasks of a Fairlead backend; takes the options of `fairlead worker`."

    def run_from_argv(self, argv: list[str]) -> None:
        """Run with what was typed; only --backend is for this command itself."""
        parser = argparse.ArgumentParser(add_help=False)
        parser.add_argument("--backend", default="default")
        for name in ("--settings", "--pythonpath"):  # Django has seen to them
            parser.add_argument(name)
        said, options = parser.parse_known_args(argv[2:])
        sys.exit(self._run(said.backend, options))

    def handle(self, *args: Any, **options: Any) -> None:
        """Run from code: ``call_command("fairlead_worker")``."""
        self._run("default", [])

    def _run(self, alias: str, options: list[str]) -> int:
        from fairlead.cli.worker import worker

        os.environ[VARIABLE] = alias  # for the processes that run tasks
        served = sorted(task_backends[alias].queues)
        if served and not any(each.startswith(("-q", "--queues")) for each in options):
            options = ["--queues", ",".join(served), *options]
        try:
            code: int = worker.main([_TARGET, *options], "fairlead_worker", standalone_mode=False)
        except click.ClickException as error:
            error.show()
            return error.exit_code
        return code

"""Handlers in a context of Flask, and the worker that Flask's command line starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from flask import Flask, current_app, g

from fairlead import Fairlead, InvalidInput
from fairlead.contrib.flask import FlaskFairlead, get_app
from fairlead.testing import Kit
from tests.support.servers import server

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_each_attempt_has_a_context_of_its_own_in_threads_and_on_the_loop() -> None:
    with Kit() as kit:
        web = Flask("shop")
        FlaskFairlead(kit.app, web)

        @kit.app.task
        def in_thread() -> list[object]:
            g.seen = [*g.get("seen", []), "here"]
            return [current_app.name, g.seen]

        @kit.app.task
        async def on_loop() -> list[object]:
            g.seen = [*g.get("seen", []), "here"]
            return [current_app.name, g.seen]

        handles = [task.enqueue() for task in (in_thread, in_thread, on_loop, on_loop)]
        kit.drain()
        assert [handle.result() for handle in handles] == [["shop", ["here"]]] * 4


def test_a_context_is_left_when_the_handler_fails() -> None:
    left: list[BaseException | None] = []
    with Kit() as kit:
        web = Flask("shop")
        web.teardown_appcontext(left.append)
        FlaskFairlead(kit.app, web)

        @kit.app.task(max_retries=0)
        def fails() -> None:
            raise ValueError("no")

        fails.enqueue()
        with pytest.raises(ValueError, match="no"):
            kit.drain()
        assert len(left) == 1
        assert isinstance(left[0], ValueError)


def test_the_app_of_a_program_is_found_and_given_once() -> None:
    queue, web = Fairlead("memory://"), Flask("shop")
    with web.app_context(), pytest.raises(InvalidInput, match="init_app"):
        get_app()
    joined = FlaskFairlead(queue, web)
    with web.app_context():
        assert get_app() is queue
    with pytest.raises(InvalidInput, match="already"):
        joined.init_app(web)


@pytest.mark.slow
def test_the_command_line_of_flask_starts_a_worker() -> None:
    with server("valkey") as running:
        environment = {**os.environ, "FAIRLEAD_URL": running.url, "PYTHONPATH": str(EXAMPLES)}
        command = [sys.executable, "-m", "flask", "--app", "flask_shop.web:create_app()"]
        worker = subprocess.Popen(
            [*command, "fairlead", "worker", "--concurrency", "1"], env=environment
        )
        try:
            order = (
                "from flask_shop.web import create_app; create_app()\n"
                "from flask_shop.tasks import print_receipt\n"
                "print(print_receipt.enqueue(7).result(timeout=60))\n"
            )
            done = subprocess.run(
                [sys.executable, "-c", order],
                env=environment,
                capture_output=True,
                text=True,
                timeout=90,
            )
            assert done.stdout == "Ada's corner: order 7\n", done.stderr
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0

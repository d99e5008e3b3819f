"""Fairlead inside of Flask: handlers in an application context, and ``flask fairlead worker``."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator

import click
from flask import Flask, current_app
from flask.cli import AppGroup, ScriptInfo, pass_script_info

from fairlead.app import Fairlead
from fairlead.model.errors import InvalidInput
from fairlead.worker.config import slot_plan_of
from fairlead.worker.run.context import Context

_VARIABLE = "FLASK_APP"  # names the program, for the processes of a worker too
_NAME = "fairlead"  # of the extension, and of the group of commands


class FlaskFairlead:
    """Joins an app with Flask: ``flask_queue = FlaskFairlead(queue)`` at the top of its module.

    Handlers run inside of ``web.app_context()``, so that ``current_app`` and extensions such as
    Flask-SQLAlchemy work there; each attempt has a context of its own. In a worker the program is
    the one that ``init_app`` was called with, or else the one that ``flask --app`` or FLASK_APP
    names, which is made when the worker starts.
    """

    def __init__(self, queue: Fairlead, web: Flask | None = None) -> None:
        """Begin with a program, or call ``init_app`` later."""
        self.queue = queue
        self._web: Flask | None = None
        queue.on_startup(self.flask_program)
        queue.around_run(self._in_context)
        if web is not None:
            self.init_app(web)

    def init_app(self, web: Flask) -> None:
        """Tell the program of the app, and add the commands."""
        if _NAME in web.extensions:
            raise InvalidInput(f"this program has an extension {_NAME!r} already")
        self._web = web
        web.extensions[_NAME] = self.queue
        web.cli.add_command(_commands(self.queue))

    def flask_program(self) -> Flask:
        """Return the program, which is made if nobody has done that in this process."""
        if self._web is None:
            self._web = ScriptInfo(app_import_path=os.environ.get(_VARIABLE)).load_app()
        return self._web

    async def _in_context(self, ctx: Context) -> AsyncIterator[None]:
        with self.flask_program().app_context():
            yield


def get_app() -> Fairlead:
    """Return the app of the current Flask program."""
    found = current_app.extensions.get(_NAME)
    if not isinstance(found, Fairlead):
        raise InvalidInput("this program has no Fairlead app; call init_app of a FlaskFairlead")
    return found


def _commands(queue: Fairlead) -> click.Group:
    group = AppGroup(_NAME, help="Run tasks.")

    @group.command(
        "worker",
        context_settings={"ignore_unknown_options": True},
        with_appcontext=False,
        add_help_option=False,
    )
    @click.argument("options", nargs=-1, type=click.UNPROCESSED)
    @pass_script_info
    def worker(info: ScriptInfo, options: tuple[str, ...]) -> None:
        """Run the tasks of this program; takes the options of `fairlead worker`."""
        from fairlead.cli.worker import worker as command

        if info.app_import_path:
            os.environ[_VARIABLE] = info.app_import_path
        target = slot_plan_of(queue).app
        sys.exit(command.main([target, *options], f"flask {_NAME} worker", standalone_mode=False))

    return group

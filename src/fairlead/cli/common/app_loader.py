"""Finds the app that a command names: ``module:attribute``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.model.errors import FairleadError, InvalidInput

if TYPE_CHECKING:
    from fairlead.app import Fairlead

_ATTRIBUTE = "app"
_INSTALLED = (  # where code lies that is not the program's own
    str(Path(__file__).parents[2]),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


class CannotLoad(FairleadError):
    """The module of the app could not be imported; the cause says why."""


def check_target(target: str) -> str:
    """``module:attribute`` in full, or an error that says what is wrong with it."""
    module, _, attribute = target.partition(":")
    names = (*module.split("."), *(attribute or _ATTRIBUTE).split("."))
    if not all(name.isidentifier() for name in names):
        raise InvalidInput(
            f"APP {target!r} is not MODULE:ATTRIBUTE, such as shop.tasks:app "
            "(a module that can be imported from here, not the path of a file)"
        )
    return f"{module}:{attribute or _ATTRIBUTE}"


def load_app(target: str) -> Fairlead:
    """Import the app. The working directory is looked into first."""
    from fairlead.app import Fairlead

    module, _, attribute = check_target(target).partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if not _exists(module):
        raise InvalidInput(
            f"there is no module {module!r} that could be imported from {folder}"
            f"{_meant(module, _modules(Path(folder)))}"
        )
    found: object = None
    name = ""
    try:
        found = importlib.import_module(module)
        for name in attribute.split("."):
            if not hasattr(found, name):
                break
            found = getattr(found, name)  # which may run code, too: a module may make it now
        else:
            name = ""
    except (Exception, SystemExit) as error:
        # A syntax error says its place itself, and less well.
        said = str(error.msg if isinstance(error, SyntaxError) else error)
        text = f"{type(error).__name__}: {' '.join(said.split())}"
        raise CannotLoad(f"importing {module!r} failed: {text} ({_place(error)})") from error
    if name:
        hint = _meant(name, [each for each in dir(found) if not each.startswith("__")])
        apps = [each for each, value in _named(found) if isinstance(value, Fairlead)]
        if apps and not hint:
            hint = f"; its app is {' or '.join(apps)}"
        raise InvalidInput(f"module {module!r} has no {attribute!r}{hint}")
    if not isinstance(found, Fairlead):
        kind = type(found).__name__
        raise InvalidInput(f"{target!r} is of type {kind}, not an app: app = Fairlead(...)")
    return found


def _place(error: BaseException) -> str:
    """Say which line of the program an error comes from, and where it was raised beneath that."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:  # the line that cannot be read has none
        frames.append(traceback.FrameSummary(error.filename, error.lineno, "", lookup_line=False))
    raised = frames[-1]
    theirs = [frame for frame in frames if _is_of_the_program(frame.filename)]
    if not theirs or theirs[-1] is raised:
        return f"{raised.filename}, line {raised.lineno}"
    line = theirs[-1]
    if isinstance(error, FairleadError):  # its text says what is wrong; our own line helps nobody
        return f"{line.filename}, line {line.lineno}"
    return f"{line.filename}, line {line.lineno}; raised in {raised.filename}, line {raised.lineno}"


def _meant(name: str, known: Iterable[str]) -> str:
    # Here: the processes of a worker need no click.
    from fairlead.cli.common.commands import closest

    return closest(name, known)


def _modules(folder: Path) -> Iterator[str]:
    """The modules and packages of a folder, which are what people mean who run a command there."""
    try:
        for each in folder.iterdir():
            if each.suffix == ".py" or (each / "__init__.py").is_file():
                yield each.stem
    except OSError:  # a folder that may not be read: there is an error to tell already
        return


def _named(found: object) -> Iterable[tuple[str, object]]:
    """What a module or an object has, without running code of it."""
    own: dict[str, object] = getattr(found, "__dict__", {})
    return own.items()


def _is_of_the_program(filename: str) -> bool:
    """Whether a file is neither Fairlead's nor Python's nor that of an installed package."""
    return not filename.startswith((*_INSTALLED, "<"))


def check_named(app: Fairlead, target: str, url: str) -> None:
    """Refuse an app that names another broker in its code than --url does.

    Options behind the address may differ: an app adds its own shards and routes.
    """
    if app._url is None or app._url.partition("?")[0] != url.partition("?")[0]:
        raise InvalidInput(
            f"{target!r} names its broker itself; leave --url out, or let the app take it from "
            "FAIRLEAD_URL: app = Fairlead()"
        )


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package on the way to it
        return False
    except Exception:  # noqa: BLE001 - a package on the way runs its own code; the import tells
        return True

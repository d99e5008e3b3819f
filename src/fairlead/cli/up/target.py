"""What ``fairlead up`` is about: which app, which broker, and which ledger."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fairlead.cli.common.app_loader import check_named, load_app
from fairlead.cli.common.broker_option import broker_url
from fairlead.embedded.options import DEFAULT_PATH, KNOWN, SCHEME, Options, parse_embedded
from fairlead.model.errors import InvalidInput
from fairlead.settings import VARIABLE, configured, configured_ledger

if TYPE_CHECKING:
    from fairlead.app import Fairlead


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """An app and its servers. No URL: a server of its own is started in ``folder``."""

    app: str | None
    url: str | None
    ledger: str | None
    folder: Path  # of the state
    options: Options = {}  # of the server that is started there
    more: str = ""  # options of the broker, behind the URL of that server


def find_target(app: str | None, url: str | None) -> Target:
    """Return what is named: --url, else what the app says, else the environment or the file.

    Raises ``InvalidInput`` for a broker that other processes cannot use, and for an app that names
    another broker than --url.
    """
    ledger = configured_ledger()
    if app is None:
        found = broker_url(url)[0] if url or configured().url else None
    else:
        if url is not None:
            os.environ[VARIABLE] = url  # as the processes that are started find it
        loaded = load_app(app)
        found, ledger = _url_of(loaded, app), loaded._clients.ledger_url
        if url is not None:
            check_named(loaded, app, url)
    if found is None or found.partition("://")[0].lower() != SCHEME:
        return Target(app=app, url=found, ledger=ledger, folder=Path(DEFAULT_PATH).absolute())
    head, _, query = found.partition("?")
    said = query.split("&") if query else []
    own = [each for each in said if each.partition("=")[0] in KNOWN]
    folder, options = parse_embedded(f"{head}?{'&'.join(own)}" if own else head)
    return Target(
        app=app,
        url=None,
        ledger=ledger,
        folder=folder.absolute(),
        options=options,
        more="&".join(each for each in said if each not in own),
    )


def _url_of(app: Fairlead, target: str) -> str | None:
    if app._url is None or app._url.lower().startswith("memory:"):
        raise InvalidInput(
            f"{target!r} keeps its tasks inside of one process, where no other can run them; "
            "give the app the URL of a server, or none"
        )
    return app._url if app._is_named else None

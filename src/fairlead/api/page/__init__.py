"""The status page: a few small files of our own, and where they are served.

Start with ``index.html`` and ``page.js``; ``static_files`` says how they are served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.api.http.mount import Application, Mount
from fairlead.api.page.static_files import StaticFiles

if TYPE_CHECKING:
    from fairlead.api.service import Service

_BELOW = "/static/"
_STATIC = (
    "page.css", "page.js", "board.js", "connection.js", "drawings.js", "fields.js", "shares.js",
    "table.js", "values.js", "icon.svg",
)  # fmt: skip


def _index(service: Service) -> Application:
    return StaticFiles(service.settings.prefix, {"/": "index.html"})


def _static(service: Service) -> Application:
    return StaticFiles(service.settings.prefix, {f"{_BELOW}{name}": name for name in _STATIC})


#: Neither asks for a token: the files hold no data. What they show, the page reads with a token.
MOUNTS = (
    Mount(path="/", make=_index, summary="The status page"),
    Mount(path=_BELOW, make=_static, summary="The script and the style of the status page"),
)

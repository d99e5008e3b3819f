"""A process that dies while it drains, see ``tests.support.deaths``.

It adopts what is in a spool and sends it, as the next program on that folder would.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairlead.broker import connect
from fairlead.fallback.drainer import Drainer
from fairlead.fallback.fallback import Fallback, FallbackOptions
from tests.support.deaths import serve


async def _drain(order: dict[str, Any]) -> None:
    store = connect(order["url"])
    # On a busy machine a server that is slow is not away.
    options = FallbackOptions(directory=Path(order["folder"]), silence=15.0, is_kept=False)
    fallback = Fallback(store, options)
    fallback.spool.adopt()
    drainer = Drainer(fallback)
    while await drainer.step():
        pass
    await fallback.close()
    await store.close()


if __name__ == "__main__":
    serve(_drain)

"""A process that dies as a manager does, see ``tests.support.deaths``.

It takes the leadership, and sends all that is due, or records all that happened.
"""

from __future__ import annotations

from typing import Any

from fairlead.broker import connect
from fairlead.ledger.ledger import Ledger
from fairlead.runtime import fault_injection
from tests.manager.bench import Bench
from tests.support.deaths import serve


async def _manage(order: dict[str, Any]) -> None:
    store = connect(order["url"])
    async with Ledger(order["dsn"]) as ledger:
        bench = Bench(store, ledger, order["dsn"])
        term = await bench.lead("killed")
        if (
            fault_injection._fault is not None
            and fault_injection._fault[0] in fault_injection.RECORDING
        ):
            await bench.recorder(term, batch=8, page=8).catch_up()
        else:
            await bench.dispatcher(term, batch=4).dispatch_all()
    await store.close()


if __name__ == "__main__":
    serve(_manage)

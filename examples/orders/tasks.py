"""fairlead worker orders.tasks:app, and fairlead manager orders.tasks:app"""

from __future__ import annotations

import psycopg

from fairlead import Fairlead, Handle

app = Fairlead()  # FAIRLEAD_LEDGER names the database of the shop
TABLE = "create table if not exists orders (id integer primary key, customer text, billed boolean)"


@app.task(queue="billing")
def bill(database: str, order: int) -> str:
    """Bill an order; billing it a second time changes nothing."""
    with psycopg.connect(database) as connection:
        changed = connection.execute(
            "update orders set billed = true where id = %s and not billed", [order]
        )
        return "billed" if changed.rowcount else "was billed before"


def place(database: str, order: int, customer: str) -> Handle[str]:
    """Write an order, and in the same transaction the task that bills it."""
    with psycopg.connect(database) as connection:
        connection.execute("insert into orders values (%s, %s, false)", [order, customer])
        handle = bill.using(tx=connection, id=f"bill-{order}").enqueue(database, order)
        if not customer:
            raise ValueError("an order needs a customer")  # and nothing of it is kept
    return handle

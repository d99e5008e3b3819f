"""Orders about many tasks: as many calls as a broker needs for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fairlead.broker.numbered_calls import Caller
from fairlead.broker.protocol import Broker
from fairlead.broker.requests import MAX_STEP, Alter, Altered
from fairlead.model.errors import BrokerError


async def alter_all(store: Broker, caller: Caller, orders: Sequence[Alter]) -> list[Altered]:
    """Give orders until each has been looked at; return one answer per order, none ``later``.

    What goes wrong is raised with the ids of its call.
    """
    answers: dict[int, Altered] = {}
    left = [*range(len(orders))]
    while left:
        places, left = left[:MAX_STEP], left[MAX_STEP:]
        part = [orders[place] for place in places]
        try:
            found = await caller.call(partial(store.alter, orders=part))
        except BrokerError as error:
            error.ids = tuple(order.id for order in part)
            raise
        answers |= zip(places, found, strict=True)
        left = [place for place in places if answers[place].code == "later"] + left
    return [answers[place] for place in range(len(orders))]

"""In which order a worker looks into its queues: as given, or by weight.

A fetch empties the first queue of the order before it looks into the second, and so on until it
is full. Strict order leaves it at that. Weighted order is stride scheduling: every task taken
moves its queue on by ``1 / weight``, and the queue that is furthest behind comes first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import Protocol

from fairlead.model.errors import InvalidOption, TooLarge
from fairlead.model.names import check_queue

MAX_QUEUES = 1000

_UNIT = 2**64  # of a pass, per task of the heaviest queue: integers neither drift nor overflow


class QueueOrder(Protocol):
    """Tells a worker where to look next, and learns what it found there."""

    def order(self) -> tuple[str, ...]:
        """Return all queues, the one to look into first at the front."""
        ...

    def record(self, got: Mapping[str, int], empty: Collection[str] = ()) -> None:
        """Take note of one fetch in the last order.

        ``got`` counts the tasks taken per queue. ``empty`` names the queues that were looked into
        and have nothing more to give, whether or not they gave something first. Queues that the
        full fetch never came to are in neither.
        """
        ...


class StrictOrder:
    """The order as given, always: a later queue is served only while the earlier ones are empty."""

    def __init__(self, queues: Iterable[str]) -> None:
        self._queues = strict(queues)

    def order(self) -> tuple[str, ...]:
        """Return the queues as given."""
        return self._queues

    def record(self, got: Mapping[str, int], empty: Collection[str] = ()) -> None:
        """Check the names and counts; nothing that was found changes a strict order."""
        _check_found(got, empty, self._queues)


class WeightedOrder:
    """Shares the worker between the queues that have work, in proportion to their weights.

    Each queue has a pass; the lowest is first. A pass starts as if half of ``largest_fetch`` had
    been charged, which centers the error: while all queues have work, none is further from its
    exact share of the tasks than ``largest_fetch / 2 * (1 + share * (queues - 2))``, whatever
    the sizes of the fetches. With weights 6:3:1 that is at most 0.8 fetches; starting at zero it
    would be 1.2.

    A queue found empty is lifted to the lowest pass of the others: it saves up nothing while it
    is idle, yet has its turn soon when there is work again. One that was not looked into keeps
    its pass and thus its claim. When all are empty nobody has a claim, and all start anew.
    """

    def __init__(self, weights: Mapping[str, float], *, largest_fetch: int = 128) -> None:
        _check_queues(weights)
        for queue, weight in weights.items():
            _check_weight(queue, weight)
        if largest_fetch < 1:
            raise InvalidOption("largest_fetch", largest_fetch, "1 or more")
        heaviest = Fraction(max(weights.values()))
        self._strides = {q: round(_UNIT * heaviest / Fraction(w)) for q, w in weights.items()}
        self._start = {q: stride * largest_fetch // 2 for q, stride in self._strides.items()}
        self._passes = dict(self._start)

    def order(self) -> tuple[str, ...]:
        """Return the queues by pass; those with the same pass as they were given."""
        return tuple(sorted(self._passes, key=self._passes.__getitem__))

    def record(self, got: Mapping[str, int], empty: Collection[str] = ()) -> None:
        """Charge each queue for what it gave, and let the empty ones save up nothing."""
        _check_found(got, empty, self._passes)
        for queue, count in got.items():
            self._passes[queue] += count * self._strides[queue]
        with_work = self._passes.keys() - set(empty)
        if not with_work:
            self._passes = dict(self._start)
            return
        lowest = min(self._passes[queue] for queue in with_work)
        for queue in empty:
            self._passes[queue] = max(self._passes[queue], lowest)


def strict(queues: Iterable[str]) -> tuple[str, ...]:
    """Return the queues as given, once it is clear that they can be an order."""
    given = tuple(queues)
    _check_queues(given)
    for i, queue in enumerate(given):
        if queue in given[:i]:
            raise InvalidOption("queues", queue, "a list that names each queue once")
    return given


def parse_queues(text: str) -> dict[str, float]:
    """Read ``high=6,low=1`` from the command line; a queue without a weight has weight 1."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not name:
            raise InvalidOption("queues", part.strip(), "NAME or NAME=WEIGHT, between commas")
        check_queue(name)
        if name in weights:
            raise InvalidOption("queues", part.strip(), "a list that names each queue once")
        try:
            weights[name] = float(number) if equals else 1.0
        except ValueError:
            raise InvalidOption(
                "queues", part.strip(), "NAME=WEIGHT, the weight a number"
            ) from None
        _check_weight(name, weights[name])
    _check_queues(weights)
    return weights


def _check_queues(queues: Collection[str]) -> None:
    if not queues:
        raise InvalidOption("queues", list(queues), "at least one queue")
    if len(queues) > MAX_QUEUES:
        raise TooLarge("list of queues", len(queues), MAX_QUEUES, "queues")
    for queue in queues:
        check_queue(queue)


def _check_weight(queue: str, weight: float) -> None:
    if not (math.isfinite(weight) and weight > 0):
        raise InvalidOption(f"weight of queue {queue!r}", weight, "positive and finite")


def _check_found(got: Mapping[str, int], empty: Iterable[str], known: Collection[str]) -> None:
    for queue in (*got, *empty):
        if queue not in known:
            raise InvalidOption("queue", queue, "one of the queues of this order")
    for queue, count in got.items():
        if count < 0:
            raise InvalidOption(f"count of queue {queue!r}", count, "0 or more")

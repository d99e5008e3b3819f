"""Dependencies within one batch or flow: an order that respects them, or the cycle in it."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter

from fairlead.model.errors import DependencyCycle


def topological_sort(edges: Mapping[str, Collection[str]]) -> list[str]:
    """Return all nodes, each after the nodes it depends on.

    ``edges`` maps a node to what it depends on. Of the nodes that could come next, the one given
    first does, so nodes free to keep their relative place do, and a valid order comes back
    unchanged. Dependencies that are no nodes here are ids that exist already and are ignored.
    Raises ``DependencyCycle`` with the path of one cycle, in which each node depends on the next.
    """
    place = {node: i for i, node in enumerate(edges)}
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(edges, ()))
    for node, dependencies in edges.items():
        sorter.add(node, *(other for other in dependencies if other in place))
    try:
        sorter.prepare()
    except CycleError as error:
        # graphlib lists each node before the one that depends on it: the other way round.
        raise DependencyCycle(error.args[1][::-1]) from None

    ready: list[tuple[int, str]] = []
    ordered: list[str] = []
    while sorter.is_active():
        for node in sorter.get_ready():
            heapq.heappush(ready, (place[node], node))
        _, node = heapq.heappop(ready)
        ordered.append(node)
        sorter.done(node)
    return ordered

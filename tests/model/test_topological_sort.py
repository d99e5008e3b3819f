from __future__ import annotations

import time
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.errors import DependencyCycle, FairleadError
from fairlead.model.topological_sort import topological_sort

Edges = dict[str, list[str]]


@st.composite
def graphs(draw: st.DrawFn, acyclic: bool = False) -> Edges:
    """Nodes in some order, with dependencies on any of them and on ids that are no nodes."""
    nodes = draw(st.lists(st.integers(0, 40), max_size=15, unique=True))
    edges: Edges = {}
    for node in nodes:
        allowed = [other for other in nodes if other < node] if acyclic else nodes
        some = draw(st.lists(st.sampled_from(allowed), max_size=4)) if allowed else []
        edges[f"n{node}"] = [f"n{other}" for other in some] + draw(st.just([]) | st.just(["old"]))
    return edges


def assert_sorted(edges: Edges, result: list[str]) -> None:
    assert sorted(result) == sorted(edges)
    place = {node: i for i, node in enumerate(result)}
    for node, dependencies in edges.items():
        assert all(place[other] < place[node] for other in dependencies if other in place)


def assert_cycle(edges: Edges, path: tuple[str, ...]) -> None:
    assert len(path) >= 2
    assert path[0] == path[-1]
    assert all(after in edges[before] for before, after in pairwise(path))
    assert len(set(path)) == len(path) - 1  # one turn, no more


def test_dependencies_come_first() -> None:
    edges = {
        "load": ["clean", "enrich"],
        "clean": ["extract"],
        "enrich": ["extract"],
        "extract": [],
    }
    assert topological_sort(edges) == ["extract", "clean", "enrich", "load"]


def test_nodes_without_dependencies_here_keep_their_relative_place() -> None:
    assert topological_sort({"late": ["b"], "c": [], "a": ["elsewhere"], "b": []}) == [
        "c",
        "a",
        "b",
        "late",
    ]


def test_unknown_dependencies_are_ignored() -> None:
    assert topological_sort({"a": ["old"], "b": ["a", "older"]}) == ["a", "b"]


def test_nothing_sorts_to_nothing() -> None:
    assert topological_sort({}) == []


def test_a_cycle_is_refused_with_its_path() -> None:
    with pytest.raises(DependencyCycle) as caught:
        topological_sort({"free": [], "a": ["b", "free"], "b": ["c"], "c": ["a"]})
    assert_cycle({"a": ["b"], "b": ["c"], "c": ["a"]}, caught.value.path)
    assert " -> ".join(caught.value.path) in str(caught.value)
    assert isinstance(caught.value, FairleadError)
    assert isinstance(caught.value, ValueError)


def test_a_node_that_depends_on_itself_is_a_cycle() -> None:
    with pytest.raises(DependencyCycle, match="a -> a") as caught:
        topological_sort({"b": [], "a": ["b", "a"]})
    assert caught.value.path == ("a", "a")


@given(graphs(acyclic=True))
def test_a_graph_without_cycles_is_sorted(edges: Edges) -> None:
    assert_sorted(edges, topological_sort(edges))


@given(graphs(acyclic=True))
def test_a_valid_order_comes_back_unchanged(edges: Edges) -> None:
    valid = {node: edges[node] for node in topological_sort(edges)}
    assert topological_sort(valid) == list(valid)


@given(graphs(acyclic=True))
def test_roots_keep_their_order(edges: Edges) -> None:
    roots = [node for node, others in edges.items() if not set(others) & edges.keys()]
    assert [node for node in topological_sort(edges) if node in roots] == roots


@given(graphs(acyclic=True))
def test_the_kind_and_order_of_the_collections_do_not_matter(edges: Edges) -> None:
    assert topological_sort(
        {node: frozenset(others) for node, others in edges.items()}
    ) == topological_sort(edges)


@given(graphs(), st.data())
def test_a_planted_cycle_is_refused_with_a_path_that_is_one(
    edges: Edges, data: st.DataObject
) -> None:
    nodes = [*edges, "x", "y"]
    edges |= {"x": [], "y": []}
    ring = data.draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True))
    for node, other in zip(ring, [*ring[1:], ring[0]], strict=True):
        edges[node].append(other)
    with pytest.raises(DependencyCycle) as caught:
        topological_sort(edges)
    assert_cycle(edges, caught.value.path)


@given(graphs())
def test_it_agrees_with_graphlib_on_what_is_a_cycle(edges: Edges) -> None:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError:
        with pytest.raises(DependencyCycle):
            topological_sort(edges)
    else:
        assert_sorted(edges, topological_sort(edges))


@pytest.mark.parametrize("closed", [False, True], ids=["chain", "ring"])
def test_ten_thousand_in_a_chain_take_less_than_a_second(closed: bool) -> None:
    size = 10_000
    edges = {
        f"n{i}": [f"n{other}" for other in (i + 1, i + 2, i + 3) if other < size]
        for i in range(size)
    }
    if closed:
        edges[f"n{size - 1}"] = ["n0"]
    begun = time.process_time()
    if closed:
        with pytest.raises(DependencyCycle) as caught:
            topological_sort(edges)
        assert_cycle(edges, caught.value.path)
    else:
        assert topological_sort(edges) == [f"n{i}" for i in reversed(range(size))]
    assert time.process_time() - begun < 1  # of our own: the machine may be busy

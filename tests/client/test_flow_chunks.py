"""A large flow is written in parts."""

from __future__ import annotations

from fairlead.client.flow_chunks import flow_chunks
from tests.support.store import submit


def test_parts_are_cut_by_members_edges_and_bytes() -> None:
    many = [submit(f"{n:032x}") for n in range(1_200)]
    assert [len(part) for part in flow_chunks(many)] == [500, 500, 200]
    wide = [submit(f"{n:032x}", after=[f"p{k}" for k in range(900)]) for n in range(5)]
    assert [len(part) for part in flow_chunks(wide)] == [2, 2, 1]
    big = [submit(f"{n:032x}", body=b"." * 1_000_000) for n in range(9)]
    assert [len(part) for part in flow_chunks(big)] == [4, 4, 1]

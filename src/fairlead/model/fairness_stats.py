"""How fair a distribution is."""

from __future__ import annotations

from collections.abc import Mapping


def jain(counts: Mapping[str, float], weights: Mapping[str, float] | None = None) -> float | None:
    """Jain's index of what each got for its weight: 1.0 if all got the same, 1/n if one got all.

    Who is not in ``weights`` weighs 1. None if nobody got anything. It says nothing of those who
    did not want more: compare tenants that had work waiting.
    """
    shares = [count / (weights or {}).get(name, 1.0) for name, count in counts.items()]
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else None

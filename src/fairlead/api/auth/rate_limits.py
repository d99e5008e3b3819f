"""How often callers may ask: a bucket for each token and each tenant, in this process."""

from __future__ import annotations

import time
from collections import OrderedDict

from fairlead.api.http.problems import TooManyRequests
from fairlead.api.http.route import Access

_MOST = 10_000  # buckets of one kind; the one that was used the longest ago goes
_LEAST_BURST = 10.0


class Buckets:
    """Token buckets by name; their number is bounded."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # level, when

    def take(self, name: str, rate: float, burst: float) -> float:
        """Take one; 0 if there was one, else the seconds until there is one."""
        now = time.monotonic()
        level, at = self._levels.get(name, (burst, now))
        level = min(burst, level + (now - at) * rate)
        taken = level >= 1.0
        self._levels[name] = level - 1.0 if taken else level, now
        self._levels.move_to_end(name)
        if len(self._levels) > self._most:
            self._levels.popitem(last=False)
        return 0.0 if taken else (1.0 - level) / rate

    def left(self, name: str, rate: float, burst: float) -> float:
        """How many there are, without taking one."""
        found = self._levels.get(name)
        if found is None:
            return burst
        return min(burst, found[0] + (time.monotonic() - found[1]) * rate)


class Rates:
    """The limits of requests that are let in. None: no limit."""

    def __init__(self, token_rate: float | None, tenant_rate: float | None) -> None:
        self._token_rate, self._tenant_rate = token_rate, tenant_rate
        self._tokens, self._tenants = Buckets(), Buckets()

    def check(self, access: Access, rate: float | None) -> None:
        """Raise ``TooManyRequests`` if a token (with a rate of its own), or its tenant, is over."""
        own = self._token_rate if rate is None else rate
        if own is not None:
            _refuse(self._tokens.take(access.token, own, max(own, _LEAST_BURST)), "token", own)
        if self._tenant_rate is not None and access.tenant is not None:
            rate = self._tenant_rate
            late = self._tenants.take(access.tenant, rate, max(rate, _LEAST_BURST))
            _refuse(late, "tenant", rate)


def _refuse(late: float, whose: str, rate: float) -> None:
    if late:
        raise TooManyRequests(
            f"this {whose} asks more than {rate:g} times a second",
            field=whose,
            rule=f"at most {rate:g} a second in each process",
            retry_after=late,
        )

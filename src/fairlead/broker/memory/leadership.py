"""Leadership in memory: who holds which name, and until when."""

from __future__ import annotations

from fairlead.broker.leadership import MAX_LEADERS, Leadership, too_many_leaders


class Leaders:
    """By name. One whose time is over is there until another one comes, or room is needed."""

    def __init__(self) -> None:
        self.held: dict[str, Leadership] = {}

    def lead(self, name: str, holder: str, ttl: float, number: int, now: float) -> Leadership:
        """Hold a name unless another holder does; ``number`` is the term of a new holder."""
        found = self._in_force(name, now)
        if found is not None and found.holder != holder:
            return _seen(found, now)
        if name not in self.held and len(self.held) >= MAX_LEADERS:
            self._make_room(now)
        term = number if found is None else found.term
        held = Leadership(term=term, holder=holder, until=now + ttl, now=now)
        self.held[name] = held
        return held

    def release(self, name: str, holder: str, now: float) -> Leadership:
        """Give a name up if this is its holder."""
        found = self._in_force(name, now)
        if found is not None and found.holder != holder:
            return _seen(found, now)
        if found is not None:
            del self.held[name]
        return Leadership(term=0, holder="", until=now, now=now)

    def _in_force(self, name: str, now: float) -> Leadership | None:
        found = self.held.get(name)
        return found if found is not None and found.until > now else None

    def _make_room(self, now: float) -> None:
        kept = {name: each for name, each in self.held.items() if each.until > now}
        if len(kept) >= MAX_LEADERS:
            raise too_many_leaders()
        self.held = kept


def _seen(found: Leadership, now: float) -> Leadership:
    return Leadership(term=found.term, holder=found.holder, until=found.until, now=now)

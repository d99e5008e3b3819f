"""What a role of the manager has done, for people: plain numbers by name."""

from __future__ import annotations

from typing import Any


class Counts:
    """Numbers that grow, and facts that are replaced. One for each role and process."""

    def __init__(self, role: str, *names: str) -> None:
        """``names`` are counted from 0, so that each is shown before it has grown."""
        self.role = role
        self._values: dict[str, Any] = dict.fromkeys(names, 0)

    def add(self, name: str, count: int = 1) -> None:
        """Count some more."""
        if count:
            self._values[name] = self._values.get(name, 0) + count

    def put(self, name: str, value: float | str | None) -> None:
        """Replace a fact."""
        self._values[name] = value

    def __getitem__(self, name: str) -> Any:
        return self._values.get(name, 0)

    def shown(self) -> dict[str, Any]:
        """All of them."""
        return dict(self._values)

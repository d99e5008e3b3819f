"""A checker of whole histories: what clients were told, what the broker wrote down, what ran.

Three witnesses, and none of them is believed alone. Producers say which tasks they tried to enqueue
and which were acknowledged. The broker's event stream says when each lease began and ended and what
became of each task. The handlers say under which lease they came to their end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from fairlead.model.events import Event
from fairlead.model.lifecycle import FINAL

__all__ = ("History", "Verdict")

_ENDS = frozenset(("completed", "retrying", "snoozed", "released", "recovered"))
_MAY_END = frozenset(("dead", "cancelled"))  # a lease if they carry its token
_CLOCK = 0.002  # seconds that two processes on one machine may disagree about the time


@dataclass
class Verdict:
    """What was found. All but ``duplicated`` are defects; that one is what at-least-once means."""

    lost: list[str] = field(default_factory=list)  # acknowledged, and neither final nor known
    unexpected: list[str] = field(default_factory=list)  # ran or ended, but nobody enqueued it
    overlapped: list[str] = field(default_factory=list)  # two leases at the same time
    twice: list[str] = field(default_factory=list)  # ended more than once in one generation
    wrong: list[str] = field(default_factory=list)  # the outcome is not that of the lease it names
    unannounced: list[str] = field(default_factory=list)  # ended under a lease that never started
    duplicated: Counter[str] = field(default_factory=Counter)  # leases, of tasks with several

    @property
    def clean(self) -> bool:
        return not self.defects

    @property
    def defects(self) -> dict[str, list[str]]:
        """The kinds of defects that were found, with a sentence for each."""
        names = ("lost", "unexpected", "overlapped", "twice", "wrong", "unannounced")
        return {name: found for name in names if (found := getattr(self, name))}


@dataclass
class _Lease:
    incarnation: str
    at: float


@dataclass
class _End:
    state: str
    token: int
    at: float


class History:
    """Records in any order of the witnesses; each witness in the order of its own time."""

    def __init__(self) -> None:
        self._attempted: set[str] = set()
        self._acknowledged: set[str] = set()
        self._known: set[str] = set()
        self._leases: dict[str, dict[int, _Lease]] = defaultdict(dict)  # in force
        self._lent: dict[str, list[int]] = defaultdict(list)
        self._handlers: dict[str, dict[int, float]] = defaultdict(dict)  # when each came to its end
        self._fenced: dict[str, set[int]] = defaultdict(set)
        self._generation: Counter[str] = Counter()
        self._terminal: dict[tuple[str, int], list[_End]] = defaultdict(list)
        self._results: dict[str, int] = {}
        self._overlapped: list[str] = []
        self._stray: list[str] = []

    # -- clients --------------------------------------------------------------------------------

    def attempted(self, id: str) -> None:
        """A producer is about to enqueue it, for the first time or again."""
        self._attempted.add(id)

    def acknowledged(self, id: str) -> None:
        """The broker told a producer that it has it."""
        self._acknowledged.add(id)

    def known(self, id: str) -> None:
        """The broker still has it, in a state that is not final."""
        self._known.add(id)

    def result(self, id: str, token: int) -> None:
        """The stored result is what the handler under this lease returned."""
        self._results[id] = token

    # -- the broker -----------------------------------------------------------------------------

    def started(self, id: str, token: int, incarnation: str, at: float) -> None:
        """A lease began. While it is in force no other may."""
        for other, lease in self._leases[id].items():
            if other != token:
                since = f"{lease.incarnation or other} since {lease.at:.3f}"
                by = incarnation or token
                self._overlapped.append(f"{id} was lent to {by} at {at:.3f}, while {since} had it")
        self._leases[id][token] = _Lease(incarnation, at)
        self._lent[id].append(token)

    def ended(self, id: str, token: int, at: float) -> None:
        """A lease ended: settled, released, given back or swept."""
        if self._leases[id].pop(token, None) is None and token in self._lent[id]:
            self._stray.append(f"{id}: the lease {token} ended again at {at:.3f}")

    def fenced(self, id: str, token: int) -> None:
        """An outcome under this lease was refused."""
        self._fenced[id].add(token)

    def terminal(self, id: str, state: str, token: int = 0, at: float = 0.0) -> None:
        """The task reached a final state, under a lease or without one."""
        self._terminal[id, self._generation[id]].append(_End(state, token, at))

    def requeued(self, id: str) -> None:
        """An operator put it back; from here on it is another generation."""
        self._generation[id] += 1

    def read(self, events: Iterable[Event]) -> None:
        """All that the broker's own stream says, in its order."""
        for event in events:
            id, kind, token = event.task, event.kind, event.token
            if kind == "started":
                self.started(id, token, "", event.at)
            elif kind in _ENDS or (kind in _MAY_END and token):
                self.ended(id, token, event.at)
            if kind == "fenced":
                self.fenced(id, token)
            elif kind == "requeued":
                self.requeued(id)
            elif kind in FINAL:
                self.terminal(id, kind, token, event.at)

    # -- handlers -------------------------------------------------------------------------------

    def finished(self, id: str, token: int, at: float) -> None:
        """The handler under this lease came to its end, just before it returned."""
        self._handlers[id].setdefault(token, at)

    # -- judgement ------------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """What is wrong with all that was recorded."""
        ended = {id for id, _ in self._terminal}
        met = ended | self._handlers.keys() | self._lent.keys()
        return Verdict(
            lost=sorted(self._acknowledged - ended - self._known),
            unexpected=sorted(met - self._attempted),
            overlapped=self._overlapped,
            twice=[
                f"{id} ended {len(ends)} times: {', '.join(end.state for end in ends)}"
                for (id, _), ends in self._terminal.items()
                if len(ends) > 1
            ],
            wrong=[*self._stray, *self._misattributed()],
            unannounced=[
                f"{id} is {end.state} under {end.token}, a lease that nobody saw begin"
                for (id, _), ends in self._terminal.items()
                for end in ends
                if end.token and end.token not in self._lent[id]
            ],
            duplicated=Counter(
                {id: len(tokens) for id, tokens in self._lent.items() if len(tokens) > 1}
            ),
        )

    def _misattributed(self) -> Iterable[str]:
        """Outcomes that were written down under a lease that they do not belong to."""
        for (id, generation), ends in self._terminal.items():
            end = ends[-1]
            what = f"{id} is {end.state} under {end.token}"
            if end.token in self._fenced[id]:
                yield f"{what}, but the outcome of that lease was refused"
            if end.state == "completed" and self._handlers:
                came = self._handlers[id].get(end.token)
                if came is None:
                    yield f"{what}, whose handler never came to its end"
                elif end.at and came > end.at + _CLOCK:
                    yield f"{what}, whose handler came to its end {came - end.at:.3f} s later"
            result = self._results.get(id)
            if result is not None and generation == self._generation[id] and result != end.token:
                yield f"{what}, with the result of {result}"

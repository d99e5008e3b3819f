"""What is here on loan: the only object that the components of a worker change together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

from fairlead.broker.requests import LeaseRef, Settled
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased
from fairlead.model.retries import runs_once
from fairlead.worker.process.shared_state import SharedState

#: Why an attempt has to stop: out of time, cancelled by somebody, handed back because the worker
#: stops, or no longer ours.
Stop = Literal["timeout", "cancel", "release", "lost"]

#: What an attempt needs besides a slot: nothing, a thread, or a slot process.
Kind = Literal["loop", "thread", "process"]


class Running(Protocol):
    """An attempt that is under way."""

    @property
    def lease(self) -> Leased: ...

    @property
    def task(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    def stop(self, why: Stop) -> None:
        """Ask it to stop. Whatever it does, it counts as finished soon after."""
        ...

    def withdraw(self) -> None:
        """Hand it back if its handler has not begun."""
        ...

    def where(self) -> str:
        """Which attempt it is and where its code is right now, for people."""
        ...


class Inflight:
    """Attempts by task id and token: a task may come back while its last attempt still ends.

    ``held`` are leases whose turn comes when a slot is free. Everything on loan is known here from
    the reply that lent it until the answer to its outcome, and stands in the shared state, if any.
    """

    def __init__(
        self,
        incarnation: str,
        shared_state: SharedState | None = None,
        *,
        release: Callable[[Leased], None] | None = None,
    ) -> None:
        """``release`` gives back what was held; needed only where something is."""
        self.held: deque[Leased] = deque()
        self._release = release
        self.incarnation = incarnation
        self.running: dict[tuple[str, int], Running] = {}
        # Of these, those that need more than a slot.
        self.kinds: dict[Kind, int] = {"loop": 0, "thread": 0, "process": 0}
        self._some, self._none = asyncio.Event(), asyncio.Event()
        self._none.set()
        self._shared_state = shared_state
        self._left: set[tuple[str, int]] = set()  # whose handlers go on, though told to stop
        # By token, and then by id, with its row there: what one call lent shares a token.
        self._lent: dict[int, dict[str, int | None]] = {}
        self._answered = 0
        self._awaited: int | None = None  # the number of a wait that may still bring a task

    def __len__(self) -> int:
        return len(self.running)

    def __iter__(self) -> Iterator[Running]:
        return iter(list(self.running.values()))

    @property
    def room(self) -> int | None:
        """How many more rows the shared state has; None without one."""
        if self._shared_state is None:
            return None
        return self._shared_state.rows - sum(map(len, self._lent.values()))

    @property
    def left(self) -> int:
        """How many handlers go on that nobody waits for, with the leases of their tasks."""
        return len(self._left)

    @property
    def answered(self) -> int:
        """The number of the last call of which all that it lent is known here."""
        if self._awaited is None:
            return self._answered
        return min(self._answered, self._awaited - 1)

    def await_task(self, number: int) -> None:
        """A wait under this number has begun: it may be handed a task until ``lent`` is called."""
        self._awaited = number

    def lent(self, leases: Sequence[Leased], number: int) -> None:
        """A call was answered: what it lent is ours from now on, though nothing has begun.

        Of a wait: it is over, and brings nothing else.
        """
        shared_state = self._shared_state
        left = leases
        while left:
            token = left[0].token  # that of all, as a rule
            ids = [lease.message.id for lease in left if lease.token == token]
            loans = self._lent.setdefault(token, {})
            if shared_state is None:
                loans.update(dict.fromkeys(ids))
            else:
                loans.update(shared_state.take(ids, token))
            left = [x for x in left if x.token != token] if len(ids) < len(left) else ()
        self._answered = max(self._answered, number)
        if number == self._awaited:
            self._awaited = None
        if self._shared_state is not None:
            # Last: whoever reads it first finds all of them.
            self._shared_state.answered(self.answered)

    def is_lent(self, id: str, token: int) -> bool:
        """Whether this loan is known here."""
        return id in self._lent.get(token, ())

    def begun(self, lease: Leased, task: int) -> None:
        """Its handler is about to run: a crash is charged to it from now on."""
        shared_state, message = self._shared_state, lease.message
        if shared_state is not None:
            loans = self._lent.get(lease.token)
            row = None if loans is None else loans.get(message.id)
            if row is not None:
                flags = message.flags
                shared_state.start(row, task, once=flags != 0 and runs_once(flags))

    def over(self, id: str, token: int) -> None:
        """The broker has answered for its outcome, or it is lost: it is not ours any more."""
        self._left.discard((id, token))
        loans = self._lent.get(token, {})
        row = loans.pop(id, None)
        if not loans:
            self._lent.pop(token, None)
        if row is not None and self._shared_state is not None:
            self._shared_state.drop(row)

    def answer(self, settlements: Sequence[Settlement], answers: Sequence[Settled]) -> None:
        """The broker has answered for these outcomes; some are to be sent again later."""
        if "later" in answers:
            both = zip(settlements, answers, strict=True)
            settlements = [settlement for settlement, answer in both if answer != "later"]
        lent, rows = self._lent, []
        token: int | None = None  # of the one before, mostly that of the next one as well
        loans: dict[str, int | None] = {}
        for settlement in settlements:
            if settlement.token != token:
                if token is not None and not loans:
                    lent.pop(token, None)
                token = settlement.token
                loans = lent.get(token, {})
            row = loans.pop(settlement.id, None)
            if row is not None:
                rows.append(row)
        if token is not None and not loans:
            lent.pop(token, None)
        if self._left:
            self._left.difference_update((each.id, each.token) for each in settlements)
        if rows and self._shared_state is not None:
            self._shared_state.drop(*rows)

    def spool(self, id: str, token: int) -> None:
        """Its outcome goes to the disk: if this process dies from now on, others settle it."""
        row = self.row(id, token)
        if row is not None and self._shared_state is not None:
            self._shared_state.spool(row)

    def unspool(self, id: str, token: int) -> None:
        """The spool was too full for its outcome, which ends with this process."""
        row = self.row(id, token)
        if row is not None and self._shared_state is not None:
            self._shared_state.unspool(row)

    def leave(self, lease: Leased, *, late: bool) -> None:
        """Its handler goes on. When it ends, or this process does, the task is given back."""
        self._left.add((lease.message.id, lease.token))
        row = self.row(lease.message.id, lease.token)
        if late and row is not None and self._shared_state is not None:
            self._shared_state.charge(row)

    def row(self, id: str, token: int) -> int | None:
        """Its row in the shared state."""
        loans = self._lent.get(token)
        return None if loans is None else loans.get(id)

    def add(self, attempt: Running) -> None:
        """It takes a slot from now on."""
        if not self.running:
            self._some.set()
            self._none.clear()
        lease, kind = attempt.lease, attempt.kind
        key = lease.message.id, lease.token
        if kind != "loop" and key not in self.running:  # else it takes the place of what read
            self.kinds[kind] += 1  # its results
        self.running[key] = attempt

    def remove(self, attempt: Running) -> None:
        """Its slot is free again."""
        lease, kind = attempt.lease, attempt.kind
        if self.running.pop((lease.message.id, lease.token), None) is not None and kind != "loop":
            self.kinds[kind] -= 1
        if not self.running:
            self.emptied()

    def emptied(self) -> None:
        """Nothing is ``running`` any more; who minds the call of ``remove`` says so here."""
        self._some.clear()
        self._none.set()

    async def none(self) -> None:
        """Return as soon as there is no attempt."""
        await self._none.wait()

    async def some(self) -> None:
        """Return as soon as there is an attempt."""
        await self._some.wait()

    def stop(self, id: str, token: int, why: Stop) -> bool:
        """Stop one attempt; False if it is not running here any more."""
        attempt = self.running.get((id, token))
        if attempt is None:
            held = self._drop(id, token)
            if why == "lost":
                self.over(id, token)
            elif held is not None and self._release is not None:
                self._release(held)
                return True
            return False
        attempt.stop(why)
        return True

    def stop_all(self, why: Stop) -> None:
        """Stop every attempt."""
        for attempt in self:
            attempt.stop(why)

    def withdraw_all(self) -> None:
        """Hand back every attempt that has not begun."""
        for attempt in self:
            attempt.withdraw()

    def ref(self, lease: Leased) -> LeaseRef:
        """The proof of a lease of ours."""
        return LeaseRef(lease.message.id, self.incarnation, lease.token)

    def leases(self) -> list[LeaseRef]:
        """All that is on loan, also what is over and unsent, in the order in which it was lent."""
        who = self.incarnation
        return [LeaseRef(id, who, token) for token, loans in self._lent.items() for id in loans]

    def _drop(self, id: str, token: int) -> Leased | None:
        """Of what is held, keep all but this; the lease, if it was held."""
        for lease in self.held:
            if (lease.message.id, lease.token) == (id, token):
                self.held.remove(lease)
                return lease
        return None

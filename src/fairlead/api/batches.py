"""Many new tasks at once: sent in pieces, answered one by one, in order.

What becomes of one does not stop the others. Only a broker that does not answer ends a batch: then
each task of the piece under way is ``in_doubt``, unless it is certain that nothing was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from fairlead.api.http.problems import BrokerAway, Problem, ProblemBody, problem_of
from fairlead.api.http.route import Request
from fairlead.api.submissions import (
    NewTask,
    durability_of,
    foreign_dependencies,
    submission_of,
)
from fairlead.broker.call_sizes import chunks
from fairlead.broker.requests import Durability, Receipt, Submission
from fairlead.client import error_of
from fairlead.model.errors import (
    BrokerError,
    FairleadError,
    InvalidInput,
    Refused,
    UnknownDependency,
    Unreachable,
)

#: ``in_doubt``: it may have been accepted, or not; its id tells. ``stopped``: neither this one nor
#: any behind it was looked at.
Code = Literal["accepted", "duplicate", "refused", "in_doubt", "stopped"]


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one task of a batch."""

    index: int  # from 0, in the order given
    code: Code
    id: str | None = None
    durability: Durability | None = None  # of what was accepted; see ``Accepted``
    problem: ProblemBody | None = None


class Stopped(Exception):
    """The broker does not answer: what was not sent yet never will be."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.body.detail)
        self.problem = problem


class Piece:
    """A part of a batch that goes to the broker together."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._lines: dict[int, Line] = {}
        self._submissions: list[tuple[int, Submission]] = []
        self._durability: dict[int, Durability] = {}  # by index: the least that will do
        self.stopped: Stopped | None = None

    async def add(self, index: int, new: NewTask) -> None:
        """Check a task and put it in; what is wrong with it becomes its answer.

        Raises ``Stopped`` if the broker does not say what is known of tasks: then it would not
        say so of any other one either, and each would wait as long.
        """
        try:
            submission = await submission_of(self._request, new)
        except BrokerError as error:
            raise Stopped(problem_of(error) or BrokerAway()) from None
        except (Problem, FairleadError) as error:
            self.refuse(index, error)
        else:
            self._submissions.append((index, submission))
            self._durability[index] = durability_of(new)

    def refuse(self, index: int, error: Exception) -> None:
        """Answer for a task that is not sent."""
        problem = problem_of(error)
        if problem is None:
            raise error
        self._lines[index] = Line(index=index, code="refused", problem=problem.body)

    def raise_refusal(self) -> None:
        """Raise the first refusal so far: for callers who send all or nothing."""
        for index, line in sorted(self._lines.items()):
            if line.problem is not None:
                raise _At(index, line.problem)

    async def send(self) -> list[Line]:
        """Send what was put in; an answer for each, in order."""
        by_id = {id(submission): index for index, submission in self._submissions}
        todo = [submission for _, submission in self._submissions]
        try:
            foreign = await foreign_dependencies(self._request, todo)
        except BrokerError as error:  # only a read: nothing was sent
            self.stopped = Stopped(problem_of(error) or BrokerAway())
            foreign = {}
        for index, submission in self._submissions:
            if (dependency := foreign.get(submission.message.id)) is not None:
                self.refuse(index, UnknownDependency(submission.message.id, dependency))
        todo = [each for each in todo if each.message.id not in foreign]
        # Those that follow each other and will do with the same go together.
        for durability, run in groupby(todo, lambda each: self._durability[by_id[id(each)]]):
            for chunk in chunks(list(run)):
                indices = [by_id[id(submission)] for submission in chunk]
                if self.stopped is None:
                    await self._send(chunk, indices, durability)
                else:
                    self._give_up(indices, chunk, self.stopped.problem, "refused")
        return [self._lines[index] for index in sorted(self._lines)]

    async def _send(
        self, chunk: Sequence[Submission], indices: list[int], durability: Durability
    ) -> None:
        try:
            receipts = await self._request.client.submit_many(chunk, None, durability)
        except InvalidInput as error:
            if len(chunk) == 1:
                self.refuse(indices[0], error)
                return
            # One of them spoils the others: one by one, it is found.
            for index, submission in zip(indices, chunk, strict=True):
                if self.stopped is None:
                    await self._send([submission], [index], durability)
                else:
                    self._give_up([index], [submission], self.stopped.problem, "refused")
        except BrokerError as error:
            problem = problem_of(error) or BrokerAway()
            if durability == "spooled" or self._request.service.fallback is None:
                self.stopped = Stopped(problem)  # else others of them may be spooled
            # Several calls may have been made for tasks that depend on each other.
            unwritten = isinstance(error, (Unreachable, Refused))
            certain = unwritten and not any(s.depends_on for s in chunk)
            self._give_up(indices, chunk, problem, "refused" if certain else "in_doubt")
        else:
            self._lines.update(zip(indices, _answers(indices, chunk, receipts), strict=True))

    def _give_up(
        self, indices: Sequence[int], chunk: Sequence[Submission], problem: Problem, code: Code
    ) -> None:
        body = msgspec.structs.replace(problem.body, ids=())
        for index, submission in zip(indices, chunk, strict=True):
            id = submission.message.id
            self._lines[index] = Line(index=index, code=code, id=id, problem=body)


class _At(Problem):
    """What is wrong with one task of an array."""

    def __init__(self, index: int, body: ProblemBody) -> None:
        super().__init__(body.detail, retry_after=body.retry_after)
        field = f"[{index}].{body.field}" if body.field else f"[{index}]"
        self.body = msgspec.structs.replace(body, field=field)


def _answers(
    indices: list[int], chunk: Sequence[Submission], receipts: list[Receipt]
) -> Iterator[Line]:
    for index, submission, receipt in zip(indices, chunk, receipts, strict=True):
        if receipt.code == "accepted" or receipt.code == "duplicate":
            yield Line(index=index, code=receipt.code, id=receipt.id, durability=receipt.durability)
            continue
        problem = problem_of(error_of(receipt, submission) or BrokerAway())
        body = None if problem is None else problem.body
        yield Line(index=index, code="refused", id=submission.message.id, problem=body)

"""Many new tasks in one request: an array, or lines that are answered as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Literal

import msgspec

from fairlead.api.batches import Line, Piece, Stopped
from fairlead.api.http.input import JSON, refusal_of
from fairlead.api.http.problems import BodyTooLarge, Draining, Problem, SpoolAway, SpoolOverflow
from fairlead.api.http.route import Reply, Request, Route
from fairlead.api.submissions import NewTask

NDJSON = "application/x-ndjson"
_MOST = 5_000  # tasks in one array
_PIECE = 500  # lines that are sent together
_TURN = 100  # lines after which other requests get a turn
_MAX_BATCH = 4 * 1024 * 1024  # bytes of an array: decoded it may take fifty times as much
_MAX_LINE = 2 * 1024 * 1024  # bytes of one line

_DONE = NewTask(task="")

_decode = msgspec.json.Decoder(NewTask).decode
_encode_lines = msgspec.json.Encoder().encode_lines


class BatchQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which lines are answered: all, or those that were not accepted and a last one that counts."""

    answers: Literal["all", "refused"] = "all"


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each task, in the order given.

    Of those that were accepted, ``spooled`` are on the disk of this server, as the broker is away.
    """

    accepted: int
    spooled: int
    duplicates: int
    refused: int
    in_doubt: int
    results: list[Line]


class Summary(msgspec.Struct, frozen=True, kw_only=True, tag_field="code", tag="end"):
    """The last line of an answer to lines."""

    lines: int
    accepted: int
    spooled: int
    duplicates: int
    refused: int
    in_doubt: int


async def submit_many(request: Request) -> Reply:
    """Enqueue many tasks."""
    if request.receive is not None:
        return Reply(stream=_answered(request), media_type=NDJSON)
    tasks: list[NewTask] = request.body
    if len(tasks) > _MOST:
        raise BodyTooLarge(f"the array has {len(tasks)} tasks", rule=f"at most {_MOST} tasks")
    piece = Piece(request)
    for index, new in enumerate(tasks):
        try:
            await piece.add(index, new)
        except Stopped as stopped:
            raise stopped.problem from None  # nothing was sent yet
        tasks[index] = _DONE  # its arguments are packed now
        if index % _TURN == 0:
            await asyncio.sleep(0)
    piece.raise_refusal()
    results = await piece.send()
    counts = _Counts()
    counts.add(results)
    if piece.stopped is not None and not counts.any_kept:
        raise piece.stopped.problem
    status = 207 if any(map(_is_bad, results)) else 202 if counts.spooled else 200
    return Reply(value=BatchAnswer(results=results, **counts.fields()), status=status)


async def _answered(request: Request) -> AsyncGenerator[bytes, None]:
    """The answers, line by line. One piece is with the broker while the next one is read."""
    counts, reader = _Counts(), _Reader(request)
    shows_all = request.query.answers == "all"
    piece: Piece | None = None
    sending: asyncio.Task[list[Line]] | None = None
    stop: Problem | None = None
    at = 0  # the first line that was not looked at
    try:
        while True:
            following: Piece | None = None
            try:
                following = await reader.piece()
            except Problem as problem:
                stop = problem
            if piece is not None and sending is not None:
                lines = await sending
                sending = None
                counts.add(lines)
                yield _encode_lines([line for line in lines if shows_all or _is_bad(line)])
                stop = piece.stopped.problem if piece.stopped is not None else stop
            if following is None or stop is not None:
                break
            piece, at = following, reader.count
            sending = asyncio.create_task(piece.send())
            await asyncio.sleep(0)  # so that it goes out before the next one is put together
    finally:
        if sending is not None:  # the caller hung up; what was begun is not left in doubt
            await asyncio.wait([sending])
    if stop is not None:
        yield _encode_lines([Line(index=at, code="stopped", problem=stop.body)])
    yield _encode_lines([counts.summary(at)])


class _Reader:
    """Puts pieces together from the lines of a body; keeps no more than one of them."""

    def __init__(self, request: Request) -> None:
        assert request.receive is not None  # noqa: S101 - the route is asked for this only then
        self._request = request
        self._chunks = request.receive()
        self._rest: list[bytes] = []  # the beginning of a line, as it came
        self._size = 0  # of it
        self._tasks: list[bytes] = []
        self._stop: Problem | None = None  # behind the piece that was made last
        self.count = 0  # lines that were put into pieces

    async def piece(self) -> Piece | None:
        """The next lines; None at the end. Raises what is wrong with the body as a whole."""
        if self._request.service.draining:
            raise Draining("this server is about to stop; send the rest again", retry_after=1.0)
        if self._stop is not None:
            raise self._stop
        while not self._tasks:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                self._tasks = _split(self._joined(b""))
                if not self._tasks:
                    return None
                break
            whole, newline, rest = chunk.rpartition(b"\n")
            if newline:
                self._tasks = _split(self._joined(whole))
            if self._size + len(rest) > _MAX_LINE:
                raise BodyTooLarge("a line is too long", rule=f"at most {_MAX_LINE} bytes")
            self._rest.append(rest)
            self._size += len(rest)
        lines, self._tasks = self._tasks[:_PIECE], self._tasks[_PIECE:]
        return await self._made(lines)

    def _joined(self, end: bytes) -> bytes:
        """The beginning of the line that is kept, and the rest of it; once, however it came."""
        whole = b"".join((*self._rest, end))
        self._rest.clear()
        self._size = 0
        return whole

    async def _made(self, lines: list[bytes]) -> Piece:
        piece = Piece(self._request)
        for line in lines:
            try:
                new = _decode(line)
            except (ValueError, RecursionError) as error:
                piece.refuse(self.count, refusal_of(error, line, NewTask.__struct_fields__))
            else:
                try:
                    await piece.add(self.count, new)
                except Stopped as stopped:
                    self._stop = stopped.problem
                    break
            self.count += 1
            if self.count % _TURN == 0:
                await asyncio.sleep(0)  # others have requests too
        return piece


def _split(data: bytes) -> list[bytes]:
    return [line for line in data.split(b"\n") if line and not line.isspace()]


def _is_bad(line: Line) -> bool:
    return line.code not in ("accepted", "duplicate")


class _Counts:
    """How many lines there were of each kind."""

    def __init__(self) -> None:
        self._by_code: dict[str, int] = {}
        self.spooled = 0

    def add(self, lines: list[Line]) -> None:
        for line in lines:
            self._by_code[line.code] = self._by_code.get(line.code, 0) + 1
            self.spooled += line.durability == "spooled"

    @property
    def any_kept(self) -> bool:
        """Whether any of them was accepted, as far as is known."""
        return not self._by_code.keys().isdisjoint(("accepted", "duplicate"))

    def fields(self) -> dict[str, int]:
        of = self._by_code.get
        return {
            "accepted": of("accepted", 0),
            "spooled": self.spooled,
            "duplicates": of("duplicate", 0),
            "refused": of("refused", 0),
            "in_doubt": of("in_doubt", 0),
        }

    def summary(self, lines: int) -> Summary:
        return Summary(lines=lines, **self.fields())


ROUTES = (
    Route(
        method="POST",
        path="/tasks/batch",
        handler=submit_many,
        scope="submit",
        summary=(
            "Submit many tasks: a JSON array, or lines of JSON that are answered as they come. "
            "207: not all were accepted."
        ),
        body=list[NewTask],
        query=BatchQuery,
        answer=BatchAnswer,
        also={
            202: "All were accepted, some of them on the disk of this server: the broker is away.",
            207: "Some were not accepted: look at each.",
        },
        problems=(BodyTooLarge, SpoolOverflow, SpoolAway),
        spools=True,
        streams=(JSON, NDJSON),
        max_body=_MAX_BATCH,
        patience=None,
    ),
)

"""Lines that attempts keep with their task: appended, bounded, fenced, beside the checkpoint."""

from __future__ import annotations

from random import Random

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import LeaseRef, Write
from fairlead.model.errors import InvalidInput
from fairlead.model.log_lines import (
    MAX_CHUNK,
    MAX_LINES,
    MAX_LOG,
    chunk_of,
    kept_parts,
    packed_line,
    read_log,
    with_checkpoint,
    with_lines,
)
from tests.support.store import NOW, Client, completed, record, released, submit


def chunk(*texts: str, missed: int = 0, attempt: int = 1) -> bytes:
    return chunk_of([packed_line(1.0, attempt, text, b"\x80") for text in texts], missed, None)


def lines(lease: LeaseRef, *texts: str, missed: int = 0, attempt: int = 1) -> Write:
    return Write(lease=lease, kind="log", value=chunk(*texts, missed=missed, attempt=attempt))


async def texts(broker: Store, id: str) -> list[str]:
    (found,) = await broker.find([id], parts="log", now=NOW)
    assert found is not None
    return [line.text for line in read_log(found.log)]


async def test_lines_are_appended_through_all_attempts_and_stay(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    ref = c.ref(lease)
    assert await c.write(lines(ref, "a", "b"), lines(ref, "c")) == ["applied", "applied"]
    assert await c.write(lines(ref, "d")) == ["applied"]
    await c.settle(released(lease))
    (again,) = await c.fetch(1)
    assert await c.write(lines(c.ref(again), "e", attempt=2)) == ["applied"]
    assert await c.write(lines(ref, "late")) == ["fenced"]
    await c.settle(completed(again))
    found = await record(broker, "t1")
    assert found.log is not None
    assert [(line.attempt, line.text) for line in read_log(found.log)] == [
        (1, "a"), (1, "b"), (1, "c"), (1, "d"), (2, "e"),
    ]  # fmt: skip
    assert (found.checkpoint, found.progress) == (None, None)
    (info,) = await broker.find(["t1"], parts="info", now=NOW)
    assert info is not None
    assert info.log is None


async def test_the_checkpoint_lies_beside_them(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    ref = c.ref(lease)
    for value in (b"one", b"", b"three"):
        await c.write(Write(lease=ref, kind="checkpoint", value=value), lines(ref, str(value)))
        assert (await record(broker, "t1")).checkpoint == value
    assert await texts(broker, "t1") == [str(b"one"), str(b""), str(b"three")]


async def test_any_order_of_writes_stores_what_the_model_says(broker: Store, c: Client) -> None:
    dice = Random(7)
    (lease,) = await c.run(submit("t1"))
    kept: bytes | None = None
    for turn in range(20):
        longest = 10 if turn < 10 else 300  # their number is what bounds them, then their bytes
        batch = []
        for _ in range(dice.randrange(1, 6)):
            if dice.random() < 0.3:
                value = dice.randbytes(dice.randrange(100))
                batch.append(Write(lease=c.ref(lease), kind="checkpoint", value=value))
                kept = with_checkpoint(kept, value)
            else:
                many = ["x" * dice.randrange(longest) for _ in range(dice.randrange(1, 60))]
                batch.append(lines(c.ref(lease), *many, missed=dice.randrange(3)))
                kept = with_lines(kept, batch[-1].value)
        assert await c.write(*batch) == ["applied"] * len(batch)
        found = await record(broker, "t1")
        assert (found.checkpoint, found.log) == kept_parts(kept)
    log = read_log(kept_parts(kept)[1])
    assert log.dropped > MAX_LINES / 2
    assert len(log) <= MAX_LINES
    assert len(kept_parts(kept)[1] or b"") <= MAX_LOG + 8


async def test_what_is_no_chunk_is_refused(c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    for value in (b"", b"\0\0\0\0", bytes(9), b"\1\0\0\0" + bytes(2 * MAX_CHUNK + 1)):
        with pytest.raises(InvalidInput, match="a chunk of lines"):
            await c.write(Write(lease=c.ref(lease), kind="log", value=value))

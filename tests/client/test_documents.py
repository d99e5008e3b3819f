"""A client writes and reads documents, notes, orders to workers and settings, however many."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairlead.broker.documents import DocumentChange
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import QueueChange
from fairlead.client.client import Client


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    broker = MemoryBroker()
    await broker.beat("w1", worker=WorkerRecord(incarnation="w1"))
    client = Client(broker)
    yield client
    await client.close()
    await broker.close()


async def test_more_documents_than_one_call_takes_are_written(client: Client) -> None:
    changes = [DocumentChange(kind="k", name=f"d{n:03}", value=b"v") for n in range(120)]
    answers = await client.write_documents(changes)
    assert [answer.code for answer in answers] == ["done"] * 120
    page = await client.store.documents("k", limit=100)
    rest = await client.store.documents("k", cursor=page.cursor)
    assert len(page.documents) + len(rest.documents) == 120
    assert [each.name for each in (await client.store.documents("k", ["d007"])).documents] == [
        "d007"
    ]


async def test_more_notes_than_one_call_takes_are_written_in_order(client: Client) -> None:
    values = [b"%03d" % n for n in range(120)]
    await client.note("trail", values)
    notes = await client.store.notes("trail", limit=200)
    assert [note.value for note in notes] == values[::-1]
    assert len(await client.store.notes("trail", before=notes[-2].number)) == 1


async def test_a_worker_is_ordered(client: Client) -> None:
    assert await client.order_worker("w1", "pause")
    assert [each.order for each in await client.store.workers()] == ["pause"]
    assert not await client.order_worker("nobody", "stop")


async def test_settings_are_read(client: Client) -> None:
    await client.configure([QueueChange(queue="q", concurrency=3)])
    assert [each.concurrency for each in (await client.store.settings()).queues] == [3]
    assert [each.concurrency for each in (await client.store.settings("other")).queues] == [None]

"""The small server of metrics: one path, one answer, and nothing that a caller can hold on to."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from fairlead import InvalidInput
from fairlead.telemetry import metrics_server
from fairlead.telemetry.metrics import Exposition
from fairlead.telemetry.metrics_server import serving_metrics
from tests.telemetry.exposed import samples


def shown() -> Exposition:
    exposition = Exposition()
    exposition.add("fairlead_worker_quiet", 1)
    return exposition


async def test_it_answers_a_scrape_and_nothing_else() -> None:
    async with serving_metrics(shown, port=0) as port, httpx.AsyncClient() as client:
        base = f"http://127.0.0.1:{port}"
        answer = await client.get(f"{base}/metrics?a=b")
        assert samples(answer.text) == {("fairlead_worker_quiet", frozenset()): 1}
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        answer = await client.get(f"{base}/metrics", headers=accept)
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert (await client.head(f"{base}/metrics")).status_code == 200
        assert (await client.get(f"{base}/")).status_code == 404
        assert (await client.post(f"{base}/metrics", content=b"x")).status_code == 405


async def test_on_loopback_a_foreign_name_is_refused() -> None:
    async with serving_metrics(shown, port=0) as port, httpx.AsyncClient() as client:
        for name, status in (("evil.example", 403), (f"localhost:{port}", 200), ("[::1]", 200)):
            answer = await client.get(f"http://127.0.0.1:{port}/metrics", headers={"Host": name})
            assert answer.status_code == status, name


async def test_slow_and_endless_callers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "_PATIENCE", 0.05)
    async with serving_metrics(shown, port=0) as port:
        for sent in (
            b"GET /metr",
            b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000,
            b"\x00\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            try:
                answer = await asyncio.wait_for(reader.read(), 5)
            except ConnectionError:
                answer = b""
            assert b"200" not in answer
            writer.close()


async def test_only_so_many_are_heard_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "_MAX_CONNECTIONS", 2)
    async with serving_metrics(shown, port=0) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 5)
        for _, each in (*held, (reader, writer)):
            each.close()


async def test_a_port_that_is_taken_is_named() -> None:
    async with serving_metrics(shown, port=0) as port:
        with pytest.raises(InvalidInput, match=rf"127\.0\.0\.1 port {port}"):
            async with serving_metrics(shown, port=port):
                pass

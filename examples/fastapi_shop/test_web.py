"""The web server with the testing kit: no broker, no worker, no waiting."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from fairlead import Fairlead
from fairlead.testing import Kit
from fastapi_shop.tasks import outbox, queue
from fastapi_shop.web import web


@pytest.fixture
def fairlead_target() -> Fairlead:
    return queue


def test_a_mail_is_accepted_sent_and_told_of(fairlead_kit: Kit) -> None:
    outbox.clear()
    with TestClient(web) as client:
        answer = client.post("/mails?company=acme", json={"to": "ada", "text": "hello"})
        assert answer.status_code == 202
        fairlead_kit.enqueued("send_mail", to="ada")
        path = f"/mails/{answer.json()['id']}?company=acme"
        assert client.get(path).json()["state"] == "queued"
        assert fairlead_kit.drain() == 1
        assert client.get(path).json()["state"] == "completed"
        assert client.get("/mails/unknown").status_code == 404
    assert outbox == [("ada", "hello")]


def test_the_server_may_be_started_again(fairlead_kit: Kit) -> None:
    for to in ("ada", "bob"):
        with TestClient(web) as client:
            client.post("/mails", json={"to": to, "text": "hello"})
    assert fairlead_kit.drain() == 2


def test_a_full_queue_is_told(fairlead_kit: Kit) -> None:
    queue.configure_queue("default", max_waiting=1)
    with TestClient(web) as client:
        codes = [
            client.post("/mails", json={"to": "ada", "text": "hi"}).status_code for _ in range(2)
        ]
    assert codes == [202, 429]


def test_the_api_is_mounted(fairlead_kit: Kit) -> None:
    with TestClient(web, base_url="http://127.0.0.1") as client:
        assert client.get("/queue/livez").status_code == 200

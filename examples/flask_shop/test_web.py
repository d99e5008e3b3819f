"""The web server with the testing kit."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from fairlead import Fairlead
from fairlead.testing import Kit
from flask_shop.tasks import printed, queue
from flask_shop.web import create_app


@pytest.fixture
def fairlead_target() -> Fairlead:
    return queue


@pytest.fixture
def client(fairlead_kit: Kit) -> FlaskClient:
    printed.clear()
    return create_app().test_client()


def test_an_order_gets_a_receipt(client: FlaskClient, fairlead_kit: Kit) -> None:
    assert client.post("/orders/7").status_code == 202
    assert client.get("/waiting").json == {"waiting": 1}
    assert fairlead_kit.drain() == 1
    assert printed == ["Ada's corner: order 7"]


def test_an_order_that_comes_twice_gets_one_receipt(client: FlaskClient, fairlead_kit: Kit) -> None:
    for _ in range(2):
        assert client.post("/orders/7").status_code == 202
    assert fairlead_kit.drain() == 1

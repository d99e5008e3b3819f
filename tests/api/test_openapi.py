"""The description of the API: complete, valid, and the one that is committed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.api.http.route import Route
from fairlead.api.openapi import document
from fairlead.api.route_table import BASE, ROUTES
from tests.api.app import open_api

COMMITTED = Path(__file__).parents[2] / "docs/reference/openapi.json"


def plain() -> Any:
    return json.loads(msgspec.json.encode(document()))


def test_the_committed_description_is_that_of_the_routes() -> None:
    committed = json.loads(COMMITTED.read_text())
    assert committed == plain(), "run: fairlead api --print-openapi > docs/reference/openapi.json"


async def test_a_server_hands_out_its_description() -> None:
    async with open_api() as (_, client):
        answer = await client.get("/openapi.json")
        assert answer.status_code == 200
        assert answer.json() == plain()


def test_every_route_is_described() -> None:
    paths = plain()["paths"]
    for route in ROUTES:
        operation = paths[BASE + route.path][route.method.lower()]
        assert operation["x-scope"] == route.scope
        assert operation["summary"] == route.summary
        for status in ("400", "401", "403", "422", "429", "503"):
            assert status in operation["responses"]
        names = re.findall(r"\{(\w+)\}", route.path)
        assert [p["name"] for p in operation["parameters"] if p["in"] == "path"] == names


def test_operations_have_names_of_their_own() -> None:
    ids = [each["operationId"] for path in plain()["paths"].values() for each in path.values()]
    assert len(ids) == len(set(ids))


def test_every_reference_leads_somewhere() -> None:
    text = json.dumps(plain())
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert names <= set(plain()["components"]["schemas"])
    assert names


@pytest.mark.parametrize("route", ROUTES, ids=lambda each: f"{each.method} {each.path}")
def test_bodies_and_parameters_forbid_what_they_do_not_know(route: Route) -> None:
    for kind in (route.body, route.query):
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            assert kind.__struct_config__.forbid_unknown_fields, kind

"""schemathesis over the whole description: good data and bad, all checks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import pytest
import schemathesis
from schemathesis.config import (
    GenerationConfig,
    ProjectConfig,
    ProjectsConfig,
    SchemathesisConfig,
)
from schemathesis.specs.openapi.checks import positive_data_acceptance

from fairlead.api.mount import Connection, Receive, Send
from fairlead.api.openapi import document
from tests.api.acceptance.world import World, opened_world
from tests.support.fair import EXAMPLES


class Application:
    """The server of the world that the tests of this file share, once there is one."""

    world: World | None = None
    calls = 0

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] == "lifespan":  # that of a client: the server outlives it
            for _ in range(2):
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
            return
        assert self.world is not None
        self.calls += 1  # from many places: one is soon told that it guesses too often
        connection["client"] = (
            f"10.{self.calls >> 16}.{self.calls >> 8 & 255}.{self.calls & 255}",
            1,
        )
        await self.world.api.server(connection, receive, send)


APPLICATION = Application()
GENERATION = GenerationConfig(max_examples=max(2, round(30 * EXAMPLES)), deterministic=True)
CONFIG = SchemathesisConfig(
    projects=ProjectsConfig(default=ProjectConfig(generation=GENERATION)),
)
whole = schemathesis.openapi.from_dict(dict(document()), config=CONFIG)
whole.app = APPLICATION


def is_tried(context: Any) -> bool:
    """Whether an operation is among those of a run: some of them in `make test`."""
    label: str = context.operation.label
    return EXAMPLES >= 1 or crc32(label.encode()) % 8 == 0 or label.endswith("POST /api/v1/tasks")


schema = whole.include(is_tried)


@schema.auth()
class Token:
    """Puts a token that may do all into each request, unless a check leaves it out."""

    text = ""

    def get(self, case: schemathesis.Case[Any], context: schemathesis.AuthContext) -> str:
        """What ``set`` is given."""
        return self.text

    def set(
        self, case: schemathesis.Case[Any], data: str, context: schemathesis.AuthContext
    ) -> None:
        """Put it in."""
        case.headers["Authorization"] = data


@pytest.fixture(scope="module")
def orderly() -> Iterator[None]:
    """Collect garbage between calls only.

    Each call has an event loop of its own; what is left of it may log a traceback when it is
    collected, which parses source. Before Python 3.11.9 and 3.12.3 that is an error of the
    interpreter if it happens while Hypothesis is parsing source, too.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def world(orderly: None) -> Iterator[World]:
    with asyncio.Runner() as runner:
        opened = opened_world(settings={"hosts": ("testserver",)})
        world = APPLICATION.world = runner.run(opened.__aenter__())
        Token.text = runner.run(world.api.token())["authorization"]
        yield world
        runner.run(opened.__aexit__(None, None, None))


@pytest.mark.filterwarnings("ignore:Skipped test cases:UserWarning")  # lines are tried elsewhere
@schema.parametrize()
def test_every_operation_keeps_to_its_description(
    case: schemathesis.Case[Any], world: World
) -> None:
    case.call_and_validate(excluded_checks=[positive_data_acceptance])
    if APPLICATION.calls % 50 == 0:
        gc.collect()
